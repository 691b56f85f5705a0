"""The exact stage division of a chain under the default profile, compiled.

One-forward-one-backward pipeline of p stages and M microbatches per replica; the replicas divide
the batch's microbatches, so that all run equally many:

    step = (M - 1) max_i load_i + sum_i load_i + max_i tail_i

load_i is what one microbatch costs stage i (forward, backward, recomputation, incoming transfers)
and tail_i its gradient reduction and optimizer step, which grow with its parameters. So a partial
plan is judged by three numbers (largest load, sum of loads, most parameters); a plan that is no
better in any of them is dropped. Stages are numbered from the end: stage s holds the activations
of min(s, M) microbatches.

The tests state the same rules in plain Python.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.base.jit import entry, kernel
from atoll.fabric.nested_kernels import terms_s


class Chain(NamedTuple):
    """Layers in order, on one tensor-parallel rank, for one microbatch."""

    time_s: NDArray[np.float64]  # forward and backward
    saved_bytes: NDArray[np.float64]  # kept for backward by layers that do not recompute
    parameters: NDArray[np.float64]
    block: NDArray[np.int64]  # which kind of block a layer is; -1: none, which keeps all
    kept_bytes: NDArray[np.float64]  # (levels, kinds): what a block keeps, ascending
    extra_s: NDArray[np.float64]  # (levels, kinds): and the time that this adds, descending
    raised: NDArray[np.int64]  # (levels,): the kind that keeps more than at the level before
    choice: NDArray[np.int64]  # (levels, kinds): where it stands in the list of all choices
    rebuilt_bytes: NDArray[np.float64]  # (kinds,): that the last level rebuilds, a block at a time
    boundary_bytes: NDArray[np.float64]  # (layers + 1,): entering each layer; 0 at both ends
    shared: float  # parameters of tied tables, which a stage of all layers holds once


class System(NamedTuple):
    """Devices, memory and links; rows of the tables belong to data-parallel degrees."""

    devices: int
    tensor: int
    microbatches: int  # in the whole batch
    memory_bytes: float
    state_bytes: NDArray[np.float64]  # (devices + 1,): weights, gradients, optimizer a parameter
    optimizer_s: NDArray[np.float64]  # (devices + 1,): of the optimizer step per parameter
    reduce_bytes: NDArray[np.float64]  # (collectives,): of one parameter, summed or gathered
    reduce_s: NDArray[np.float64]  # (collectives, devices + 1): fixed part
    reduce_tree_s: NDArray[np.float64]  # the same, by trees
    reduce_s_per_byte: NDArray[np.float64]  # (collectives, devices + 1, levels of the network)
    reduce_steps: NDArray[np.float64]  # the same
    share_s: NDArray[np.float64]  # (levels, points): what messages reach of each level
    share: NDArray[np.float64]
    cut_kind: NDArray[np.int64]  # (devices + 1, stages + 1): by replicas and stages, a row of
    cut_s: NDArray[np.float64]  # (kinds, layers + 1): one transfer between stages cut there


@entry
def recompute_choice(before, after, free_bytes, in_flight, chain):
    """Least recomputation for a stage with `after[k] - before[k]` blocks of each kind and `room`
    bytes for activations.

    Kept activations are held once per microbatch in flight, rebuilt ones exist for one block at a
    time. A stage mixes two neighbouring levels, which differ in what one kind of block keeps.
    Returns (seconds, blocks of that kind at the higher level, index of this level); infinite
    seconds if nothing fits.
    """
    kept = chain.kept_bytes
    extra = chain.extra_s
    kinds = kept.shape[1]
    top = kept.shape[0] - 1
    kept_bytes = 0.0
    seconds = 0.0
    rebuilt = 0.0
    for k in range(kinds):
        n = after[k] - before[k]
        if n > 0:
            kept_bytes += n * kept[top, k]
            seconds += extra[top, k] * n
            rebuilt = max(rebuilt, chain.rebuilt_bytes[k])
    if kept_bytes * in_flight <= free_bytes - rebuilt:
        raised = chain.raised[top]
        return seconds, after[raised] - before[raised], top
    best = np.inf
    best_more = np.int64(0)
    best_index = 0
    for index in range(top, 0, -1):
        kept_bytes = 0.0
        seconds = 0.0
        rebuilt = 0.0
        raised = chain.raised[index]
        for k in range(kinds):
            n = after[k] - before[k]
            if n > 0:
                kept_bytes += n * kept[index - 1, k]
                rebuilt = max(rebuilt, chain.rebuilt_bytes[k] + kept[top, k] - kept[index - 1, k])
                if k != raised:
                    seconds += extra[index - 1, k] * n
        spare = free_bytes - rebuilt - kept_bytes * in_flight
        if spare < 0.0:
            continue
        n = after[raised] - before[raised]
        step = kept[index, raised] - kept[index - 1, raised]
        more = min(n, np.int64(spare / (step * in_flight)))
        seconds += more * extra[index, raised] + (n - more) * extra[index - 1, raised]
        if seconds < best:
            best = seconds
            best_more = more
            best_index = index
    return best, best_more, best_index


@kernel
def prefix_sums(chain):
    """Over the layers before each: seconds, saved bytes outside blocks, parameters, blocks by
    kind."""
    n = chain.time_s.shape[0]
    time_sum = np.zeros(n + 1)
    saved_sum = np.zeros(n + 1)
    parameter_sum = np.zeros(n + 1)
    block_sum = np.zeros((n + 1, chain.kept_bytes.shape[1]), np.int64)
    for i in range(n):
        kind = chain.block[i]
        time_sum[i + 1] = time_sum[i] + chain.time_s[i]
        saved_sum[i + 1] = saved_sum[i] + (0.0 if kind >= 0 else chain.saved_bytes[i])
        parameter_sum[i + 1] = parameter_sum[i] + chain.parameters[i]
        block_sum[i + 1] = block_sum[i]
        if kind >= 0:
            block_sum[i + 1, kind] += 1
    return time_sum, saved_sum, parameter_sum, block_sum


@kernel
def stage_cost(chain, sums, first, last, in_flight, cut_s, memory_bytes, state_bytes):
    """(load, parameters) of layers first..last-1; an infinite load if they do not fit."""
    time_sum, saved_sum, parameter_sum, block_sum = sums
    n = chain.time_s.shape[0]
    parameters = parameter_sum[last] - parameter_sum[first]
    if first == 0 and last == n:
        parameters -= chain.shared
    fixed = saved_sum[last] - saved_sum[first]
    entering = chain.boundary_bytes[first]
    free_bytes = memory_bytes - state_bytes * parameters - 2.0 * entering - fixed * in_flight
    load = time_sum[last] - time_sum[first]
    if free_bytes < 0.0:
        return np.inf, parameters
    if block_sum.shape[1] > 0:
        seconds, _, _ = recompute_choice(
            block_sum[first], block_sum[last], free_bytes, in_flight, chain
        )
        load += seconds
    if first > 0:
        load += cut_s[first]
    if last < n:
        load += cut_s[last]
    return load, parameters


@kernel
def add_label(labels, back, count, load, total, parameters, layer, index):
    """Insert a partial plan unless another is as good in all three; returns the new count.

    -1 says that the table is full, which the caller reports: nothing is dropped silently.
    """
    for a in range(count):
        if labels[a, 0] <= load and labels[a, 1] <= total and labels[a, 2] <= parameters:
            return count
    kept = 0
    for a in range(count):
        if not (load <= labels[a, 0] and total <= labels[a, 1] and parameters <= labels[a, 2]):
            if kept != a:
                for i in range(3):
                    labels[kept, i] = labels[a, i]
                for i in range(2):
                    back[kept, i] = back[a, i]
            kept += 1
    if kept == labels.shape[0]:
        return -1
    labels[kept, 0] = load
    labels[kept, 1] = total
    labels[kept, 2] = parameters
    back[kept, 0] = layer
    back[kept, 1] = index
    return kept + 1


@entry
def reduction_s(system, data, parameters):
    """Seconds in which so many replicas sum the gradients of so many parameters, and gather what
    each has updated where ZeRO divides that."""
    seconds = 0.0
    for i in range(system.reduce_bytes.shape[0]):
        seconds += terms_s(
            system.reduce_s[i, data],
            system.reduce_tree_s[i, data],
            system.reduce_s_per_byte[i, data],
            system.reduce_steps[i, data],
            system.share_s,
            system.share,
            system.reduce_bytes[i] * parameters,
        )
    return seconds


@kernel
def step_time(system, data, microbatches, load, total, parameters):
    """Seconds of one step from a plan's three numbers."""
    reduce = reduction_s(system, data, parameters)
    return (microbatches - 1) * load + total + reduce + system.optimizer_s[data] * parameters


