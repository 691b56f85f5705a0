"""Compiled dynamic programme over the successor-closed sets of a layer graph.

Layers are numbered in topological order. A pipeline is a chain of sets, full > ... > empty, each
closed under successors: the difference of two neighbours is one stage. `best_s[D, s, q]` is the
least possible maximum load when the layers of set D fill exactly s stages, the last of the
pipeline, q of them of the odd kind (see `Job.odd_wide`). Devices follow from s and q, so they
need no dimension of their own.

Columns are packed into few arrays, and counters start as np.int64, to keep compilation short:
numba would compile a function once more for a literal argument.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Floats, Ints
from atoll.base.jit import entry, kernel

# Columns of Graph.layer; the first two also name the directions of a pass and of the edges.
FORWARD, BACKWARD, WEIGHT, RESIDENT, STASH, WIDE = range(6)
# Columns of Graph.edge_cost.
SECONDS, BYTES = range(2)
# Columns of Cuts.choice and Cuts.cost.
BELOW, LIMIT, ODD = range(3)
LOAD_S, WEIGHT_BYTES = range(2)
# Columns of Walk.at.
SET, NEXT, NODE = range(3)
# Entries of the plan: its first cut, stages and odd stages still to list, copies, stages listed.
CUT, STAGES, ODDS, COPIES, FILLED = range(5)


class PackedGraph(NamedTuple):
    layer: Floats
    """(layers, 6): forward s, backward s, weight bytes, resident bytes (weights, gradients,
    optimizer, one activation), stash bytes (kept once more per stage that follows), 1 if wide,
    that is tensor-parallel."""
    edge_start: Ints  # (2, layers + 1): edges that enter a layer, that leave it
    edge_node: Ints  # (2, edges): their other end
    edge_cost: Floats  # (2, edges, 2): transfer s, bytes stashed by the receiver


class Lattice(NamedTuple):
    """Closed sets from empty to full, smaller first, and the sets one layer below each."""

    member: NDArray[np.uint8]  # (sets, layers)
    below_start: Ints  # (sets + 1,)
    below: Ints  # (pairs, 2): the set below, the layer by which they differ


class Job(NamedTuple):
    devices: int
    microbatches: int
    memory_bytes: float
    sync_s_per_byte: float  # gradient all-reduce of the first stage, without the (d-1)/d
    recompute: bool
    devices_even: int  # devices of a stage that is not odd
    devices_odd: int
    odd_wide: int  # odd stages are: 1 the wide ones, 0 the narrow ones, -1 none
    stages: int  # most stages
    odd_stages: int  # most odd stages
    work_s: float  # of all layers, recomputation included
    cap_s: Floats  # by s, falling: a larger load there cannot be in an optimum
    before_s: Floats  # by s, falling: more work than this does not fit in the stages before


class Cuts(NamedTuple):
    """Scratch: every stage that may be cut off one set, with the set that it leaves."""

    choice: Ints  # (cuts, 3): set below, largest s that fits in memory, 1 if odd
    cost: Floats  # (cuts, 2): load s, weight bytes


class Walk(NamedTuple):
    """Scratch of the enumeration of stages; depth = layers in the stage so far."""

    stamps: Ints  # by set: stamp of the walk that last reached it
    at: Ints  # (depth, 3): set, next pair to try, layer taken
    sums: Floats  # (depth, 6): column sums of Graph.layer over the stage
    in_stage: NDArray[np.uint8]  # by layer
    release_s: Floats  # (2, layers): earliest start in either direction
    order: Ints


@kernel
def _last_fit(resident, stash, memory, most):
    """Largest s <= most with resident + (s-1)*stash <= memory; 0 if there is none."""
    if resident > memory:
        return 0
    if stash <= 0.0:
        return most
    spare = (memory - resident) / stash
    s = most if spare >= most else int(spare) + 1
    # The division rounds; the inequality itself decides.
    while s > 1 and resident + (s - 1) * stash > memory:
        s -= 1
    while s < most and resident + s * stash <= memory:
        s += 1
    return s


@kernel
def _serial_seconds(graph, walk, depth, direction):
    """Least makespan of the stage on one machine, releases already raised to its predecessors'.

    Serving by release is then optimal, and a sort that keeps equal releases in topological order
    respects precedence.
    """
    release_s = walk.release_s[direction]
    for k in range(depth):
        v = walk.at[k if direction == FORWARD else depth - 1 - k, NODE]
        p = k
        while p > 0 and release_s[walk.order[p - 1]] > release_s[v]:
            walk.order[p] = walk.order[p - 1]
            p -= 1
        walk.order[p] = v
    clock = 0.0
    for k in range(depth):
        v = walk.order[k]
        clock = max(clock, release_s[v]) + graph.layer[v, direction]
    return clock


@kernel
def _put_cut(graph, job, walk, depth, below, limit, odd, cuts, count):
    """Write down the stage of the `depth` layers on the walk, in topological order there."""
    release_s = walk.release_s[BACKWARD]
    for k in range(depth - 1, -1, -1):
        v = walk.at[k, NODE]
        release_s[v] = 0.0
        for e in range(graph.edge_start[BACKWARD, v], graph.edge_start[BACKWARD, v + 1]):
            w = graph.edge_node[BACKWARD, e]
            arrival_s = graph.edge_cost[BACKWARD, e, SECONDS]
            release_s[v] = max(release_s[v], release_s[w] if walk.in_stage[w] else arrival_s)
    # A loop, as numba would compile two calls with two literals twice.
    load_s = 0.0
    for direction in range(2):
        pass_s = _serial_seconds(graph, walk, depth, direction)
        if direction == BACKWARD and job.recompute and below > 0:
            pass_s = max(pass_s, walk.sums[depth, FORWARD] + walk.sums[depth, BACKWARD])
        load_s += pass_s
    cuts.choice[count, BELOW] = below
    cuts.choice[count, LIMIT] = limit
    cuts.choice[count, ODD] = odd
    cuts.cost[count, LOAD_S] = load_s
    cuts.cost[count, WEIGHT_BYTES] = walk.sums[depth, WEIGHT]


@kernel
def _take(graph, lattice, top, walk, depth, v):
    """Add layer v, a source of what is left of set `top`, to the stage on the walk."""
    walk.at[depth, NODE] = v
    for column in range(6):
        walk.sums[depth + 1, column] = walk.sums[depth, column] + graph.layer[v, column]
    release_s = 0.0
    for e in range(graph.edge_start[FORWARD, v], graph.edge_start[FORWARD, v + 1]):
        u = graph.edge_node[FORWARD, e]
        # A predecessor inside `top` is in the stage too, as only sources are ever taken away.
        if lattice.member[top, u]:
            release_s = max(release_s, walk.release_s[FORWARD, u])
        else:
            release_s = max(release_s, graph.edge_cost[FORWARD, e, SECONDS])
            walk.sums[depth + 1, STASH] += graph.edge_cost[FORWARD, e, BYTES]
    walk.release_s[FORWARD, v] = release_s


@kernel
def _relax(job, best_s, top, cuts, count):
    """Improve best_s[top] by the first `count` cuts."""
    for k in range(count):
        load_s = cuts.cost[k, LOAD_S]
        odd = cuts.choice[k, ODD]
        below = cuts.choice[k, BELOW]
        if below == 0:
            if load_s <= job.cap_s[1]:
                best_s[top, 1, odd] = load_s
            continue
        for s in range(2, min(cuts.choice[k, LIMIT], top) + 1):
            if load_s > job.cap_s[s]:
                break
            for q in range(job.odd_stages + 1 - odd):
                value = max(best_s[below, s - 1, q], load_s)
                if value < best_s[top, s, q + odd] and value <= job.cap_s[s]:
                    best_s[top, s, q + odd] = value


@kernel
def _improves(job, best_s, top, below, limit, odd, work_s):
    """Whether a cut could improve best_s[top] if its load were no more than its work."""
    for s in range(2, limit + 1):
        if work_s > job.cap_s[s]:
            return False
        for q in range(job.odd_stages + 1 - odd):
            if max(best_s[below, s - 1, q], work_s) < best_s[top, s, q + odd]:
                return True
    return False


@kernel
def _list_cuts(graph, lattice, job, best_s, top, walk, stamp, use, cuts):
    """List all stages that may be cut off set `top`; returns how many.

    With `use`, improve best_s[top] by each at once instead, and list none: most are then found
    useless before their load is worked out.

    A walk down the lattice that takes one layer at a time and sees every set once. Its first
    descent, with `take_all` set, goes straight to the empty set for the stage that is all of `top`.
    """
    count = np.int64(0)
    depth = np.int64(0)
    last = job.stages
    take_all = True
    walk.stamps[0] = stamp
    walk.at[0, SET] = top
    walk.at[0, NEXT] = lattice.below_start[top]
    while True:
        current = walk.at[depth, SET]
        step = walk.at[depth, NEXT]
        if current > 0 and step < lattice.below_start[current + 1]:
            walk.at[depth, NEXT] += 1
            below = lattice.below[step, 0]
            if not take_all and walk.stamps[below] == stamp:
                continue
            v = lattice.below[step, 1]
            _take(graph, lattice, top, walk, depth, v)
            sums = walk.sums[depth + 1]
            work_s = (1 + job.recompute) * sums[FORWARD] + sums[BACKWARD]
            limit = _last_fit(sums[RESIDENT], sums[STASH], job.memory_bytes, last)
            if not take_all:
                walk.stamps[below] = stamp
                if limit < 2 or work_s > job.cap_s[2]:
                    continue  # whatever lies further down needs at least as much
            walk.in_stage[v] = 1
            depth += 1
            walk.at[depth, SET] = below
            walk.at[depth, NEXT] = lattice.below_start[below]
            if take_all != (below == 0) or limit == 0:
                continue
            odd = np.int64(min(sums[WIDE], 1.0) == job.odd_wide)
            may_help = take_all or _improves(job, best_s, top, below, limit, odd, work_s)
            if use and not may_help:
                continue
            _put_cut(graph, job, walk, depth, below, limit, odd, cuts, count)
            count += 1
            if use:
                _relax(job, best_s, top, cuts, count)
                count = np.int64(0)
        elif take_all:
            # All layers taken: start over, for the stages that leave something below. These are
            # of no use in places where the layers outside `top` overfill the stages before it.
            take_all = False
            sums = walk.sums[depth]
            outside_s = job.work_s - (1 + job.recompute) * sums[FORWARD] - sums[BACKWARD]
            while last > 0 and outside_s > job.before_s[last]:
                last -= 1
            for k in range(depth):
                walk.in_stage[walk.at[k, NODE]] = 0
            depth = np.int64(0)
            walk.at[0, NEXT] = lattice.below_start[top]
        elif depth == 0:
            return count
        else:
            depth -= 1
            walk.in_stage[walk.at[depth, NODE]] = 0


@kernel
def _close(job, best_s, cuts, count, plan):
    """Choose the first stage, the number of stages and of copies; returns the time per batch.

    Of the degrees that give each copy the same number of microbatches only the smallest can be
    best, because gradient synchronisation grows with the degree.
    """
    least_s = np.inf
    m = job.microbatches
    for k in range(count):
        odd = cuts.choice[k, ODD]
        below = cuts.choice[k, BELOW]
        sync_s = job.sync_s_per_byte * cuts.cost[k, WEIGHT_BYTES]
        for s in range(min(below, 1) + 1, (cuts.choice[k, LIMIT] if below > 0 else 1) + 1):
            for q in range(job.odd_stages + 1 - odd):
                slowest_s = max(best_s[below, s - 1, q], cuts.cost[k, LOAD_S])
                used = (q + odd) * job.devices_odd + (s - q - odd) * job.devices_even
                if slowest_s == np.inf or used > job.devices:
                    continue
                most = min(job.devices // used, m)
                if slowest_s * (-(-m // most) + s - 1) >= least_s:
                    continue
                d = 1
                while d <= most:
                    rounds = -(-m // d)
                    time_s = slowest_s * (rounds + s - 1) + (d - 1) / d * sync_s
                    if time_s < least_s:
                        least_s = time_s
                        plan[CUT], plan[STAGES], plan[ODDS], plan[COPIES] = k, s, q + odd, d
                    if rounds == 1:
                        break
                    d = -(-m // (rounds - 1))
    return least_s


@kernel
def _attaining_cut(best_s, top, cuts, plan):
    """The cut by which best_s[top] is attained with the stages that the plan has left."""
    s = plan[STAGES]
    k = 0
    while True:
        below = cuts.choice[k, BELOW]
        odds = plan[ODDS] - cuts.choice[k, ODD]
        if s <= cuts.choice[k, LIMIT] and odds >= 0 and (s > 1) == (below > 0):
            value = max(best_s[below, s - 1, odds], cuts.cost[k, LOAD_S])
            if value == best_s[top, s, plan[ODDS]]:
                return k
        k += 1


@kernel
def _settle(job, full, best_s, top, cuts, count, plan, time_s, starts):
    """Use the cuts of set `top`; returns the set to list next, 0 at the end.

    Up through all sets, then down again along the optimum, with its cuts listed afresh: that takes
    little time, and a table of choices would take as much memory as best_s.
    """
    if plan[FILLED] == 0:
        if top < full:
            _relax(job, best_s, top, cuts, count)
            return top + 1
        time_s[0] = _close(job, best_s, cuts, count, plan)
        if time_s[0] == np.inf:
            return np.int64(0)
    else:
        plan[CUT] = _attaining_cut(best_s, top, cuts, plan)
    starts[plan[FILLED]] = top
    plan[FILLED] += 1
    plan[STAGES] -= 1
    plan[ODDS] -= cuts.choice[plan[CUT], ODD]
    return cuts.choice[plan[CUT], BELOW]


@entry
def _place(graph, job, best_s, cuts, plan, time_s, starts, lattice, walk):
    full = lattice.member.shape[0] - 1
    top = np.int64(1)
    while top > 0:
        stamp = plan[FILLED] * full + top
        use = top < full and plan[FILLED] == 0
        count = _list_cuts(graph, lattice, job, best_s, top, walk, stamp, use, cuts)
        top = _settle(job, full, best_s, top, cuts, count, plan, time_s, starts)


def place(graph: PackedGraph, lattice: Lattice, job: Job) -> tuple[float, int, list[int]]:
    """Least time per batch, number of copies, and the set that each stage is cut off.

    The sets are [full, ..., last stage]; none when nothing fits, and the time is then infinite.
    """
    n, sets = len(graph.layer), len(lattice.member)
    best_s = np.full((sets, job.stages + 1, job.odd_stages + 1), np.inf)
    best_s[0, 0, 0] = 0.0
    cuts = Cuts(np.empty((sets, 3), np.int64), np.empty((sets, 2)))
    plan = np.zeros(5, np.int64)
    time_s = np.zeros(1)
    starts = np.empty(job.stages, np.int64)
    walk = Walk(
        stamps=np.full(sets, -1, np.int64),
        at=np.empty((n + 1, 3), np.int64),
        sums=np.zeros((n + 1, 6)),
        in_stage=np.zeros(n, np.uint8),
        release_s=np.zeros((2, n)),
        order=np.empty(n, np.int64),
    )
    _place(graph, job, best_s, cuts, plan, time_s, starts, lattice, walk)
    return float(time_s[0]), int(plan[COPIES]), starts[: plan[FILLED]].tolist()
