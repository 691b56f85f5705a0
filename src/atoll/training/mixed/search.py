"""All layouts of a run on several pods, bounded, and the fastest of them.

Ways to use pods: one alone (`planner`); the stages of one pipeline, in every order of the pods,
each pod with any number of the blocks, as even as can be among its stages; replicas of the model in
each pod, with any microbatches for each that make up the batch in as many microbatches. Pods with
the same devices have no reason to differ, and are given as much each. With f seconds of one
sequence in a block at least (`planner.bounds.sample`), X blocks on n stages of a pod and M
microbatches of b sequences, a step takes at least

    max(M s, S + (M - 1) e),  s = max over pods of b ceil(X / n) f,  S = sum over pods of b X f

with e of the last stage (the second where neither chunks nor weight passes are apart), and of
replicas M s with all blocks. What may be faster than the fastest known is
estimated, all that no bound rules out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from itertools import product
from math import gcd

import numpy as np

from atoll.driver import Progress
from atoll.step.layout import Layout, divisors
from atoll.step.orders import ORDERS, SPLIT, chunks_of
from atoll.stopping import Stop, StoppedError, go_on
from atoll.training.batch.estimates import LEAST, per_parameter
from atoll.training.estimate import Estimator, boundary_bytes
from atoll.training.mixed.estimate import Placed, Placer
from atoll.training.mixed.joined import (
    blocks_of,
    joined_estimates,
    pods_of_stages,
    replica_estimates,
)
from atoll.training.mixed.pods import Pods
from atoll.training.operators.layers import choices_of
from atoll.training.operators.tables import Floats
from atoll.training.planner.bounds.floor import OPTIMAL, Floor
from atoll.training.planner.bounds.sample import Sample
from atoll.training.planner.pieces import ROUNDING
from atoll.training.planner.space import (
    Axes,
    Block,
    Bools,
    Family,
    Ints,
    block_of,
    chain_of,
    families,
    of_stages,
)
from atoll.training.run import Run
from atoll.training.step import Stepper

AHEAD = 0.07  # of a group, items with bounds so much above the lowest are looked at together
MOST_ITEMS = 4000  # looked at together at most


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """A layout that fits, and its seconds."""

    time_s: float
    placed: Placed = field(compare=False)


@dataclass(frozen=True, slots=True)
class Found:
    """The fastest layouts, and what was done for them."""

    best: tuple[Item, ...]
    layouts: int
    too_large: int
    """By their bounds."""
    estimated: int
    unseen: int
    """May be faster than the best, but the search had to end before they were estimated."""
    bound_s: float
    """Of those, none is faster."""
    stopped: bool


class Group:
    """Layouts that are bounded and estimated together."""

    def __init__(self, way: Way, block: Block, bound_s: Floats) -> None:
        self.way, self.block = way, block
        self.lowest_s = float(np.nanmin(bound_s, initial=np.inf))
        self.size = int((~np.isnan(bound_s)).sum())
        self.too_large = int(np.isinf(bound_s).sum())


class Way:
    """One way to use some pods."""

    def __init__(self, placer: Placer, axes: Axes, pods: tuple[int, ...], crossed: bool) -> None:
        self.placer, self.axes, self.pods = placer, axes, pods
        self.own = placer.estimators(pods, crossed)
        self.runs: list[Run] = [one.run for one in self.own]
        self.run = min(self.runs, key=lambda run: run.network.node)
        self.sizes = placer.sizes(pods)
        self.slack = max(run.slack for run in self.runs)
        self.alike = placer.pods.alike(pods)
        self.orders = tuple(o for o in axes.orders(self.run) if o != "dualpipe") or ("1f1b",)
        self._floors = [Floor(own) for own in self.own]
        self._samples: dict[Family, list[Sample]] = {}

    def least_s(self, block: Block, sizes: Sequence[int], priced: bool) -> Floats:
        """(3, pods): what a microbatch of so many sequences takes at least in a block, in front of
        all and behind them; as its own variant is `priced`, or as a sequence takes in any.
        """
        family = block.family
        if priced:
            layout = block.layouts(np.zeros(1, dtype=np.int64), "none")[0]
            pairs = zip(self.own, sizes, strict=True)
            return np.array([_priced_s(own, replace(layout, microbatch=n)) for own, n in pairs]).T
        each_s = np.array([(x.block_s, *x.ends_s) for x in self.samples(family)]).T
        return np.asarray(each_s * np.array(sizes))

    def samples(self, family: Family) -> list[Sample]:
        """Of every pod, what one sequence takes at least."""
        if family not in self._samples:
            one = np.ones(1, dtype=np.intp)
            self._samples[family] = [
                Sample(f.priced, f.ideal.network, family, one) for f in self._floors
            ]
        return self._samples[family]

    def too_large(self, block: Block, most: Floats, held: Floats) -> Bools:
        """(rows, options): whether so many blocks on a stage (rows, options, pods), of which so
        many sequences wait for their backward pass (rows, pods), need more than a device has.
        """
        found = np.zeros(most.shape[:2], dtype=np.bool_)
        states = self.states(block)[0]
        for pod, (run, sample) in enumerate(
            zip(self.runs, self.samples(block.family), strict=True)
        ):
            each = states[:, pod] + held[:, pod] * sample.kept_bytes
            needed = most[..., pod] * each[:, None] * (1 + run.stack.fragmentation)
            found |= needed + run.stack.context_bytes > run.capacity_bytes
        return found

    def bound_s(self, block: Block, priced: bool = False) -> Floats:
        """Of every item, its row and how the pods share the blocks: infinite where it cannot fit,
        not a number where it is not in the space.
        """
        raise NotImplementedError

    def groups(self) -> Iterator[Group]:
        raise NotImplementedError

    def placed(self, block: Block, items: Ints, recompute: str) -> list[Placed]:
        raise NotImplementedError

    def figures(self, placed: Sequence[Placed], choices: Sequence[str]) -> tuple[Floats, Floats]:
        """Seconds, and bytes over what there is."""
        raise NotImplementedError

    def times_s(self, block: Block, items: Ints, names: Sequence[str], limit_s: float) -> Floats:
        """(items, names): seconds under recomputation policies, infinite where they do not fit, or
        where "optimal" cannot take less than the limit.
        """
        placed = self.placed(block, items, "none")
        choices = [LEAST if name == OPTIMAL else name for name in names]
        found = self._fitting(placed, choices)[:, :-1]
        if OPTIMAL not in names:
            return found
        at = list(names).index(OPTIMAL)
        some = np.flatnonzero(found[:, at] < limit_s)
        found[:, at] = np.inf
        if some.size:
            layout = replace(placed[0].layout, recompute=OPTIMAL)
            every = max((choices_of(x.costs(layout), OPTIMAL) for x in self.own), key=len)
            found[some, at] = self._fitting([placed[i] for i in some], every)[:, -1]
        return found

    def _fitting(self, placed: Sequence[Placed], choices: Sequence[str]) -> Floats:
        step_s, filled = self.figures(placed, choices)
        return np.where(filled * (1 - ROUNDING) <= 1.0, step_s * (1 - ROUNDING), np.inf)

    def states(self, block: Block) -> Floats:
        """(3, rows, pods): bytes of the states of one block at least, and seconds of adding up its
        gradients and of its update.
        """
        if isinstance(block, Shared):
            return block.states
        found = np.zeros((3, len(block), len(self.own)))
        keys = np.stack([block.dp, block.zero, block.hsdp])
        for key in np.unique(keys, axis=1).T:
            there = (keys == key[:, None]).all(axis=0)
            layout = block.layouts(np.flatnonzero(there)[:1], "none")[0]
            for pod, own in enumerate(self.own):
                kinds = [c for c in own.costs(layout) if c.is_block]
                held = np.array([(c.parameters, c.expert_parameters) for c in kinds])
                weights, gradients, optimizer, *times = per_parameter(own, layout, True) @ held.T
                bytes_ = weights + optimizer + (not own.run.stack.late_gradients) * gradients
                found[:, there, pod] = np.min([bytes_, *times], axis=1)[:, None]
        return found


def _priced_s(own: Estimator, layout: Layout) -> tuple[float, float, float]:
    """The least block of a variant, and what stands in front of all and behind them."""
    steppers = [Stepper(own.run, replace(layout, zero=0, hsdp=1, schedule=x)) for x in ORDERS]
    ends_s, blocks_s = [0.0, 0.0], []
    for cost in own.costs(layout):
        passes = (stepper.layer_passes(cost, "none") for stepper in (steppers[0], steppers[-1]))
        least_s = min(forward.total_s + backward.total_s for forward, backward, _ in passes)
        if cost.is_block:
            blocks_s.append(least_s)
        else:
            ends_s[bool(blocks_s)] += cost.repeat * least_s
    return min(blocks_s), ends_s[0], ends_s[1]


class Stages(Way):
    """The stages of one pipeline, in the order of the pods."""

    def __init__(self, placer: Placer, axes: Axes, pods: tuple[int, ...]) -> None:
        super().__init__(placer, axes, pods, crossed=False)
        layers = self.run.model.layers
        every = product(range(layers + 1), repeat=len(pods) - 1)
        self.shares = [(*some, layers - sum(some)) for some in every if sum(some) <= layers]
        if self.alike:
            self.shares = self.shares[:1]  # stands for the even split

    def groups(self) -> Iterator[Group]:
        for family in families(self.run, self.axes):
            axes = replace(self.axes, schedule=self.orders)
            block = block_of(self.run, axes, family)
            width = family.tp * family.cp * block.dp
            whole = np.all([size % width == 0 for size in self.sizes], axis=0) & (block.pp > 1)
            whole &= self.alike | (block.split == 0)  # else pods share the blocks
            block = block.part(np.flatnonzero(whole))
            for size in np.unique(block.microbatch):
                part = block.part(np.flatnonzero(block.microbatch == size))
                yield Group(self, part, self.bound_s(part))

    def bound_s(self, block: Block, priced: bool = False) -> Floats:
        run, pp, size = self.run, block.pp[:, None], int(block.microbatch[0])
        each_s, front_s, back_s = self.least_s(block, [size] * len(self.pods), priced)
        ends_s = np.zeros(len(self.pods))
        ends_s[0] += front_s[0]
        ends_s[-1] += back_s[-1]
        m = run.global_batch / (block.dp[:, None] * size)
        stages = pp * np.array(self.sizes) / sum(self.sizes)
        if self.alike:
            most = np.ceil(run.model.layers / pp)[:, :, None] * np.ones(len(self.pods))
            all_s = np.array([run.model.layers * each_s[0] + ends_s.sum()])
            mean_s = all_s / pp
        else:
            shares = np.array(self.shares, dtype=np.float64)
            most = np.ceil(shares[None] / stages[:, None])
            pods_s = shares * each_s + ends_s
            all_s = pods_s.sum(axis=1)
            mean_s = (pods_s[None] / stages[:, None]).max(axis=-1)
        v = block.vpp[:, None]
        slow_s = np.maximum((most * each_s).max(axis=-1), mean_s)
        if priced:
            slow_s = slow_s + (2 * v - 1) * self._sent_s(block)[:, None]
        split = np.array([name in SPLIT for name in block.schedules])[block.schedule]
        last = run.model.layers // pp if self.alike else shares[:, -1] // stages[:, -1:]
        last = np.where(block.split[:, None] > 0, 1, last)  # balanced, it may have few
        path_s = all_s + (m - 1) * (last * each_s[-1] + back_s[-1])
        found = np.maximum(m * slow_s, np.where(split[:, None] | (v > 1), 0.0, path_s))
        added_s, update_s = (most * x[:, None] for x in self.states(block)[1:])
        found += np.where(m > 1, m, 0) * added_s.max(axis=-1) + update_s.max(axis=-1)
        found *= self.slack
        # The last stage of a pod holds no fewer microbatches than there are stages behind it.
        # (Balanced, any stage may have the most blocks.)
        loose = split | (block.split > 0)
        behind = np.where(loose[:, None], 1, 1 + pp - np.cumsum(stages, axis=1))
        found[self.too_large(block, most, size * np.minimum(behind, m))] = np.inf
        if not self.alike:  # a block for every chunk
            own_chunks = np.array([chunks_of(x) for x in block.schedules])[block.schedule, None]
            chunks = (stages * v * own_chunks)[:, None]
            found[(shares[None] < chunks).any(axis=-1)] = np.nan
        return np.asarray(found.reshape(-1))

    def _sent_s(self, block: Block) -> Floats:
        """Of every row, what is seen of one activation's way to the next stage at least."""
        found = np.zeros(len(block))
        for pp in np.unique(block.pp):
            there = block.pp == pp
            layout = block.layouts(np.flatnonzero(there)[:1], "none")[0]
            kinds = [c.boundary_bytes for c in self.own[0].costs(layout) if c.is_block]
            steppers = [Stepper(run, layout) for run in self.runs]
            found[there] = min(stepper.send_s(max(kinds)) for stepper in steppers)
        return found * (1.0 - self.run.stack.overlap.pipeline)

    def placed(self, block: Block, items: Ints, recompute: str) -> list[Placed]:
        rows, options = np.divmod(items, len(self.shares))
        found = []
        for layout, option in zip(block.layouts(rows, recompute), options, strict=True):
            if not self.alike:
                pods = pods_of_stages(layout.pp, self.sizes)
                blocks = blocks_of(layout.schedule, pods, layout.vpp, self.shares[option])
                layout = replace(layout, blocks=blocks)
            found.append(Placed(layout, self.pods, "stages"))
        return found

    def figures(self, placed: Sequence[Placed], choices: Sequence[str]) -> tuple[Floats, Floats]:
        layouts = [one.layout for one in placed]
        stepper, shares = self.own[0].shares(layouts[0])
        link_s = self.placer.link_s(stepper, boundary_bytes(shares))
        return joined_estimates(self.own, layouts, choices, self.sizes, link_s)


