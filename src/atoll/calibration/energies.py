"""Sustained loads of a device with their power: predicted times, watts and joules.

More columns than operators have (`rows`): power_W, joules; data (operands: normal, small,
half-zeros, zeros), bytes, model, mbs, seq, recompute. Loads last seconds: attention and steps are
priced at the power limit, products by their length; power_limit_W is a cap below the rating.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from atoll.answers.validation import Errors, OperatorsValidation, WorstOperator
from atoll.base.errors import AtollError
from atoll.calibration.validate import WORST
from atoll.cost.gpu_attention import Heads, attention_times_s
from atoll.cost.gpu_gemm import fastest_flops, gemm_times_s
from atoll.cost.gpu_vector import LEAST_BYTES, streaming_s, vector_times_s
from atoll.files.csvfile import CsvLine, read_csv, write_csv
from atoll.hardware.gpu import Gpu, load_gpu
from atoll.hardware.physical.device_power import H200_FIT, Rates, device_W
from atoll.training.estimate import Estimator
from atoll.validation.errors import error_summary
from atoll.validation.run_table import RunRow
from atoll.validation.step_rows import H200_STEPS, H200_STEPS_LATER, read_steps, run_from_step

COLUMNS = ("kind", "us", "power_W", "joules")
COPY_BYTES = 6.5
"""Bytes per 16-bit element of a copy by the driver, at 0.56 of an H200's bandwidth."""
OPERATIONS = {
    "copy": 0.0, "add": 1.0, "mul": 1.0, "embed": 1.0, "silu": 20.0, "gelu": 25.0, "dropout": 20.0,
    "layernorm": 15.0, "rmsnorm": 12.0, "softmax": 60.0, "xent": 60.0, "adamw": 15.0,
}  # fmt: skip
"""Instructions per element, by the first word of a kind: accurate to a factor of 2."""
VECTOR_PER_FLOP = 1 / 32
"""Vector operations at peak over matrix FLOPs at peak."""


class LoadFigures(NamedTuple):
    """Figures of a load; an idle device has neither time nor energy."""

    time_s: float | None
    power_W: float
    energy_J: float | None


@dataclass(frozen=True, slots=True)
class SustainedLoad:
    """A measured load and its prediction."""

    line: int
    words: str
    kind: str
    measured: LoadFigures
    predicted: LoadFigures

    def error(self, figure: str) -> float | None:
        measured, predicted = getattr(self.measured, figure), getattr(self.predicted, figure)
        return predicted / measured - 1 if measured and predicted else None


def is_energy_file(header: list[str]) -> bool:
    return all(name in header for name in COLUMNS)


def validate_energies(
    path: str | Path, gpu: Gpu | str = "h200", *, out: str | Path | None = None
) -> OperatorsValidation:
    """Validate times, watts and joules of a file of sustained loads."""
    device = load_gpu(gpu) if isinstance(gpu, str) else gpu
    if device.power_W is None:
        raise AtollError(f"device {device.name} has no power; its file must state one")
    _, lines = read_csv(path)
    loads, skipped = [], dict[str, int]()
    for line in lines:
        try:
            loads.append(_load(device, line))
        except (ValueError, AtollError) as error:
            reason = f"line {line.number}: {error}"
            skipped[reason] = skipped.get(reason, 0) + 1
    if out is not None:
        _write(out, loads)
    timed = [load for load in loads if load.error("time_s") is not None]
    worst = sorted(timed, key=lambda load: -abs(load.error("time_s") or 0.0))[:WORST]

    def errors_of(figure: str, chosen: Sequence[SustainedLoad] = loads) -> Errors:
        return error_summary(
            np.array([e for load in chosen if (e := load.error(figure)) is not None])
        )

    return OperatorsValidation(
        device=device.name,
        rows=len(lines),
        predicted=len(loads),
        skipped=skipped,
        step_time=errors_of("time_s"),
        power=errors_of("power_W"),
        energy=errors_of("energy_J"),
        by_kind={
            kind: errors_of("time_s", [load for load in timed if load.kind == kind])
            for kind in dict.fromkeys(load.kind for load in timed)
        },
        worst=tuple(
            WorstOperator(
                line=load.line,
                operator=load.words,
                measured_s=load.measured.time_s or 0.0,
                predicted_s=load.predicted.time_s or 0.0,
                error=load.error("time_s") or 0.0,
            )
            for load in worst
        ),
    )


