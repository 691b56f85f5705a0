"""Lower bounds on time and memory for all layouts of a family, without estimating any of them.

The lower bound for one sample (`Pricer.least`; an ideal network without latency, at its best
bandwidth) scales with the microbatch size, so one sequence on one device bounds every microbatch.
Let S be the seconds of one microbatch through all p stages, and M the number of microbatches. The
slowest stage takes at least S / p, and at least the time of its blocks. The step time is the
longest path through all passes, so any path is a lower bound: M * slowest for every schedule, and

    S + (M - 1) last        1f1b, gpipe: all passes of the last stage, after the forward passes of
                            the first microbatch and before the backward passes of the last one
    M last + first chunks   interleaved: the last stage, plus the first chunks of the other stages
    S + (M - 1) last chunk  interleaved: all passes of the model's last chunk
    F + B + (M - 1) (f + b) + (M - 1 - lag) w    zb-h1, zb-h2: the last stage with passes f, b, w;
                            it delays `lag` weight passes
    F + B + (M - 1) (f + b) zero-bubble schedules: the model's last chunk, in one direction
    M (f + b + w) + bubble  zero-bubble schedules: every stage as fast as the fastest stage
                            (`step.bubbles`; longer passes never shorten the step)

The peak memory of the fullest stage is at least the mean over all stages of weights, optimizer
states and activations in flight. If all blocks are equal, the first and last stages recompute what
they cannot keep (`recompute_curve`). A test compares the bounds with estimates of random layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from atoll.base.arrays import Bools, Floats, Ints
from atoll.fabric.nested import neighbours_s
from atoll.fabric.network import Network
from atoll.step.bubbles import bubble_terms, peaks
from atoll.step.layout import RECOMPUTE, ZERO_STAGES
from atoll.step.orders import SPLIT, WEIGHT_DELAY, model_copies
from atoll.training.batch.estimates import per_parameter, shared_terms
from atoll.training.batch.sums import hidden_gradients, numbered
from atoll.training.operators.layer_prices import LayerPrices
from atoll.training.planner.bounds.recompute_curve import on_the_curve, points_of
from atoll.training.planner.bounds.sample_bounds import SampleBounds
from atoll.training.planner.bounds.stage_blocks import keys, stage_blocks
from atoll.training.planner.space import LayoutColumns, LayoutFamily

OPTIMAL = "optimal"
FIRST, LAST, SECOND, MEAN = range(4)  # rows of per-stage arrays
ALL = 2  # row of recomputation arrays: the sum over all stages, after FIRST and LAST
NEAR = 1.12  # layouts within this factor of the lowest bound are also bounded without "optimal"


class FamilyBounds:
    """Lower bounds for the layouts of one run under the given recomputation policies."""

    def __init__(self, priced: LayerPrices, policies: Iterable[str] = RECOMPUTE) -> None:
        self.priced = priced
        self.run = priced.run
        self.policies = tuple(policies)
        self.named = tuple(name for name in self.policies if name != OPTIMAL)
        self.reruns = on_the_curve(self.policies)
        self._last: FamilyShape | None = None
        self.ideal = replace(self.run, network=ideal_network(self.run.network))

    def bounds(
        self, block: LayoutColumns, capacity: float = np.inf, below_s: float = np.inf
    ) -> tuple[Floats, Floats, Floats]:
        """Return three arrays of shape (layouts,): lower bounds on step seconds, on device bytes,
        and on step seconds without "optimal" recomputation. Seconds are infinite where the bytes
        exceed `capacity`; all are if the passes of all samples, divided over all devices, take
        `below_s` or longer.
        """
        sizes, _ = numbered(block.microbatch)
        bounds = partial(SampleBounds, self.priced, self.ideal.network, block.family, sizes)
        sample = self.priced.once(("sample", block.family, *sizes.tolist()), bounds)
        devices = self.run.devices / (block.family.tp * block.family.cp)
        sample_s = sample.forward_s + sample.data_s + sample.weight_s
        samples_s = self.run.global_batch / devices * sample_s
        if samples_s * self.run.slack >= below_s:
            return (np.full(len(block), np.inf),) * 3
        shape = self._shape(block)
        divided = self._divided(sample, shape)
        needed, ends = self._bytes(block, shape, sample, divided[:, :6])

        def seconds(rows: Ints, policies: Sequence[str]) -> Floats:
            again_s = self._recompute_s(shape, sample, ends[:, rows], rows, capacity, policies)
            return self._seconds(block.part(rows), rows, shape, sample, divided[:, 6:], again_s)

        step_s = np.full(len(block), np.inf)
        fitting = np.flatnonzero(needed <= capacity)
        step_s[fitting] = seconds(fitting, self.policies)
        named_s = step_s.copy()
        if self.named != self.policies and self.named:
            near = np.flatnonzero(step_s < NEAR * step_s.min(initial=np.inf))
            named_s[near] = seconds(near, self.named)
        return step_s, needed, named_s

    def _recompute_s(
        self,
        shape: FamilyShape,
        sample: SampleBounds,
        ends: Floats,
        rows: Ints,
        capacity: float,
        policies: Sequence[str],
    ) -> Floats:
        """Return lower bounds on the recomputation seconds per microbatch, shape (3, rows): first
        stage, last stage, sum of all stages. `ends` has the bytes of the first, the last and the
        mean stage if every block keeps as little as possible.
        """
        if not sample.again or not self.reruns or capacity == np.inf:
            return np.zeros((3, len(rows)))
        run = shape.run_index[rows]
        stack, size = self.run.stack, shape.distinct.microbatch[run]
        free_bytes = (capacity - stack.context_bytes) / (1 + stack.fragmentation) - ends
        # The block being recomputed is in memory while the others wait.
        waiting = np.maximum(0.0, (shape.waiting - 1)[:, run]) * size
        kept = sample.kept_bytes + free_bytes / np.maximum(waiting, 1e-9)
        block_s = np.interp(kept, *points_of(sample.again(tuple(policies)), policies))
        again_s = shape.blocks_per_microbatch[:, run] * size * block_s
        ends_s = again_s[FIRST] + np.where(shape.distinct.pp[run] > 1, again_s[LAST], 0.0)
        again_s[ALL] = np.maximum(again_s[ALL], ends_s)
        return np.asarray(again_s)

    def _shape(self, block: LayoutColumns) -> FamilyShape:
        """Return the shape of a block; consecutive families with the same columns share it."""
        if self._last is None or self._last.columns is not block.columns:
            self._last = FamilyShape(block, self.run.global_batch)
        return self._last

    def _bytes(
        self,
        block: LayoutColumns,
        shape: FamilyShape,
        sample: SampleBounds,
        bytes_per_parameter: Floats,
    ) -> tuple[Floats, Floats]:
        """Return lower bounds on the device bytes, shape (rows,), and on the bytes allocated when
        a block's backward pass begins, shape (3, rows): first, last and mean stage. The device
        bytes are the maximum over the first, last, second and mean stage.
        """
        stack = self.run.stack
        stored, trained = sample.parameters
        states = bytes_per_parameter[:, :2] @ stored + bytes_per_parameter[:, 4:] @ trained
        gradients = bytes_per_parameter[:, 2:4] @ trained
        first, run, key, copies = shape.first, shape.run_index, shape.key, shape.copies
        distinct = shape.distinct
        blocks = np.stack(shape.blocks[:4])
        most, waiting = shape.activations(sample)
        peak_bytes = np.maximum(most, waiting)
        # Under every policy, all tensors of one block are in memory during its backward pass.
        rebuilt = np.where(
            blocks.min(axis=0) > 0, distinct.microbatch * sample.transient_bytes, 0.0
        )
        kept = np.maximum(most + rebuilt, waiting)
        # The loss ends before that. It is on the last stage, but on the first one for zb-v.
        turned = shape.turned[first]
        for stage, is_loss_stage in enumerate((turned, ~turned)):
            loss = peak_bytes[stage] + distinct.microbatch * sample.logits_bytes
            peak_bytes[stage] = np.where(is_loss_stage, loss, peak_bytes[stage])
        kept = np.maximum(kept, peak_bytes)
        later = kept - most - rebuilt, peak_bytes - most
        """Peak bytes beyond those at the start of a block's backward pass."""
        for stage_bytes in (kept, peak_bytes, *later):
            stage_bytes[MEAN] = np.where(distinct.pp == 1, stage_bytes[LAST], stage_bytes[MEAN])
        counts = np.take((blocks * copies[first])[:3], run, axis=1)
        with_blocks = np.take(blocks.min(axis=0) > 0, run)
        at_last = np.take(shape.blocks.final > 0, run).astype(np.intp)
        turned = shape.turned
        kept, above = (np.take(x, run, axis=1) for x in (kept, later[0]))
        model_bytes, block_bytes, front, back = np.take((states + gradients).T, key, axis=1)
        if stack.late_gradients:
            # Gradients are allocated as activations are freed, unless an earlier microbatch
            # has allocated them.
            kept, above = (np.take(x, run, axis=1) for x in (peak_bytes, later[1]))
            alone = self.run.global_batch == block.dp * block.microbatch
            without_gradients = np.take(states.T, key, axis=1)
            model_bytes, block_bytes, front, back = np.where(
                alone, without_gradients, (model_bytes, block_bytes, front, back)
            )
        needed = counts * block_bytes + kept[:3]
        needed[FIRST] += front
        needed[LAST] += np.where(turned, 0.0, back)  # zb-v ends on the first stage
        mean = model_bytes * copies / block.pp + kept[MEAN]
        stages = len(ZERO_STAGES)
        buffers = np.take(sample.buffers, stages * with_blocks + block.zero)
        last = np.take(sample.buffers, 2 * stages * at_last + block.zero)
        ended = np.where(at_last, last, buffers)
        buffers = np.minimum(buffers, ended)  # less during the loss than in a block's backward
        for stage, is_loss_stage in enumerate((turned, ~turned)):
            needed[stage] += np.where(is_loss_stage, ended, buffers)
        mean += np.where(block.pp == 1, ended, buffers)
        stages_bytes = [needed[FIRST], needed[LAST], needed[SECOND] + buffers, mean]
        device_bytes = np.max(stages_bytes, axis=0) * (1 + stack.fragmentation)
        at_backward = np.stack([needed[FIRST], needed[LAST], mean]) - above[[FIRST, LAST, MEAN]]
        return np.asarray(device_bytes + stack.context_bytes), at_backward

    def _seconds(
        self,
        block: LayoutColumns,
        rows: Ints,
        shape: FamilyShape,
        sample: SampleBounds,
        divided: Floats,
        again_s: Floats,
    ) -> Floats:
        """Return lower bounds on the step seconds, shape (rows,). `block` holds the given `rows`
        of the shape; `again_s` is the result of `_recompute_s` for them."""
        run, stack, hidden = self.run, self.run.stack, self.run.stack.overlap
        which, copies, split = shape.which[rows], shape.copies[rows], shape.split[rows]
        divided = np.take(divided.T, shape.key[rows], axis=1)
        more_f, more_b, more_w = np.take(sample.beyond_s, which, axis=1)
        pp, size = block.pp.astype(np.float64), block.microbatch.astype(np.float64)
        zero, m = block.zero, run.global_batch / (block.dp * size)
        dense, expert = (n * copies / pp for n in sample.trained)
        accumulate_s, update_s = (divided[i] * dense + divided[i + 1] * expert for i in (0, 2))
        gather_s, reduce_s, send_s = divided[4:]
        # Activations and gradients move between chunks; at the turn of zb-v they stay in place.
        moves = np.where(shape.turned[rows], 2 * (pp - 1), pp * block.vpp - 1)
        sent_s = (1 - hidden.pipeline) * moves * size * send_s

        fully_sharded = zero == 3
        in_step = np.where(fully_sharded, 1 / stack.gather_efficiency, 0.0)
        wires_s = in_step * (gather_s, gather_s + reduce_s)
        # Gathers overlap with computation, which may be shorter than they are.
        products_s = size * sample.overlapped_s + np.stack([more_f, more_b + more_w + again_s[ALL]])
        exposed_s = np.maximum((1 - hidden.gather) * wires_s, wires_s - products_s)
        # Separate weight passes may take longer, and backward passes less by the same amount.
        exposed_s[1, split] = (1 - hidden.gather) * wires_s[1, split]
        outside = (block.dp % block.family.ep == 0) * size * sample.outside_s
        passes_s = self._passes_s(
            block,
            m,
            size * sample.forward_s + more_f + exposed_s[0] + outside + sent_s,
            size * sample.data_s + more_b + exposed_s[1] + outside + sent_s + again_s[ALL],
            size * sample.weight_s + more_w,
            sample,
            shape.stages_s(sample, again_s[:2], shape.run_index[rows]),
            sample.apart_s[:, which],
            shape,
            shape.run_index[rows],
        )
        behind_s = np.where(fully_sharded, 0.0, (gather_s + reduce_s) * copies / pp)
        behind_s += np.where(zero == 2, (m - 1) * reduce_s, 0.0)
        step_s = passes_s + np.where(m > copies, m, 0) * accumulate_s + update_s
        step_s += (1 - hidden_gradients(hidden, zero, block.pp)) * behind_s + stack.step_s
        return np.asarray(step_s * run.slack)

    def _passes_s(
        self,
        block: LayoutColumns,
        m: Floats,
        f: Floats,
        b: Floats,
        w: Floats,
        sample: SampleBounds,
        stages_s: Floats,
        block_s: Floats,
        shape: FamilyShape,
        run: Ints,
    ) -> Floats:
        """Return lower bounds on the seconds of all passes of `m` microbatches, shape (rows,).
        One microbatch takes f (forward), b (backward) and w (weight gradients) over all stages.
        `stages_s` is the result of `stages_s`, shape (4, rows); `block_s` has the three passes of
        one block, shape (3, rows).
        """
        pp, vpp = block.pp.astype(np.float64), block.vpp.astype(np.float64)
        longest_s, last_s, heads_s, final_s = stages_s
        all_s = np.maximum(f + b + w, sample.host_s) + sample.waiting_s
        slowest_s = np.maximum(all_s / pp, longest_s)
        through_s = all_s + (m - 1) * np.where(vpp > 1, final_s, last_s)
        path_s = np.maximum(through_s, np.where(vpp > 1, m * last_s + heads_s, 0.0))
        fused_s = np.maximum(m * slowest_s, np.where(pp > 1, path_s, 0.0))
        split = shape.apart[run]
        if not split.any():
            return np.asarray(fused_s)
        at = run[split]
        p, f, b, w, m = (x[split] for x in (pp, f, b, w, m))
        split_s = np.maximum(m * slowest_s[split], m * (f + b + w) / p)
        forward, backward, weight = block_s[:, split]
        last, late = shape.blocks.last_run[at], shape.late[at]
        delayed_s = np.maximum(0.0, m - 1 - late * (p - 1)) * last * weight
        ends_s = f + b + (m - 1) * last * (forward + backward) + delayed_s
        split_s = np.maximum(split_s, np.where(late > 0, ends_s, 0.0))
        passed = m / shape.copies[shape.first[at]] - 1
        final_s = shape.blocks.final[at] * (forward + backward)
        split_s = np.maximum(split_s, f + b + passed * final_s)
        # Bound as if every stage had the fewest blocks.
        least = shape.blocks.fewest_apart[at] * np.stack([forward, backward, weight])
        ways = np.take(shape.bubble_terms.T, shape.bubble_row[at], axis=1)
        for bubble in (ways[:3], ways[3:]):
            split_s = np.maximum(split_s, ((m + bubble) * least).sum(axis=0))
        fused_s[split] = split_s
        return np.asarray(fused_s)

    def _divided(self, sample: SampleBounds, shape: FamilyShape) -> Floats:
        """Return an array of shape (keys, 13): the 10 columns of `per_parameter`, then seconds on
        the ideal network to gather all parameters, to reduce all gradients, and to send the
        activations of one sample to the next stage.
        """
        family = sample.family
        degrees = family.tp, family.cp, family.ep, family.etp
        if degrees not in shape.divided:
            shape.divided[degrees] = np.array([self._shared(family, *key) for key in shape.keys])
        shares, wires = np.split(shape.divided[degrees], [10], axis=1)
        a, b, c, d, send_s = wires.T
        dense, expert = sample.trained
        shared_s = a * dense + b * expert, c * dense + d * expert, send_s * sample.boundary_bytes
        return np.concatenate([shares, np.stack(shared_s, axis=1)], axis=1)

    def _shared(
        self, of: LayoutFamily, dp: int, zero: int, hsdp: int, copies: int
    ) -> tuple[float, ...]:
        """Return the 10 values of `per_parameter`, then seconds per dense and per expert parameter
        of gathers, the same two of reductions, and seconds per byte sent to the next stage.
        """
        ranks = dp * of.cp * copies
        key = ranks, ranks * of.tp // (of.ep * of.etp), zero, hsdp, copies
        wired = of.tp, dp * of.cp, of.ep, of.etp, hsdp, zero > 0, copies
        order = "1f1b" if copies == 1 else "dualpipe"
        layout = partial(of.layout, dp=dp, pp=2, zero=zero, hsdp=hsdp, schedule=order)

        def shares() -> tuple[float, ...]:
            return tuple(per_parameter(self.priced, layout(), True).reshape(-1).tolist())

        def wires() -> tuple[float, ...]:
            constants_s, slopes, _ = shared_terms(self.ideal, layout())
            per_byte = slopes.max(axis=1, initial=0.0)
            gathers = constants_s[:, 0] > 0
            inside = of.tp * of.cp * dp
            shared_s = (
                float((constants_s[rows, kind] * per_byte[rows]).sum())
                for rows in (gathers, ~gathers)
                for kind in (1, 2)
            )
            network = self.ideal.network
            return *shared_s, neighbours_s(network, 1.0, self.run.devices // inside, inside)

        once = self.priced.once
        return *once(("shares", *key), shares), *once(("wires", *wired), wires)


class FamilyShape:
    """Data shared by the bounds of all families with the same columns. A run is a group of
    consecutive rows that differ only in `zero` and `hsdp`.
    """

    def __init__(self, block: LayoutColumns, batch: int) -> None:
        self.columns = block.columns
        _, self.which = numbered(block.microbatch)
        """Index of each row's microbatch among the distinct sizes."""
        self.first, self.run_index = _runs(block)
        """First row of each run, shape (runs,), and run of each row, shape (rows,)."""
        self.distinct = distinct = block.part(self.first)
        self.blocks = stage_blocks(distinct)
        self.turned = _ordered(block, ("zb-v",))
        """Whether the model's last chunk is on the first stage (zb-v), shape (rows,)."""
        self.split = _ordered(block, SPLIT)
        """Whether weight passes run separately, shape (rows,)."""
        twice = tuple(order for order in block.schedules if model_copies(order) > 1)
        self.copies = np.where(_ordered(block, twice), 2, 1)
        self.keys, self.key = keys(block.dp, block.zero, block.hsdp, self.copies)
        self.divided: dict[tuple[int, ...], Floats] = {}
        """Per (tp, cp, ep, etp): the values of `_shared` for each key, shape (keys, 15)."""
        self.m = batch / (distinct.dp * distinct.microbatch.astype(np.float64))
        self.apart = apart = self.split[self.first]
        delays = np.array([WEIGHT_DELAY.get(order, 0) for order in block.schedules])
        self.late = np.where(apart, delays[distinct.schedule], 0)
        """Number of weight passes that a stage delays per stage before it, shape (runs,)."""
        orders, order = keys(
            distinct.schedule[apart], distinct.pp[apart], self.m[apart].astype(np.int64)
        )
        named = [(block.schedules[schedule], pp, m) for schedule, pp, m in orders]
        self.bubble_row = np.zeros(len(apart), dtype=np.intp)
        self.bubble_row[apart] = order
        ways = (bubble_terms(*of, 1) for of in named)
        self.bubble_terms = np.array([(*terms[0], *terms[-1]) for terms in ways])
        """Bubble terms, shape (distinct pipelines, 6); `bubble_row` has the row of each run."""
        self.peaks = np.array([_peaks(*of) for of in named]).reshape(-1, 3, 3, 2)
        self.counts = self._counts()
        """Microbatches in flight in the first, last and second stage, shape (3, runs)."""
        fewest = np.where(distinct.pp == 1, self.counts[1], self.counts.min(axis=0))
        self.waiting = np.stack([*self.counts[:2], fewest]) * np.stack(
            [self.blocks.first, self.blocks.last, self.blocks.fewest]
        )
        """Microbatches in flight times blocks, shape (3, runs): first stage, last stage, fewest."""
        run = self.blocks.first_run, self.blocks.last_run, self.blocks.fewest_run * distinct.pp
        self.blocks_per_microbatch = np.stack(run)
        """Blocks that one microbatch passes, shape (3, runs): in the first stage, in the last
        stage, and in all stages as if each had the fewest blocks."""

    def _counts(self) -> Floats:
        distinct, m, split = self.distinct, self.m, self.apart
        p, v = distinct.pp.astype(np.float64), distinct.vpp.astype(np.float64)
        stages_behind = p - np.stack([0 * p, p - 1, np.minimum(1, p - 1)])
        group = np.ceil(m / np.maximum(1, m // p))
        many = np.minimum(2 * stages_behind - 1 + (v - 1) * group, m * v) / v
        in_flight = np.where(v > 1, many, np.minimum(stages_behind, m))
        in_flight[:, split] = self.peaks[self.bubble_row[split], :, 0, 0].T
        return np.asarray(in_flight)

    def activations(self, sample: SampleBounds) -> tuple[Floats, Floats]:
        """Return lower bounds on the activation bytes (`step.bubbles.peaks`), two arrays of shape
        (4, runs): at the peak of activations, and while weight passes are delayed. The rows are
        the first, last and second stage, and the fewest blocks with the fewest microbatches.
        """
        blocks, split = np.stack(self.blocks[:4]), self.apart
        size = self.distinct.microbatch.astype(np.float64)
        kept = self.counts * sample.kept_bytes
        late = np.zeros_like(kept)
        bytes_per_block = np.array([sample.kept_bytes, sample.waiting_bytes])
        bytes_ = (self.peaks @ bytes_per_block)[self.bubble_row[split]].T
        kept[:, split], late[:, split] = bytes_[0], bytes_[1:].max(axis=0)
        kept, late = (np.concatenate([x, x.min(axis=0, keepdims=True)]) for x in (kept, late))
        return kept * blocks * size, late * blocks * size

    def stages_s(self, sample: SampleBounds, again_s: Floats, run: Ints) -> Floats:
        """Return lower bounds on the seconds of one microbatch, shape (4, rows): in the slowest
        stage (most blocks, or first or last with embedding or output head; zb-v has both in the
        first), in the last stage, in the first chunks of the stages before it, and in the model's
        last chunk. `again_s` has the recomputation seconds of the first and last stage.
        """
        x = self.blocks
        block_s, front_s, back_s = sample.parts_s[:, self.which[self.first]]
        joined_s = x.joined * (front_s + back_s)
        first_s = x.first_run * block_s + np.where(x.joined > 0, joined_s, front_s)
        last_s = x.last_run * block_s + np.where(x.joined > 0, 0.0, back_s)
        ends_s = np.take(np.stack([first_s, last_s]), run, axis=1) + again_s
        longest_s = np.maximum((x.most_run * block_s)[run], ends_s.max(axis=0))
        heads_s = x.before_last * block_s + front_s
        final_s = x.final * block_s + back_s
        return np.stack([longest_s, ends_s[1], heads_s[run], final_s[run]])


def _runs(block: LayoutColumns) -> tuple[Ints, Ints]:
    """Return the first row of each run, shape (runs,), and the run of each row, shape (rows,)."""
    columns = np.stack([block.pp, block.vpp, block.microbatch, block.schedule, block.split])
    new = np.ones(len(block), dtype=np.bool_)
    new[1:] = (columns[:, 1:] != columns[:, :-1]).any(axis=0)
    return np.flatnonzero(new), np.cumsum(new) - 1


@lru_cache(maxsize=4096)
def _peaks(order: str, stages: int, microbatches: int) -> tuple[float, ...]:
    """Return three (held, waiting) pairs for each of the first, last and second stage."""
    peak_counts: list[float] = []
    for stage in (0, stages - 1, 1):
        stage_peaks = peaks(order, stages, stage, microbatches)
        peak_counts += [x for i in range(3) for x in stage_peaks[min(i, len(stage_peaks) - 1)]]
    return tuple(peak_counts)


def _ordered(block: LayoutColumns, orders: Sequence[str]) -> Bools:
    """Return whether each layout is a pipeline with one of these schedules, shape (layouts,)."""
    matches = np.zeros(len(block), dtype=np.bool_)
    for number, name in enumerate(block.schedules):
        if name in orders:
            matches |= block.schedule == number
    return np.asarray(matches & (block.pp > 1))


def ideal_network(network: Network) -> Network:
    """Return the network without latency, with every message at the best reachable bandwidth."""
    rates = [level.bandwidth_Bps * level.best_share for level in network.levels]
    ideal: dict[str, Any] = dict.fromkeys(("latency_s", "start_s", "few"), 0.0)
    ideal |= {"efficiency": (), "ring": ()}
    pairs = zip(network.levels, rates, strict=True)
    levels = tuple(replace(level, bandwidth_Bps=rate, **ideal) for level, rate in pairs)
    return replace(network, levels=levels)
