"""Validation on operators and collectives timed on several devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atoll.answers.validation import OperatorsValidation, WorstOperator
from atoll.base.arrays import Floats
from atoll.base.errors import AtollError
from atoll.calibration.validate import judged_operator, report_operators
from atoll.cost.gpu_attention import Heads, attention_times_s
from atoll.cost.gpu_gemm import L2_BPS, gemm_times_s
from atoll.cost.gpu_vector import streaming_s
from atoll.fabric.nested import PASSES, all_to_all_s, collective_s
from atoll.hardware.catalog import load_network
from atoll.hardware.gpu import Gpu, written_gpu
from atoll.validation.errors import errors_by
from atoll.validation.tables import Row, read_each, read_rows, write_records

TIMED = ("device", "op", "precision", "us")
PRODUCT_SIZES = ("m", "n", "k", "batch")
ATTENTION_SIZES = ("batch", "heads", "kv_heads", "seq", "head_dim", "causal")
EXPERT_SIZES = ("m", "experts", "topk", "hidden", "expert_ffn", "ep", "tp")
SIZES = {
    "gemm": PRODUCT_SIZES,
    "bmm": PRODUCT_SIZES,
    "attention_prefill": ATTENTION_SIZES,
    "mla_prefill": ATTENTION_SIZES,
    "moe": EXPERT_SIZES,
    **dict.fromkeys(("quantize_cast", "quantize_amax"), ("m", "k")),
    **dict.fromkeys((*PASSES, "all_to_all"), ("bytes", "ranks")),
}
FORMATS = ("bf16", "fp16", "fp8", "fp8_block", "nvfp4")
OP_FORMATS = {
    "attention_prefill": ("bf16", "fp16", "fp8"),
    "mla_prefill": ("bf16", "fp16"),
    **dict.fromkeys(("gemm", "bmm", "moe"), FORMATS),
}
"""Formats by operator; collectives and casts take any."""
CAST_BYTES = {"fp8": 3.0, "fp8_block": 3.5, "nvfp4": 2.6}
"""Bytes per element of a cast from 16 bits: 3 to fp8, more with blocks' scales (fitted over all
devices), 2.6 to nvfp4."""
NVFP4_CASTS = 1.7e12
"""Highest elements per second of casts to nvfp4, whatever the memory; over all devices."""
CAST_FORMATS = ("fp8_block", "nvfp4")
"""Formats whose rows include the cast of the first operand."""
AMAX_BYTES, AMAX_KERNELS = 6.0, 2
"""Bytes per element and kernels of PyTorch's absolute maximum."""
OPERAND_SETS = 6
"""Sets of operands that products are timed with in turn."""
HALF_BYTES = 2
CACHE_PASSES = {"fa3": 6.0, "trtllm": 6.0}
"""Bytes moved to store keys and values in the paged cache, over their bytes, by a part of the
kernel's name; fitted over all devices."""
USUAL_CACHE_PASSES = 2.5
QUERY_BYTES = {"fa3": 2.0, "trtllm": 7.0, "torch_flow": 3.5}
"""Bytes per element of queries, keys and values moved before 8-bit attention (casts, storing in the
cache), by a part of the kernel's name."""
DEEPGEMM, SPILLING, SPILLED = "deepgemm", ("h100", "h200"), 4.0
"""On Hopper it uses tiles of 128 x 192 if only these fit in one wave, although their sums exceed
the registers: this adds `SPILLED` times the loop's time."""
SAME_OPERAND = "torch_flow"
"""Engine that casts the same operand repeatedly, which may be in L2."""
POWER_LAW = "power_law_"
LARGEST_LOAD = 0.8  # highest share of tokens of an expert under a power law; the least is 1 token
DRAWS = 200  # of loads, to average the busiest rank's
SHORT_S = 20e-6
LATENT_VALUE = 128
"""Columns of a value head of latent attention; `head_dim` is that of keys."""
LATENT_KEY, CUT_KERNEL = 192, "fa3"
"""Heads with keys of 192 columns have values of 128 in 8-bit FlashAttention-3 too, with one more
kernel for the values and one for the results."""
HEAD_DIM = ATTENTION_SIZES.index("head_dim")


@dataclass(frozen=True, slots=True)
class TimedOperator:
    """A timed operator: device, operator, sizes and measured time."""

    line: int
    device: str
    op: str
    precision: str
    sizes: tuple[float, ...]
    measured_s: float
    kernel: str = ""
    """Kernel that ran it, if the table names it."""

    def describe(self) -> str:
        return " ".join([self.op, self.precision, *(f"{size:g}" for size in self.sizes)])


def read_timed(path: str | Path) -> tuple[list[TimedOperator], dict[str, int]]:
    """Return the rows of a file, and how many were not read by reason."""
    return read_each(read_rows(path, TIMED, Row), _read)