@entry
def equal_replicas(microbatches, most):
    """at_most[n]: the largest number of replicas up to n that divides the microbatches; 0 for 0."""
    at_most = np.zeros(most + 1, np.int64)
    for d in range(1, most + 1):
        at_most[d] = d if microbatches % d == 0 else at_most[d - 1]
    return at_most


@kernel
def _cut_evenly(sums, pipeline, starts):
    """Write the first layers of so many stages, and the end, with the compute cut evenly."""
    n = sums[0].shape[0] - 1
    for i in range(pipeline):
        last = starts[i] + 1
        left = pipeline - 1 - i
        while last < n - left and (left == 0 or sums[0][last] * pipeline < sums[0][n] * (i + 1)):
            last += 1
        starts[i + 1] = last


@kernel
def _division_s(chain, sums, system, starts, pipeline, data):
    """Step seconds of stages that begin at these layers, the end after them; infinite if one does
    not fit."""
    m = system.microbatches // data
    cut_s = system.cut_s[system.cut_kind[data, pipeline]]
    largest = 0.0
    total = 0.0
    most = 0.0
    for i in range(pipeline):
        load, parameters = stage_cost(
            chain,
            sums,
            starts[i],
            starts[i + 1],
            float(min(pipeline - i, m)),
            cut_s,
            system.memory_bytes,
            system.state_bytes[data],
        )
        largest = max(largest, load)
        total += load
        most = max(most, parameters)
    if total == np.inf:
        return np.inf
    return step_time(system, data, m, largest, total, most)