def _load(gpu: Gpu, line: CsvLine) -> SustainedLoad:
    if line.trouble:
        raise ValueError(line.trouble)
    cells = line.cells
    kind, rated_W = cells["kind"], gpu.power_W or 0.0
    if cells.get("power_limit_W") and (cap := _number(cells, "power_limit_W")) < rated_W:
        gpu = gpu.capped(cap)
    words = " ".join([kind, *(f"{name}={cells[name]}" for name in _SHOWN if cells.get(name))])
    power_W = _number(cells, "power_W")
    if kind == "idle":
        predicted = LoadFigures(None, H200_FIT.idle * rated_W, None)
        return SustainedLoad(line.number, words, kind, LoadFigures(None, power_W, None), predicted)
    seconds = _number(cells, "us") * 1e-6
    joules = _number(cells, "joules") or seconds * power_W
    if kind == "step":
        predicted_s, predicted_W = _step(gpu, cells, line)
    else:
        predicted_s, rates = _operator(gpu, kind, cells)
        predicted_W = device_W(rated_W, rates, cap_W=gpu.cap_W)
    predicted = LoadFigures(predicted_s, predicted_W, predicted_s * predicted_W)
    measured = LoadFigures(seconds, power_W, joules)
    return SustainedLoad(line.number, words, kind, measured, predicted)


_SHOWN = ("m", "n", "k", "b", "h", "s", "d", "causal", "dtype", "data", "model", "mbs", "seq")


def _operator(gpu: Gpu, kind: str, cells: Mapping[str, str]) -> tuple[float, Rates]:
    """Return seconds of an operator, and its rates as shares of the device's peaks."""
    data = cells.get("data") or "normal"
    if kind == "gemm":
        m, n, k = (_number(cells, name) for name in ("m", "n", "k"))
        dtype = cells.get("dtype") or "bf16"
        if dtype == "tf32":  # like 16-bit operands of twice the depth
            dtype, k = "bf16", 2 * k
        if dtype not in ("bf16", "fp16", "fp8"):
            raise ValueError(f"dtype: products in {dtype} are not modelled")
        time_s = float(gemm_times_s(gpu, m, n, k, 1, dtype))
        element = 1 if dtype == "fp8" else 2
        moved = element * (m * k + k * n) + 2 * m * n
        peak = gpu.peak_flops(dtype)
        return time_s, _rates(gpu, 2 * m * n * k / time_s / peak, moved / time_s, data=data)
    if kind.startswith("attention"):
        backward, hk = kind.endswith("bwd"), cells.get("hk") or cells["h"]
        sizes = [
            _number({**cells, "hk": hk}, name) for name in ("b", "h", "hk", "s", "d", "causal")
        ]
        b, h, _, s, d, causal = sizes
        dtype = gpu.half_dtype
        heads = Heads(*(np.array([size]) for size in sizes))
        time_s = float(
            attention_times_s(gpu, heads, backward=backward, dtype=dtype, sustained=True)[0]
        )
        pairs = b * h * s * s * (0.5 if causal else 1.0)
        flops, moved = pairs * d * (10 if backward else 4), b * h * s * d * (16 if backward else 8)
        lanes = pairs * OPERATIONS["softmax"] / 8  # exponential and scale per pair
        rate = _rates(gpu, flops / time_s / gpu.peak_flops(dtype), moved / time_s)
        return time_s, replace(rate, vector=_vector(gpu, lanes / time_s))
    first = kind.split("_")[0]
    if first not in OPERATIONS:
        raise ValueError(f"kind {kind!r} is not modelled")
    rows, columns = _number(cells, "m"), _number(cells, "n") if cells.get("n") else 1.0
    elements = rows * columns
    if kind == "copy":
        time_s, moved = float(streaming_s(gpu, elements * COPY_BYTES)), 4 * elements
    else:
        name = next((n for n in (kind, f"{kind}_fwd", f"{kind}_step") if n in LEAST_BYTES), None)
        if name is None:
            raise ValueError(f"kind {kind!r} is not modelled")
        time_s, moved = (
            float(vector_times_s(gpu, name, rows, columns)),
            LEAST_BYTES[name] * elements,
        )
    lanes = OPERATIONS[first] * elements
    return time_s, replace(
        _rates(gpu, 0.0, moved / time_s, cached=moved <= gpu.l2_bytes),
        vector=_vector(gpu, lanes / time_s),
    )


