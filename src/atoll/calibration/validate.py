"""Validation of the GPU operator model on measured operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np

from atoll.answers.validation import Errors, OperatorsValidation, WorstOperator
from atoll.calibration.operator_rows import (
    ATTENTION,
    EXPERT_SIZES,
    EXPERTS,
    H200_OPERATORS,
    KINDS,
    PRODUCTS,
    SIZES,
    OperatorRow,
    fitted_rows,
    read_operators,
)
from atoll.cost.gpu_attention import Heads, attention_times_s
from atoll.cost.gpu_experts import Routed, expert_times_s
from atoll.cost.gpu_gemm import Floats, gemm_times_s
from atoll.cost.gpu_vector import KERNELS, vector_times_s
from atoll.files.csvfile import write_csv
from atoll.files.yamlfile import suggestion
from atoll.hardware.gpu import Gpu, load_gpu
from atoll.validation.errors import error_summary

REPLAY_S = 1.2e-6
"""Time added by replaying a graph with one product: the difference to NVIDIA's timings of the same
shapes with several per graph."""
LONG_PRODUCT_S = 50e-6  # products shorter than this are mostly launch and latency
WORST = 10


Columns = Mapping[str, Floats]


def predict_s(gpu: Gpu, rows: Sequence[OperatorRow]) -> Floats:
    """Predict the time of every row; the device must support the rows' kinds."""
    predicted = np.zeros(len(rows))
    for kind in dict.fromkeys(row.kind for row in rows):
        chosen = [index for index, row in enumerate(rows) if row.kind == kind]
        predicted[chosen] = predict_kind_s(gpu, kind, columns([rows[index] for index in chosen]))
    return predicted


def columns(rows: Sequence[OperatorRow]) -> Columns:
    """Return sizes and times of rows of one kind as arrays; missing sizes are 1."""
    sizes = [dict(row.sizes) for row in rows]
    table = {name: np.array([size.get(name, 1.0) for size in sizes]) for name in SIZES}
    table["measured_s"] = np.array([row.measured_s for row in rows])
    table["graphed"] = np.array([float(row.graphed) for row in rows])
    return table


def predict_kind_s(gpu: Gpu, kind: str, table: Columns) -> Floats:
    """Predict times of rows of one kind: max of kernels and host launches."""
    kernel_s = _kernel_s(gpu, kind, table)
    host_s = KERNELS.get(kind, 1) * gpu.launch_s
    return np.where(table["graphed"] == 0, np.maximum(kernel_s, host_s), kernel_s)


def _kernel_s(gpu: Gpu, kind: str, table: Columns) -> Floats:
    if kind in PRODUCTS:
        m, n, k, batch = (table[name] for name in ("m", "n", "k", "batch"))
        dtype = "fp8" if kind == "gemm_fp8" else gpu.half_dtype
        return gemm_times_s(gpu, m, n, k, batch, dtype) + REPLAY_S
    if kind in ATTENTION:
        sizes = (table[name] for name in ("b", "h", "hk", "s", "d", "causal"))
        backward = kind == "sdpa_bwd"
        return attention_times_s(gpu, Heads(*sizes), backward=backward, dtype=gpu.half_dtype)
    if kind in EXPERTS:
        return expert_times_s(gpu, kind, Routed(*(table[name] for name in EXPERT_SIZES)))
    return vector_times_s(gpu, kind, table["m"], table["n"])


def skip_reason(gpu: Gpu, row: OperatorRow) -> str | None:
    if row.trouble:
        return f"line {row.line}: {row.trouble}"
    if row.kind not in KINDS:
        return f"kind {row.kind!r} is not modelled{suggestion(row.kind, KINDS)}"
    if row.kind == "gemm_fp8" and gpu.fp8_flops is None:
        return f"device {gpu.name} has no fp8 matrix units"
    return None


def validate_operators(
    data: str | Path | Traversable = H200_OPERATORS,
    gpu: Gpu | str = "h200",
    *,
    held_out: bool = False,
    salt: str = "",
    out: str | Path | None = None,
) -> OperatorsValidation:
    """Validate the model on a file of measured operators, overall and by kind.

    With `held_out`, only rows that `calibrate` does not fit on are counted. `long` is for products
    of 50 us and more, `attention` for both directions.
    """
    device = load_gpu(gpu) if isinstance(gpu, str) else gpu
    rows = read_operators(data)
    if held_out:
        fitted = fitted_rows(rows, salt)
        pairs = zip(rows, fitted, strict=True)
        rows = tuple(row for row, fit in pairs if not (fit or row.trouble))
    reasons = [skip_reason(device, row) for row in rows]
    usable = [row for row, reason in zip(rows, reasons, strict=True) if reason is None]
    measured_s = np.array([row.measured_s for row in usable])
    predicted_s = predict_s(device, usable)
    errors = predicted_s / measured_s - 1

    def errors_of(choose: Callable[[OperatorRow], bool]) -> Errors:
        return error_summary(errors[[choose(row) for row in usable]] if usable else errors)

    if out is not None:
        _write(out, usable, measured_s, predicted_s)
    worst = np.argsort(-np.abs(errors), kind="stable")[:WORST]
    return OperatorsValidation(
        device=device.name,
        rows=len(rows),
        predicted=len(usable),
        skipped=dict(Counter(reason for reason in reasons if reason is not None)),
        step_time=error_summary(errors),
        by_kind={
            kind: errors_of(lambda row, kind=kind: row.kind == kind)  # type: ignore[misc]
            for kind in KINDS
            if any(row.kind == kind for row in usable)
        },
        long=errors_of(lambda row: row.kind == "gemm" and row.measured_s >= LONG_PRODUCT_S),
        attention=errors_of(lambda row: row.kind in ATTENTION),
        worst=tuple(
            WorstOperator(
                line=usable[i].line,
                operator=usable[i].describe(),
                measured_s=float(measured_s[i]),
                predicted_s=float(predicted_s[i]),
                error=float(errors[i]),
            )
            for i in worst
        ),
        steps={},
    )


def _write(
    path: str | Path, rows: Sequence[OperatorRow], measured_s: Floats, predicted_s: Floats
) -> None:
    """Write a line per row with prediction and error."""
    lines = [
        (row.line, row.describe(), f"{m:.6g}", f"{p:.6g}", f"{p / m - 1:.4f}")
        for row, m, p in zip(rows, measured_s, predicted_s, strict=True)
    ]
    write_csv(path, ("line", "operator", "measured_s", "predicted_s", "error"), lines)
