"""Step time and memory of many layouts from the tables of `batch`, compiled.

Sums and maxima over a layout's stages as `estimate`, `memory.stage_memory` and
`step.bubbles.step_with_transfers_s` state them; a test draws layouts and compares.
"""

from __future__ import annotations

import numpy as np

from atoll.fabric.nested_kernels import terms_s
from atoll.jit import entry, kernel

# Columns of `Tables.rows`.
STAGES, MICROBATCHES, COPIES, ZERO, SPLIT, LATE, PIPE, DIVISION, GROUP, SIDE, LOSS = range(11)
# Columns of what is known of every stage.
FORWARD, BACKWARD, WEIGHT, DEVICE_F, DEVICE_B, FIXED, GRADIENTS, WAITING, SORTED = range(9)


@entry
def estimate_rows(t, time_s, needed, start, stop):
    """Seconds and bytes of rows `start` to `stop` under each choice."""
    most = 0
    for row in range(start, stop):
        most = max(most, t.rows[row, STAGES])
    stages = np.empty((most, 9))
    wires = np.zeros((t.kinds.shape[0], 2))
    for row in range(start, stop):
        beside_s, last_s, before_s = states_of(t, row, stages, wires)
        for choice in range(time_s.shape[1]):
            passes_s, behind_s = passes_of(t, row, choice, stages, wires)
            time_s[row, choice] = step_of(
                t, row, choice, passes_s, behind_s, beside_s, last_s, before_s)
            needed[row, choice] = memory_of(t, row, choice, stages)


@entry
def fixed_parts(t, repeats, fixed, needed):
    """Of every row what no times of layers change: seconds on the memory of a step (accumulation
    and update), seconds of gradients in a step, seconds of gathers in each microbatch; and the
    bytes that it needs under the choice that needs least.
    """
    stages = np.empty((np.max(t.rows[:, STAGES]), 9))
    wires = np.zeros((t.kinds.shape[0], 2))
    for row in range(t.rows.shape[0]):
        beside_s, last_s, before_s = states_of(t, row, stages, wires)
        fixed[row, 0] = beside_s
        fixed[row, 1] = last_s + (t.rows[row, MICROBATCHES] - 1) * before_s
        for kind in range(t.kinds.shape[0]):
            fixed[row, 2] += repeats[kind] * (2.0 * wires[kind, 0] + wires[kind, 1])
        needed[row] = np.inf
        for choice in range(t.kept.shape[1]):
            needed[row] = min(needed[row], memory_of(t, row, choice, stages))


@entry
def fastest_row(t, order, floor_s, needed, cutoff_s, memory_bytes):
    """(seconds, row, choice) of the fastest that fits and takes less than the cutoff, or row -1;
    `order` lists the rows by seconds that none of them goes below.
    """
    stages = np.empty((np.max(t.rows[:, STAGES]), 9))
    wires = np.zeros((t.kinds.shape[0], 2))
    best_s, best_row, best_choice = cutoff_s, -1, -1
    for row in order:
        if floor_s[row] >= best_s:
            break
        if needed[row] > memory_bytes:
            continue
        beside_s, last_s, before_s = states_of(t, row, stages, wires)
        for choice in range(t.kept.shape[1]):
            passes_s, behind_s = passes_of(t, row, choice, stages, wires)
            step_s = step_of(t, row, choice, passes_s, behind_s, beside_s, last_s, before_s)
            if step_s < best_s and memory_of(t, row, choice, stages) <= memory_bytes:
                best_s, best_row, best_choice = step_s, row, choice
    return best_s, best_row, best_choice


