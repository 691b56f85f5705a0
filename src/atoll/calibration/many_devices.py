"""Operators and collectives timed on several devices: predictions held against them.

Columns: device, op, precision, us, and the sizes of each kind: m, n, k, batch of products; batch,
heads, kv_heads, seq, head_dim, causal of attention; experts, topk, hidden, expert_ffn, ep, tp and m
(tokens of the whole expert group) of expert layers; ranks and bytes of collectives (gathered bytes
for a gather, a rank's whole input for others). `quant_us` is what a cast before a product took;
`distribution` how experts are loaded: balanced, or by a power law (power_law_1.2), of which the
busiest rank was timed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atoll.answers.validation import Errors, OperatorsValidation, WorstOperator
from atoll.calibration.validate import WORST
from atoll.cost.gpu_attention import Heads, attention_times_s
from atoll.cost.gpu_gemm import L2_BPS, Floats, gemm_times_s
from atoll.cost.gpu_vector import streaming_s
from atoll.errors import AtollError
from atoll.fabric.nested import PASSES, all_to_all_s, collective_s
from atoll.files.csvfile import Line, read_csv, write_csv
from atoll.hardware.catalog import load_network
from atoll.hardware.gpu import Gpu, written_gpu
from atoll.validation.errors import error_summary

COLUMNS = ("device", "op", "precision", "us")
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
KNOWN = {
    "attention_prefill": ("bf16", "fp16", "fp8"),
    "mla_prefill": ("bf16", "fp16"),
    **dict.fromkeys(("gemm", "bmm", "moe"), FORMATS),
}
"""Formats by operator; collectives and casts take bytes of any."""
CAST_BYTES = {"fp8": 3.0, "fp8_block": 3.5, "nvfp4": 2.6}
"""Per element of a cast of 16-bit numbers: 3 must move to fp8, of blocks' scales a little more
(fitted over all devices); 2.6 to nvfp4."""
NVFP4_CASTS = 1.7e12
"""Elements a second that kernels cast to nvfp4 at most, whatever the memory; over all devices."""
CAST = ("fp8_block", "nvfp4")
"""Formats whose rows include the cast of the first operand."""
AMAX_BYTES, AMAX_KERNELS = 6.0, 2
"""Of the largest absolute value, by PyTorch: the values are written and read again."""
IN_TURN = 6
"""Sets of operands that products are timed with."""
HALF_BYTES = 2
CACHE_PASSES = {"fa3": 6.0, "trtllm": 6.0}
"""Bytes over those of keys and values that engines move to store them in their paged cache, by a
part of the kernel's name; fitted over all devices."""
USUAL_CACHE_PASSES = 2.5
QUERY_BYTES = {"fa3": 2.0, "trtllm": 7.0, "torch_flow": 3.5}
"""Bytes an element of queries, keys and values that engines move before attention in 8 bits: they
are cast, and keys and values stored in the cache; by a part of the kernel's name."""
DEEPGEMM, SPILLING, SPILLED = "deepgemm", ("h100", "h200"), 4.0
"""On Hopper it takes tiles of 128 x 192 where they alone make one wave, though their sums exceed
the registers: such products take so many times their loop's time more."""
ONE_SET = "torch_flow"
"""An engine that casts the same operand again and again, which L2 may hold."""
POWER_LAW = "power_law_"
LARGEST_LOAD = 0.8  # of all tokens, that an expert may get under a power law; the least is one
DRAWS = 200  # of loads, for the mean of the busiest rank's
LATENT_VALUE = 128
"""Columns of a value head of latent attention; `head_dim` are those of its keys."""
LATENT_KEY, CUT = 192, "fa3"
"""Heads with keys of as many columns have such values too where FlashAttention-3 runs in 8 bits:
products of 192 and 128 columns, and one kernel more for the values and one for the results."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One measurement: of what, on which device, its sizes, and how long it took."""

    line: int
    device: str
    op: str
    precision: str
    sizes: tuple[float, ...]
    measured_s: float
    kernel: str = ""
    """Who ran it, where the table says."""


def is_device_table(header: Sequence[str]) -> bool:
    """Whether a CSV's columns are those of operators on several devices."""
    return all(name in header for name in COLUMNS)


def read_timed(path: str | Path) -> tuple[list[Timed], Counter[str]]:
    """The rows that can be read, and why others cannot."""
    rows: list[Timed] = []
    skipped: Counter[str] = Counter()
    for line in read_csv(path)[1]:
        try:
            rows.append(_row(line))
        except ValueError as error:
            skipped[str(error)] += 1
    return rows, skipped


