"""Step time and memory of many layouts from the tables of `batch`: sums and maxima over stages.

As `estimate`, `memory.stage_memory` and `step.replay` state them; a test draws layouts and
compares. Arrays run over the stages of all rows, one row after another, and over choices of
recomputation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from atoll.fabric.nested import TREE_SHARE
from atoll.step.layout import ZERO_STAGES
from atoll.step.orders import ORDERS
from atoll.step.replay import pipeline_s
from atoll.training.batch.parts import Held, Owned, Paces, Passes, States
from atoll.training.batch.paths import Triple, path_s
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
    Floats,
    Ints,
    Tables,
)

SAME = 1e-12  # of a stage's time: choices that differ by less take as long
SLACK = 1e-8  # of the memory: what needs so much more may still fit, by another order of sums


class Sums:
    """Estimates of some rows of the tables."""

    def __init__(self, tables: Tables, rows: Ints) -> None:
        self.t = tables
        self.run, self.stack = tables.run, tables.run.stack
        self.rows = rows
        sizes = rows[:, STAGES]
        self.starts = np.cumsum(sizes) - sizes
        self.row = np.repeat(np.arange(len(rows)), sizes)
        self.place = np.arange(len(self.row)) - self.starts[self.row]
        """Of every stage its row, and where it stands there."""
        self.stage = tables.starts[rows[self.row, PIPE]] + self.place
        self.mix = tables.mix[self.stage]
        self.launches = bool(tables.passes[..., 4].any())
        """Whether hosts take time beside devices."""
        self.m = rows[:, MICROBATCHES].astype(np.float64)[:, None]
        self.arriving_s = tables.came[self.stage] * tables.sends_s[rows[self.row, GROUP], None]
        """(stages, 2): activations and gradients of one microbatch into every stage."""
        came = tables.came[self.stage]
        self.message_s = self.arriving_s / np.where(came > 0, came, 1.0)
        """(stages, 2): one activation and one gradient into every stage."""
        self.order = tables.order[rows[:, PIPE]]
        self.chunk_stage, self.chunk_mix = self._chunks()
        """Of every chunk of pipelines with several per stage, its stage and its mix."""
        self.chunk_starts = np.searchsorted(self.row[self.chunk_stage], np.arange(len(rows)))

    def _chunks(self) -> tuple[Ints, Ints]:
        t, pipe = self.t, self.rows[self.row, PIPE]
        per_stage = t.chunks[pipe]
        apart = np.flatnonzero(per_stage > 1)
        stage = np.repeat(apart, per_stage[apart])
        number = np.arange(len(stage)) - np.repeat(
            np.cumsum(per_stage[apart]) - per_stage[apart], per_stage[apart]
        )
        at = t.chunk_starts[pipe[stage]] + self.place[stage] * per_stage[stage] + number
        return stage, t.chunk_mix[at]

    def held(self) -> Held:
        states = self.states()
        return Held(states, self.memory(states))

    def figures(
        self, held: Held | None = None, limit_s: float | None = None, named: int = 0
    ) -> tuple[Floats, Floats, Ints]:
        """Seconds and bytes of every row under each choice, and in the last column where every
        stage has the fastest choice that fits it, or one for all where that is faster; the choices
        of stages that this comes to. With a limit, what does not fit takes forever, and of what
        takes no less than the limit, or behind the first `named` choices no less than the last
        column, minus a lower bound may be returned.
        """
        held = held or self.held()
        states, passes = held.states, self.passes(held)
        picks = self.fastest(passes)
        mixed = self.picked(passes, picks)
        needed = np.append(self.most(passes.bytes), self.most(mixed.bytes), axis=1)
        capacity = self.run.capacity_bytes
        bound_s = np.zeros_like(needed)
        wanted = np.ones_like(needed, dtype=np.bool_)
        if limit_s is not None:
            fits = needed <= capacity * (1 + SLACK)
            both = [self.bound_s(states, x) for x in (passes, mixed)]
            bound_s = np.where(fits, np.concatenate(both, axis=1), np.inf) * (1 - SLACK)
            wanted = fits & (bound_s < limit_s)
        mixed_s = self.step_s(states, mixed, wanted[:, -1:])
        if limit_s is not None:
            wanted[:, named:-1] &= bound_s[:, named:-1] < mixed_s
        time_s = np.append(self.step_s(states, passes, wanted[:, :-1]), mixed_s, axis=1)
        fitting_s = np.where(needed[:, :-1] <= capacity, time_s[:, :-1], np.inf)
        one = fitting_s.argmin(axis=1)
        better = np.flatnonzero(fitting_s[np.arange(len(one)), one] < time_s[:, -1])
        time_s[better, -1] = time_s[better, one[better]]
        needed[better, -1] = needed[better, one[better]]
        mine = np.isin(self.row, better)
        picks[mine] = one[self.row[mine]]
        if limit_s is not None:
            left_s = np.where(wanted, np.inf, bound_s)
            left_s[:, -1] = left_s.min(axis=1)
            time_s = np.where((left_s < time_s) & np.isfinite(left_s), -left_s, time_s)
        return time_s, needed, picks

    def bounds(self) -> tuple[Floats, Floats, Ints]:
        """The same, but seconds are lower bounds where there is a pipeline, and of choices that are
        bounds themselves; nothing is chosen stage by stage.
        """
        held = self.held()
        passes, time_s = self.passes(held), np.zeros((len(self.rows), self.t.bounds.size + 1))
        for least in (True, False):
            columns = np.flatnonzero(self.t.bounds == least)
            some = _each(passes, _columns, columns, columns)
            time_s[:, columns] = self.bound_s(held.states, some, least=least)
        needed = np.zeros_like(time_s)
        needed[:, :-1] = self.most(passes.bytes)
        return time_s, needed, np.zeros(0, dtype=np.int64)

    def best(self, limit_s: float, held: Held | None = None) -> tuple[Floats, Ints]:
        """Seconds of every row with the best choices of its stages, infinite where none fit or none
        takes less than the limit, and these choices.
        """
        time_s, needed, picks = self.figures(held, limit_s)
        fits = (needed[:, -1] <= self.run.capacity_bytes) & (time_s[:, -1] >= 0)
        return np.where(fits, time_s[:, -1], np.inf), picks

    def picked(self, passes: Passes, picks: Ints) -> Passes:
        """With one choice for every stage."""

        def taken(values: Floats, picks: Ints) -> Floats:
            return np.take_along_axis(values, picks[: len(values), None], axis=1)

        return _each(passes, taken, picks, picks[self.chunk_stage])

    def most(self, values: Floats) -> Floats:
        """Of every row the largest of its stages'."""
        return np.maximum.reduceat(values, self.starts, axis=0)

    def total(self, values: Floats) -> Floats:
        return np.add.reduceat(values, self.starts, axis=0)

    def fastest(self, passes: Passes) -> Ints:
        """Of every stage the fastest choice that fits, of equal ones the first; else the one that
        needs least.
        """
        fits = passes.bytes <= self.run.capacity_bytes
        own_s = np.where(fits, passes.own, np.inf)
        first = (own_s <= own_s.min(axis=1, keepdims=True) * (1 + SAME)).argmax(axis=1)
        return np.asarray(np.where(fits.any(axis=1), first, passes.bytes.argmin(axis=1)))

    def states(self) -> States:
        return self.together(self.owned())

    def together(self, owned: Owned) -> States:
        """Of all stages, what follows the passes of a step."""
        rows, most = self.rows, self.most
        return States(
            self.m[:, 0] * most(owned.accumulate_s) + most(owned.update_s),
            np.where(rows[:, ZERO] < 3, most(owned.last_s), 0.0),
            np.where(rows[:, ZERO] == 2, most(owned.each_s), 0.0),
            *owned[4:],
        )

    def owned(self) -> Owned:
        t, rows = self.t, self.rows
        mine = rows[self.row]
        copies, zero = mine[:, COPIES], mine[:, ZERO]
        held = t.held[t.content]
        sums = t.counts @ t.kinds
        for column in (6,) if self.run.adapters else (0, 6):
            sums[:, column] -= held[:, 0]
        dense, expert, waiting, copied, weight_s, launch_s, *held_too = sums[self.mix].T
        held = held[self.mix]
        per = t.parameters[mine[:, DIVISION]]
        weights, gradients, optimizer, accumulate_s, update_s = (
            per[:, i, 0] * whole + per[:, i, 1] * own
            for i, (whole, own) in enumerate([held_too] + [(dense, expert)] * 4)
        )
        fixed = weights + optimizer + held[np.arange(len(held)), 2 + zero]
        fixed += np.where(zero < 3, copied, 0.0)
        fixed += np.where(t.came[self.stage, 0] > 0, self.stack.sends_held * held[:, 1], 0.0)
        # Many stages hold as much, and send it over the same groups.
        pairs, pair = _distinct(mine[:, GROUP], self.mix)
        shared_s = self.shared_s(pairs[0], *sums[pairs[1], :2].T)
        gather_s, reduce_s = (x[pair] for x in shared_s)
        return Owned(
            accumulate_s,
            update_s,
            reduce_s + gather_s,
            reduce_s + self.stack.regathers * gather_s,
            fixed,
            gradients,
            waiting / copies,
            weight_s / copies,
            launch_s / copies,
        )

    def shared_s(self, group: Ints, dense: Floats, expert: Floats) -> tuple[Floats, Floats]:
        """Gathers of weights and sums of gradients of so many parameters, over groups."""
        t = self.t
        wires_s = np.zeros((2, len(group)))
        begin, end = t.spans[group].T
        logs = np.log(t.durations_s)
        for i in range(int((end - begin).max(initial=0))):
            there = np.flatnonzero(begin + i < end)
            one = begin[there] + i
            gathers, per_dense, per_expert, fixed_s, tree_s = t.collective[one].T
            bytes_ = per_dense * dense[there] + per_expert * expert[there]
            longest_s = np.zeros(len(there))
            for level, (known, shares) in enumerate(zip(logs, t.shares, strict=True)):
                full_s = t.s_per_byte[one, level] * bytes_
                message_s = np.maximum(full_s, 1e-300) / t.steps[one, level]
                share = np.interp(np.log(message_s), known, shares)
                longest_s = np.maximum(longest_s, full_s / share)
            taken_s = np.minimum(fixed_s + longest_s, tree_s + longest_s / TREE_SHARE)
            wire_s = np.where(bytes_ > 0, taken_s, 0.0)
            wires_s[np.where(gathers > 0, 0, 1), there] += wire_s
        return wires_s[0], wires_s[1]

    def passes(self, held: Held) -> Passes:
        """Every stage's passes and bytes under each choice."""
        t, rows, states = self.t, self.rows, held.states
        mine = rows[self.row]
        # Where weights are gathered layer by layer, groups differ.
        gathered = np.where(rows[:, ZERO] == 3, rows[:, GROUP], -1)
        ways, way = _distinct(rows[:, SIDE], gathered + 1)
        pairs, pair = _distinct(way[self.row], self.mix)
        layers_s = self.layers(ways[0], ways[1] - 1)
        parts = np.einsum("pk,pkcx->xpc", t.counts[pairs[1]], layers_s[pairs[0]])
        forward, backward, beside, waiting, launch_f = parts[:, pair] / mine[:, COPIES, None]
        own_s = np.maximum(forward + backward, beside) + waiting
        stages = self._paces(
            (forward, backward, beside, waiting, launch_f),
            mine[:, SPLIT, None] > 0,
            states.weight_s,
            states.launch_s,
        )
        row = self.row[self.chunk_stage]
        pairs, pair = _distinct(way[row], self.chunk_mix)
        parts = np.einsum("pk,pkcx->xpc", t.chunk_counts[pairs[1]], layers_s[pairs[0]])
        weight_s, launch_s = (t.chunk_counts @ t.kinds[:, 4:6])[self.chunk_mix].T
        chunks = self._paces(parts[:, pair], rows[row, SPLIT, None] > 0, weight_s, launch_s)
        return Passes(stages, chunks, own_s, own_s - forward, held.bytes)

    def _paces(
        self,
        parts: Sequence[Floats] | Floats,
        split: NDArray[np.bool_],
        weight_s: Floats,
        launch_s: Floats,
    ) -> Paces:
        """`step.StageTime.paces` of stages or of chunks."""
        forward, backward, beside, waiting, launch_f = parts
        host = np.maximum(0.0, beside - (forward + backward)) + waiting
        device_b = backward - weight_s[:, None]
        more = np.where(split, waiting, host) / 2
        weight, host_w = (np.broadcast_to(x[:, None], forward.shape) for x in (weight_s, launch_s))
        host_f = launch_f + waiting / 2
        host_b = beside - launch_f - host_w + waiting / 2
        if not self.hosts_apart.any():
            host_f, host_b, host_w = forward[:0], forward[:0], forward[:0]
        return Paces(
            forward + more, device_b + more, weight, host_f, host_b, host_w, forward, device_b
        )

    def layers(self, side: Ints, group: Ints) -> Floats:
        """(ways, kinds, choices, 5): seconds of each kind of layer, with gathers that nothing hides
        where there is a group.
        """
        t = self.t
        x = t.passes[side]
        found: Floats = x[..., [0, 1, 4, 5, 6]]
        ways = np.flatnonzero(group >= 0)
        shape = ways.size, len(t.kinds)
        of = np.repeat(group[ways], len(t.kinds))
        dense, expert, *both = (
            np.broadcast_to(t.kinds[:, i], shape).reshape(-1) for i in (0, 1, 6, 7)
        )
        wires_s = self.shared_s(of, dense, expert)
        if self.run.adapters:  # frozen weights are gathered, and have no gradients
            wires_s = self.shared_s(of, *both)[0], wires_s[1]
        gather_s, reduce_s = (s.reshape(*shape, 1) / self.stack.gather_efficiency for s in wires_s)
        hidden = self.stack.overlap.gather
        for at, wire_s in enumerate((gather_s, gather_s + reduce_s)):
            found[ways, :, :, at] += wire_s - np.minimum(hidden * wire_s, x[ways, :, :, 2 + at])
        return found

    def memory(self, states: States) -> Floats:
        """Bytes that every stage needs (`memory.stage_memory`)."""
        t, rows = self.t, self.rows[self.row]
        content = t.content[self.mix]
        kept = (t.weighed @ t.kept)[self.stage]
        peaks = t.peaks[self.stage]
        activations = np.zeros_like(kept)
        for held, late in peaks.transpose(1, 2, 0):
            late_bytes = (states.waiting * late)[:, None]
            activations = np.maximum(activations, kept * held[:, None] + late_bytes)
        logits, transient = t.logits[rows[:, LOSS], content][:, None], t.transient[content]
        gradients = states.gradients[:, None]
        peak = gradients + activations + np.maximum(transient, logits)
        if self.stack.late_gradients:
            early = np.where(rows[:, MICROBATCHES, None] > 1, gradients, 0.0)
            tied = 0 if self.run.adapters else t.held[content, :1]
            summed = 2 * self.run.states.gradient * tied
            late_peak = np.maximum(
                early + activations + logits, gradients + np.maximum(transient, summed)
            )
            peak = np.where(rows[:, ZERO, None] < 2, late_peak, peak)
        needed = (states.fixed[:, None] + peak) * (1 + self.stack.fragmentation)
        return np.asarray(needed + self.stack.context_bytes)

    def step_s(self, states: States, passes: Passes, wanted: NDArray[np.bool_]) -> Floats:
        """(rows, choices): the whole step: what stages run, gradients that nothing hides,
        optimizer; infinite where it is not `wanted`.
        """
        stages, chunks, apart = passes.stages, passes.chunks, self.hosts_apart
        passes_s = self.replayed_s(stages.counted, chunks.counted, wanted)
        host_s = passes_s
        if apart.any():
            host_s = self.replayed_s(stages.host, chunks.host, wanted & apart)
        return self.with_gradients_s(states, passes, passes_s, host_s)

    def bound_s(self, states: States, passes: Passes, *, least: bool = False) -> Floats:
        """The same, from below; with `least` of all choices whose layers take no less, of which one
        may wait less for its host in forward passes.
        """
        stages, chunks = passes.stages, passes.chunks
        shown_s = (1.0 - self.stack.overlap.pipeline) * self.arriving_s.sum(axis=1)
        busy_s = self.m * self.most(sum(stages.counted, shown_s[:, None]))
        counted = (stages.device, chunks.device) if least else (stages.counted, chunks.counted)
        passes_s = np.maximum(busy_s, path_s(self, *counted))
        host_s = passes_s
        if self.hosts_apart.any():
            host_s = self.m * self.most(sum(stages.host, np.zeros(())))
            if not least:
                host_s = np.maximum(host_s, path_s(self, stages.host, chunks.host))
        if not least:
            return self.with_gradients_s(states, passes, passes_s, host_s)
        passes_s = np.where(self.hosts_apart, np.maximum(passes_s, host_s), passes_s)
        hidden = self.hidden
        last_s, before_s = states.last_s[:, None], states.before_s[:, None]
        passes_s = passes_s + (1 - hidden) * (last_s + (self.m - 1) * before_s)
        return self.with_rest_s(states, passes_s)

    @property
    def hidden(self) -> Floats:
        """Of every row, the part of its gradients' collectives that may run beside passes."""
        share = self.stack.overlap.hidden_gradient
        shares = np.array([[share(zero, pp) for pp in (1, 2)] for zero in ZERO_STAGES])
        found: Floats = shares[self.rows[:, ZERO], (self.rows[:, STAGES] > 1) * 1][:, None]
        return found

    def with_gradients_s(
        self, states: States, passes: Passes, passes_s: Floats, host_s: Floats
    ) -> Floats:
        """Add to all passes, at the device's pace and at the host's, what follows them."""
        hidden = self.hidden
        last_s, before_s = states.last_s[:, None], states.before_s[:, None]

        def reduced_s(passes_s: Floats, behind_s: Floats) -> Floats:
            gradient_s = last_s - hidden * np.minimum(last_s, behind_s)
            each_s = before_s - hidden * np.minimum(before_s, behind_s)
            return passes_s + (gradient_s + (self.m - 1) * each_s)

        behind_s = np.take_along_axis(passes.behind, self.slowest(passes.own), axis=0)
        found_s, apart, stages = reduced_s(passes_s, behind_s), self.hosts_apart, passes.stages
        if apart.any():  # the slower pace counts
            device_s = reduced_s(passes_s, self.behind_s(*stages.counted))
            host_s = reduced_s(host_s, self.behind_s(*stages.host))
            found_s = np.where(apart, np.maximum(device_s, host_s), found_s)
        return self.with_rest_s(states, found_s)

    def with_rest_s(self, states: States, passes_s: Floats) -> Floats:
        """Add accumulation, update and what a step takes whatever runs."""
        rest_s = states.beside_s[:, None] + self.stack.step_s
        return np.asarray((passes_s + rest_s) * self.run.slack)

    def slowest(self, time_s: Floats) -> Ints:
        """(rows, choices): the stage that takes longest, the first of such."""
        longest = time_s == self.most(time_s)[self.row]
        number = np.arange(len(time_s))[:, None]
        return np.minimum.reduceat(np.where(longest, number, len(time_s)), self.starts, axis=0)

    def behind_s(self, forward: Floats, backward: Floats, weight: Floats) -> Floats:
        """Backward and weight pass of the slowest stage."""
        back_s = backward + weight
        slowest = self.slowest(forward + back_s)
        return np.asarray(np.take_along_axis(back_s, slowest, axis=0))

    @property
    def hosts_apart(self) -> NDArray[np.bool_]:
        """Of every row, whether hosts have a pace of their own."""
        return (self.rows[:, SPLIT, None] > 0) & self.launches

    def replayed_s(
        self,
        stages: Triple,
        chunks: Triple,
        wanted: NDArray[np.bool_],
    ) -> Floats:
        """(rows, choices): all microbatches through the pipeline (`step.replay.pipeline_s`), at one
        pace of its stages and chunks; infinite where it is not `wanted`.
        """
        found_s = self.m * self.total(sum(stages, np.zeros(())))
        found_s[~wanted] = np.inf
        rows, t = self.rows, self.t
        pipes = np.flatnonzero((rows[:, STAGES] > 1) & wanted.any(axis=1))
        if not pipes.size:
            return found_s
        order, per_stage = self.order[pipes], t.chunks[rows[pipes, PIPE]]
        keys = np.stack([order, rows[pipes, STAGES], per_stage, rows[pipes, MICROBATCHES]])
        shapes, which = np.unique(keys, axis=1, return_inverse=True)
        shown = 1.0 - self.stack.overlap.pipeline
        for number, (name, p, c, m) in enumerate(shapes.T.tolist()):
            some = pipes[which.reshape(-1) == number]
            row, choice = np.nonzero(wanted[some])
            paces, starts = (chunks, self.chunk_starts) if c > 1 else (stages, self.starts)
            at = starts[some[row], None] + np.arange(p * c), choice[:, None]
            passes_s = np.stack([x[at] for x in paces], axis=-1).reshape(-1, p, c, 3)
            message_s = self.message_s[self.starts[some[row], None] + np.arange(p)]
            messages = shown * message_s, (1.0 - shown) * message_s
            found_s[some[row], choice] = pipeline_s(ORDERS[name], passes_s, m, *messages)
        return found_s


def _each(
    passes: Passes, change: Callable[[Floats, Ints], Floats], of_stages: Ints, of_chunks: Ints
) -> Passes:
    """With all arrays changed, by what is given for those of stages and for those of chunks."""
    stages = Paces(*(change(x, of_stages) for x in passes.stages))
    chunks = Paces(*(change(x, of_chunks) for x in passes.chunks))
    return Passes(stages, chunks, *(change(x, of_stages) for x in passes[2:]))


def _columns(values: Floats, columns: Ints) -> Floats:
    return values[:, columns]


def _distinct(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Pairs of small numbers without repeats (2, pairs), and which of them each entry is; marked,
    as sorting takes longer.
    """
    length = int(second.max(initial=0)) + 1
    numbers = first * length + second
    marks = np.zeros(int(numbers.max(initial=0)) + 1, dtype=np.bool_)
    marks[numbers] = True
    return np.array(np.divmod(np.flatnonzero(marks), length)), (np.cumsum(marks) - 1)[numbers]
