"""Precedence of the operators of a pass, and its decomposition into parts in series.

Operators are in topological order; the predecessors of j are idx[ptr[j] : ptr[j + 1]].
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from atoll.base.arrays import Bools, Ints


def ancestors(pred_ptr: Ints, pred_idx: Ints) -> list[int]:
    """Return the ancestors of each operator as bits of an integer."""
    idx = pred_idx.tolist()
    masks: list[int] = []
    for first, end in pairwise(pred_ptr.tolist()):
        mask = 0
        for i in idx[first:end]:
            mask |= masks[i] | 1 << i
        masks.append(mask)
    return masks


def ordered(pred_ptr: Ints, pred_idx: Ints) -> Bools:
    """Return which pairs are ordered by precedence, shape (operators, operators)."""
    before = ancestors(pred_ptr, pred_idx)
    n = len(before)
    size = -(-n // 8)
    rows = np.frombuffer(b"".join(bits.to_bytes(size, "little") for bits in before), np.uint8)
    earlier = np.unpackbits(rows.reshape(n, size), axis=1, count=n, bitorder="little") == 1
    both_directions: Bools = earlier | earlier.T
    return both_directions


def part_begins(pred_ptr: Ints, pred_idx: Ints) -> Bools:
    """Return which operators begin a series part, shape (operators,): all earlier operators precede
    this one and all later ones, so makespans add up.

    A part that precedes the rest is a prefix of every topological order, so it is sufficient to
    check the prefixes of the given order.
    """
    before = ancestors(pred_ptr, pred_idx)
    begins = np.zeros(len(before), np.bool_)
    lowest = len(before)  # operators 0 .. lowest-1 precede all of j, j+1, ...
    for j in range(len(before) - 1, -1, -1):
        first_missing = (~before[j] & (before[j] + 1)).bit_length() - 1
        lowest = min(lowest, first_missing)
        begins[j] = lowest >= j
    return begins


def series_begins(ptr: Ints, pred_ptr: Ints, pred_idx: Ints) -> Bools:
    """Return `part_begins` of several passes, concatenated."""
    begins_by_graph: dict[bytes, Bools] = {}
    begins = [np.zeros(0, np.bool_)]
    for first, end in pairwise(ptr.tolist()):
        pointers = pred_ptr[first : end + 1] - pred_ptr[first]
        idx = pred_idx[pred_ptr[first] : pred_ptr[end]]
        graph = pointers.tobytes() + idx.tobytes()
        if graph not in begins_by_graph:
            begins_by_graph[graph] = part_begins(pointers, idx)
        begins.append(begins_by_graph[graph])
    return np.concatenate(begins)