def validate_devices(path: str | Path, *, out: str | Path | None = None) -> OperatorsValidation:
    """Errors over a file, by device, by operator and by format."""
    read, skipped = read_timed(path)
    count = len(read) + sum(skipped.values())
    kinds: defaultdict[tuple[str, str, str], list[Timed]] = defaultdict(list)
    for row in read:
        kinds[row.device, row.op, row.precision].append(row)
    rows: list[Timed] = []
    found: list[Floats] = []
    for (device, _, _), members in kinds.items():
        try:
            found.append(predicted_s(written_gpu(device), members))
            rows += members
        except AtollError as error:
            skipped[str(error)] += len(members)
    times_s = np.concatenate(found) if found else np.empty(0)
    errors = times_s / np.array([row.measured_s for row in rows]) - 1

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
        for row, predicted, error in zip(rows, times_s, errors, strict=True)
    ]
    if out is not None:
        header = ("line", "device", "operator", "measured_s", "predicted_s", "error")
        write_csv(out, header, [[getattr(row, name) for name in header] for row in told])
    return OperatorsValidation(
        device="several devices",
        rows=count,
        predicted=len(rows),
        skipped=dict(skipped.most_common()),
        step_time=error_summary(errors),
        by_kind=by(lambda row: f"{row.op} {row.precision}"),
        groups={
            "device": by(lambda row: row.device),
            "precision": by(lambda row: row.precision),
            "device, operator, precision": by(lambda r: f"{r.device} {r.op} {r.precision}"),
            "the same above 20 us": by(
                lambda r: f"{r.device} {r.op} {r.precision}" if r.measured_s > 20e-6 else "shorter"
            ),
        },
        worst=tuple(sorted(told, key=lambda row: -abs(row.error))[:WORST]),
    )


def _row(line: Line) -> Timed:
    given = line.cells
    if line.trouble:
        raise ValueError(f"line {line.number}: {line.trouble}")
    op, precision = given["op"], given["precision"]
    if op not in SIZES:
        raise ValueError(f"op {op!r} is not modelled")
    if precision not in KNOWN.get(op, (precision,)):
        raise ValueError(f"{op} in {precision!r} is not modelled")
    loads = given.get("distribution") or "balanced"
    if op == "moe" and loads != "balanced" and not loads.startswith(POWER_LAW):
        raise ValueError(f"experts loaded as {loads!r} are not modelled")
    try:
        sizes = tuple(float(given.get(name) or 1) for name in SIZES[op])
        if op == "moe":
            sizes += (float(loads.removeprefix(POWER_LAW)) if loads != "balanced" else 0.0,)
        took_us = float(given["us"]) - float(given.get("quant_us") or 0)
    except ValueError:
        raise ValueError(f"line {line.number}: a size or time is no number") from None
    if not (0 < took_us < 1e15 and all(0 <= size < 1e15 for size in sizes)):
        raise ValueError(f"line {line.number}: sizes and times must be positive, below 1e15")
    kernel = given.get("kernel") or ""
    return Timed(line.number, given["device"], op, precision, sizes, took_us * 1e-6, kernel)


def predicted_s(gpu: Gpu, rows: Sequence[Timed]) -> Floats:
    """Times of rows of one device, operator and format."""
    op, precision = rows[0].op, rows[0].precision
    table = np.array([row.sizes for row in rows])
    if op in ("gemm", "bmm"):
        m, n, k, batch = table.T
        one_set = ONE_SET in rows[0].kernel
        cast = CAST_BYTES[precision] if one_set and precision == "fp8" else 0.0
        time_s = gemm_times_s(gpu, m, n, k, batch, precision, in_turn=IN_TURN, cast=cast)
        if precision not in CAST:
            return time_s
        if DEEPGEMM in rows[0].kernel and gpu.name in SPILLING:
            time_s = time_s + _spilled_s(gpu, m, n, k * batch)
        by_row_s = gpu.calibration.format_fit(precision).cast_row_s * m * batch
        cast_s = _cast_s(gpu, precision, batch * m * k, held=one_set)
        return np.asarray(time_s + by_row_s + cast_s)
    if op in ("attention_prefill", "mla_prefill"):
        named = CACHE_PASSES if precision != "fp8" else QUERY_BYTES
        passes = np.array([_by_kernel(named, row.kernel) for row in rows])
        latent = np.array([op == "mla_prefill" or _is_cut(row) for row in rows])
        return _attention_s(gpu, precision, table, passes, latent)
    if op == "moe":
        return _experts_s(gpu, precision, table)
    if op in ("quantize_cast", "quantize_amax"):
        elements = table.prod(axis=1)
        if op == "quantize_cast":
            moved = elements * CAST_BYTES[precision]
            return _replayed_s(gpu, moved, held=moved)
        return _replayed_s(gpu, elements * AMAX_BYTES, AMAX_KERNELS, held=elements * HALF_BYTES)
    network = load_network(gpu.network)
    if op == "all_to_all":
        return np.array([all_to_all_s(network, bytes_, int(n)) for bytes_, n in table])
    return np.array([collective_s(network, op, bytes_, int(n)) for bytes_, n in table])


