"""Compiled: shortest paths, and labels of one with two resources that no other label beats."""

from __future__ import annotations

import numpy as np

from atoll.jit import entry, quick_entry


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


@quick_entry
def min_plus(left, right, product):
    """product[i, j] = min over k of left[i, k] + right[k, j].

    Four rows and four terms at a time, so that what is read and written serves several of them.
    """
    rows, columns = product.shape
    terms = left.shape[1]
    some_rows, some_terms = rows - rows % 4, terms - terms % 4
    for i in range(rows):
        for j in range(columns):
            product[i, j] = np.inf
    for i in range(0, some_rows, 4):
        for k in range(0, some_terms, 4):
            a0, a1, a2, a3 = left[i, k], left[i, k + 1], left[i, k + 2], left[i, k + 3]
            b0, b1, b2, b3 = (
                left[i + 1, k],
                left[i + 1, k + 1],
                left[i + 1, k + 2],
                left[i + 1, k + 3],
            )
            c0, c1, c2, c3 = (
                left[i + 2, k],
                left[i + 2, k + 1],
                left[i + 2, k + 2],
                left[i + 2, k + 3],
            )
            d0, d1, d2, d3 = (
                left[i + 3, k],
                left[i + 3, k + 1],
                left[i + 3, k + 2],
                left[i + 3, k + 3],
            )
            for j in range(columns):
                w0, w1, w2, w3 = right[k, j], right[k + 1, j], right[k + 2, j], right[k + 3, j]
                a = min(min(a0 + w0, a1 + w1), min(a2 + w2, a3 + w3))
                b = min(min(b0 + w0, b1 + w1), min(b2 + w2, b3 + w3))
                c = min(min(c0 + w0, c1 + w1), min(c2 + w2, c3 + w3))
                d = min(min(d0 + w0, d1 + w1), min(d2 + w2, d3 + w3))
                product[i, j] = min(product[i, j], a)
                product[i + 1, j] = min(product[i + 1, j], b)
                product[i + 2, j] = min(product[i + 2, j], c)
                product[i + 3, j] = min(product[i + 3, j], d)
    for i in range(rows):
        for k in range(some_terms if i < some_rows else 0, terms):
            head = left[i, k]
            for j in range(columns):
                product[i, j] = min(product[i, j], head + right[k, j])
