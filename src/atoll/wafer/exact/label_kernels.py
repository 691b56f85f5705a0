"""Compiled: labels of a shortest path with two resources that no other label beats."""

from __future__ import annotations

import numpy as np

from atoll.jit import entry


@entry
def undominated_sorted(at, own, away, keep):
    """Mark labels, sorted by state and then seconds, that no earlier one of their state beats in
    both resources.

    `front` holds the labels of a state that no other beats in the resources alone: whatever beats
    a later label, one of the front does too.
    """
    front = np.zeros(len(at), np.int64)
    size = 0
    for i in range(len(at)):
        if i == 0 or at[i] != at[i - 1]:
            size = 0
        beaten = False
        for j in range(size):
            f = front[j]
            if own[f] <= own[i] and away[f] <= away[i]:
                beaten = True
                break
        keep[i] = not beaten
        if beaten:
            continue
        left = 0
        for j in range(size):
            f = front[j]
            if not (own[i] <= own[f] and away[i] <= away[f]):
                front[left] = f
                left += 1
        front[left] = i
        size = left + 1
