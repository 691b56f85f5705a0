"""Interleaved pipelines with unequal chunks: what a stage waits for when chunks take turns.

A group of g microbatches passes the first chunks of all stages, then the second, to the last ones.
With L the time of a stage on a microbatch, all passes in it, a and z those of its first and last
chunk, and e the last stage, no step with n groups is shorter than

    g z_e + fill + (n - 1) cycle
    fill   = g (L_s - z_s) + sum of a before s + sum of z from s to before e    for any stage s
    cycle  = g L_s                                                             for any stage s, or
             g L_s + g z_e - (g - 1) z_s - 2 j a_s + sum of z between s and e
                                                   for one with j = e - s stages after it, 2 j <= g

The first group fills chunks one after another before its last ones run, and empties them after; in
between stage s waits while e runs its last chunk, which leaves out the g - 1 passes of z_s that it
runs meanwhile, and of the next group's first chunks and those of the one before two for every stage
that data has to cross. These are ways through the replay, of which the step is near the longest:
of the first two and the last two stages that fill, and of the slowest and the two before the last
that wait. Pipelines of 2 to 8 stages drawn at random, with heads of up to three blocks: 0.7 % off
from the replay on average and 4 % below it at most (without: 1.5 and 20 %), and 1.0 and 9 % where
it is asked of those alone that wait (`uneven`), as estimates do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atoll.step.orders import SPLIT

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def takes_turns(order: str, pp: int, vpp: int, microbatches: int) -> bool:
    """Whether chunks of an order run in turns, all of a group's microbatches in each."""
    return vpp > 1 and order not in SPLIT and microbatches >= pp


def uneven(blocks: Ints) -> bool:
    """Whether some stage has more blocks of some kind in its chunks but the last than the last
    stage, of (stages, chunks, kinds). Else the last stage is the slowest in every turn, and the
    formula of equal chunks has all of it.
    """
    outside = blocks[:, :-1].sum(axis=1)
    return bool((outside[:-1] > outside[-1]).any())


def turns_s(
    stage_s: Floats, first_s: Floats, last_s: Floats, starts: Ints, microbatches: Ints
) -> Floats:
    """(rows, ...): of pipelines whose stages stand one behind another from `starts` on; (stages,
    ...) seconds of a microbatch in every stage, in its first chunk and in its last one.
    """
    sizes = np.diff(np.append(starts, len(stage_s)))
    groups = np.maximum(1, microbatches // sizes)
    g, end = (microbatches / groups)[:, None], starts + sizes - 1
    every = np.stack([stage_s, first_s, last_s])
    own, a, z = every[:, np.stack([starts, starts + 1, np.maximum(end - 2, starts), end - 1, end])]
    own -= z
    own *= g
    before, behind = np.add.reduceat(every[1:], starts, axis=1)
    before -= a[4]
    behind -= z[4]
    fill = np.maximum(
        np.maximum(own[0], own[1] + a[0] - z[0]) + behind,
        np.maximum(own[3] + z[3] - a[3], own[4]) + before,
    )
    two = own[2] + z[2] + z[3] - 4 * a[2]
    two[(sizes == 2) | (g[:, 0] < 4)] = 0.0
    ends = g * z[4]
    waits = np.maximum(own[3] + z[3] - 2 * a[3], two) + ends
    cycle = np.maximum(g * np.maximum.reduceat(stage_s, starts, axis=0), waits)
    return np.asarray(ends + fill + (groups - 1)[:, None] * cycle)