@kernel
def states_of(t, row, stages, wires):
    """What no choice changes: accumulation and update of a step, and the gradients' collectives
    behind the last backward pass and behind each one before; states of every stage; gathers and
    scatters of every kind of layer.
    """
    its = t.rows[row]
    copies, zero, first = its[COPIES], its[ZERO], t.starts[its[PIPE]]
    begin, end = t.spans[its[GROUP]]
    per = t.parameters[its[DIVISION]]
    accumulate_s = update_s = last_s = before_s = 0.0
    known_dense = known_expert = -1.0
    for i in range(its[STAGES]):
        stage = first + i
        held = t.held[t.content[stage]]
        dense, expert, waiting, copied, weight_s = -held[0], 0.0, 0.0, 0.0, 0.0
        for kind in range(t.kinds.shape[0]):
            n = t.counts[stage, kind]
            dense += n * t.kinds[kind, 0]
            expert += n * t.kinds[kind, 1]
            waiting += n * t.kinds[kind, 2]
            copied += n * t.kinds[kind, 3]
            weight_s += n * t.kinds[kind, 4]
        fixed = per[0, 0] * dense + per[0, 1] * expert + per[2, 0] * dense + per[2, 1] * expert
        fixed += held[2 + zero]
        if zero < 3:
            fixed += copied
        if t.came[stage, 0] > 0.0:
            fixed += t.stack.sends_held * held[1]
        stages[i, FIXED] = fixed
        stages[i, GRADIENTS] = per[1, 0] * dense + per[1, 1] * expert
        stages[i, WAITING] = waiting / copies
        stages[i, WEIGHT] = weight_s / copies
        accumulate_s = max(accumulate_s, per[3, 0] * dense + per[3, 1] * expert)
        update_s = max(update_s, per[4, 0] * dense + per[4, 1] * expert)
        if zero < 3 and (dense != known_dense or expert != known_expert):
            known_dense, known_expert = dense, expert
            gather_s, reduce_s = shared_s(t, begin, end, dense, expert)
            each_s = reduce_s + t.stack.regathers * gather_s if zero == 2 else 0.0
            longer = reduce_s + gather_s > last_s
            if longer or (reduce_s + gather_s == last_s and each_s > before_s):
                last_s, before_s = reduce_s + gather_s, each_s
    for kind in range(t.kinds.shape[0]):
        if zero >= 3:
            gather_s, reduce_s = shared_s(t, begin, end, t.kinds[kind, 0], t.kinds[kind, 1])
            wires[kind, 0] = gather_s / t.stack.gather_efficiency
            wires[kind, 1] = reduce_s / t.stack.gather_efficiency
        else:
            wires[kind, 0], wires[kind, 1] = 0.0, 0.0
    return its[MICROBATCHES] * accumulate_s + update_s, last_s, before_s


@kernel
def shared_s(t, begin, end, dense, expert):
    """Gathers of weights and sums of gradients."""
    gather_s = reduce_s = 0.0
    for i in range(begin, end):
        bytes_ = t.collective[i, 1] * dense + t.collective[i, 2] * expert
        if bytes_ > 0.0:
            wire_s = terms_s(t.collective[i, 3], t.s_per_byte[i], t.sizes, t.shares, bytes_)
            if t.collective[i, 0] > 0.0:
                gather_s += wire_s
            else:
                reduce_s += wire_s
    return gather_s, reduce_s


@kernel
def exposed_s(wire_s, compute_s, share):
    """Of a gather what nothing hides."""
    return wire_s - min(share * wire_s, compute_s)


@kernel
def passes_of(t, row, choice, stages, wires):
    """All microbatches through all stages, and the slowest stage's backward pass."""
    its = t.rows[row]
    copies, first, side = its[COPIES], t.starts[its[PIPE]], its[SIDE]
    shown_s, hidden_gather = (1.0 - t.stack.pipeline) * t.sends_s[its[GROUP]], t.stack.gather
    slowest_s = -1.0
    behind_s = 0.0
    for i in range(its[STAGES]):
        stage = first + i
        forward = backward = beside = waiting = 0.0
        for kind in range(t.kinds.shape[0]):
            n = t.counts[stage, kind] / copies
            if n == 0.0:
                continue
            x = t.passes[side, kind, choice]
            forward += n * (x[0] + exposed_s(wires[kind, 0], x[2], hidden_gather))
            both_s = wires[kind, 0] + wires[kind, 1]
            backward += n * (x[1] + exposed_s(both_s, x[3], hidden_gather))
            beside += n * x[4]
            waiting += n * x[5]
        device = forward + backward
        host = max(0.0, beside - device) + waiting
        if device + host > slowest_s:
            slowest_s = device + host
            behind_s = slowest_s - forward
        forward += shown_s * t.came[stage, 0]
        backward += shown_s * t.came[stage, 1] - stages[i, WEIGHT]
        stages[i, DEVICE_F], stages[i, DEVICE_B] = forward, backward
        stages[i, FORWARD], stages[i, BACKWARD] = forward + host / 2, backward + host / 2
    if t.bounds[choice]:
        return bound_s(t, row, stages), behind_s
    return all_passes_s(t, row, stages), behind_s


@kernel
def slowest_of(stages, pp):
    """The stage that takes longest, the first of such."""
    slowest = 0
    longest = -1.0
    for i in range(pp):
        total = stages[i, FORWARD] + stages[i, BACKWARD] + stages[i, WEIGHT]
        if total > longest:
            slowest, longest = i, total
    return slowest, longest


