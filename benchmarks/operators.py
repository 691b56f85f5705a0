"""Calibrations of NVIDIA's devices from a table of measured operators, and their errors.

    python benchmarks/operators.py operators_nvidia.csv.gz [--write [--device DEVICE]]

The table has the columns that `atoll validate --data` reads for operators of several devices. Of
each device, operator and format the half of the shapes with the smaller hash is fitted (the same
shapes on all devices) by `--write`, which writes the catalogue's calibrations. Errors of these are
of rows above 20 us: those not fitted by device, those of devices held out whole (priced by the
calibration of their family's other device), and all by operator and format. Where the package
`aiconfigurator-core` is installed, a table shows what is left of bf16 products when both of its
other timings of the very same products are known, which a model of sizes hardly comes below. The
last table has the same of our own timings of NVIDIA's bf16 products on another H200.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import atoll
from atoll.base.arrays import Floats
from atoll.calibration.fit import Knob, calibration_yaml, powell
from atoll.calibration.many_devices import TimedOperator, predicted_s, read_timed
from atoll.calibration.operator_rows import H200_OPERATORS, fitted_rows, read_operators
from atoll.calibration.validate import columns, predict_kind_s, skip_reason
from atoll.hardware.gpu import Calibration, Gpu, load_calibration, recalibrated, written_gpu
from atoll.hardware.physical.kernel_fits import AttentionFit, FormatFit
from operator_repeats import (
    LEFT_OUT,
    LONG_S,
    Rows,
    is_fitted,
    mean,
    print_repeats,
    print_second,
)
from record import recorded

SHORT_WEIGHT = 0.2  # of rows below: mostly launch
OWN_WEIGHT = 2  # of our own H200 timings, which the steps were measured beside
CITATION = (
    "fitted on half of the shapes of {device} that NVIDIA's aiconfigurator-core 0.12.0 has "
    "(Apache-2.0, arXiv:2601.06288); streaming and backward attention as measured on an H200"
)
TILES = {"a100": "ampere", "l40s": "ampere", "rtx-pro-6000": "ampere"}
ENGINE_TILES = {"bf16": "cublas"}
# The clock of boards falls at once when a kernel is long enough, that of cards gradually, and so
# it does in our replays on the H200, of other lengths than NVIDIA's.
ONSET = {"h200": 1, "l40s": 1, "rtx-pro-6000": 1}
# FlashAttention-3's block of small heads; on Blackwell two tiles of 128 queries where their sums
# (values of up to 128) fit tensor memory, heads filled up to 32 columns.
NARROW_ROWS = {"h100": 192, "h200": 192}
BLACKWELL = {"narrow_rows": 256, "narrow_head": 192, "head_columns": 32}
CAUSAL_ROWS = {"l40s": 64, "rtx-pro-6000": 64}  # FlashAttention-2's on small shared memories
BLACKWELLS = ("b200", "gb200", "b300", "gb300")
# DeepGEMM (by block) and FlashInfer's CuTe and CUTLASS kernels (nvfp4) never split reductions.
UNSPLIT = {
    (gpu, dtype) for gpu in (*BLACKWELLS, "h100", "h200") for dtype in ("fp8_block", "nvfp4")
}
UNSPLIT |= {("rtx-pro-6000", "nvfp4")}
WIDE_TILES = {(gpu, dtype) for gpu in BLACKWELLS for dtype in ("fp8", "fp8_block")}
WIDE_TILES |= {("rtx-pro-6000", "nvfp4")}
CAST_BY_ROW = {("rtx-pro-6000", "fp8_block")}  # whose engine casts row by row
LIMITED = {("l40s", "fp8")}  # at the power limit however short: 0.7 of the peak with all SMs busy
CARDS = ("l40s", "rtx-pro-6000")  # 8-bit attention is a kernel for each head size, tiles blocks
KERNEL_S = {"l40s": 2.5e-6, "rtx-pro-6000": 2.5e-6}  # without tensor maps to set up; others 5.1 us
# Devices whose training runs and steps are met by the H200's own kernels for training; elsewhere
# forward attention is taken as the engines' (without what their calls add).
TRAINING_KERNELS = ("a100-80", "h100", "h200")
FAMILY = {
    "h100": "h200", "h200": "h100", "b200": "gb200", "gb200": "b200", "b300": "gb300",
    "gb300": "b300", "l40s": "rtx-pro-6000", "rtx-pro-6000": "l40s",
}  # fmt: skip

PRODUCT_KNOBS = (
    Knob("matmul", 0.95, 0.4, 1.4),
    Knob("tile_half", 12.0, 0.0, 60.0),
    Knob("hbm", 0.8, 0.4, 1.0),
    Knob("kernel_s", 2.5e-6, 0.5e-6, 20e-6),
    Knob("throttle", 0.2, 0.0, 0.7),
    Knob("throttle_s", 1e-3, 0.1e-3, 20e-3),
    Knob("split_s", 3e-6, 0.0, 10e-6),
    Knob("epilogue", 0.5, 0.0, 1.0),
    Knob("exposed", 0.15, 0.0, 0.7),
    Knob("spill", 0.2, 0.0, 1.0),
    Knob("held", 0.1, 0.0, 1.0),
)
FORMAT_KNOBS = (
    Knob("matmul", 0.9, 0.2, 1.4),
    Knob("kernel_s", 4e-6, 0.5e-6, 30e-6),
    Knob("throttle", 0.2, 0.0, 2.0),
    Knob("throttle_s", 1e-3, 0.1e-3, 50e-3),
)
# Cards have a block for each tile; blocks of Hopper's and Blackwell's boards stay, and load the
# next tile while they write one: nought is found there. The A100's 4.3 us are left out with its
# steps, which were fitted without.
FILL = Knob("fill_s", 2e-6, 0.0, 10e-6)
IDLE = Knob("idle", 0.3, 0.0, 1.0)
CAST_ROW = Knob("cast_row_s", 10e-9, 0.0, 60e-9)
FORWARD_KNOBS = (
    Knob("matmul", 0.8, 0.2, 1.4),
    Knob("min_head", 75.0, 4.0, 256.0),
    Knob("exposed", 0.3, 0.0, 1.0),
    Knob("block_s", 2e-6, 0.0, 10e-6),
    Knob("engine_s", 3e-6, 0.0, 30e-6),
    Knob("throttle", 0.2, 0.0, 1.5),
    Knob("tail", 0.6, 0.0, 1.0),
    Knob("split_s", 4e-6, 0.0, 30e-6),
)
FP8_ENGINE = Knob("fp8_engine_s", 5e-6, 0.0, 40e-6)
FP8_GAIN = Knob("fp8_gain", 1.2, 0.2, 3.0)
FP8_BLOCKS = (Knob("fp8_block_s", 3e-6, 0.0, 12e-6), Knob("fp8_columns", 180.0, 0.0, 512.0))
COLUMNS = (
    (("gemm", "bf16"), "bf16"),
    (("gemm", "fp8"), "fp8"),
    (("gemm", "fp8_block"), "fp8 by block"),
    (("gemm", "nvfp4"), "nvfp4"),
    (("attention_prefill", "bf16"), "attention bf16"),
    (("attention_prefill", "fp8"), "fp8"),
    (("mla_prefill", "bf16"), "latent"),
)
Change = Callable[[Calibration, Mapping[str, float]], Calibration]


@dataclass(frozen=True)
class Judged:
    """Relative errors of an operator in one format on one device, rows above 20 us."""

    errors: Floats
    seen: NDArray[np.bool_]
    """Rows of the fitted half."""
    left: NDArray[np.bool_]
    """Rows of the one (n, k) that no fit sees."""


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("table")
    given.add_argument("--write", action="store_true", help="fit, and write the calibrations")
    given.add_argument("--device", action="append", help="fit these alone")
    asked = given.parse_args()
    by_device: defaultdict[str, dict[tuple[str, str], list[TimedOperator]]] = defaultdict(dict)
    for row in read_timed(asked.table)[0]:
        by_device[row.device].setdefault((row.op, row.precision), []).append(row)
    gpus = {device: written_gpu(device) for device in by_device}
    if asked.write:
        for device in asked.device or by_device:
            gpus[device] = written(gpus[device], by_device[device])
    own = {device: judged(gpu, by_device[device]) for device, gpu in gpus.items()}
    formats = " | ".join(name for _, name in COLUMNS)
    print(f"| device | {formats} | one (n, k) left out, bf16 / fp8 |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    for device, kinds in own.items():
        print(f"| {device} | {not_fitted(kinds)} | {left_out(kinds)} |")
    print(f"\n| device held out | priced as | {formats} |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    names = {gpu.name: device for device, gpu in gpus.items()}
    for device, gpu in gpus.items():
        if gpu.name in FAMILY:
            other = names[FAMILY[gpu.name]]
            told = judged(recalibrated(gpu, gpus[other].calibration), by_device[device])
            print(f"| {device} | {other} | {not_fitted(told)} |")
    print("\n| device | operator | format | rows | fitted | not fitted | bias | (n, k) left out |")
    print("|---|---|---|---|---|---|---|---|")
    for device, kinds in own.items():
        for (op, precision), found in kinds.items():
            errors = found.errors
            cells = (
                mean(np.abs(errors[found.seen])),
                mean(np.abs(errors[~found.seen])),
                mean(errors[~found.seen]),
                mean(np.abs(errors[found.left])),
            )
            print(f"| {device} | {op} | {precision} | {errors.size} | {' | '.join(cells)} |")
    print_repeats(gpus, by_device)
    if "h200" in names:
        print_second(gpus[names["h200"]], by_device[names["h200"]][("gemm", "bf16")])


def written(gpu: Gpu, rows: Rows) -> Gpu:
    """A device with a new fit, which the catalogue has from now on."""
    fit = fit_device(gpu, rows)
    name = gpu.name.split("-")[0] if gpu.name.startswith("a100") else gpu.name
    folder = Path(atoll.__file__).parent / "hardware" / "catalog" / "gpus"
    text = calibration_yaml(replace(fit, name=name)).replace(
        "`atoll calibrate`", "`benchmarks/operators.py`"
    )
    (folder / f"calibration-{name}.yaml").write_text(text)
    return recalibrated(gpu, fit)


def fit_device(gpu: Gpu, rows: Rows) -> Calibration:
    """Products of 16 bits, then of each narrow format, then attention, on the fitted half."""
    ratio = (
        0.0 if gpu.measured_flops is None else gpu.measured_flops / gpu.peak_flops(gpu.half_dtype)
    )
    h200 = load_calibration("h200")
    base = replace(
        h200,
        name=gpu.name,
        source=CITATION.format(device=gpu.name),
        tiles=TILES.get(gpu.name.split("-8")[0], "hopper"),
        onset=ONSET.get(gpu.name, 4),
        matmul_ratio=float(f"{ratio:.4g}"),
        formats=(),
    )
    if gpu.name != "h200":  # as the H200's, as much nearer to the peak as its products are
        scale = ratio / h200.matmul_ratio
        base = replace(
            base, forward=carried(h200.forward, scale), backward=carried(h200.backward, scale)
        )
    ours = own_rows(gpu) if gpu.name == "h200" else {}

    def stage(
        kinds: Sequence[tuple[str, str]],
        knobs: Sequence[Knob],
        change: Change,
        ours: Mapping[tuple[str, str], Mapping[str, Floats]] = ours,
    ) -> None:
        nonlocal base
        parts = [[r for r in rows.get(kind, ()) if is_fitted(r)] for kind in kinds]
        parts = [part for part in parts if part]
        if not parts:
            return
        start = base

        def loss(values: Mapping[str, float]) -> float:
            changed = recalibrated(gpu, change(start, values))
            found = [score(predicted_s(changed, part), part) for part in parts]
            found += [
                score_ours(changed, ours, kind) for kind in kinds if kind in ours
            ] * OWN_WEIGHT
            return float(np.mean(found))

        base = change(start, powell(loss, knobs))

    def products(fit: Calibration, values: Mapping[str, float]) -> Calibration:
        return replace(fit, **values)  # type: ignore[arg-type]

    filled = (FILL,) if gpu.name in CARDS else ()
    stage([("gemm", "bf16")], (*PRODUCT_KNOBS, *filled), products)
    for dtype in ("fp8", "fp8_block", "nvfp4"):

        def narrow(
            fit: Calibration, values: Mapping[str, float], dtype: str = dtype
        ) -> Calibration:
            own = FormatFit(
                **values,
                tiles="blackwell" if (gpu.name, dtype) in WIDE_TILES else None,
                splits=(gpu.name, dtype) not in UNSPLIT,
            )
            return replace(fit, formats=(*fit.formats, (dtype, own)))

        more = (CAST_ROW,) if (gpu.name, dtype) in CAST_BY_ROW else ()
        more += (IDLE,) if (gpu.name, dtype) in LIMITED else ()
        more += filled
        stage([("gemm", dtype)], (*FORMAT_KNOBS, *more), narrow)
    if ours:  # of a library for training, on our board; the engines' on theirs on their own
        for dtype in ("bf16", "fp8"):

            def by_engine(
                fit: Calibration, values: Mapping[str, float], dtype: str = dtype
            ) -> Calibration:
                own = (f"{dtype}_engine", FormatFit(**values, tiles=ENGINE_TILES.get(dtype)))
                return replace(fit, formats=(*fit.formats, own))

            stage([("gemm", dtype)], FORMAT_KNOBS, by_engine, {})
    rows_of = {
        "kernel_s": KERNEL_S.get(gpu.name, h200.forward.kernel_s),
        "narrow_rows": NARROW_ROWS.get(gpu.name, 128),
        "causal_rows": CAUSAL_ROWS.get(gpu.name, 256),
    }
    if gpu.name in BLACKWELLS:
        rows_of |= BLACKWELL
    prompts = rows[("attention_prefill", "bf16")]
    several = len({row.sizes[4] for row in prompts}) > 1
    knobs = [k for k in FORWARD_KNOBS if several or k.name not in ("min_head", "exposed")]
    if not several:  # nothing tells how heads of other sizes do
        rows_of |= {"min_head": h200.forward.min_head}
    stage(
        [("attention_prefill", "bf16")],
        knobs,
        lambda fit, values: replace(fit, prompt=AttentionFit(**values, **rows_of)),  # type: ignore[arg-type]
    )
    narrow_heads = {int(row.sizes[4]) for row in rows.get(("attention_prefill", "fp8"), ())}
    sizes = sorted(narrow_heads) if gpu.name in CARDS else []
    gains = [replace(FP8_GAIN, name=str(size)) for size in sizes] or [FP8_GAIN]
    blocks = FP8_BLOCKS if sizes else ()
    stage([("attention_prefill", "fp8")], [*gains, FP8_ENGINE, *blocks], in_8_bits)
    if gpu.name not in TRAINING_KERNELS:
        trained = replace(
            base.prompt,
            engine_s=0.0,
            fp8_engine_s=0.0,
            fp8_gain=1.0,
            fp8_heads=(),
            throttle=0.0,
            fp8_block_s=None,
            fp8_columns=None,
        )
        base = replace(base, forward=trained)
    return base


def in_8_bits(fit: Calibration, values: Mapping[str, float]) -> Calibration:
    """Attention of engines, with a gain of its own for each head size where sizes are named."""
    heads = tuple((int(name), gain) for name, gain in values.items() if name.isdigit())
    own = {name: value for name, value in values.items() if not name.isdigit()}
    return replace(fit, prompt=replace(fit.prompt, fp8_heads=heads, **own))  # type: ignore[arg-type,type-var]


def carried(fit: AttentionFit, scale: float) -> AttentionFit:
    return replace(fit, matmul=float(f"{fit.matmul * scale:.4g}"), throttle=0.0)


def own_rows(gpu: Gpu) -> dict[tuple[str, str], Mapping[str, Floats]]:
    """Our own H200 products that `atoll calibrate` may see, which the H200 is fitted on as well."""
    rows = read_operators(H200_OPERATORS)
    seen = [
        r for r, s in zip(rows, fitted_rows(rows), strict=True) if s and not skip_reason(gpu, r)
    ]
    kinds = {("gemm", "bf16"): "gemm", ("gemm", "fp8"): "gemm_fp8"}
    return {key: columns([r for r in seen if r.kind == kind]) for key, kind in kinds.items()}


def score_ours(
    gpu: Gpu, ours: Mapping[tuple[str, str], Mapping[str, Floats]], kind: tuple[str, str]
) -> float:
    table = ours[kind]
    times_s = predict_kind_s(gpu, "gemm_fp8" if kind[1] == "fp8" else "gemm", table)
    weights = np.where(table["measured_s"] > LONG_S, 1.0, SHORT_WEIGHT)
    return float(np.average(np.abs(np.log(times_s / table["measured_s"])), weights=weights))


def score(times_s: Floats, rows: Sequence[TimedOperator]) -> float:
    measured_s = np.array([row.measured_s for row in rows])
    weights = np.where(measured_s > LONG_S, 1.0, SHORT_WEIGHT)
    return float(np.average(np.abs(np.log(times_s / measured_s)), weights=weights))


def judged(gpu: Gpu, rows: Rows) -> dict[tuple[str, str], Judged]:
    """By operator and format, where any row is above 20 us."""
    found = {}
    for kind, all_rows in rows.items():
        long = [row for row in all_rows if row.measured_s > LONG_S]
        if long:
            found[kind] = Judged(
                predicted_s(gpu, long) / np.array([row.measured_s for row in long]) - 1,
                np.array([is_fitted(row) for row in long]),
                np.array([kind[0] == "gemm" and row.sizes[1:3] == LEFT_OUT for row in long]),
            )
    return found


def not_fitted(kinds: Mapping[tuple[str, str], Judged]) -> str:
    """Mean errors of the half that was not fitted, a cell for each column."""
    cells = []
    for kind, _ in COLUMNS:
        found = kinds.get(kind)
        cells.append("" if found is None else mean(np.abs(found.errors[~found.seen])))
    return " | ".join(cells)


def left_out(kinds: Mapping[tuple[str, str], Judged]) -> str:
    """Mean errors of products of one (n, k)."""
    found = (kinds.get(("gemm", precision)) for precision in ("bf16", "fp8"))
    return " / ".join(mean(np.abs(one.errors[one.left])) for one in found if one is not None)


if __name__ == "__main__":
    sys.exit(recorded(main))