@entry
def division_s(chain, system, starts, data):
    """The same, and the seconds of recomputation of one microbatch, over all stages."""
    sums = prefix_sums(chain)
    stages = starts.shape[0] - 1
    free = np.zeros(chain.time_s.shape[0] + 1)
    again = 0.0
    for i in range(stages):
        first, last = starts[i], starts[i + 1]
        in_flight = float(min(stages - i, system.microbatches // data))
        load, _ = stage_cost(
            chain,
            sums,
            first,
            last,
            in_flight,
            free,
            system.memory_bytes,
            system.state_bytes[data],
        )
        again += load - (sums[0][last] - sums[0][first])
    return _division_s(chain, sums, system, starts, stages, data), again


@entry
def best_plan(chain, system, cutoff, capacity):
    """The fastest plan below `cutoff`.

    Returns (step seconds, stages, data-parallel degree, ends) where `ends` lists the first layer
    of each stage after the first, from the front, then the number of layers; step is infinite
    when no plan beats the cutoff. A negative step says that `capacity` partial plans a state were
    too few: call again with more.
    """
    n = chain.time_s.shape[0]
    sums = prefix_sums(chain)
    total_s = sums[0][n]
    blocks = 0
    largest = 0.0
    block_s = np.inf
    for i in range(n):
        largest = max(largest, chain.time_s[i])
        if chain.block[i] >= 0:
            blocks += 1
            block_s = min(block_s, chain.time_s[i])
    if blocks == 0:
        block_s = 0.0
    best = cutoff
    best_p = 0
    best_d = 0
    most = min(n, system.devices // system.tensor) if system.microbatches > 0 else 0
    widest = system.devices // system.tensor
    replicas = equal_replicas(system.microbatches, widest)
    top_d = replicas[widest]
    ends = np.zeros(n + 1, np.int64)
    # least[p]: no division into p stages has a smaller largest load.
    least = np.zeros(most + 1)
    # Plans at hand first: what cannot beat them need not be built.
    even = np.zeros(n + 1, np.int64)
    for p in range(1, most + 1):
        least[p] = max(total_s / p, max(largest, -(-blocks // p) * block_s))
        d = replicas[system.devices // (system.tensor * p)]
        if (system.microbatches // d - 1) * least[p] + total_s >= best:
            continue
        _cut_evenly(sums, p, even)
        seconds = _division_s(chain, sums, system, even, p, d)
        if seconds < best:
            best = seconds
            best_p = p
            best_d = d
            for s in range(p):
                ends[s] = even[s + 1]
    rounds = np.zeros(most + 1, np.int64)
    # Plans with equal transfer costs and equal in-flight counts share one programme: first those of
    # no more stages than microbatches, then (clipped) the others.
    kinds = system.cut_s.shape[0]
    done = np.zeros(system.devices + 1, np.bool_)
    for programme in range(2 * kinds):
        clipped = programme // kinds
        kind = programme % kinds
        cut_s = system.cut_s[kind]
        for d in range(top_d + 1):
            done[d] = False
        for lead in range(top_d, 0, -1):
            if done[lead] or replicas[lead] < lead:
                continue
            lead_m = system.microbatches // lead
            # The pipeline depths for which some degree of this class can still win.
            deepest = np.int64(0)  # a plain 0 is a type of its own, and would compile _divide twice
            for d in range(lead, 0, -1):
                m = system.microbatches // d
                if replicas[d] < d or (clipped and m != lead_m):
                    continue
                if system.state_bytes[d] != system.state_bytes[lead]:
                    continue
                done[d] = True
                for p in range(most, deepest, -1):
                    if p * d * system.tensor > system.devices or (clipped == 1) != (p > m):
                        continue
                    if system.cut_kind[d, p] == kind and (m - 1) * least[p] + total_s < best:
                        deepest = p
                        break
            if deepest == 0:
                continue
            clip = lead_m if clipped else n
            for s in range(1, deepest + 1):
                d = replicas[min(lead, system.devices // (system.tensor * s))]
                rounds[s] = lead_m if clipped else max(s, system.microbatches // d)
            labels, counts, back = _divide(
                chain,
                sums,
                system,
                deepest,
                clip,
                rounds,
                cut_s,
                system.state_bytes[lead],
                best,
                capacity,
            )
            if counts[0, 0] < 0:
                return -1.0, 0, 0, ends
            for p in range(1, deepest + 1):
                for a in range(counts[p, 0]):
                    for d in range(1, lead + 1):
                        m = system.microbatches // d
                        if p * d * system.tensor > system.devices:
                            break
                        if replicas[d] < d or (clipped and m != lead_m):
                            continue
                        if (clipped == 1) != (p > m) or system.cut_kind[d, p] != kind:
                            continue
                        if system.state_bytes[d] != system.state_bytes[lead]:
                            continue
                        seconds = step_time(
                            system, d, m, labels[p, 0, a, 0], labels[p, 0, a, 1], labels[p, 0, a, 2]
                        )
                        if seconds < best:
                            best = seconds
                            best_p = p
                            best_d = d
                            layer = 0
                            index = a
                            for s in range(p, 0, -1):
                                following = back[s, layer, index, 0]
                                index = back[s, layer, index, 1]
                                layer = following
                                ends[p - s] = layer
    if best_p == 0:
        return np.inf, 0, 0, ends
    return best, best_p, best_d, ends


@kernel
def _divide(chain, sums, system, deepest, clip, rounds, cut_s, state_bytes, cutoff, capacity):
    """Partial plans for every suffix of the chain in 1..deepest stages.

    rounds[s] is the fewest microbatches of a replica in any plan of s stages or more: plans that
    reach the cutoff even so, with the remaining layers' compute alone, are left out.
    """
    n = chain.time_s.shape[0]
    time_sum = sums[0]
    labels = np.empty((deepest + 1, n + 1, capacity, 3))
    back = np.empty((deepest + 1, n + 1, capacity, 2), np.int64)
    counts = np.zeros((deepest + 1, n + 1), np.int64)
    for i in range(3):
        labels[0, n, 0, i] = 0.0
    counts[0, n] = 1
    for s in range(1, deepest + 1):
        in_flight = float(min(s, clip))
        for first in range(n - s, -1, -1):
            if s == deepest and first > 0:
                continue
            count = np.int64(0)
            for last in range(first + 1, n - s + 2):
                compute = time_sum[last] - time_sum[first]
                if (rounds[s] - 1) * compute + time_sum[n] >= cutoff:
                    break
                following = counts[s - 1, last]
                if following == 0:
                    continue
                load, parameters = stage_cost(
                    chain, sums, first, last, in_flight, cut_s, system.memory_bytes, state_bytes
                )
                if load == np.inf:
                    continue
                for a in range(following):
                    worst = max(load, labels[s - 1, last, a, 0])
                    total = load + labels[s - 1, last, a, 1]
                    if (rounds[s] - 1) * worst + total + time_sum[first] >= cutoff:
                        continue
                    count = add_label(
                        labels[s, first],
                        back[s, first],
                        count,
                        worst,
                        total,
                        max(parameters, labels[s - 1, last, a, 2]),
                        last,
                        a,
                    )
                    if count < 0:
                        counts[0, 0] = -1
                        return labels, counts, back
            counts[s, first] = count
    return labels, counts, back


@entry
def feasible_depths(chain, system):
    """feasible[p]: whether some division into p stages may fit, with at least p microbatches: with
    the states of whichever number of replicas holds least."""
    n = chain.time_s.shape[0]
    least_bytes = np.inf
    for d in range(system.state_bytes.shape[0]):
        least_bytes = min(least_bytes, system.state_bytes[d])
    sums = prefix_sums(chain)
    most = min(n, system.devices // system.tensor)
    feasible = np.zeros(most + 1, np.bool_)
    reach = np.zeros(n + 1, np.bool_)
    reach[n] = True
    free = np.zeros(n + 1)
    for s in range(1, most + 1):
        following = np.zeros(n + 1, np.bool_)
        for first in range(n - s, -1, -1):
            for last in range(first + 1, n - s + 2):
                if not reach[last]:
                    continue
                load, _ = stage_cost(
                    chain, sums, first, last, float(s), free, system.memory_bytes, least_bytes
                )
                if load < np.inf:
                    following[first] = True
                    break
        feasible[s] = following[0]
        reach = following
    return feasible
