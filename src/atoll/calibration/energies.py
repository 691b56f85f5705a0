"""Sustained loads of a device with their power: predicted times, watts and joules.

Loads last seconds: attention and steps are
priced at the power limit, products by their length; power_limit_W is a cap below the rating.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from atoll.answers.validation import Errors, OperatorsValidation
from atoll.base.errors import AtollError
from atoll.calibration.validate import judged_operator, report_operators
from atoll.cost.gpu_attention import Heads, attention_times_s
from atoll.cost.gpu_gemm import fastest_flops, gemm_times_s
from atoll.cost.gpu_vector import LEAST_BYTES, streaming_s, vector_times_s
from atoll.hardware.gpu import Gpu, load_gpu
from atoll.hardware.physical.device_power import H200_FIT, Rates, device_W
from atoll.training.estimate import Estimator
from atoll.validation.errors import error_summary
from atoll.validation.row_runs import run_from_row
from atoll.validation.step_rows import H200_STEPS, H200_STEPS_LATER
from atoll.validation.tables import Row, RunRow, read_each, read_rows, read_runs, write_records

LOADS = ("kind", "us", "power_W", "joules")
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


def validate_energies(
    path: str | Path, gpu: Gpu | str = "h200", *, out: str | Path | None = None
) -> OperatorsValidation:
    """Validate times, watts and joules of a file of sustained loads."""
    device = load_gpu(gpu) if isinstance(gpu, str) else gpu
    if device.power_W is None:
        raise AtollError(f"device {device.name} has no power; its file must state one")
    loads, skipped = read_each(read_rows(path, LOADS, Row), partial(_load, device))
    write_records(out, _HEADER, list(map(_line, loads)))

    def errors_of(figure: str) -> Errors:
        return error_summary([e for load in loads if (e := load.error(figure)) is not None])

    timed = [load for load in loads if load.measured.time_s is not None]
    judged = [
        judged_operator(
            load.line, load.words, load.measured.time_s or 0.0, load.predicted.time_s or 0.0
        )
        for load in timed
    ]
    kinds = [load.kind for load in timed]
    report = report_operators(device.name, judged, skipped, kinds, tuple(dict.fromkeys(kinds)))
    power, energy = errors_of("power_W"), errors_of("energy_J")
    rows = len(loads) + sum(skipped.values())
    return replace(report, rows=rows, predicted=len(loads), power=power, energy=energy)


def _load(gpu: Gpu, row: Row) -> SustainedLoad:
    kind, rated_W = row.text("kind"), gpu.power_W or 0.0
    if (cap_W := row.number("power_limit_W", rated_W)) < rated_W:
        gpu = gpu.capped(cap_W)
    words = " ".join([kind, *(f"{name}={row.text(name)}" for name in _SHOWN if row.text(name))])
    power_W = row.number("power_W")
    if kind == "idle":
        predicted = LoadFigures(None, H200_FIT.idle * rated_W, None)
        return SustainedLoad(row.line, words, kind, LoadFigures(None, power_W, None), predicted)
    seconds = row.number("us") * 1e-6
    joules = row.number("joules", 0.0) or seconds * power_W
    if kind == "step":
        predicted_s, predicted_W = _step(gpu, row)
    else:
        predicted_s, rates = _operator(gpu, kind, row)
        predicted_W = device_W(rated_W, rates, cap_W=gpu.cap_W)
    predicted = LoadFigures(predicted_s, predicted_W, predicted_s * predicted_W)
    measured = LoadFigures(seconds, power_W, joules)
    return SustainedLoad(row.line, words, kind, measured, predicted)


_SHOWN = ("m", "n", "k", "b", "h", "s", "d", "causal", "dtype", "data", "model", "mbs", "seq")


def _operator(gpu: Gpu, kind: str, row: Row) -> tuple[float, Rates]:
    """Return seconds of an operator, and its rates as shares of the device's peaks."""
    data = row.text("data", "normal")
    if kind == "gemm":
        m, n, k = (row.number(name) for name in ("m", "n", "k"))
        dtype = row.text("dtype", "bf16")
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
        backward = kind.endswith("bwd")
        b, h, s, d, causal = (row.number(name) for name in ("b", "h", "s", "d", "causal"))
        dtype = gpu.half_dtype
        heads = Heads(*(np.array([size]) for size in (b, h, row.number("hk", h), s, d, causal)))
        times_s = attention_times_s(gpu, heads, backward=backward, dtype=dtype, sustained=True)
        time_s = float(times_s[0])
        pairs = b * h * s * s * (0.5 if causal else 1.0)
        flops, moved = pairs * d * (10 if backward else 4), b * h * s * d * (16 if backward else 8)
        lanes = pairs * OPERATIONS["softmax"] / 8  # exponential and scale per pair
        rate = _rates(gpu, flops / time_s / gpu.peak_flops(dtype), moved / time_s)
        return time_s, replace(rate, vector=_vector(gpu, lanes / time_s))
    first = kind.split("_")[0]
    if first not in OPERATIONS:
        raise ValueError(f"kind {kind!r} is not modelled")
    rows, columns = row.number("m"), row.number("n", 1.0)
    elements = rows * columns
    if kind == "copy":
        time_s, moved = float(streaming_s(gpu, elements * COPY_BYTES)), 4 * elements
    else:
        name = next((n for n in (kind, f"{kind}_fwd", f"{kind}_step") if n in LEAST_BYTES), None)
        if name is None:
            raise ValueError(f"kind {kind!r} is not modelled")
        time_s = float(vector_times_s(gpu, name, rows, columns))
        moved = LEAST_BYTES[name] * elements
    lanes = OPERATIONS[first] * elements
    rates = _rates(gpu, 0.0, moved / time_s, cached=moved <= gpu.l2_bytes)
    return time_s, replace(rates, vector=_vector(gpu, lanes / time_s))


