"""Compiled lower bounds over all chips and layouts, and over the passes of many nodes.

A node is one chip with one variant (a model with one microbatch size and sharding).
"""

from __future__ import annotations

import numpy as np

from atoll.base.jit import entry, kernel
from atoll.cost.table_kernels import MAX_PASS, RESOURCES, operator_floor, side_by_side
from atoll.schedule.bound_kernels import least_makespan


@entry
def roofline(
    start,
    stop,
    passes,
    alike,
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
    """Fill `bound` with roofline lower bounds on every wanted pass on chips start..stop-1.

    The bound of an operator is the longest of matrix products (plus `fill_s` per output), vector
    work and HBM traffic, plus the share `exposed` of the others that does not overlap, plus its
    start. The bound of a pass is its longest path of operators or its total work of one kind.
    Passes of layers that are `alike` are bounded once, as are operators that passes share.
    """
    count = passes.ptr.shape[0] - 1
    finish = np.zeros(MAX_PASS)
    operators = macs.shape[0]
    fastest, tensor_s = np.zeros(operators), np.zeros(operators)
    vector_s, memory_s = np.zeros(operators), np.zeros(operators)
    for chip in range(start, stop):
        for op in range(operators):
            tensor = macs[op] / mac_rate[chip] + outputs[op] * fill_s[chip]
            vector = vector_ops[op] / vector_rate[chip]
            # Without a memory term for vector work (PHAZE), only products count bytes.
            pays = vector_memory or macs[op] > 0.0
            memory = bytes_[op] / hbm_Bps[chip] if pays else 0.0
            busy = side_by_side(tensor, memory, exposed[chip])
            busy = side_by_side(busy, vector, exposed[chip])
            fastest[op] = max(busy + starts[op] * start_s[chip], link_s[op])
            tensor_s[op] = tensor
            vector_s[op] = vector
            memory_s[op] = memory if vector_memory else 0.0
        for p in range(count):
            if not wanted[p]:
                continue
            same = 2 * alike[p // 2] + p % 2
            if same < p and wanted[same]:
                bound[chip, p] = bound[chip, same]
                continue
            first = passes.ptr[p]
            longest = tensor = vector = memory = port = 0.0
            for j in range(passes.ptr[p + 1] - first):
                op = passes.op[first + j]
                ready = 0.0
                for e in range(passes.pred_ptr[first + j], passes.pred_ptr[first + j + 1]):
                    ready = max(ready, finish[passes.pred_idx[e]])
                finish[j] = ready + fastest[op]
                longest = max(longest, finish[j])
                tensor += tensor_s[op]
                vector += vector_s[op]
                memory += memory_s[op]
                port += link_s[op]
            total = max(max(tensor, vector), max(memory, port if one_port else 0.0))
            bound[chip, p] = max(longest, total)


@entry
def layout_bounds(
    start, stop, pass_s, row, node_variant, offset, first_layer, layers, repeats, block,
    layout_ptr, floors, best,
):  # fmt: skip
    """Fill `best` with the least step bound of nodes start..stop-1 over their variants' layouts.

    `pass_s[row[node], offset[v] + i]` has lower bounds on forward and backward of the i-th priced
    layer of the variant v.
    The best layout of the variant's previous node comes first: it rules out most others by their
    loads alone.
    """
    previous = np.zeros(first_layer.shape[0], np.int64)
    for node in range(start, stop):
        v = node_variant[node]
        variant_layers = slice(first_layer[v], first_layer[v] + layers[v])
        end = offset[v] + first_layer[v + 1] - first_layer[v]
        layers_s = pass_s[row[node], offset[v] : end]
        work = work_of(layers_s, repeats[variant_layers], block[variant_layers])
        least = np.inf
        first = layout_ptr[v]
        if first < layout_ptr[v + 1]:
            least = floor_of(floors, first + previous[v], work)
        for a in range(first, layout_ptr[v + 1]):
            if loads_floor(floors, a, work) + floors.fixed_s[a] < least:
                step_s = floor_of(floors, a, work)
                if step_s < least:
                    least = step_s
                    previous[v] = a - first
        best[node] = least


@kernel
def work_of(pass_s, repeats, block):
    """Return totals of a model for `floor_of`. `pass_s` has the passes of the priced layers, then
    the halves of their backward passes. Seconds: all layers, longest layer, layers after the last
    block, shortest block, most frequent block, all forward passes, all data passes, shortest
    forward, data and weight pass of a block. Counts: all blocks, most frequent block.
    """
    layers = repeats.shape[0]
    total = 0.0
    largest = 0.0
    behind = 0.0
    shortest = np.inf
    usual = 0.0
    forward = 0.0
    data = 0.0
    block_f = np.inf
    block_d = np.inf
    block_w = np.inf
    blocks = 0
    most = 0
    halves = pass_s.shape[0] >= 2 * layers
    for k in range(layers):
        layer_s = pass_s[k, 0] + pass_s[k, 1]
        total += layer_s * repeats[k]
        largest = max(largest, layer_s)
        behind += layer_s * repeats[k]
        forward += pass_s[k, 0] * repeats[k]
        if halves:
            data += pass_s[layers + k, 0] * repeats[k]
        if block[k]:
            behind = 0.0
            shortest = min(shortest, layer_s)
            block_f = min(block_f, pass_s[k, 0])
            if halves:
                block_d = min(block_d, pass_s[layers + k, 0])
                block_w = min(block_w, pass_s[layers + k, 1])
            blocks += repeats[k]
            if repeats[k] > most:
                most = repeats[k]
                usual = layer_s
    if blocks == 0:
        shortest = behind = block_f = 0.0
    if blocks == 0 or not halves:
        block_d = block_w = 0.0
    return (
        total, largest, behind, shortest, usual, forward, data, block_f, block_d, block_w, blocks,
        most,
    )  # fmt: skip


@kernel
def loads_floor(floors, a, work):
    """Return loads * (lower bound on the largest load) of layout `a`: at least the mean over
    stages, the longest layer / copies, and ceil(copies * blocks / stages) blocks / copies.
    """
    total, largest, _, shortest, usual, _, _, _, _, _, blocks, most = work
    p = float(floors.stages[a])  # exact, and faster than the division of integers
    c = float(floors.copies[a])
    stage_s = max(np.ceil(c * blocks / p) * shortest, np.ceil(c * most / p) * usual)
    load = max((total + floors.transfer_s[a]) / p, max(largest, stage_s) / c)
    return floors.loads[a] * load


@kernel
def floor_of(floors, a, work):
    """Return the lower bound on the step of layout `a`: the longest path in `StepFloors` plus
    `fixed_s` and exposed gradient collectives, which are never negative.
    """
    total, _, behind, shortest, _, forward, data, block_f, block_d, block_w, _, _ = work
    transfer_s = floors.transfer_s[a]
    pass_s = total + transfer_s
    step_s = loads_floor(floors, a, work)
    end = floors.end_blocks[a] * shortest + behind
    step_s = max(step_s, floors.through[a] * pass_s + floors.through_ends[a] * end)
    stage = floors.stage_blocks[a] * shortest + behind
    step_s = max(step_s, floors.stage_ends[a] * stage + floors.head_blocks[a] * shortest)
    apart = floors.apart_blocks[a] * (block_f + block_d) + floors.apart_weights[a] * block_w
    step_s = max(step_s, floors.apart[a] * (forward + data + transfer_s) + apart)
    least = floors.forward_blocks[a] * block_f + floors.data_blocks[a] * block_d
    step_s = max(step_s, least + floors.weight_blocks[a] * block_w)
    least = floors.second_forward_blocks[a] * block_f + floors.second_data_blocks[a] * block_d
    step_s = max(step_s, least + floors.second_weight_blocks[a] * block_w)
    last_s, before_s = floors.last_s[a], floors.before_s[a]
    if last_s > 0.0:  # as `Sums.behind_s` of bounds; single stages run all forward passes
        m = floors.loads[a]
        behind_s = step_s / m - (forward if floors.stages[a] == 1 else 0.0)
        hidden_s = min(last_s, behind_s) + (m - 1.0) * min(before_s, behind_s)
        step_s += last_s + (m - 1.0) * before_s - (1.0 - floors.shown[a]) * hidden_s
    return step_s + floors.fixed_s[a]


@entry
def floors_s(floors, pass_s, repeats, block, step_s):
    """Fill `step_s` with the bounds (`floor_of`) of every layout of one node."""
    work = work_of(pass_s, repeats, block)
    for a in range(step_s.shape[0]):
        step_s[a] = floor_of(floors, a, work)


@entry
def layer_floors(start, stop, begins, capacity, costs, passes, chips, layers, lower):
    """Fill `lower`, shape (pairs, 2), with lower bounds on the forward and backward makespans of
    chip-layer pairs start..stop-1, which are sorted by chip.

    The fastest option and least work of an operator are computed once per chip. `begins` marks
    operators that begin a series part; `capacity` has shape (chips, resources).
    """
    options = costs.tensor_count.shape[1]
    duration = np.empty(options)
    demand = np.empty((options, RESOURCES + costs.level_Bps.shape[1]))
    computed = np.zeros(costs.kind.shape[0], np.int64)
    fastest = np.empty(computed.shape[0])
    work = np.empty((computed.shape[0], RESOURCES))
    finish = np.empty(MAX_PASS)
    total = np.empty(RESOURCES)
    for pair in range(start, stop):
        chip = chips[pair]
        for direction in range(2):
            p = 2 * layers[pair] + direction
            first = passes.ptr[p]
            last = passes.ptr[p + 1]
            ops = passes.op[first:last]
            for j in range(ops.shape[0]):
                op = ops[j]
                if computed[op] != chip + 1:
                    computed[op] = chip + 1
                    fastest[op] = operator_floor(
                        costs, chip, op, capacity[chip], duration, demand, work[op]
                    )
            edges = passes.pred_ptr[first : last + 1]
            lower[pair, direction] = least_makespan(
                ops, fastest, work, begins[first:last], edges, passes.pred_idx, finish, total
            )