def _rates(
    gpu: Gpu, products: float, Bps: float, data: str = "normal", cached: bool = False
) -> Rates:
    share = Bps / gpu.hbm_Bps
    return Rates(products, 0.0 if cached else share, share if cached else 0.0, 0.0, data)


def _vector(gpu: Gpu, per_second: float) -> float:
    return per_second / (gpu.peak_flops(gpu.half_dtype) * VECTOR_PER_FLOP)


def _step(gpu: Gpu, cells: Mapping[str, str], line: CsvLine) -> tuple[float, float]:
    """Return time and power of a step: products at their limited rate, then DRAM's peak."""
    tables = (H200_STEPS_LATER, H200_STEPS)
    models = {row.text("model"): row for path in tables for row in read_steps(path, gpu.name)}
    name = cells.get("model", "")
    if name not in models:
        raise ValueError(f"model {name!r} is not in our tables of steps")
    table_row = models[name]
    recompute = "full" if float(cells.get("recompute") or 0) else "none"
    sizes = {"seq": str(round(_number(cells, "seq"))), "compiled": "0", "recompute": recompute}
    batch = str(round(_number(cells, "mbs")))
    batches = dict.fromkeys(("mbs", "micro_batch", "global_batch"), batch)
    values = {**table_row.values, **sizes, **batches}
    run, layout = run_from_step(RunRow(line.number, name, table_row.source, gpu.name, "A", values))
    time_s = Estimator(run).estimate(layout).step.time_s
    products_s = min(_number(cells, "flops") / fastest_flops(gpu, gpu.half_dtype), time_s)
    busy, streams = (
        device_W(gpu.power_W or 0.0, rates, cap_W=gpu.cap_W)
        for rates in (Rates(products=1.0), Rates(dram=1.0))
    )
    return time_s, (products_s * busy + (time_s - products_s) * streams) / time_s


def _number(cells: Mapping[str, str], name: str) -> float:
    text = cells.get(name, "")
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name}: expected a number, got {text[:40]!r}") from None
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name}: expected a number of 0 or more, got {text[:40]!r}")
    return value


_FIGURES: tuple[tuple[str, Callable[[SustainedLoad], tuple[float | None, ...]]], ...] = (
    ("measured", lambda load: load.measured),
    ("predicted", lambda load: load.predicted),
    ("error", lambda load: tuple(map(load.error, LoadFigures._fields))),
)


def _write(path: str | Path, loads: Sequence[SustainedLoad]) -> None:
    """Write a line per load."""
    units = ("s", "W", "J")
    header = ("line", "operator", *(f"{name}_{unit}" for name, _ in _FIGURES for unit in units))
    rows = [
        (load.line, load.words, *(_shown(v) for _, read in _FIGURES for v in read(load)))
        for load in loads
    ]
    write_csv(path, header, rows)


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
