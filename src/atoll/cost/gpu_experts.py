"""Times of the parts of an expert layer on a GPU in eager PyTorch, for arrays of sizes.

Parts: router, sorting of ids, gathering rows by expert (dispatch), grouped products, scaling and
summing rows (combine), and the whole block in both directions. The constants were fitted to 1,070
timings on one H200.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from atoll.base.arrays import Floats
from atoll.cost.gpu_gemm import gemm_times_s
from atoll.cost.gpu_vector import streaming_s
from atoll.hardware.gpu import Gpu

TILE_ROWS = 128
"""Rows per tile of a grouped product; the last tile of an expert is computed in full."""
GROUPED_START_S = 11e-6  # the kernel that lists the products
# Bytes per element of a gathered row and of a token: sources are read again for every expert,
# partly from L2.
GATHERED_BYTES, SOURCE_BYTES = 3.5, 3.0
# Rows are scaled, and added up by atomic operations on memory, into zeros that were written first.
ADDED_BYTES, SUM_BYTES = 47.0, 12.0
# Gate and up are halves of one tensor, each gradient is written into zeros of its size.
GATE_BYTES, GATE_BACKWARD_BYTES = 18.5, 44.0
# Ids up to this many are sorted by one block, others in passes over their digits.
BLOCK_IDS = 4096
SORT_S = 38e-6
# Top k of a row: one block handles a row, in pieces of this many scores.
TOP_COLUMNS = 64
TOP_ROW_S = 3.7e-9
ROUTER_START_S = 22e-6  # casts, softmax, top k, normalised gates


@dataclass(frozen=True, slots=True)
class Routed:
    """Sizes of expert layers on one device."""

    tokens: Floats
    rows: Floats
    """Rows routed to the experts of the device."""
    hidden: Floats
    ffn: Floats
    experts: Floats
    """Experts on the device."""
    largest: Floats
    """Rows of the expert with the most rows."""

    @property
    def tiled_rows(self) -> Floats:
        """Mean rows per expert with padding: uneven experts fill half of their last tile."""
        rows_per_expert = self.rows / self.experts
        uneven = self.largest > np.ceil(rows_per_expert)
        even = np.ceil(rows_per_expert / TILE_ROWS) * TILE_ROWS
        return np.where(uneven, rows_per_expert + TILE_ROWS / 2, even)


def expert_times_s(gpu: Gpu, kind: str, sizes: Routed) -> Floats:
    """Return the seconds of one of `EXPERT_KINDS`."""
    return EXPERT_KINDS[kind](gpu, sizes)


def _grouped_s(kind: str, gpu: Gpu, s: Routed) -> Floats:
    """Return the seconds of grouped products, of m x k by k x n for every expert."""
    rows, hidden, ffn = s.tiled_rows, s.hidden, s.ffn
    m, n, k = {
        "up": (rows, 2 * ffn, hidden),
        "up_dgrad": (rows, hidden, 2 * ffn),
        "up_wgrad": (2 * ffn, hidden, rows),
        "down": (rows, hidden, ffn),
        "down_dgrad": (rows, ffn, hidden),
        "down_wgrad": (hidden, ffn, rows),
    }[kind]
    return GROUPED_START_S + gemm_times_s(gpu, m, n, k, s.experts, gpu.half_dtype)


def _dispatch_s(gpu: Gpu, s: Routed) -> Floats:
    return streaming_s(gpu, (GATHERED_BYTES * s.rows + SOURCE_BYTES * s.tokens) * s.hidden)


def _combine_s(gpu: Gpu, s: Routed) -> Floats:
    return streaming_s(gpu, (ADDED_BYTES * s.rows + SUM_BYTES * s.tokens) * s.hidden, 2)


def _router_s(gpu: Gpu, s: Routed) -> Floats:
    scores_s = gemm_times_s(gpu, s.tokens, s.experts, s.hidden, 1, gpu.half_dtype)
    top_s = TOP_ROW_S * s.tokens * np.maximum(1.0, s.experts / TOP_COLUMNS)
    return np.asarray(scores_s + top_s + ROUTER_START_S)


def _sort_s(gpu: Gpu, s: Routed) -> Floats:
    return np.where(s.rows <= BLOCK_IDS, SORT_S, 2 * SORT_S)


def _forward_s(gpu: Gpu, s: Routed) -> Floats:
    gate_s = streaming_s(gpu, GATE_BYTES * s.rows * s.ffn)
    up_s, down_s = _grouped_s("up", gpu, s), _grouped_s("down", gpu, s)
    return _dispatch_s(gpu, s) + up_s + gate_s + down_s + _combine_s(gpu, s)


def _backward_s(gpu: Gpu, s: Routed) -> Floats:
    """Sum gradients of gathered rows like results in the forward pass."""
    gate_s = streaming_s(gpu, GATE_BACKWARD_BYTES * s.rows * s.ffn)
    up_s = _grouped_s("up_dgrad", gpu, s) + _grouped_s("up_wgrad", gpu, s)
    down_s = _grouped_s("down_dgrad", gpu, s) + _grouped_s("down_wgrad", gpu, s)
    return up_s + down_s + gate_s + _combine_s(gpu, s)


EXPERT_KINDS: Mapping[str, Callable[[Gpu, Routed], Floats]] = {
    "router_fwd": _router_s,
    "sort_ids": _sort_s,
    "dispatch_fwd": _dispatch_s,
    "grouped_up_fwd": partial(_grouped_s, "up"),
    "grouped_up_dgrad": partial(_grouped_s, "up_dgrad"),
    "grouped_up_wgrad": partial(_grouped_s, "up_wgrad"),
    "grouped_down_fwd": partial(_grouped_s, "down"),
    "combine_fwd": _combine_s,
    "block_fwd": _forward_s,
    "block_bwd": _backward_s,
}
"""Functions by the names of their rows in a table of measured operators."""
