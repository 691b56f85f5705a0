"""Calibration: the GPU operator model's parameters from measured operators of one device.

Five consecutive fits, each on half of the rows of its kinds: products (fourteen parameters), fp8
products (one), attention forward and backward (four each), streaming operators (two, and bytes per
element by kind). Each minimises mean |log(predicted / measured)|, which is robust to outliers, by
Powell's method within physical bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from atoll.answers.validation import CalibrationAnswer, Parameter
from atoll.base.arrays import Floats
from atoll.calibration.operator_rows import (
    H200_OPERATORS,
    VECTORS,
    OperatorRow,
    fitted_rows,
    read_operators,
)
from atoll.calibration.validate import (
    LONG_PRODUCT_S,
    Columns,
    columns,
    predict_kind_s,
    skip_reason,
    validate_operators,
)
from atoll.cost.gpu_vector import LEAST_BYTES, NARROW_COLUMNS, STREAMING
from atoll.files.atomic_file import atomic_files
from atoll.files.yamlfile import field_by_key
from atoll.hardware.gpu import (
    AttentionFile,
    Calibration,
    CalibrationFile,
    FormatFile,
    Gpu,
    load_gpu,
    recalibrated,
)
from atoll.hardware.physical.kernel_fits import AttentionFit, FormatFit

SHORT_WEIGHT = 0.35  # of products under 50 us, which are mostly launch time
ROUNDS = 2


Change = Callable[[Calibration, Mapping[str, float]], Calibration]


@dataclass(frozen=True, slots=True)
class Knob:
    """A parameter to fit: start value and physical bounds."""

    name: str
    start: float
    low: float
    high: float


PRODUCT_KNOBS = (
    Knob("matmul", 0.92, 0.4, 1.3),
    Knob("tile_half", 15.0, 0.0, 60.0),
    Knob("hbm", 0.9, 0.4, 1.0),
    Knob("kernel_s", 3.5e-6, 1e-6, 20e-6),
    Knob("throttle", 0.16, 0.0, 0.5),
    Knob("throttle_s", 3e-3, 0.2e-3, 20e-3),
    Knob("split_s", 2e-6, 0.0, 10e-6),
    Knob("epilogue", 0.9, 0.0, 1.0),
    Knob("exposed", 0.1, 0.0, 0.7),
    Knob("spill", 0.3, 0.0, 1.0),
    Knob("misaligned", 1.1, 1.0, 2.0),
    Knob("word_rows", 2.6, 1.0, 6.0),
    Knob("odd_rows", 4.8, 1.0, 12.0),
    Knob("odd_output", 7.0, 1.0, 15.0),
)
FP8_KNOBS = (Knob("matmul", 0.9, 0.4, 1.3),)
FORWARD_KNOBS = (
    Knob("matmul", 0.7, 0.2, 1.0),
    Knob("min_head", 85.0, 8.0, 256.0),
    Knob("block_s", 1e-6, 0.0, 5e-6),
    Knob("kernel_s", 5e-6, 1e-6, 30e-6),
)
BACKWARD_KNOBS = (
    Knob("matmul", 0.65, 0.2, 1.0),
    Knob("min_head", 85.0, 8.0, 256.0),
    Knob("block_s", 2e-6, 0.0, 8e-6),
    Knob("kernel_s", 8e-6, 1e-6, 60e-6),
)
VECTOR_KNOBS = (Knob("vector_hbm", 0.9, 0.4, 1.0), Knob("vector_kernel_s", 2.5e-6, 1e-6, 20e-6))


def calibrate(
    csv: str | Path | Traversable = H200_OPERATORS,
    out: str | Path | None = None,
    gpu: Gpu | str = "h200",
    *,
    name: str | None = None,
    salt: str = "",
) -> CalibrationAnswer:
    """Fit on half of a file of measured operators, validate on the other half, write YAML to `out`.

    `gpu` supplies the peaks, and the parameters of kinds with too few rows, listed in `kept`.
    """
    device = load_gpu(gpu) if isinstance(gpu, str) else gpu
    rows = read_operators(csv)
    fitted_half = fitted_rows(rows, salt)
    chosen = [row for row, fitted in zip(rows, fitted_half, strict=True) if fitted]
    fit, kept = fit_calibration(device, chosen, name)
    fitted = recalibrated(device, fit)
    if out is not None:
        with atomic_files(lambda why: f"{out}: cannot be written ({why})", Path(out)) as (part,):
            part.write_text(calibration_yaml(fit), encoding="utf-8")
    return CalibrationAnswer(
        device=device.name,
        rows=len(rows),
        fitted=sum(fitted_half),
        skipped=tuple(row.trouble for row in rows if row.trouble),
        kept=tuple(kept),
        parameters=parameters(fit),
        held_out=validate_operators(csv, fitted, held_out=True, salt=salt),
        out=None if out is None else str(out),
    )


def fit_calibration(
    gpu: Gpu, rows: Sequence[OperatorRow], name: str | None = None
) -> tuple[Calibration, tuple[str, ...]]:
    """Fit all parameters; return them and the groups too small to fit, which are unchanged."""
    usable = [row for row in rows if skip_reason(gpu, row) is None]
    kinds = dict.fromkeys(row.kind for row in usable)
    tables = {kind: columns([row for row in usable if row.kind == kind]) for kind in kinds}
    half_peak = gpu.peak_flops(gpu.half_dtype)
    ratio = 0.0 if gpu.measured_flops is None else gpu.measured_flops / half_peak
    base = replace(
        gpu.calibration,
        name=name or gpu.name,
        matmul_ratio=ratio,
        source=f"fitted on {len(usable)} measured operators of {gpu.name}",
    )
    kept: list[str] = []

    def stage(title: str, kinds: Sequence[str], knobs: Sequence[Knob], change: Change) -> None:
        nonlocal base
        chosen = {kind: tables[kind] for kind in kinds if kind in tables}
        if sum(table["m"].size for table in chosen.values()) < 2 * len(knobs):
            kept.append(title)
            return
        start = base

        def loss(values: Mapping[str, float]) -> float:
            return _loss(recalibrated(gpu, change(start, values)), chosen)

        base = change(start, powell(loss, knobs))

    def products(fit: Calibration, values: Mapping[str, float]) -> Calibration:
        return replace(fit, **values)  # type: ignore[arg-type]

    vectors = {kind: table for kind, table in tables.items() if kind in VECTORS}

    def streaming(fit: Calibration, values: Mapping[str, float]) -> Calibration:
        changed = replace(fit, **values)  # type: ignore[arg-type]
        return replace(changed, traffic=_traffic(recalibrated(gpu, changed), vectors))

    stage("products", ("gemm", "bmm"), PRODUCT_KNOBS, products)
    stage("fp8 products", ("gemm_fp8",), FP8_KNOBS, _fp8)
    stage("attention forward", ("sdpa_fwd",), FORWARD_KNOBS,
          lambda fit, values: replace(fit, forward=_attention(fit, values)))  # fmt: skip
    stage("attention backward", ("sdpa_bwd",), BACKWARD_KNOBS,
          lambda fit, values: replace(fit, backward=_attention(fit, values)))  # fmt: skip
    stage("streaming", tuple(vectors), VECTOR_KNOBS, streaming)
    return replace(base, matmul_ratio=float(f"{ratio:.4g}")), tuple(kept)


def _fp8(fit: Calibration, values: Mapping[str, float]) -> Calibration:
    """Return the fit with an fp8 rate; the other fp8 parameters are those of 16 bits."""
    fp8_fit = FormatFit(values["matmul"], fit.kernel_s, fit.throttle)
    return replace(fit, formats=(("fp8", fp8_fit),))


def _attention(fit: Calibration, values: Mapping[str, float]) -> AttentionFit:
    return AttentionFit(**values, throttle=fit.throttle)  # type: ignore[arg-type]


def _loss(gpu: Gpu, tables: Mapping[str, Columns]) -> float:
    total, weight = 0.0, 0.0
    for kind, table in tables.items():
        measured_s = table["measured_s"]
        weights = np.ones_like(measured_s)
        if kind in ("gemm", "bmm"):
            weights = np.where(measured_s >= LONG_PRODUCT_S, 1.0, SHORT_WEIGHT)
        ratios = predict_kind_s(gpu, kind, table) / measured_s
        total += float(np.sum(weights * np.abs(np.log(ratios))))
        weight += float(weights.sum())
    return total / weight


def powell(loss: Callable[[Mapping[str, float]], float], knobs: Sequence[Knob]) -> dict[str, float]:
    """Minimise a loss; coordinates are shares of each knob's range, so one step size suits all."""
    low = np.array([knob.low for knob in knobs])
    span = np.array([knob.high for knob in knobs]) - low
    point = (np.array([knob.start for knob in knobs]) - low) / span

    def values_at(shares: Floats) -> dict[str, float]:
        values = low + np.clip(shares, 0.0, 1.0) * span
        return {k.name: float(f"{v:.4g}") for k, v in zip(knobs, values, strict=True)}

    for _ in range(ROUNDS):
        minimum = minimize(  # type: ignore[call-overload]
            lambda shares: loss(values_at(shares)),
            point,
            method="Powell",
            bounds=[(0.0, 1.0)] * len(knobs),
            options={"maxiter": 6, "xtol": 1e-3, "ftol": 1e-4},
        )
        point = np.atleast_1d(minimum.x)
    return values_at(point)


