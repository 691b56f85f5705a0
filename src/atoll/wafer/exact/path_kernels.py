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
def min_plus(left, right, product, choice):
    """product[i, j] = min over k of left[i, k] + right[k, j], and which k."""
    for i in range(left.shape[0]):
        for j in range(right.shape[1]):
            product[i, j] = np.inf
            choice[i, j] = 0
        for k in range(left.shape[1]):
            head = left[i, k]
            if head == np.inf:
                continue
            for j in range(right.shape[1]):
                value = head + right[k, j]
                if value < product[i, j]:
                    product[i, j] = value
                    choice[i, j] = k
