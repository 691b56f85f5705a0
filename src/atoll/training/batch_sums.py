"""Step time and memory of many layouts from the tables of `batch`: sums and maxima over stages.

As `estimate`, `memory.stage_memory` and `step.bubbles.step_with_transfers_s` state them; a test
draws layouts and compares. Arrays run over the stages of all rows, one row after another, and over
choices of recomputation.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.step.layout import ZERO_STAGES
from atoll.step.turns import turns_s
from atoll.training.operators.tables import (
    COPIES,
    DIVISION,
    GROUP,
    LATE,
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


class States(NamedTuple):
    """What no choice changes. Of every row: accumulation and update of a step, and the gradients'
    collectives behind the last backward pass and behind each one before; of every stage: bytes that
    are fixed, of gradients, and that wait for weight gradients, and seconds of these and of their
    launches.
    """

    beside_s: Floats
    last_s: Floats
    before_s: Floats
    fixed: Floats
    gradients: Floats
    waiting: Floats
    weight_s: Floats
    launch_s: Floats


class Owned(NamedTuple):
    """(stages,): of every stage seconds of accumulation, of the update, and of its gradients'
    collectives behind the last backward pass and behind each one before; the rest as in `States`.
    """

    accumulate_s: Floats
    update_s: Floats
    last_s: Floats
    each_s: Floats
    fixed: Floats
    gradients: Floats
    waiting: Floats
    weight_s: Floats
    launch_s: Floats


class Held(NamedTuple):
    """What no layer's time changes, but for the weight gradients' seconds in `states`."""

    states: States
    bytes: Floats
    """(stages, choices): what every stage needs."""


class Passes(NamedTuple):
    """(stages, choices): seconds of a microbatch, and bytes."""

    forward: Floats
    backward: Floats
    host_f: Floats
    host_b: Floats
    """At the host's pace, where weight passes run apart (`step.StageTime.paces`); else empty."""
    device_f: Floats
    device_b: Floats
    """Without host time."""
    own: Floats
    """All of it, without transfers, and that behind the forward pass."""
    behind: Floats
    first: Floats
    last: Floats
    """All of the first and of the last chunk, of stages whose unequal ones take turns alone."""
    bytes: Floats

    def for_steps(self) -> Passes:
        """Without what bounds alone are made of."""
        none = self.own[:0]
        return self._replace(device_f=none, device_b=none)

    def for_bounds(self) -> Passes:
        """Without what they have no use for."""
        none = self.own[:0]
        return self._replace(own=none, behind=none, first=none, last=none, bytes=none)


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
        self.turning = tables.turning[rows[:, PIPE]] > 0
        self.turned = np.flatnonzero(self.turning[self.row])
        """Rows whose unequal chunks take turns, and their stages."""

    def held(self) -> Held:
        states = self.states()
        return Held(states, self.memory(states))

    def figures(self, held: Held | None = None) -> tuple[Floats, Floats, Ints]:
        """Seconds and bytes of every row under each choice, and in the last column where every
        stage has the fastest choice that fits it, or one for all where that is faster; the choices
        of stages that this comes to.
        """
        held = held or self.held()
        states, passes = held.states, self.passes(held)
        picks = np.zeros(len(self.row), dtype=np.int64)
        if self.t.bounds.any():  # nothing is chosen stage by stage
            time_s, needed = (np.zeros((len(self.rows), self.t.bounds.size + 1)) for _ in range(2))
            needed[:, :-1] = self.most(passes.bytes)
            for bound in (True, False):
                columns = np.flatnonzero(self.t.bounds == bound)
                needed_by = passes.for_bounds() if bound else passes.for_steps()
                some = Passes(*(x[:, columns] for x in needed_by))
                time_s[:, columns] = self.step_s(states, some, bound=bound)
            return time_s, needed, picks
        picks = self.fastest(passes)
        passes = passes.for_steps()
        mixed = self.picked(passes, picks)
        every = Passes(*(np.append(x, y, axis=1) for x, y in zip(passes, mixed, strict=True)))
        time_s, needed = self.step_s(states, every, bound=False), self.most(every.bytes)
        fitting_s = np.where(needed[:, :-1] <= self.run.capacity_bytes, time_s[:, :-1], np.inf)
        one = fitting_s.argmin(axis=1)
        better = np.flatnonzero(fitting_s[np.arange(len(one)), one] < time_s[:, -1])
        time_s[better, -1] = time_s[better, one[better]]
        needed[better, -1] = needed[better, one[better]]
        mine = np.isin(self.row, better)
        picks[mine] = one[self.row[mine]]
        return time_s, needed, picks

    def best(self, held: Held | None = None, *, bound: bool) -> tuple[Floats, Ints]:
        """Seconds of every row with the best choices of its stages, infinite where none fit, and
        these choices; with `bound` no more than layers take that take no less.
        """
        held = held or self.held()
        if not bound:
            time_s, needed, picks = self.figures(held)
            fits = needed[:, -1] <= self.run.capacity_bytes
            return np.where(fits, time_s[:, -1], np.inf), picks
        states, passes = held.states, self.passes(held)
        picks = self.fastest(passes)
        least = self.picked(passes, picks)
        fits = self.most(least.bytes)[:, 0] <= self.run.capacity_bytes
        return np.where(fits, self.step_s(states, least, bound=True)[:, 0], np.inf), picks

    def picked(self, passes: Passes, picks: Ints) -> Passes:
        """With one choice for every stage."""
        some = {len(self.row): picks, len(self.turned): picks[self.turned]}
        each = (some.get(len(x), picks[:0])[:, None] for x in passes)
        return Passes(*map(partial(np.take_along_axis, axis=1), passes, each))

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
            gathers, per_dense, per_expert, fixed_s = t.collective[one].T
            bytes_ = per_dense * dense[there] + per_expert * expert[there]
            longest_s = np.zeros(len(there))
            for level, (known, shares) in enumerate(zip(logs, t.shares, strict=True)):
                full_s = t.s_per_byte[one, level] * bytes_
                message_s = np.maximum(full_s, 1e-300) / t.steps[one, level]
                share = np.interp(np.log(message_s), known, shares)
                longest_s = np.maximum(longest_s, full_s / share)
            wire_s = np.where(bytes_ > 0, fixed_s + longest_s, 0.0)
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
        device = forward + backward
        host = np.maximum(0.0, beside - device) + waiting
        shown_s = (1.0 - self.stack.overlap.pipeline) * self.arriving_s
        device_f = forward + shown_s[:, :1]
        device_b = backward + shown_s[:, 1:] - states.weight_s[:, None]
        more = np.where(mine[:, SPLIT, None] > 0, waiting, host) / 2
        host_f = host_b = forward[:0]
        if self.hosts_apart.any():
            host_f = launch_f + shown_s[:, :1] + waiting / 2
            launch_b = beside - launch_f - states.launch_s[:, None]
            host_b = launch_b + shown_s[:, 1:] + waiting / 2
        return Passes(
            device_f + more,
            device_b + more,
            host_f,
            host_b,
            device_f,
            device_b,
            device + host,
            backward + host,
            *self.ends_s(way, layers_s),
            held.bytes,
        )

    def ends_s(self, way: Ints, layers_s: Floats) -> tuple[Floats, Floats]:
        """`step.StageTime.ends_s` with transfers, of the stages whose chunks take turns."""
        there, t = self.turned, self.t
        if not len(there):
            none = np.zeros((0, layers_s.shape[2]))
            return none, none
        row = self.row[there]
        shown_s = (1.0 - self.stack.overlap.pipeline) * self.sent_s()[there]
        shown_s /= t.turning[self.rows[row, PIPE]]
        device_s = t.end_counts @ (layers_s[..., 0] + layers_s[..., 1])
        beside_s, waiting_s = t.end_counts @ layers_s[..., 2], t.end_counts @ layers_s[..., 3]
        all_s = np.maximum(device_s, beside_s) + waiting_s
        first, last = all_s[way[row], t.ends[self.stage[there]].T]
        return first + shown_s[:, None], last + shown_s[:, None]

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

    def step_s(self, states: States, passes: Passes, *, bound: bool) -> Floats:
        """The whole step: what stages run, gradients that nothing hides, optimizer."""
        share = self.stack.overlap.hidden_gradient
        shares = np.array([[share(zero, pp) for pp in (1, 2)] for zero in ZERO_STAGES])
        hidden: Floats = shares[self.rows[:, ZERO], (self.rows[:, STAGES] > 1) * 1][:, None]
        if bound:
            passes_s, behind_s = self.bound_s(states, passes), np.full((1, 1), np.inf)
        else:
            passes_s = self.paced_s(
                passes.forward, passes.backward, states.weight_s, passes.first, passes.last
            )
            behind_s = np.take_along_axis(passes.behind, self.slowest(passes.own), axis=0)
        last_s, before_s = states.last_s[:, None], states.before_s[:, None]

        def reduced_s(passes_s: Floats, behind_s: Floats) -> Floats:
            gradient_s = last_s - hidden * np.minimum(last_s, behind_s)
            each_s = before_s - hidden * np.minimum(before_s, behind_s)
            return passes_s + (gradient_s + (self.m - 1) * each_s)

        found_s, apart = reduced_s(passes_s, behind_s), self.hosts_apart
        if apart.any() and not bound:  # the slower pace counts
            host = passes.host_f, passes.host_b, states.launch_s
            device = passes.forward, passes.backward, states.weight_s
            device_s = reduced_s(passes_s, self.behind_s(*device))
            host_s = reduced_s(self.paced_s(*host), self.behind_s(*host))
            found_s = np.where(apart, np.maximum(device_s, host_s), found_s)
        return np.asarray((found_s + states.beside_s[:, None] + self.stack.step_s) * self.run.slack)

    def slowest(self, time_s: Floats) -> Ints:
        """(rows, choices): the stage that takes longest, the first of such."""
        longest = time_s == self.most(time_s)[self.row]
        number = np.arange(len(time_s))[:, None]
        return np.minimum.reduceat(np.where(longest, number, len(time_s)), self.starts, axis=0)

    def behind_s(self, forward: Floats, backward: Floats, weight_s: Floats) -> Floats:
        """Backward and weight pass of the slowest stage, without transfers."""
        shown_s = (1.0 - self.stack.overlap.pipeline) * self.arriving_s
        back_s = backward - shown_s[:, 1:] + weight_s[:, None]
        slowest = self.slowest(forward - shown_s[:, :1] + back_s)
        return np.asarray(np.take_along_axis(back_s, slowest, axis=0))

    @property
    def hosts_apart(self) -> NDArray[np.bool_]:
        """Of every row, whether hosts have a pace of their own."""
        return (self.rows[:, SPLIT, None] > 0) & self.launches

    def paced_s(
        self,
        forward: Floats,
        backward: Floats,
        weight_s: Floats,
        first: Floats | None = None,
        last: Floats | None = None,
    ) -> Floats:
        """`bubbles.step_with_transfers_s`."""
        stage_s = forward + backward + weight_s[:, None]
        slowest = self.slowest(stage_s)
        n = np.maximum(1, self.rows[:, STAGES, None] - 1)
        one_f, one_b = (np.take_along_axis(x, slowest, axis=0) for x in (forward, backward))
        one_w, sent = weight_s[slowest], self.sent_s()[:, None]
        idle_s = self.longest_way(
            self.rows,
            (self.total(forward) - one_f) / n,
            (self.total(backward) - one_b) / n,
            self.mean_weight_s(weight_s, one_w),
        )
        apart_s = self.stack.overlap.pipeline * (self.total(sent) - sent[:, 0][slowest])
        pipes = self.rows[:, STAGES, None] > 1
        found_s = self.m * (one_f + one_b + one_w) + np.where(pipes, idle_s, 0.0)
        if first is not None and last is not None and len(first):
            sizes, m = self.rows[self.turning][:, [STAGES, MICROBATCHES]].T
            turned_s = turns_s(stage_s[self.turned], first, last, np.cumsum(sizes) - sizes, m)
            found_s[self.turning] = np.maximum(found_s[self.turning], turned_s)
        return np.asarray(found_s + np.where(pipes, apart_s, 0.0))

    def sent_s(self) -> Floats:
        """Transfers into every stage, of one microbatch both ways."""
        return np.asarray(self.arriving_s.sum(axis=1))

    def longest_way(self, rows: Ints, forward: Floats, backward: Floats, weight: Floats) -> Floats:
        """The bubble from the mean passes of all stages but the slowest."""
        found = np.zeros_like(forward)
        for way in self.t.bubbles[rows[:, PIPE]].transpose(1, 2, 0)[:, :, :, None]:
            found = np.maximum(found, way[0] * forward + way[1] * backward + way[2] * weight)
        return found

    def mean_weight_s(self, weight_s: Floats, one_s: Floats) -> Floats:
        """Weight passes of the stages but the slowest, no longer than that one's where they run
        apart; where some cannot be put off, of the shortest.
        """
        rows = self.rows
        n = np.maximum(1, rows[:, STAGES, None] - 1)
        split, late = rows[:, SPLIT, None] > 0, rows[:, LATE]
        mean = (self.total(weight_s[:, None]) - one_s) / n
        if not split.any():
            return mean
        clipped = np.minimum(weight_s[:, None], one_s[self.row])
        mean = np.where(split, (self.total(clipped) - one_s) / n, mean)
        if late.any():
            # Cut off at the slowest's, that one is the last in order.
            left = np.where(late > 0, np.minimum(late * n[:, 0], rows[:, MICROBATCHES] - 1), 0)
            times = np.clip(left[self.row] - late[self.row] * self.place, 0, late[self.row])
            times[self.place >= n[self.row, 0]] = 0
            ordered = np.minimum(
                weight_s[np.lexsort((weight_s, self.row))][:, None], one_s[self.row]
            )
            put_off = self.total(ordered * times[:, None]) / np.maximum(1, left)[:, None]
            mean = np.where(late[:, None] > 0, put_off, mean)
        return mean

    def bound_s(self, states: States, passes: Passes) -> Floats:
        """No more than any choice takes whose layers take no less: the slowest stage's
        microbatches, and the bubble of the others without host time, whichever of them is the
        slowest.
        """
        weight, sent = states.weight_s[:, None], self.sent_s()[:, None]
        longest_s = self.most(passes.forward + passes.backward + weight)
        rows = self.rows[self.row]
        n = np.maximum(1, rows[:, STAGES, None] - 1)
        means = [
            (self.total(x)[self.row] - x) / n for x in (passes.device_f, passes.device_b, weight)
        ]
        least_s = np.minimum.reduceat(self.longest_way(rows, *means), self.starts, axis=0)
        apart_s = self.stack.overlap.pipeline * (self.total(sent) - self.most(sent))
        pipes = self.rows[:, STAGES, None] > 1
        found = self.m * longest_s + np.where(pipes, least_s + apart_s, 0.0)
        apart = self.hosts_apart
        if not apart.any():
            return found
        host_s = self.m * self.most(passes.host_f + passes.host_b + states.launch_s[:, None])
        return np.where(apart, np.maximum(found, host_s), found)


def _distinct(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Pairs of small numbers without repeats (2, pairs), and which of them each entry is; marked,
    as sorting takes longer.
    """
    length = int(second.max(initial=0)) + 1
    numbers = first * length + second
    marks = np.zeros(int(numbers.max(initial=0)) + 1, dtype=np.bool_)
    marks[numbers] = True
    return np.array(np.divmod(np.flatnonzero(marks), length)), (np.cumsum(marks) - 1)[numbers]