def _traffic(gpu: Gpu, tables: Mapping[str, Columns]) -> tuple[tuple[str, float], ...]:
    """Return bytes per element by kind: the median of its rows, weighted by bytes moved."""
    table = dict(gpu.calibration.traffic)
    for kind, measured in tables.items():
        if kind in STREAMING:
            table[kind] = float(LEAST_BYTES[kind])
        elif kind == "softmax_fwd":
            wide = measured["n"] > NARROW_COLUMNS
            for entry, rows in (("softmax_fwd", ~wide), ("softmax_fwd_wide", wide)):
                if rows.any():
                    part = {name: column[rows] for name, column in measured.items()}
                    table[entry] = _bytes_per_element(gpu, kind, entry, part)
        else:
            table[kind] = _bytes_per_element(gpu, kind, kind, measured)
    return tuple(sorted(table.items()))


def _bytes_per_element(gpu: Gpu, kind: str, entry: str, table: Columns) -> float:
    def time_at(bytes_: float) -> Floats:
        traffic = {**dict(gpu.calibration.traffic), entry: bytes_}
        changed = replace(gpu.calibration, traffic=tuple(traffic.items()))
        return predict_kind_s(replace(gpu, calibration=changed, launch_s=0.0), kind, table)

    empty_s = time_at(0.0)
    per_byte_s = time_at(1.0) - empty_s
    values = np.maximum(table["measured_s"] - empty_s, 0.0) / per_byte_s
    order = np.argsort(values, kind="stable")
    below = np.cumsum(per_byte_s[order])
    middle = int(np.searchsorted(below, below[-1] / 2))
    return float(f"{values[order][middle]:.4g}")


