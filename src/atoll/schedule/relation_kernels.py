"""Compiled propagation of decided options and relations, for `relations`."""

from __future__ import annotations

import numpy as np

from atoll.base.jit import entry, kernel
from atoll.schedule.bound_kernels import Bools, Floats, falling


@kernel
def follow(before: Bools, never: Bools) -> bool:
    """Add implied relations in place; return whether any were added.

    `before` is transitive. If j does not end before i starts, then j does not end before the start
    of any operator that precedes i, and no operator that follows j ends before i starts.
    """
    n = before.shape[0]
    changed = False
    for k in range(n):
        for i in range(n):
            if before[i, k]:
                for j in range(n):
                    if before[k, j] and not before[i, j]:
                        before[i, j] = True
                        changed = True
    for j in range(n):
        for i in range(n):
            if never[j, i]:
                for a in range(n):
                    if before[a, i] and not never[j, a]:
                        never[j, a] = True
                        changed = True
                    if before[j, a] and not never[a, i]:
                        never[a, i] = True
                        changed = True
    return changed


@kernel
def around(before: Bools, weight: Floats, fastest: Floats, head: Floats, tail: Floats) -> None:
    """Fill lower bounds on the seconds before and after each operator, from longest paths and valid
    weights."""
    n = before.shape[0]
    later = np.zeros(n)
    for j in range(n):
        head[j] = 0.0
        tail[j] = 0.0
        for i in range(n):
            if before[i, j]:
                head[j] += weight[i] * (1.0 - 1e-12)
            if before[j, i]:
                tail[j] += weight[i] * (1.0 - 1e-12)
                later[j] += 1.0
    order = falling(later, int(np.int64(0)), n)  # operators with more successors first
    for at in range(n):
        j = order[at]
        for i in range(n):
            if before[i, j]:
                head[j] = max(head[j], head[i] + fastest[i])
    for at in range(n - 1, -1, -1):
        j = order[at]
        for i in range(n):
            if before[j, i]:
                tail[j] = max(tail[j], tail[i] + fastest[i])


@entry
def propagate(
    duration: Floats, together: Bools, weight: Floats, goal: float, alive: Bools, before: Bools,
    never: Bools,
) -> bool:  # fmt: skip
    """Propagate in place for schedules shorter than `goal`; return False if no such schedule
    exists. `together[i, o, j, q]` is true if i in option o and j in option q fit at once.
    """
    n, width = duration.shape
    fastest = np.zeros(n)
    head = np.zeros(n)
    tail = np.zeros(n)
    changed = True
    while changed:
        changed = follow(before, never)
        for j in range(n):
            fastest[j] = np.inf
            for o in range(width):
                if alive[j, o]:
                    fastest[j] = min(fastest[j], duration[j, o])
        around(before, weight, fastest, head, tail)
        for i in range(n):
            for o in range(width):
                if alive[i, o] and head[i] + duration[i, o] + tail[i] >= goal:
                    alive[i, o] = False
                    changed = True
            for j in range(n):
                if not never[i, j] and head[i] + fastest[i] + fastest[j] + tail[j] >= goal:
                    never[i, j] = True
                    changed = True
        for i in range(n):
            for j in range(n):
                if i == j or before[i, j] or before[j, i]:
                    continue
                # Options of two operators that overlap in time must fit together.
                both = never[i, j] and never[j, i]
                any_left = False
                for o in range(width):
                    if not alive[i, o] or (any_left and not both):
                        continue
                    fits = False
                    for q in range(width):
                        fits = fits or (alive[j, q] and together[i, o, j, q])
                    any_left = any_left or fits
                    if both and not fits:
                        alive[i, o] = False
                        changed = True
                if not any_left and not both and never[i, j]:
                    before[j, i] = True
                    changed = True
        for i in range(n):
            any_left = False
            for o in range(width):
                any_left = any_left or alive[i, o]
            for j in range(n):
                if before[i, j] and never[i, j]:
                    return False
            if not any_left:
                return False
    return True
