"""Bounds over all chips and layouts at once, and schedules' bounds of many nodes, compiled.

A node is one chip with one variant (a model at one microbatch and tensor width).
"""

from __future__ import annotations

import numpy as np

from atoll.cost.table_kernels import (
    RESOURCES,
    capacities,
    operator_floor,
    pass_predecessors,
    pass_problem,
    side_by_side,
)
from atoll.jit import entry, kernel
from atoll.schedule.bound_kernels import EPSILON, least_makespan
from atoll.schedule.list_kernels import quick_bounds


@entry
def roofline(
    start,
    stop,
    passes,
    wanted,
    macs,
    vector_ops,
    bytes_,
    link_s,
    outputs,
    starts,
    mac_rate,
    vector_rate,
    hbm_Bps,
    fill_s,
    start_s,
    exposed,
    vector_memory,
    one_port,
    bound,
):
    """Lower bound on every wanted pass on chips start..stop-1 from peak rates alone: fills `bound`.

    An operator takes no less than its products at the rate that the chip reaches and in full rounds
    (`fill_s` for each of their outputs), its vector work at all lanes, its bytes at HBM's
    bandwidth, each with the part of the others that it does not hide, and its start; a pass no less
    than its longest path of such operators, nor than the sum of either kind of work.
    """
    count = passes.ptr.shape[0] - 1
    finish = np.zeros(256)
    for chip in range(start, stop):
        for p in range(count):
            if not wanted[p]:
                continue
            first = passes.ptr[p]
            longest = 0.0
            tensor_s = 0.0
            vector_s = 0.0
            memory_s = 0.0
            port_s = 0.0
            for j in range(passes.ptr[p + 1] - first):
                op = passes.op[first + j]
                tensor = macs[op] / mac_rate[chip] + outputs[op] * fill_s[chip]
                vector = vector_ops[op] / vector_rate[chip]
                # Without a memory term for vectors, only products pay for bytes (PHAZE).
                pays = vector_memory or macs[op] > 0.0
                memory = bytes_[op] / hbm_Bps[chip] if pays else 0.0
                busy = side_by_side(tensor, memory, exposed[chip])
                busy = side_by_side(busy, vector, exposed[chip])
                fastest = max(busy + starts[op] * start_s[chip], link_s[op])
                ready = 0.0
                for e in range(passes.pred_ptr[first + j], passes.pred_ptr[first + j + 1]):
                    ready = max(ready, finish[passes.pred_idx[e]])
                finish[j] = ready + fastest
                longest = max(longest, finish[j])
                tensor_s += tensor
                vector_s += vector
                memory_s += memory if vector_memory else 0.0
                port_s += link_s[op]
            total = max(max(tensor_s, vector_s), max(memory_s, port_s if one_port else 0.0))
            bound[chip, p] = max(longest, total)


@entry
def layout_bounds(
    start, stop, pass_s, node_variant, first_layer, layers, repeats, block_layer, layout_ptr,
    floors, best,
):  # fmt: skip
    """Least step time of nodes start..stop-1 over their variants' layouts: fills `best`.

    `pass_s[node, i]` bounds forward and backward of the variant's i-th priced layer from below.
    """
    for node in range(start, stop):
        v = node_variant[node]
        own = repeats[first_layer[v] : first_layer[v] + layers[v]]
        work = work_of(pass_s[node], own, block_layer[v])
        least = np.inf
        for a in range(layout_ptr[v], layout_ptr[v + 1]):
            least = min(least, floor_of(floors, a, work))
        best[node] = least


@kernel
def work_of(pass_s, repeats, block_layer):
    """Of a model whose priced layers take this long, and behind them the halves of their backward
    passes: seconds of all layers, of the longest, of a block, of all forward passes and of all data
    gradients; and the number of blocks.
    """
    layers = repeats.shape[0]
    total = 0.0
    largest = 0.0
    forward = 0.0
    data = 0.0
    for k in range(layers):
        layer_s = pass_s[k, 0] + pass_s[k, 1]
        total += layer_s * repeats[k]
        largest = max(largest, layer_s)
        forward += pass_s[k, 0] * repeats[k]
        if layers + k < pass_s.shape[0]:
            data += pass_s[layers + k, 0] * repeats[k]
    block_s = pass_s[block_layer, 0] + pass_s[block_layer, 1]
    return total, largest, block_s, forward, data, repeats[block_layer]