def validate_devices(path: str | Path, *, out: str | Path | None = None) -> OperatorsValidation:
    """Validate a file, by device, operator and format."""
    timed, skipped = read_timed(path)
    kinds: defaultdict[tuple[str, str, str], list[TimedOperator]] = defaultdict(list)
    for row in timed:
        kinds[row.device, row.op, row.precision].append(row)
    rows: list[TimedOperator] = []
    judged: list[WorstOperator] = []
    for (device, _, _), members in kinds.items():
        try:
            times_s = predicted_s(written_gpu(device), members)
        except AtollError as error:
            skipped[str(error)] = skipped.get(str(error), 0) + len(members)
            continue
        rows += members
        judged += [
            judged_operator(row.line, row.describe(), row.measured_s, float(time_s), row.device)
            for row, time_s in zip(members, times_s, strict=True)
        ]
    header = ("line", "device", "operator", "measured_s", "predicted_s", "error")
    write_records(out, header, judged)
    errors = np.array([row.error for row in judged])
    names = [f"{row.device} {row.op} {row.precision}" for row in rows]
    pairs = zip(names, rows, strict=True)
    long_names = [name if row.measured_s > SHORT_S else "shorter" for name, row in pairs]
    return report_operators(
        "several devices",
        judged,
        skipped,
        [f"{row.op} {row.precision}" for row in rows],
        groups={
            "device": errors_by(errors, [row.device for row in rows]),
            "precision": errors_by(errors, [row.precision for row in rows]),
            "device, operator, precision": errors_by(errors, names),
            "the same above 20 us": errors_by(errors, long_names),
        },
    )


def _read(row: Row) -> TimedOperator:
    op, precision, loads = row.text("op"), row.text("precision"), row.text("distribution")
    if op not in SIZES:
        raise AtollError(f"op {op!r} is not modelled")
    if precision not in OP_FORMATS.get(op, (precision,)):
        raise AtollError(f"{op} in {precision!r} is not modelled")
    sizes = tuple(row.number(name, 1.0) for name in SIZES[op])
    if op == "moe":
        if loads not in ("", "balanced") and not loads.startswith(POWER_LAW):
            raise AtollError(f"experts loaded as {loads!r} are not modelled")
        sizes += (float(loads.removeprefix(POWER_LAW)) if POWER_LAW in loads else 0.0,)
    time_us = row.number("us") - row.number("quant_us", 0.0)
    if time_us <= 0:
        raise AtollError(f"{row.where}: quant_us is not below us")
    kernel = row.text("kernel")
    return TimedOperator(row.line, row.text("device"), op, precision, sizes, time_us * 1e-6, kernel)


def predicted_s(gpu: Gpu, rows: Sequence[TimedOperator]) -> Floats:
    """Predict the times of rows of one device, operator and format."""
    op, precision = rows[0].op, rows[0].precision
    table = np.array([row.sizes for row in rows])
    if op in ("gemm", "bmm"):
        m, n, k, batch = table.T
        same_operand = SAME_OPERAND in rows[0].kernel
        cast = CAST_BYTES[precision] if same_operand and precision == "fp8" else 0.0
        time_s = gemm_times_s(
            gpu, m, n, k, batch, precision, rotating_operands=OPERAND_SETS, cast=cast
        )
        if precision not in CAST_FORMATS:
            return time_s
        if DEEPGEMM in rows[0].kernel and gpu.name in SPILLING:
            time_s = time_s + _spilled_s(gpu, m, n, k * batch)
        by_row_s = gpu.calibration.format_fit(precision).cast_row_s * m * batch
        cast_s = _cast_s(gpu, precision, batch * m * k, cached=same_operand)
        return np.asarray(time_s + by_row_s + cast_s)
    if op in ("attention_prefill", "mla_prefill"):
        by_kernel = CACHE_PASSES if precision != "fp8" else QUERY_BYTES
        passes = np.array([_by_kernel(by_kernel, row.kernel) for row in rows])
        latent = np.array([op == "mla_prefill" or _is_cut(row) for row in rows])
        return _attention_s(gpu, precision, table, passes, latent)
    if op == "moe":
        return _experts_s(gpu, precision, table)
    if op in ("quantize_cast", "quantize_amax"):
        elements = table.prod(axis=1)
        if op == "quantize_cast":
            moved = elements * CAST_BYTES[precision]
            return _replayed_s(gpu, moved, cached_bytes=moved)
        cached = elements * HALF_BYTES
        return _replayed_s(gpu, elements * AMAX_BYTES, AMAX_KERNELS, cached_bytes=cached)
    network = load_network(gpu.network)
    if op == "all_to_all":
        return np.array([all_to_all_s(network, bytes_, int(n)) for bytes_, n in table])
    return np.array([collective_s(network, op, bytes_, int(n)) for bytes_, n in table])