def _rates(
    gpu: Gpu, products: float, Bps: float, data: str = "normal", cached: bool = False
) -> Rates:
    share = Bps / gpu.hbm_Bps
    return Rates(products, 0.0 if cached else share, share if cached else 0.0, 0.0, data)


def _vector(gpu: Gpu, per_second: float) -> float:
    return per_second / (gpu.peak_flops(gpu.half_dtype) * VECTOR_PER_FLOP)


def _step(gpu: Gpu, row: Row) -> tuple[float, float]:
    """Return time and power of a step: products at their limited rate, then DRAM's peak."""
    tables = (H200_STEPS_LATER, H200_STEPS)
    models = {step.text("model"): step for path in tables for step in read_runs(path, gpu.name)}
    name, batch = row.text("model"), row.text("mbs")
    if name not in models:
        raise ValueError(f"model {name!r} is not in our tables of steps")
    sizes = {"seq": row.text("seq"), "compiled": "0", "recompute": row.text("recompute")}
    batches = dict.fromkeys(("mbs", "micro_batch", "global_batch"), batch)
    run, layout = run_from_row(RunRow(row.line, {**models[name].values, **sizes, **batches}))
    time_s = Estimator(run).estimate(layout).step.time_s
    products_s = min(row.number("flops") / fastest_flops(gpu, gpu.half_dtype), time_s)
    busy, streams = (
        device_W(gpu.power_W or 0.0, rates, cap_W=gpu.cap_W)
        for rates in (Rates(products=1.0), Rates(dram=1.0))
    )
    return time_s, (products_s * busy + (time_s - products_s) * streams) / time_s


_UNITS = {"time_s": "s", "power_W": "W", "energy_J": "J"}
_HEADER = (
    *("line", "operator"),
    *(f"{what}_{unit}" for what in ("measured", "predicted", "error") for unit in _UNITS.values()),
)


def _line(load: SustainedLoad) -> dict[str, Any]:
    """Return the columns of a load in the written table."""
    line: dict[str, Any] = {"line": load.line, "operator": load.words}
    for figure, unit in _UNITS.items():
        line[f"measured_{unit}"] = getattr(load.measured, figure)
        line[f"predicted_{unit}"] = getattr(load.predicted, figure)
        line[f"error_{unit}"] = load.error(figure)
    return line
