"""Compiled: shortest paths, and labels of one with two resources that no other label beats."""

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


@entry
def priced_pairs(time, kept, again, node, per_kept, per_byte, weights):
    """Seconds of every pair of states with the cheaper of keeping its tensor and making it again,
    in one pass. `node` (states before or one, states): what the second state costs by itself.
    """
    for i in range(time.shape[0]):
        before = i if node.shape[0] > 1 else 0
        for j in range(time.shape[1]):
            held = per_kept * kept[i, j]
            made = again[i, j] + per_byte * kept[i, j]
            weights[i, j] = time[i, j] + min(held, made) + node[before, j]


@entry
def min_plus(left, right, product):
    """product[i, j] = min over k of left[i, k] + right[k, j].

    Four rows at a time, so that a row of `right` is read once for them.
    """
    rows, columns = product.shape
    for i in range(rows):
        for j in range(columns):
            product[i, j] = np.inf
    together = rows - rows % 4
    for i in range(0, together, 4):
        for k in range(left.shape[1]):
            a, b, c, d = left[i, k], left[i + 1, k], left[i + 2, k], left[i + 3, k]
            if min(a, b, c, d) == np.inf:
                continue
            for j in range(columns):
                weight = right[k, j]
                least = a + weight
                product[i, j] = least if least < product[i, j] else product[i, j]
                least = b + weight
                product[i + 1, j] = least if least < product[i + 1, j] else product[i + 1, j]
                least = c + weight
                product[i + 2, j] = least if least < product[i + 2, j] else product[i + 2, j]
                least = d + weight
                product[i + 3, j] = least if least < product[i + 3, j] else product[i + 3, j]
    for i in range(together, rows):
        for k in range(left.shape[1]):
            head = left[i, k]
            for j in range(columns):
                least = head + right[k, j]
                product[i, j] = least if least < product[i, j] else product[i, j]