@kernel
def all_passes_s(t, row, stages):
    """`bubbles.step_with_transfers_s`."""
    its = t.rows[row]
    pp, m = its[STAGES], its[MICROBATCHES]
    first, wire_s = t.starts[its[PIPE]], t.sends_s[its[GROUP]]
    slowest, longest = slowest_of(stages, pp)
    if pp == 1:
        return m * longest
    forward = backward = sent = 0.0
    for i in range(pp):
        if i != slowest:
            forward += stages[i, FORWARD]
            backward += stages[i, BACKWARD]
            sent += (t.came[first + i, 0] + t.came[first + i, 1]) * wire_s
    weight = mean_weight_s(t, row, stages, slowest)
    n = pp - 1
    idle_s = longest_way(t, row, forward / n, backward / n, weight)
    return m * longest + idle_s + t.stack.pipeline * sent


@kernel
def longest_way(t, row, forward, backward, weight):
    """The bubble from the mean passes of all stages but the slowest."""
    found = 0.0
    for way in t.bubbles[t.rows[row, PIPE]]:
        found = max(found, way[0] * forward + way[1] * backward + way[2] * weight)
    return found


@kernel
def mean_weight_s(t, row, stages, slowest):
    """Weight passes of the other stages, no longer than the slowest's where they run apart; where
    some cannot be put off, of the shortest.
    """
    split, late = t.rows[row, SPLIT], t.rows[row, LATE]
    count = 0
    for i in range(t.rows[row, STAGES]):
        if i == slowest:
            continue
        weight = stages[i, WEIGHT]
        if split:
            weight = min(weight, stages[slowest, WEIGHT])
        at = count
        while late and at > 0 and stages[at - 1, SORTED] > weight:
            stages[at, SORTED] = stages[at - 1, SORTED]
            at -= 1
        stages[at, SORTED] = weight
        count += 1
    times = late if late else 1
    left = min(times * count, t.rows[row, MICROBATCHES] - 1) if late else count
    of = max(1, left)
    total = 0.0
    for i in range(count):
        taken = min(times, left)
        total += taken * stages[i, SORTED]
        left -= taken
    return total / of


@kernel
def bound_s(t, row, stages):
    """No more than any choice takes whose layers take no less: the slowest stage's microbatches,
    and the bubble of the others without host time, whichever of them is the slowest.
    """
    its = t.rows[row]
    pp, m = its[STAGES], its[MICROBATCHES]
    first, wire_s = t.starts[its[PIPE]], t.sends_s[its[GROUP]]
    _, longest = slowest_of(stages, pp)
    if pp == 1:
        return m * longest
    forward = backward = weight = sent = most = 0.0
    for i in range(pp):
        forward += stages[i, DEVICE_F]
        backward += stages[i, DEVICE_B]
        weight += stages[i, WEIGHT]
        into_s = (t.came[first + i, 0] + t.came[first + i, 1]) * wire_s
        sent += into_s
        most = max(most, into_s)
    n = pp - 1
    least = np.inf
    for i in range(pp):
        least = min(least, longest_way(
            t,
            row,
            (forward - stages[i, DEVICE_F]) / n,
            (backward - stages[i, DEVICE_B]) / n,
            (weight - stages[i, WEIGHT]) / n,
        ))  # fmt: skip
    return m * longest + least + t.stack.pipeline * (sent - most)


@kernel
def step_of(t, row, choice, passes_s, behind_s, beside_s, last_s, before_s):
    """The whole step: what stages run, gradients that nothing hides, optimizer."""
    hidden = t.stack.gradient
    if t.bounds[choice]:
        behind_s = np.inf
    gradient_s = last_s - hidden * min(last_s, behind_s)
    gradient_s += (t.rows[row, MICROBATCHES] - 1) * (before_s - hidden * min(before_s, behind_s))
    return (passes_s + beside_s + gradient_s + t.stack.step_s) * t.stack.slack


@kernel
def memory_of(t, row, choice, stages):
    """Bytes that the fullest stage needs (`memory.stage_memory`)."""
    its = t.rows[row]
    first, late_gradients = t.starts[its[PIPE]], t.stack.late_gradients > 0.0 and its[ZERO] < 2
    most = 0.0
    for i in range(its[STAGES]):
        stage = first + i
        content = t.content[stage]
        kept = 0.0
        for kind in range(t.kinds.shape[0]):
            kept += t.weighed[stage, kind] * t.kept[kind, choice]
        activations = 0.0
        for peak in t.peaks[stage]:
            activations = max(activations, kept * peak[0] + stages[i, WAITING] * peak[1])
        logits, transient = t.logits[its[LOSS], content], t.transient[content, choice]
        gradients = stages[i, GRADIENTS]
        if late_gradients:
            early = gradients if its[MICROBATCHES] > 1 else 0.0
            summed = max(transient, 2 * t.stack.gradient_bytes * t.held[content, 0])
            peak_bytes = max(early + activations + logits, gradients + summed)
        else:
            peak_bytes = gradients + activations + max(transient, logits)
        most = max(most, stages[i, FIXED] + peak_bytes)
    return most * (1 + t.stack.fragmentation) + t.stack.context_bytes
