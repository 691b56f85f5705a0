"""Operators and collectives timed on several devices: predictions held against them.

Columns: device, op, precision, us, and the sizes of each kind: m, n, k, batch of products; batch,
heads, kv_heads, seq, head_dim, causal of attention; ranks and bytes of collectives (gathered bytes
for a gather, a rank's whole input for others). `quant_us` is what a cast before a product took.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from atoll.answers.validation import Errors, OperatorsValidation, WorstOperator
from atoll.calibrate.validate import WORST, error_summary
from atoll.cost.gpu_attention import Heads, attention_times_s
from atoll.cost.gpu_gemm import Floats, gemm_times_s
from atoll.errors import AtollError
from atoll.fabric.nested import PASSES, all_to_all_s, collective_s
from atoll.files.csvfile import Line, read_csv, write_csv
from atoll.hardware.catalog import load_network
from atoll.hardware.gpu import Gpu, written_gpu

COLUMNS = ("device", "op", "precision", "us")
PRODUCT_SIZES = ("m", "n", "k", "batch")
ATTENTION_SIZES = ("batch", "heads", "kv_heads", "seq", "head_dim", "causal")
SIZES = {
    "gemm": PRODUCT_SIZES,
    "bmm": PRODUCT_SIZES,
    "attention_prefill": ATTENTION_SIZES,
    **dict.fromkeys((*PASSES, "all_to_all"), ("bytes", "ranks")),
}
FORMATS = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp8_block": "mxfp8", "nvfp4": "nvfp4"}


@dataclass(frozen=True, slots=True)
class Timed:
    """One measurement: of what, on which device, its sizes, and how long it took."""

    line: int
    device: str
    op: str
    precision: str
    sizes: tuple[float, ...]
    measured_s: float


def is_device_table(header: Sequence[str]) -> bool:
    """Whether a CSV's columns are those of operators on several devices."""
    return all(name in header for name in COLUMNS)


def validate_devices(path: str | Path, *, out: str | Path | None = None) -> OperatorsValidation:
    """Errors over a file, by device, by operator and by format."""
    skipped: Counter[str] = Counter()
    kinds: defaultdict[tuple[str, str, str], list[Timed]] = defaultdict(list)
    _, lines = read_csv(path)
    for line in lines:
        try:
            row = _row(line)
            kinds[row.device, row.op, row.precision].append(row)
        except ValueError as error:
            skipped[str(error)] += 1
    rows: list[Timed] = []
    found: list[Floats] = []
    for (device, op, precision), members in kinds.items():
        try:
            found.append(_predicted_s(written_gpu(device), op, precision, members))
            rows += members
        except AtollError as error:
            skipped[str(error)] += len(members)
    predicted_s = np.concatenate(found) if found else np.empty(0)
    errors = predicted_s / np.array([row.measured_s for row in rows]) - 1

    def by(key: Callable[[Timed], str]) -> dict[str, Errors]:
        names = np.array([key(row) for row in rows])
        return {name: error_summary(errors[names == name]) for name in sorted(set(names.tolist()))}

    told = [
        WorstOperator(
            line=row.line,
            operator=f"{row.op} {row.precision} {' '.join(f'{x:g}' for x in row.sizes)}",
            device=row.device,
            measured_s=row.measured_s,
            predicted_s=float(predicted),
            error=float(error),
        )
        for row, predicted, error in zip(rows, predicted_s, errors, strict=True)
    ]
    if out is not None:
        header = ("line", "device", "operator", "measured_s", "predicted_s", "error")
        write_csv(out, header, [[getattr(row, name) for name in header] for row in told])
    return OperatorsValidation(
        device="several devices",
        rows=len(lines),
        predicted=len(rows),
        skipped=dict(skipped.most_common()),
        step_time=error_summary(errors),
        by_kind=by(lambda row: f"{row.op} {row.precision}"),
        groups={"device": by(lambda row: row.device), "precision": by(lambda r: r.precision)},
        worst=tuple(sorted(told, key=lambda row: -abs(row.error))[:WORST]),
    )


def _row(line: Line) -> Timed:
    given = line.cells
    if line.trouble:
        raise ValueError(f"line {line.number}: {line.trouble}")
    op, precision = given["op"], given["precision"]
    if op not in SIZES:
        raise ValueError(f"op {op!r} is not modelled")
    known = {"attention_prefill": ("bf16", "fp16"), "gemm": FORMATS, "bmm": FORMATS}
    if precision not in known.get(op, (precision,)):  # collectives move bytes of any format
        raise ValueError(f"{op} in {precision!r} is not modelled")
    try:
        sizes = tuple(float(given.get(name) or 1) for name in SIZES[op])
        took_us = float(given["us"]) - float(given.get("quant_us") or 0)
    except ValueError:
        raise ValueError(f"line {line.number}: a size or time is no number") from None
    if not (took_us > 0 and all(0 <= size < 1e15 for size in sizes)):
        raise ValueError(f"line {line.number}: sizes and times must be positive")
    return Timed(line.number, given["device"], op, precision, sizes, took_us * 1e-6)


def _predicted_s(gpu: Gpu, op: str, precision: str, rows: Sequence[Timed]) -> Floats:
    table = np.array([row.sizes for row in rows])
    if op in ("gemm", "bmm"):
        m, n, k, batch = table.T
        return gemm_times_s(gpu, m, n, k, batch, FORMATS[precision])
    if op == "attention_prefill":
        return attention_times_s(gpu, Heads(*table.T), dtype=gpu.half_dtype)
    network = load_network(gpu.network)
    if op == "all_to_all":
        return np.array([all_to_all_s(network, bytes_, int(n)) for bytes_, n in table])
    return np.array([collective_s(network, op, bytes_, int(n)) for bytes_, n in table])