class Replicas(Way):
    """Replicas of the model in every pod, with microbatches of their own sizes."""

    def __init__(
        self, placer: Placer, axes: Axes, pods: tuple[int, ...], equal: bool = False
    ) -> None:
        super().__init__(placer, axes, pods, crossed=True)
        self.equal = equal or self.alike

    def groups(self) -> Iterator[Group]:
        run, axes = self.run, replace(self.axes, microbatch=(1,))
        chain = chain_of(run)
        for family in families(run, self.axes):
            for pp in self.axes.pp or divisors(gcd(*self.sizes)):
                per = family.tp * family.cp * pp
                if pp > run.model.layers + 2 or any(size % per for size in self.sizes):
                    continue
                counts = [size // per for size in self.sizes]
                ranks = sum(counts) * family.cp * family.tp
                if ranks % (family.ep * family.etp):
                    continue
                copies = gcd(sum(counts) * family.cp, ranks // (family.ep * family.etp))
                columns = of_stages(axes, self.orders, chain, 1, pp, sum(counts), copies)
                all_of = Block(family, self.orders, chain, columns)
                states = self.states(all_of)
                for each, m in self._shares(counts):
                    block = Shared(all_of, each, m, states)
                    yield Group(self, block, self.bound_s(block))

    def _shares(self, counts: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int]]:
        """Microbatches of each pod and how many of them make up the batch."""
        wanted = self.axes.microbatch
        for m in divisors(self.run.global_batch):
            total = self.run.global_batch // m
            if self.equal:
                each, left = divmod(total, sum(counts))
                found = [(each,) * len(counts)] if each and not left else []
            else:
                found = list(_parts(total, counts))
            yield from ((x, m) for x in found if not wanted or set(x) <= set(wanted))

    def bound_s(self, block: Block, priced: bool = False) -> Floats:
        assert isinstance(block, Shared)
        each_s, *ends_s = self.least_s(block, block.each, priced)
        layers, pp = self.run.model.layers, int(block.pp[0])
        slow_s = np.maximum(-(-layers // pp) * each_s, (layers * each_s + sum(ends_s)) / pp)
        most = np.full((len(block), 1, len(self.pods)), -(-layers // pp))
        large = self.too_large(block, most, np.array([block.each] * len(block)))[:, 0]
        return np.where(large, np.inf, self.slack * block.m * slow_s.max())

    def placed(self, block: Block, items: Ints, recompute: str) -> list[Placed]:
        assert isinstance(block, Shared)
        return [
            Placed(replace(x, microbatch=block.each[0]), self.pods, "replicas", block.each)
            for x in block.layouts(items, recompute)
        ]

    def figures(self, placed: Sequence[Placed], choices: Sequence[str]) -> tuple[Floats, Floats]:
        of, each = placed[0].layout, placed[0].microbatches
        counts = [size // (of.tp * of.cp * of.pp) for size in self.sizes]
        m = self.run.global_batch // sum(n * x for n, x in zip(counts, each, strict=True))
        return replica_estimates(self.own, [x.layout for x in placed], choices, each, m)


class Shared(Block):
    """Layouts with as many microbatches of sizes by pod."""

    def __init__(self, of: Block, each: tuple[int, ...], m: int, states: Floats) -> None:
        super().__init__(of.family, of.schedules, of.chain, of.columns)
        self.each, self.m, self.states = each, m, states


def _parts(total: int, counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Positive numbers that, so often each, make up a total."""
    first, *rest = counts
    if not rest:
        if total and total % first == 0:
            yield (total // first,)
        return
    for x in range(1, (total - sum(rest)) // first + 1):
        for others in _parts(total - x * first, rest):
            yield x, *others


def every_way(pods: Pods, axes: Axes, equal: bool) -> list[Way]:
    """The ways to use two pods or more; `equal`: with one microbatch for all."""
    placer, orders = Placer(pods), pods.orders()
    once = (order for order in orders if list(order) == sorted(order))
    return [
        *(Stages(placer, axes, order) for order in orders),
        *(Replicas(placer, axes, order, equal) for order in once),
    ]


def search(
    ways: Sequence[Way],
    names: Sequence[str],
    known: Sequence[Item],
    count: int,
    stop: Stop,
    progress: Progress | None = None,
) -> Found:
    """The fastest `count` layouts that fit under these recomputation policies, of all ways to use
    pods or of those `known` already.
    """
    groups = [group for way in ways for group in way.groups() if group.size]
    groups.sort(key=lambda group: group.lowest_s)
    total = sum(group.size for group in groups) * len(names)
    best, seen, unseen = sorted(known), 0, 0
    bound_s, stopped = np.inf, False
    for number, group in enumerate(groups):
        limit_s = _limit_s(best, count)
        if group.lowest_s >= limit_s:
            break
        try:
            go_on(stop)
        except StoppedError:
            first_s = best[0].time_s if best else np.inf
            rest = [other for other in groups[number:] if other.lowest_s < first_s]
            unseen = sum(other.size - other.too_large for other in rest) * len(names)
            bound_s, stopped = group.lowest_s, True
            break
        best, more = _looked_at(group, names, best, count)
        seen += more
        if progress is not None:
            batch = group.way.run.global_batch
            first_s = best[0].time_s if best else np.inf
            least_s = min(first_s, group.lowest_s)
            progress("search", total - seen, total, batch / first_s, batch / least_s)
    too_large = sum(group.too_large for group in groups) * len(names)
    return Found(tuple(best), total, too_large, seen, unseen, bound_s, stopped)


def _looked_at(
    group: Group, names: Sequence[str], best: list[Item], count: int
) -> tuple[list[Item], int]:
    """The fastest with those of a group that may be among them, the lowest bounds first, and how
    many these were.
    """
    way, block, seen, done = group.way, group.block, 0, 0
    bound_s = way.bound_s(block, priced=True)
    order = np.argsort(bound_s, kind="stable")  # what is not in the space comes last
    while done < order.size and bound_s[order[done]] < (limit_s := _limit_s(best, count)):
        ahead_s = (1 + AHEAD) * bound_s[order[done]]
        end = int((bound_s < min(limit_s, ahead_s)).sum())
        items = order[done : min(max(end, done + 1), done + MOST_ITEMS)]
        done += items.size
        seen += items.size * len(names)
        times_s = way.times_s(block, items, names, limit_s)
        rows, columns = np.nonzero(times_s < limit_s)
        faster = zip(times_s[rows, columns].tolist(), rows, columns.tolist(), strict=True)
        for time_s, row, column in nsmallest(count, faster):
            (placed,) = way.placed(block, items[row : row + 1], names[column])
            best = [*best, Item(time_s, placed)]
        best = sorted(best)[:count]
    return best, seen


def _limit_s(best: Sequence[Item], count: int) -> float:
    return best[count - 1].time_s if len(best) >= count else np.inf
