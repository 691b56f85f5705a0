"""Labels of a shortest path with a resource: (seconds, bytes) at a code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def undominated(time: FloatArray, held: FloatArray, at: IntArray) -> IntArray:
    """Labels that no other at the same code beats in both seconds and bytes."""
    if not len(time):
        return np.zeros(0, np.int64)
    order = np.lexsort((held, time, at))
    sorted_at, sorted_held = at[order], held[order]
    # Least bytes among the faster labels of the same code, by a running minimum reset per code.
    starts = np.flatnonzero(np.append(True, sorted_at[1:] != sorted_at[:-1]))
    keep = np.zeros(len(order), np.bool_)
    for begin, end in zip(starts, np.append(starts[1:], len(order)), strict=True):
        running = np.minimum.accumulate(sorted_held[begin:end])
        keep[begin:end] = np.append(True, sorted_held[begin + 1 : end] < running[:-1])
    return np.asarray(order[keep])