@kernel
def floor_of(floors, a, work):
    """No less than a step takes under a layout.

    It pays so many times the largest load, so many times a whole pass, and what does not depend on
    the chip; the largest load is no less than the average, than any layer, or than the blocks that
    some stage must hold (where a pipeline holds copies of the model, a part of each). Transfers are
    on the way of a microbatch, forward or back.
    """
    total, largest, block_s, forward, data, blocks = work
    p = floors.stages[a]
    c = floors.copies[a]
    transfer_s = floors.transfer_s[a]
    whole = total + transfer_s
    load = max(whole / p, max(largest, -(-c * blocks // p) * block_s) / c)
    f = floors.forward[a]
    d = floors.data[a]
    way = floors.late[a] * load + f * forward + d * data + min(f, d) * transfer_s
    return max(floors.loads[a] * load + floors.passes[a] * whole, way) + floors.fixed_s[a]


@entry
def floors_s(floors, pass_s, repeats, block_layer, found):
    """The same of every layout of one node."""
    work = work_of(pass_s, repeats, block_layer)
    for a in range(found.shape[0]):
        found[a] = floor_of(floors, a, work)


@entry
def layer_floors(start, stop, begins, costs, passes, chips, layers, lower):
    """Lower bounds on the makespans of the passes of pairs start..stop-1 of a chip and a layer, in
    the order of the chips: fills (pairs, 2), forward and backward.

    An operator's fastest option and its least work are looked up once for all passes of a chip;
    `begins` says with which operators series parts begin.
    """
    options = costs.tensor_count.shape[1]
    duration = np.empty(options)
    demand = np.empty((options, RESOURCES))
    known = np.full(costs.kind.shape[0], -1)
    fastest = np.empty(known.shape[0])
    work = np.empty((known.shape[0], RESOURCES))
    for pair in range(start, stop):
        chip = chips[pair]
        capacity = capacities(costs, chip) * (1.0 + EPSILON)
        for direction in range(2):
            p = 2 * layers[pair] + direction
            ops = passes.op[passes.ptr[p] : passes.ptr[p + 1]]
            for op in ops:
                if known[op] != chip:
                    known[op] = chip
                    fastest[op] = operator_floor(
                        costs, chip, op, capacity, duration, demand, work[op]
                    )
            pred_ptr, pred_idx = pass_predecessors(passes, p)
            first = begins[passes.ptr[p] : passes.ptr[p + 1]]
            lower[pair, direction] = least_makespan(
                fastest[ops], work[ops], first, pred_ptr, pred_idx
            )


@entry
def schedule_bounds(start, stop, costs, passes, chips, layers, lower, upper):
    """Quick bounds on the makespans of the passes of pairs start..stop-1 of a chip and a layer:
    fills two arrays (pairs, 2), forward and backward.
    """
    for pair in range(start, stop):
        chip = chips[pair]
        capacity = capacities(costs, chip)
        for direction in range(2):
            p = 2 * layers[pair] + direction
            duration, demand = pass_problem(costs, passes, p, chip)
            pred_ptr, pred_idx = pass_predecessors(passes, p)
            bounds = quick_bounds(duration, demand, capacity, pred_ptr, pred_idx)
            lower[pair, direction] = bounds[0]
            upper[pair, direction] = bounds[1]


@entry
def fastest_s(start, stop, costs, passes, node_pass, node_chip, result):
    """Shortest duration of each operator of one pass of nodes start..stop-1: fills `result`."""
    for node in range(start, stop):
        duration, _ = pass_problem(costs, passes, node_pass[node], node_chip[node])
        for j in range(duration.shape[0]):
            least = np.inf
            for o in range(duration.shape[1]):
                least = min(least, duration[j, o])
            result[node, j] = least