def _replayed_s(gpu: Gpu, moved: Floats, kernels: int = 1, *, held: Floats) -> Floats:
    """A stream timed again and again, which finds in L2 what that holds."""
    time_s = streaming_s(gpu, moved, kernels)
    inside_s = moved / L2_BPS + kernels * gpu.calibration.vector_kernel_s
    return np.where(held <= gpu.l2_bytes, np.minimum(time_s, inside_s), time_s)


def _cast_s(gpu: Gpu, precision: str, elements: Floats, *, held: bool = False) -> Floats:
    """A 16-bit operand read, a narrow one written; `held`: in L2 where that has room for both."""
    moved = elements * CAST_BYTES[precision]
    time_s = _replayed_s(gpu, moved, held=moved) if held else streaming_s(gpu, moved)
    if precision != "nvfp4":
        return time_s
    return np.maximum(time_s, elements / NVFP4_CASTS + gpu.calibration.vector_kernel_s)


def _spilled_s(gpu: Gpu, m: Floats, n: Floats, k: Floats) -> Floats:
    """What DeepGEMM's tiles of 192 columns add; those of up to 160 keep their sums in registers."""
    rows = np.ceil(m / 128)
    taken = (rows * np.ceil(n / 160) > gpu.sms) & (rows * np.ceil(n / 192) <= gpu.sms)
    return np.where(taken, SPILLED * 2 * m * n * k / gpu.loop_flops("fp8_block"), 0.0)


def _by_kernel(named: Mapping[str, float], kernel: str) -> float:
    return next((own for part, own in named.items() if part in kernel), USUAL_CACHE_PASSES)


def _is_cut(row: Timed) -> bool:
    return row.precision == "fp8" and CUT in row.kernel and row.sizes[4] == LATENT_KEY


def _attention_s(
    gpu: Gpu, precision: str, table: Floats, passes: Floats, latent: NDArray[np.bool_]
) -> Floats:
    """Attention over a prompt; causal rows also store keys and values, those in 8 bits cast all."""
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
    return time_s + engine_s + np.where(causal, _replayed_s(gpu, stored, held=stored), 0.0)


@lru_cache(maxsize=4096)
def busiest_load(exponent: float, tokens: float, experts: float, ranks: float) -> float:
    """What the busiest of some ranks gets over what all get on average, where loads of experts
    follow a power law of this exponent (0: they are even): the mean of draws, always the same.
    """
    if not exponent or ranks <= 1 or experts < ranks:
        return 1.0
    drawn = np.random.default_rng(0).random((DRAWS, int(ranks), int(experts // ranks)))
    most, power = max(2.0, LARGEST_LOAD * tokens), 1 - exponent
    # The inverse of the distribution between 1 and the most; an exponent of 1 is its limit.
    loads = most**drawn if power == 0 else (1 + (most**power - 1) * drawn) ** (1 / power)
    by_rank = loads.sum(axis=2)
    return float((by_rank.max(axis=1) / by_rank.mean(axis=1)).mean())


def _experts_s(gpu: Gpu, precision: str, table: Floats) -> Floats:
    """One rank's expert layer, every expert of it with as many tokens: rows gathered, products up
    (gated) and down, SwiGLU between them, and the weighted sum of what returns.
    """
    m, experts, topk, hidden, ffn, ep, tp, exponent = table.T
    busiest = [busiest_load(*sizes) for sizes in zip(exponent, m, experts, ep, strict=True)]
    rows = np.maximum(1.0, m * topk / ep * busiest)
    local = np.minimum(experts / ep, rows)
    own, inner = rows / local, ffn / tp
    up_s = gemm_times_s(gpu, own, 2 * inner, hidden, local, precision)
    down_s = gemm_times_s(gpu, own, hidden, inner, local, precision)
    moved = 2 * rows * (2 * hidden + 3 * inner + hidden) + 2 * m * hidden
    time_s = up_s + down_s + streaming_s(gpu, moved, 6)
    if precision in ("bf16", "fp16"):
        return time_s
    return time_s + _cast_s(gpu, precision, rows * (hidden + inner))