def _replayed_s(gpu: Gpu, moved: Floats, kernels: int = 1, *, cached_bytes: Floats) -> Floats:
    """Return the time of a repeated stream, which reads from L2 if `cached_bytes` fit in it."""
    time_s = streaming_s(gpu, moved, kernels)
    cached_s = moved / L2_BPS + kernels * gpu.calibration.vector_kernel_s
    return np.where(cached_bytes <= gpu.l2_bytes, np.minimum(time_s, cached_s), time_s)


def _cast_s(gpu: Gpu, precision: str, elements: Floats, *, cached: bool = False) -> Floats:
    """Return the time of a cast of a 16-bit operand; `cached`: in L2 if both operands fit in it."""
    moved = elements * CAST_BYTES[precision]
    time_s = _replayed_s(gpu, moved, cached_bytes=moved) if cached else streaming_s(gpu, moved)
    if precision != "nvfp4":
        return time_s
    return np.maximum(time_s, elements / NVFP4_CASTS + gpu.calibration.vector_kernel_s)


def _spilled_s(gpu: Gpu, m: Floats, n: Floats, k: Floats) -> Floats:
    """Return the time added by DeepGEMM's tiles of 192 columns, whose sums spill (160 do not)."""
    row_tiles = np.ceil(m / 128)
    spills = (row_tiles * np.ceil(n / 160) > gpu.sms) & (row_tiles * np.ceil(n / 192) <= gpu.sms)
    return np.where(spills, SPILLED * 2 * m * n * k / gpu.loop_flops("fp8_block"), 0.0)


def _by_kernel(table: Mapping[str, float], kernel: str) -> float:
    return next((passes for part, passes in table.items() if part in kernel), USUAL_CACHE_PASSES)


def _is_cut(row: TimedOperator) -> bool:
    return row.precision == "fp8" and CUT_KERNEL in row.kernel and row.sizes[HEAD_DIM] == LATENT_KEY


def _attention_s(
    gpu: Gpu, precision: str, table: Floats, passes: Floats, latent: NDArray[np.bool_]
) -> Floats:
    """Predict attention over a prompt; causal rows store keys and values, 8-bit rows cast all."""
    b, h, hk, s, d, causal = table.T
    dtype = "fp8" if precision == "fp8" else gpu.half_dtype
    width = np.where(latent, (d + LATENT_VALUE) / 2, d)
    time_s = attention_times_s(gpu, Heads(b, h, hk, s, width, causal), dtype=dtype, prompt=True)
    fit = gpu.calibration.prompt or gpu.calibration.forward
    if dtype == "fp8":
        stored, engine_s = passes * b * s * (h + 2 * hk) * d, fit.fp8_engine_s
        cut = 2 * HALF_BYTES * b * s * (h + hk) * LATENT_VALUE
        time_s = time_s + np.where(latent, streaming_s(gpu, cut, 2), 0.0)
    else:
        stored, engine_s = passes * 2 * b * s * hk * d * HALF_BYTES, fit.engine_s
    return time_s + engine_s + np.where(causal, _replayed_s(gpu, stored, cached_bytes=stored), 0.0)


@lru_cache(maxsize=4096)
def busiest_load(exponent: float, tokens: float, experts: float, ranks: float) -> float:
    """Return the load of the busiest rank over the mean, if loads of experts follow a power law of
    this exponent (0: even): the mean of draws with a fixed seed.
    """
    if not exponent or ranks <= 1 or experts < ranks:
        return 1.0
    drawn = np.random.default_rng(0).random((DRAWS, int(ranks), int(experts // ranks)))
    most, power = max(2.0, LARGEST_LOAD * tokens), 1 - exponent
    # Inverse of the distribution between 1 and `most`; an exponent of 1 is its limit.
    loads = most**drawn if power == 0 else (1 + (most**power - 1) * drawn) ** (1 / power)
    by_rank = loads.sum(axis=2)
    return float((by_rank.max(axis=1) / by_rank.mean(axis=1)).mean())


def _experts_s(gpu: Gpu, precision: str, table: Floats) -> Floats:
    """Predict a rank's expert layer with an equal load per expert: gather of rows, products up
    (gated) and down, SwiGLU between them, and the weighted sum of the results.
    """
    m, experts, topk, hidden, ffn, ep, tp, exponent = table.T
    busiest = [busiest_load(*sizes) for sizes in zip(exponent, m, experts, ep, strict=True)]
    rows = np.maximum(1.0, m * topk / ep * busiest)
    local = np.minimum(experts / ep, rows)
    rows_per_expert, ffn_per_rank = rows / local, ffn / tp
    up_s = gemm_times_s(gpu, rows_per_expert, 2 * ffn_per_rank, hidden, local, precision)
    down_s = gemm_times_s(gpu, rows_per_expert, hidden, ffn_per_rank, local, precision)
    moved = 2 * rows * (2 * hidden + 3 * ffn_per_rank + hidden) + 2 * m * hidden
    time_s = up_s + down_s + streaming_s(gpu, moved, 6)
    if precision in ("bf16", "fp16"):
        return time_s
    return time_s + _cast_s(gpu, precision, rows * (hidden + ffn_per_rank))
