"""Validation of the GPU operator model on measured operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np

from atoll.answers.validation import Errors, OperatorsValidation, WorstOperator
from atoll.base.arrays import Floats
from atoll.calibration.operator_rows import (
    ATTENTION,
    CHAIN_KINDS,
    CHAINS,
    EXPERT_SIZES,
    EXPERTS,
    H200_OPERATORS,
    KINDS,
    PRICED_AS,
    PRODUCTS,
    SIZES,
    UPDATES,
    OperatorRow,
    fitted_rows,
    read_operators,
)
from atoll.cost.gpu_attention import Heads, attention_times_s
from atoll.cost.gpu_experts import Routed, expert_times_s
from atoll.cost.gpu_gemm import gemm_times_s
from atoll.cost.gpu_vector import KERNELS, streaming_s, vector_times_s
from atoll.files.yamlfile import suggestion
from atoll.hardware.gpu import Gpu, load_gpu
from atoll.step.states import STATES
from atoll.tools.stack import STACKS
from atoll.validation.errors import error_summary, errors_by
from atoll.validation.tables import write_records

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
    table |= {name: np.array([size.get(name, 0.0) for size in sizes]) for name in ("w", "keys")}
    table["measured_s"] = np.array([row.measured_s for row in rows])
    table["graphed"] = np.array([float(row.graphed) for row in rows])
    return table


def predict_kind_s(gpu: Gpu, kind: str, table: Columns) -> Floats:
    """Predict times of rows of one kind: max of kernels and host launches."""
    kernel_s = _kernel_s(gpu, kind, table)
    host_s = KERNELS.get(kind, 1) * gpu.launch_s
    return np.where(table["graphed"] == 0, np.maximum(kernel_s, host_s), kernel_s)


def _kernel_s(gpu: Gpu, kind: str, table: Columns) -> Floats:
    kind = PRICED_AS.get(kind, kind)
    if kind in PRODUCTS:
        m, n, k, batch = (table[name] for name in ("m", "n", "k", "batch"))
        dtype = "fp8" if kind == "gemm_fp8" else gpu.half_dtype
        return gemm_times_s(gpu, m, n, k, batch, dtype) + REPLAY_S
    if kind in ATTENTION:
        b, h, hk, s, d, causal = (table[name] for name in ("b", "h", "hk", "s", "d", "causal"))
        heads = Heads(b, h, hk, s, d, causal, np.where(table["keys"] > 0, table["keys"], s))
        backward, dtype = kind == "sdpa_bwd", gpu.half_dtype
        window = np.where(table["w"] > 0, np.minimum(table["w"], s), s)
        share = window * (2 * s - window) / s**2  # of the pairs under a causal mask
        return share * attention_times_s(gpu, heads, backward=backward, dtype=dtype)
    if kind in EXPERTS:
        return expert_times_s(gpu, kind, Routed(*(table[name] for name in EXPERT_SIZES)))
    if kind in UPDATES:
        states = STATES[UPDATES[kind]]
        traffic = gpu.half_optimizer_traffic if states.name == "bf16" else gpu.optimizer_traffic
        return table["m"] * states.update * traffic / gpu.stream_Bps
    if kind in CHAIN_KINDS:
        return _chain_s(gpu, kind, table["m"], table["n"])
    return vector_times_s(gpu, kind, table["m"], table["n"])


def _chain_s(gpu: Gpu, kind: str, rows: Floats, width: Floats) -> Floats:
    """Return the time of a chain in the passes of its software, else in the calibrated kernels."""
    chain, software, direction = kind.split("_")
    passes = STACKS[software].passes if software in STACKS else {}
    time_s = np.zeros_like(rows)
    for function in CHAINS[chain]:
        moved = passes.get(function if direction == "fwd" else f"{function}_bwd")
        if moved is not None:
            time_s = time_s + streaming_s(gpu, rows * width * moved.bytes, moved.kernels)
        else:
            name = {"cross_entropy": "xent"}.get(function, function)
            time_s = time_s + vector_times_s(gpu, f"{name}_{direction}", rows, width)
    return time_s


def skip_reason(gpu: Gpu, row: OperatorRow) -> str | None:
    if row.trouble:
        return row.trouble
    if row.kind not in KINDS:
        near = suggestion(row.kind, KINDS)
        return f"kind {row.kind!r} is not modelled" + (near if "did you mean" in near else "")
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
    judged = [
        judged_operator(row.line, row.describe(), row.measured_s, float(time_s))
        for row, time_s in zip(usable, predict_s(device, usable), strict=True)
    ]
    write_records(out, ("line", "operator", "measured_s", "predicted_s", "error"), judged)

    def errors_of(choose: Callable[[OperatorRow], bool]) -> Errors:
        pairs = zip(judged, usable, strict=True)
        return error_summary([result.error for result, row in pairs if choose(row)])

    return report_operators(
        device.name,
        judged,
        Counter(reason for reason in reasons if reason is not None),
        [row.kind for row in usable],
        KINDS,
        long=errors_of(lambda row: row.kind == "gemm" and row.measured_s >= LONG_PRODUCT_S),
        attention=errors_of(lambda row: row.kind in ATTENTION),
    )


def judged_operator(
    line: int, words: str, measured_s: float, predicted_s: float, device: str = ""
) -> WorstOperator:
    """Return a measured operator with its prediction and error."""
    times_s = {"measured_s": measured_s, "predicted_s": predicted_s}
    error = predicted_s / measured_s - 1
    return WorstOperator(line=line, operator=words, device=device, error=error, **times_s)


def report_operators(
    device: str,
    judged: Sequence[WorstOperator],
    skipped: Mapping[str, int],
    kinds: Sequence[str],
    order: Sequence[str] = (),
    **figures: Any,
) -> OperatorsValidation:
    """Summarise the errors of operators, overall and by kind; the kinds are shown in an order."""
    errors = np.array([row.error for row in judged])
    return OperatorsValidation(
        device=device,
        rows=len(judged) + sum(skipped.values()),
        predicted=len(judged),
        skipped=dict(skipped),
        step_time=error_summary(errors),
        by_kind=errors_by(errors, kinds, order),
        worst=tuple(sorted(judged, key=lambda row: -abs(row.error))[:WORST]),
        **figures,
    )