def parameters(fit: Calibration) -> dict[str, Parameter | Mapping[str, Parameter]]:
    """Return the calibration as in its YAML file, times in microseconds."""
    shown: dict[str, Parameter | Mapping[str, Parameter]] = {}
    for key, name in field_by_key(CalibrationFile).items():
        value = getattr(fit, name)
        if isinstance(value, AttentionFit):
            shown[key] = {
                inner: _written(value, attribute)
                for inner, attribute in field_by_key(AttentionFile).items()
                if getattr(value, attribute) not in (None, ())
            }
        elif name == "formats":
            shown[key] = {dtype: _flow(values) for dtype, values in fit.formats}
        elif name == "traffic":
            shown[key] = dict(fit.traffic)
        elif value is not None:
            shown[key] = _written(fit, name)
    return shown


def _written(fit: object, name: str) -> Parameter:
    """Return a field as its file has it."""
    value: Parameter = getattr(fit, name)
    if name == "fp8_heads":
        return f"{dict(getattr(fit, name))}"
    return f"{float(value) * 1e6:.4g} us" if name.endswith("_s") else value


def _flow(fit: FormatFit) -> str:
    """Return the non-default values of a format on one line."""
    default = FormatFit(fit.matmul, fit.kernel_s, fit.throttle)
    texts = (
        f"{key}: {_written(fit, name)}"
        for key, name in field_by_key(FormatFile).items()
        if key in ("matmul", "kernel", "throttle") or getattr(fit, name) != getattr(default, name)
    )
    return f"{{{', '.join(texts)}}}".replace("False", "false")


def calibration_yaml(fit: Calibration) -> str:
    """Return the YAML that `load_calibration` reads."""
    lines = ["# Written by `atoll calibrate`; docs/gpu-model.md says what every value means."]
    for key, value in parameters(fit).items():
        if isinstance(value, Mapping) and value:
            lines.append(f"{key}:")
            lines.extend(f"  {inner}: {item}" for inner, item in value.items())
        else:
            lines.append(f"{key}: {value or '{}' if isinstance(value, Mapping) else value}")
    return "\n".join(lines) + "\n"
