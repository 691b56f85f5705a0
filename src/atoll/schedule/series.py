"""Which operators of a pass wait for which, and the parts that it consists of one after the other.

Operators are in topological order, the predecessors of j being idx[ptr[j] : ptr[j + 1]].
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


def ancestors(pred_ptr: NDArray[np.int64], pred_idx: NDArray[np.int64]) -> list[int]:
    """Of each operator those that must finish before it starts, as bits."""
    idx = pred_idx.tolist()
    masks: list[int] = []
    for first, end in pairwise(pred_ptr.tolist()):
        mask = 0
        for i in idx[first:end]:
            mask |= masks[i] | 1 << i
        masks.append(mask)
    return masks


def ordered(pred_ptr: NDArray[np.int64], pred_idx: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which pairs of operators the precedence orders."""
    before = ancestors(pred_ptr, pred_idx)
    n = len(before)
    size = -(-n // 8)
    rows = np.frombuffer(b"".join(bits.to_bytes(size, "little") for bits in before), np.uint8)
    earlier = np.unpackbits(rows.reshape(n, size), axis=1, count=n, bitorder="little") == 1
    both_directions: NDArray[np.bool_] = earlier | earlier.T
    return both_directions


def part_begins(pred_ptr: NDArray[np.int64], pred_idx: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The operators with which series parts begin: everything earlier precedes everything from
    there on, so that makespans add up.

    A part of the graph that is wholly before the rest is a prefix of every topological order, so
    that it is enough to look at the prefixes of the given one.
    """
    before = ancestors(pred_ptr, pred_idx)
    begins = np.zeros(len(before), np.bool_)
    lowest = len(before)  # operators 0 .. lowest-1 precede all of j, j+1, ...
    for j in range(len(before) - 1, -1, -1):
        first_missing = (~before[j] & (before[j] + 1)).bit_length() - 1
        lowest = min(lowest, first_missing)
        begins[j] = lowest >= j
    return begins


def series_begins(
    ptr: NDArray[np.int64], pred_ptr: NDArray[np.int64], pred_idx: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Of passes one after the other, the operators with which their series parts begin."""
    begins_by_graph: dict[bytes, NDArray[np.bool_]] = {}
    begins = [np.zeros(0, np.bool_)]
    for first, end in pairwise(ptr.tolist()):
        pointers = pred_ptr[first : end + 1] - pred_ptr[first]
        idx = pred_idx[pred_ptr[first] : pred_ptr[end]]
        graph = pointers.tobytes() + idx.tobytes()
        if graph not in begins_by_graph:
            begins_by_graph[graph] = part_begins(pointers, idx)
        begins.append(begins_by_graph[graph])
    return np.concatenate(begins)
