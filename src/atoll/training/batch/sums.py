"""Step time and memory of many layouts from the tables of `batch`: sums and maxima over stages.

Arrays run over the stages of all rows, row by row, and over choices of recomputation. A test
compares them with a sum layer by layer on random layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Bools, Floats, Ints
from atoll.fabric.nested import sized_s
from atoll.step.bubbles import bytes_at_peak
from atoll.step.layout import ZERO_STAGES
from atoll.step.orders import ORDERS
from atoll.step.replay import pipeline_s
from atoll.tools.stack import Overlap
from atoll.training.batch.cost_arrays import Paces, StagePasses, StateCosts, StateMemory, Triple
from atoll.training.memory import PeakParts, peak_parts
from atoll.training.operators.tables import (
    COPIES,
    DIVISION,
    GROUP,
    LOSS,
    MICROBATCHES,
    PIPE,
    SIDE,
    SPLIT,
    STAGES,
    ZERO,
    ContentColumn,
    KindColumn,
    LayoutTables,
    PassColumn,
)
from atoll.training.step import FLOAT

DENSE, EXPERT = 0, 1  # last axis of `LayoutTables.parameters`
_DENSE_COLUMNS = KindColumn.DENSE, KindColumn.ALL_DENSE
_PARAMETERS = slice(KindColumn.DENSE, KindColumn.ALL_EXPERT + 1)
SAME = 1e-12  # relative difference of a stage's time below which times count as equal
_SUMMED_PASSES = slice(PassColumn.FORWARD_S, PassColumn.HOST_FORWARD_S + 1)


class Sums:
    """Estimates of a selection of rows of the tables."""

    def __init__(
        self, tables: LayoutTables, rows: Ints, slower: LayoutTables | None = None
    ) -> None:
        self.tables = tables
        self.run, self.stack = tables.run, tables.run.stack
        self.rows = rows
        self.slower = slower
        """Tables with upper bounds on the passes where those of `tables` are lower bounds."""
        sizes = rows[:, STAGES]
        self.starts = np.cumsum(sizes) - sizes
        self.row = np.repeat(np.arange(len(rows)), sizes)
        self.stage_position = np.arange(len(self.row)) - self.starts[self.row]
        """Row of each stage, and its position there."""
        self.pod = np.zeros_like(self.row)
        """Number of each stage's devices in `pods`."""
        self.stage = tables.starts[rows[self.row, PIPE]] + self.stage_position
        self.mix = tables.mix[self.stage]
        self.launches = bool(tables.passes[..., PassColumn.HOST_S].any())
        """Whether host time is modelled."""
        self.m = rows[:, MICROBATCHES].astype(np.float64)[:, None]
        arrivals = tables.arrivals[self.stage]
        self.arriving_s = arrivals * tables.sends_s[rows[self.row, GROUP], None]
        """(stages, 2): activations and gradients of one microbatch into each stage."""
        self.message_s = self.arriving_s / np.where(arrivals > 0, arrivals, 1.0)
        """(stages, 2): one activation and one gradient into each stage."""
        self.order = tables.order[rows[:, PIPE]]
        self.chunk_stage, self.chunk_mix = self._chunks()
        """Stage and mix of each chunk, in pipelines with several chunks per stage."""
        self.chunk_starts = np.searchsorted(self.row[self.chunk_stage], np.arange(len(rows)))

    @property
    def pods(self) -> Sequence[Sums]:
        """Sums of the same rows, one for each kind of device."""
        return (self,)

    def _chunks(self) -> tuple[Ints, Ints]:
        t, pipe = self.tables, self.rows[self.row, PIPE]
        per_stage = t.chunks[pipe]
        apart = np.flatnonzero(per_stage > 1)
        counts = per_stage[apart]
        stage = np.repeat(apart, counts)
        number = np.arange(len(stage)) - np.repeat(np.cumsum(counts) - counts, counts)
        at = t.chunk_starts[pipe[stage]] + self.stage_position[stage] * per_stage[stage] + number
        return stage, t.chunk_mix[at]

    def state_memory(self) -> StateMemory:
        states = self.states()
        return StateMemory(states, self.memory(states))

    def picked(self, passes: StagePasses, picks: Ints) -> StagePasses:
        """Select one choice per stage."""

        def select(values: Floats, picks: Ints) -> Floats:
            return np.take_along_axis(values, picks[: len(values), None], axis=1)

        return map_arrays(passes, select, picks, picks[self.chunk_stage])

    def max_over_stages(self, values: Floats) -> Floats:
        """Return the maximum over the stages of each row."""
        return np.maximum.reduceat(values, self.starts, axis=0)

    def total(self, values: Floats) -> Floats:
        return np.add.reduceat(values, self.starts, axis=0)

    def states(self) -> StateCosts:
        return self.combine_stages(self.stage_state_costs())

    def combine_stages(self, costs: StateCosts) -> StateCosts:
        """Combine the costs of all stages after the passes of a step. Gradients are summed after
        the last backward pass, under ZeRO 3 layer by layer in each pass. Divided gradients (ZeRO 2)
        are reduced in every backward pass by DeepSpeed (deepspeedai/DeepSpeed#2252),
        Megatron-FSDP's "optim_grads" and FSDP (its no_sync keeps full gradients instead: ZeRO 1;
        pytorch/pytorch#126166).
        """
        rows, most = self.rows, self.max_over_stages
        return costs._replace(
            accumulate_s=self.m[:, 0] * most(costs.accumulate_s),
            update_s=most(costs.update_s),
            last_s=np.where(rows[:, ZERO] < 3, most(costs.last_s), 0.0),
            before_s=np.where(rows[:, ZERO] == 2, most(costs.before_s), 0.0),
        )

    def stage_state_costs(self) -> StateCosts:
        t, rows = self.tables, self.rows
        stage_rows = rows[self.row]
        copies, zero = stage_rows[:, COPIES], stage_rows[:, ZERO]
        contents = t.contents[t.content]
        sums = t.counts @ t.kinds
        for column in _DENSE_COLUMNS[self.run.adapters is not None :]:
            sums[:, column] -= contents[:, ContentColumn.SHARED_PARAMETERS]
        columns = sums[self.mix].T
        dense, expert, *all_parameters, waiting, copied, weight_s, launch_s, host_update_s = columns
        contents = contents[self.mix]
        per_parameter = t.parameters[stage_rows[:, DIVISION]]
        counts = all_parameters, *[(dense, expert)] * 4  # weights are of all parameters
        weights, gradients, optimizer, accumulate_s, update_s = (
            per_parameter[:, i, DENSE] * dense_count + per_parameter[:, i, EXPERT] * expert_count
            for i, (dense_count, expert_count) in enumerate(counts)
        )
        weights += np.where(zero < 3, copied, 0.0)
        buffers = contents[np.arange(len(contents)), ContentColumn.BUFFER_BYTES + zero]
        sent = self.stack.sends_held * contents[:, ContentColumn.BOUNDARY_BYTES]
        buffers += np.where(t.arrivals[self.stage, 0] > 0, sent, 0.0)
        # Many stages have the same parameters and groups.
        pairs, pair = _distinct(stage_rows[:, GROUP], self.mix)
        shared_s = self.shared_s(pairs[0], *sums[pairs[1], :2].T)
        gather_s, reduce_s = (wire_s[pair] for wire_s in shared_s)
        return StateCosts(
            accumulate_s,
            update_s,
            reduce_s + gather_s,
            reduce_s + self.stack.regathers * gather_s,
            np.stack([weights, optimizer, buffers], axis=1),
            gradients,
            waiting / copies,
            weight_s / copies,
            launch_s / copies,
            np.maximum(0.0, host_update_s - update_s),
        )

    def shared_s(self, group: Ints, dense: Floats, expert: Floats) -> tuple[Floats, Floats]:
        """Return the seconds of weight gathers and of gradient reductions over groups."""
        t = self.tables
        wires_s = np.zeros((2, len(group)))
        begin, end = t.spans[group].T
        for i in range(int((end - begin).max(initial=0))):
            rows = np.flatnonzero(begin + i < end)
            collective = begin[rows] + i
            gathers, per_dense, per_expert, fixed_s, tree_s = t.collective[collective].T
            bytes_ = per_dense * dense[rows] + per_expert * expert[rows]
            terms = fixed_s, t.s_per_byte[collective].T, t.steps[collective].T, tree_s
            wire_s = sized_s(terms, bytes_, t.durations_s, t.shares)
            wires_s[np.where(gathers > 0, 0, 1), rows] += wire_s
        return wires_s[0], wires_s[1]

    def passes(self, memory: StateMemory) -> StagePasses:
        """Return the passes and bytes per stage and choice."""
        t, rows, states = self.tables, self.rows, memory.states
        stage_rows = rows[self.row]
        # Where weights are gathered layer by layer, groups have different times.
        gathered = np.where(rows[:, ZERO] == 3, rows[:, GROUP], -1)
        variants, variant = _distinct(rows[:, SIDE], gathered + 1)
        pairs, pair = _distinct(variant[self.row], self.mix)
        layer_passes = t.passes[variants[0]]
        layers_s = layer_passes[..., _SUMMED_PASSES].copy()
        layers_s[..., :2] += self.exposed_gathers_s(layer_passes, variants[1] - 1)
        parts = np.einsum("pk,pkcx->xpc", t.counts[pairs[1]], layers_s[pairs[0]])
        forward, backward, host, waiting, launch_f = parts[:, pair] / stage_rows[:, COPIES, None]
        # A pipeline of several chunks per stage is replayed without the host's part of the update.
        late_s = np.where(t.chunks[stage_rows[:, PIPE]] > 1, 0.0, states.host_late_s)
        stages = self._paces(
            (forward, backward, host, waiting, launch_f),
            stage_rows[:, SPLIT, None] > 0,
            states.weight_s,
            states.launch_s,
            late_s,
            self.m[self.row],
        )
        row = self.row[self.chunk_stage]
        pairs, pair = _distinct(variant[row], self.chunk_mix)
        parts = np.einsum("pk,pkcx->xpc", t.chunk_counts[pairs[1]], layers_s[pairs[0]])
        weights = slice(KindColumn.WEIGHT_S, KindColumn.LAUNCH_S + 1)
        weight_s, launch_s = (t.chunk_counts @ t.kinds[:, weights])[self.chunk_mix].T
        split, m = rows[row, SPLIT, None] > 0, self.m[row]
        chunks = self._paces(parts[:, pair], split, weight_s, launch_s, 0 * launch_s, m)
        after_forward_s = backward + stages.host_s - stages.once_s
        total_s = forward + after_forward_s + stages.once_s
        most_s = total_s, after_forward_s
        if self.slower is None:
            most_s = total_s[:0], after_forward_s[:0]
        elif self.slower is not self.tables:
            slower = Sums(self.slower, self.rows).passes(memory)
            most_s = slower.total_s, slower.after_forward_s
        return StagePasses(stages, chunks, total_s, after_forward_s, memory.bytes, *most_s)

    def _paces(
        self,
        parts: Sequence[Floats] | Floats,
        split: Bools,
        weight_s: Floats,
        launch_s: Floats,
        late_s: Floats,
        m: Floats,
    ) -> Paces:
        """Return the passes of stages or of chunks that a pipeline replays. With separate weight
        passes, once with device and once with host times, of which the slower pipeline counts:
        combined, slower weight gradients on the device could shorten the step. Otherwise exposed
        host time is added to forward and backward passes in equal parts.

        A device waits for its host by the end of the forward pass, of all passes or of the update,
        `late_s` longer than the device's:

            wait = max(0, host - device, (host forward - device forward) / m)

        Of m microbatches only the first starts with an empty queue of launches; the pipelines of
        separate weight passes are replayed without that.
        """
        forward, backward, host_s, waiting, launch_f = parts
        behind_s = host_s - (forward + backward)
        first_s = np.maximum(behind_s + late_s[:, None] / m, (launch_f - forward) / m)
        steady_s = np.maximum(0.0, behind_s)
        once_s = np.where(split, 0.0, np.maximum(0.0, first_s - steady_s))
        unhidden = steady_s + once_s + waiting
        device_b = backward - weight_s[:, None]
        more = np.where(split, waiting, unhidden) / 2
        weight = np.broadcast_to(weight_s[:, None], forward.shape)
        host_w = np.broadcast_to(launch_s[:, None], forward.shape)
        host_f = launch_f + waiting / 2
        host_b = host_s - launch_f - host_w + waiting / 2
        if not self.hosts_apart.any():
            host_f, host_b, host_w = forward[:0], forward[:0], forward[:0]
        counted = forward + more, device_b + more, weight
        return Paces(*counted, host_f, host_b, host_w, forward, device_b, unhidden, once_s)

    def exposed_gathers_s(self, passes: Floats, group: Ints) -> Floats:
        """Return (variants, kinds, choices, 2): exposed seconds of gathers of divided weights in
        forward passes and, with scatters of gradients, in backward passes; 0 without a group (-1).
        """
        t = self.tables
        exposed_s = np.zeros((*passes.shape[:-1], 2))
        gathering = np.flatnonzero(group >= 0)
        shape = gathering.size, len(t.kinds)
        groups = np.repeat(group[gathering], len(t.kinds))
        dense, expert, *all_parameters = (
            np.broadcast_to(column, shape).reshape(-1) for column in t.kinds[:, _PARAMETERS].T
        )
        wires_s = self.shared_s(groups, dense, expert)
        if self.run.adapters:  # frozen weights are gathered, and have no gradients
            wires_s = self.shared_s(groups, *all_parameters)[0], wires_s[1]
        gather_s, reduce_s = (s.reshape(*shape, 1) / self.stack.gather_efficiency for s in wires_s)
        hidden = self.run.overlap_gain * self.stack.overlap.gather
        hides = PassColumn.HIDES_FORWARD_S, PassColumn.HIDES_BACKWARD_S
        for at, wire_s in enumerate((gather_s, gather_s + reduce_s)):
            hides_s = passes[gathering, :, :, hides[at]]
            exposed_s[gathering, :, :, at] = wire_s - np.minimum(hidden * wire_s, hides_s)
        return exposed_s

    def memory(self, states: StateCosts) -> Floats:
        """Return the bytes needed per stage and choice."""
        changing = sum(self.peak_parts(states), np.zeros(()))
        allocated = states.fixed.sum(axis=1)[:, None] + changing
        needed = allocated * (1 + self.stack.fragmentation) + self.stack.context_bytes
        return np.asarray(needed)

    def peak_parts(self, states: StateCosts) -> PeakParts:
        """Return the bytes at the peak of each stage (stages, choices), without fixed ones."""
        t, rows = self.tables, self.rows[self.row]
        content = t.content[self.mix]
        kept = (t.weighed @ t.kept)[self.stage]
        peaks = t.peaks[self.stage].transpose(1, 2, 0)[..., None]
        activations = bytes_at_peak(peaks, kept, states.waiting[:, None])
        zero, padding = rows[:, ZERO], t.padding[rows[:, DIVISION], None]
        at_loss = t.contents[content, ContentColumn.LOSS_BYTES + zero, None]
        padded_loss = t.contents[content, ContentColumn.PADDED_LOSS_BYTES + zero, None]
        logits = t.logits[rows[:, LOSS], content, None] + (at_loss + padding * padded_loss)
        early = (rows[:, MICROBATCHES] > 1) | self.bucketed
        phases, parameters, padded = np.moveaxis(t.transient[content, zero], -1, 0)
        freed = -self.run.states.reduced if self.stack.delays_reduction else 0.0
        reduced = np.where(early, freed, t.parameters[rows[:, DIVISION], 1, DENSE])
        phases = phases + parameters * reduced[:, None, None] + padded * padding[..., None]
        transient, at_end = phases[..., :-1].max(axis=-1), phases[..., -1]
        parts = PeakParts(states.gradients[:, None], activations, logits, transient)
        shared = t.contents[content, ContentColumn.SHARED_PARAMETERS, None]
        states_bytes = max(self.run.states.optimizer, 1.0)
        roots_bytes = states.fixed[:, 1, None] * FLOAT / states_bytes
        return peak_parts(self.run, parts, at_end, shared, early[:, None], roots_bytes)

    @property
    def bucketed(self) -> Bools:
        """Whether gradients of each stage stay in buckets."""
        begin, end = self.tables.spans[self.rows[self.row, GROUP]].T
        replicated = (self.rows[self.row, ZERO] == 0) & (begin < end)
        return np.asarray(replicated & self.stack.buckets)

    def step_s(self, states: StateCosts, passes: StagePasses, wanted: Bools) -> Floats:
        """Return (rows, choices): seconds of the step; infinite where it is not `wanted`."""
        paces_s = self.paces_s(passes, wanted)
        reduced_s = self.with_gradients_s(states, self.behind_s(passes), *paces_s)
        return self.with_update_s(states, reduced_s)

    def paces_s(
        self, passes: StagePasses, wanted: Bools, message_s: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """Return (rows, choices): seconds of all microbatches with device times and, where hosts
        have a pace of their own, with host times; messages take `message_s` or as in the tables.
        """
        stages, chunks, apart = passes.stages, passes.chunks, self.hosts_apart
        messages_s = self.message_s if message_s is None else message_s
        device_s = self.replayed_s(stages.counted, chunks.counted, wanted, messages_s)
        if not apart.any():
            return device_s, device_s
        return device_s, self.replayed_s(stages.host, chunks.host, wanted & apart, messages_s)

    @property
    def hidden(self) -> Floats:
        """Share of each row's gradient collectives that may overlap with passes."""
        zero, stages = self.rows[:, ZERO], self.rows[:, STAGES]
        return self.run.overlap_gain * hidden_gradients(self.stack.overlap, zero, stages)[:, None]

    def with_gradients_s(
        self, states: StateCosts, behind_s: Triple, passes_s: Floats, host_s: Floats
    ) -> Floats:
        """Add exposed gradient collectives to all passes, for device and host times."""
        hidden, apart = self.hidden, self.hosts_apart
        if self.slower is not None:
            shortest_s, most_s, _ = behind_s
            behind_s = (np.minimum(passes_s / self.m - shortest_s, most_s),) * 3
        last_s, before_s = states.last_s[:, None], states.before_s[:, None]

        def reduced_s(passes_s: Floats, behind_s: Floats) -> Floats:
            gradient_s = last_s - hidden * np.minimum(last_s, behind_s)
            earlier_s = before_s - hidden * np.minimum(before_s, behind_s)
            return passes_s + (gradient_s + (self.m - 1) * earlier_s)

        reduced, device_s, host_s = map(reduced_s, (passes_s, passes_s, host_s), behind_s)
        # With separate weight passes the slower pace counts.
        return np.where(apart, np.maximum(device_s, host_s), reduced) if apart.any() else reduced

    def with_update_s(self, states: StateCosts, passes_s: Floats) -> Floats:
        """Add accumulation, update and the fixed time of a step."""
        update_s = states.optimizer_s[:, None] + self.stack.step_s
        return np.asarray((passes_s + update_s) * self.run.slack)

    def slowest(self, time_s: Floats) -> Ints:
        """Return (rows, choices): the first of the slowest stages."""
        longest = time_s == self.max_over_stages(time_s)[self.row]
        number = np.arange(len(time_s))[:, None]
        return np.minimum.reduceat(np.where(longest, number, len(time_s)), self.starts, axis=0)

    def behind_s(self, passes: StagePasses) -> Triple:
        """Return (rows, choices): the seconds behind which gradient collectives may hide, the
        backward passes of the slowest stage; then by its device times and by its host times, where
        weight passes are separate.

        Between bounds on the passes, another stage may be the slowest, so that the step is not
        monotone in them. But all passes take at least m times a stage's forward and backward pass:
        its backward pass is at most passes / m - its forward pass. It is also at most the longest
        of the stages that may be the slowest. Returns the shortest forward pass, and that longest.
        """
        if self.slower is not None:
            shortest_s = -self.max_over_stages(-passes.stages.forward)
            least_s = self.max_over_stages(passes.total_s)[self.row] * (1 - SAME)
            after_s = np.where(passes.most_s >= least_s, passes.most_after_forward_s, 0.0)
            return shortest_s, self.max_over_stages(after_s), shortest_s
        slowest = self.slowest(passes.total_s)
        after_s = np.take_along_axis(passes.after_forward_s, slowest, axis=0)
        if not self.hosts_apart.any():
            return after_s, after_s, after_s

        def backward_s(forward: Floats, backward: Floats, weight: Floats) -> Floats:
            back_s = backward + weight
            return np.take_along_axis(back_s, self.slowest(forward + back_s), axis=0)

        return after_s, backward_s(*passes.stages.counted), backward_s(*passes.stages.host)

    def distinct_pipelines(self) -> tuple[Sums, Ints]:
        """Return sums of one row per pipeline with other times, and each row's pipeline."""
        rows = self.rows
        hosts_update = self.tables.kinds[:, KindColumn.HOST_UPDATE_S].any()
        gathered = np.where(rows[:, ZERO] == 3, rows[:, GROUP] + 1, 0)
        pairs = _distinct(rows[:, SIDE], gathered)[1]
        pairs = _distinct(pairs, rows[:, DIVISION] * hosts_update)[1]
        _, first, number = np.unique(
            _distinct(pairs, rows[:, PIPE])[1], return_index=True, return_inverse=True
        )
        return Sums(self.tables, rows[first]), number

    @property
    def hosts_apart(self) -> Bools:
        """Whether host times are replayed separately, per row."""
        return (self.rows[:, SPLIT, None] > 0) & self.launches

    def replayed_s(
        self, stages: Triple, chunks: Triple, wanted: Bools, messages_s: Floats
    ) -> Floats:
        """Return (rows, choices): seconds of all microbatches (`step.replay.pipeline_s`) for these
        times of stages, chunks and messages; infinite where it is not `wanted`.
        """
        replayed_s = self.m * self.total(sum(stages, np.zeros(())))
        replayed_s[~wanted] = np.inf
        rows, t = self.rows, self.tables
        pipes = np.flatnonzero((rows[:, STAGES] > 1) & wanted.any(axis=1))
        if not pipes.size:
            return replayed_s
        order, per_stage = self.order[pipes], t.chunks[rows[pipes, PIPE]]
        keys = np.stack([order, rows[pipes, STAGES], per_stage, rows[pipes, MICROBATCHES]])
        shapes, which = np.unique(keys, axis=1, return_inverse=True)
        shown = 1.0 - self.stack.overlap.pipeline
        for number, (name, p, c, m) in enumerate(shapes.T.tolist()):
            alike = pipes[which.reshape(-1) == number]
            row, choice = np.nonzero(wanted[alike])
            paces, starts = (chunks, self.chunk_starts) if c > 1 else (stages, self.starts)
            at = starts[alike[row], None] + np.arange(p * c), choice[:, None]
            passes_s = np.stack([pass_s[at] for pass_s in paces], axis=-1).reshape(-1, p, c, 3)
            message_s = messages_s[self.starts[alike[row], None] + np.arange(p)]
            messages = shown * message_s, (1.0 - shown) * message_s
            replayed_s[alike[row], choice] = pipeline_s(ORDERS[name], passes_s, m, *messages)
        return replayed_s


def map_arrays(
    passes: StagePasses,
    change: Callable[[Floats, Ints], Floats],
    stage_index: Ints,
    chunk_index: Ints,
) -> StagePasses:
    """Change all arrays, with one index for those of stages and one for those of chunks."""
    stages = Paces(*(change(times_s, stage_index) for times_s in passes.stages))
    chunks = Paces(*(change(times_s, chunk_index) for times_s in passes.chunks))
    return StagePasses(stages, chunks, *(change(values, stage_index) for values in passes[2:]))


def hidden_gradients(overlap: Overlap, zero: Ints, stages: Ints) -> Floats:
    """Return the share of gradient collectives that may overlap with passes, by layout."""
    shares = [[overlap.hidden_gradient(x, pp) for pp in (1, 2)] for x in ZERO_STAGES]
    hidden: Floats = np.array(shares)[zero, (stages > 1) * 1]
    return hidden


def numbered(values: NDArray[Any]) -> tuple[Ints, Ints]:
    """Return the distinct values (small integers) in ascending order, and the index of each entry
    among them. Marking values in a table is faster than sorting.
    """
    marks = np.zeros(int(values.max(initial=0)) + 1, dtype=np.bool_)
    marks[values] = True
    return np.flatnonzero(marks), (np.cumsum(marks) - 1)[values]


def _distinct(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Return the distinct pairs of small numbers (2, pairs), and the index of each entry's pair."""
    length = int(second.max(initial=0)) + 1
    pairs, which = numbered(first * length + second)
    return np.array(np.divmod(pairs, length)), which
