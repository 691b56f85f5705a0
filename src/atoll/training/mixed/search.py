"""Search over all layouts of a run on several pods, with lower bounds.

Uses of pods: one alone (`planner`); the stages of one pipeline, in every order of the pods, each
pod with any number of blocks, spread evenly over its stages; replicas of the model in each pod,
with any microbatch sizes per pod that make up the batch. Pods with equal devices get equal shares.
With f the least seconds of one sequence in a block (`planner.bounds.sample`), X blocks on n stages
of a pod and M microbatches of b sequences, a step takes at least

    max(M s, S + (M - 1) e),  s = max over pods of b ceil(X / n) f,  S = sum over pods of b X f

with e of the last stage (the second term only without chunks and separate weight passes), and for
replicas M s with all blocks. All layouts that no bound rules out are estimated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from itertools import product
from math import gcd

import numpy as np

from atoll.base.arrays import Bools, Floats, Ints
from atoll.base.stopping import Stop, StoppedError, check_stop
from atoll.driver import Progress
from atoll.step.layout import Layout, divisors
from atoll.step.orders import ORDERS, SPLIT, chunks_per_stage
from atoll.training.batch.estimates import LEAST_CHOICE, per_parameter
from atoll.training.estimate import Estimator
from atoll.training.mixed.estimate import PodEstimator, PodPlacement, longest_choices
from atoll.training.mixed.pod_sums import (
    blocks_per_chunk,
    joined_estimates,
    joined_sums,
    pod_by_stage,
    replica_estimates,
)
from atoll.training.mixed.pods import Pods
from atoll.training.planner.bounds.family_bounds import OPTIMAL, ideal_network
from atoll.training.planner.bounds.sample_bounds import SampleBounds
from atoll.training.planner.bounds.stage_blocks import keys
from atoll.training.planner.pieces import ROUNDING
from atoll.training.planner.space import (
    Axes,
    LayoutColumns,
    LayoutFamily,
    block_of,
    chain_of,
    families,
    of_stages,
)
from atoll.training.run import Run
from atoll.training.step import Stepper

BATCH_MARGIN = 0.07  # items with bounds up to this share above the lowest are estimated together
MOST_ITEMS = 4000  # estimated together at most


@dataclass(frozen=True, slots=True, order=True)
class TimedPlacement:
    """A layout that fits, and its step time."""

    time_s: float
    placed: PodPlacement = field(compare=False)


@dataclass(frozen=True, slots=True)
class PodSearchResult:
    """The fastest layouts, and statistics of the search."""

    best: tuple[TimedPlacement, ...]
    layouts: int
    too_large: int
    """Layouts whose memory bounds exceed the capacity."""
    estimated: int
    unseen: int
    """Layouts left unexplored when the search stopped; one of them could be faster."""
    bound_s: float
    """Lower bound on the step time of the unexplored layouts."""
    stopped: bool


class Group:
    """Layouts that are estimated together."""

    def __init__(self, use: PodUse, block: LayoutColumns, bound_s: Floats) -> None:
        self.use, self.block = use, block
        self.lowest_s = float(np.nanmin(bound_s, initial=np.inf))
        self.size = int((~np.isnan(bound_s)).sum())
        self.too_large = int(np.isinf(bound_s).sum())


class PodUse:
    """One use of a choice of pods."""

    def __init__(
        self, placer: PodEstimator, axes: Axes, pods: tuple[int, ...], crossed: bool
    ) -> None:
        self.placer, self.axes, self.pods = placer, axes, pods
        self.estimators = placer.estimators(pods, crossed)
        self.runs: list[Run] = [pod_estimator.run for pod_estimator in self.estimators]
        self.run = min(self.runs, key=lambda run: run.network.node)
        self.sizes = placer.pods.sizes(pods)
        self.slack = max(run.slack for run in self.runs)
        self.alike = placer.pods.alike(pods)
        self.orders = tuple(o for o in axes.orders(self.run) if o != "dualpipe") or ("1f1b",)
        self._samples: dict[LayoutFamily, list[SampleBounds]] = {}

    def least_s(self, block: LayoutColumns, sizes: Sequence[int], priced: bool) -> Floats:
        """Return (3, pods): least seconds of a microbatch of `sizes` sequences in a block, before
        all blocks and behind them; for its `priced` variant, or from one sequence of any variant.
        """
        if priced:
            layout = block.layout(0)
            pairs = zip(self.estimators, sizes, strict=True)
            return np.array(
                [_priced_s(estimator, replace(layout, microbatch=n)) for estimator, n in pairs]
            ).T
        sequence_s = [(sample.block_s, *sample.ends_s) for sample in self.samples(block.family)]
        return np.asarray(np.array(sequence_s).T * np.array(sizes))

    def samples(self, family: LayoutFamily) -> list[SampleBounds]:
        """Return the least times of one sequence per pod."""
        if family not in self._samples:
            self._samples[family] = [
                SampleBounds(x, ideal_network(x.run.network), family, np.ones(1, dtype=np.intp))
                for x in self.estimators
            ]
        return self._samples[family]

    def too_large(self, block: LayoutColumns, most: Floats, in_flight: Floats) -> Bools:
        """Return (rows, options): whether `most` blocks per stage (rows, options, pods), each with
        `in_flight` sequences (rows, pods), exceed the capacity.
        """
        too_large = np.zeros(most.shape[:2], dtype=np.bool_)
        states = self.states(block)[0]
        samples = self.samples(block.family)
        for pod, (run, sample) in enumerate(zip(self.runs, samples, strict=True)):
            block_bytes = states[:, pod] + in_flight[:, pod] * sample.kept_bytes
            needed = most[..., pod] * block_bytes[:, None] * (1 + run.stack.fragmentation)
            too_large |= needed + run.stack.context_bytes > run.capacity_bytes
        return too_large

    def bound_s(self, block: LayoutColumns, priced: bool = False) -> Floats:
        """Return the lower bound of each item (row and division of blocks among pods): infinite if
        it cannot fit, NaN if it is not in the space.
        """
        raise NotImplementedError

    def groups(self) -> Iterator[Group]:
        raise NotImplementedError

    def placed(self, block: LayoutColumns, items: Ints, recompute: str) -> list[PodPlacement]:
        raise NotImplementedError

    def figures(
        self, placed: Sequence[PodPlacement], choices: Sequence[str]
    ) -> tuple[Floats, Floats]:
        """Return seconds, and bytes relative to the capacity."""
        raise NotImplementedError

    def times_s(
        self, block: LayoutColumns, items: Ints, names: Sequence[str], limit_s: float
    ) -> Floats:
        """Return (items, names): seconds per recomputation policy, infinite if it does not fit or
        if "optimal" cannot be below the limit.
        """
        placed = self.placed(block, items, "none")
        choices = [LEAST_CHOICE if name == OPTIMAL else name for name in names]
        times_s = self._fitting(placed, choices)[:, :-1]
        if OPTIMAL not in names:
            return times_s
        at = list(names).index(OPTIMAL)
        faster = np.flatnonzero(times_s[:, at] < limit_s)
        times_s[:, at] = np.inf
        if faster.size:
            layout = replace(placed[0].layout, recompute=OPTIMAL)
            optimal_choices = longest_choices(self.estimators, layout)
            times_s[faster, at] = self._fitting([placed[i] for i in faster], optimal_choices)[:, -1]
        return times_s

    def _fitting(self, placed: Sequence[PodPlacement], choices: Sequence[str]) -> Floats:
        step_s, filled = self.figures(placed, choices)
        return np.where(filled * (1 - ROUNDING) <= 1.0, step_s * (1 - ROUNDING), np.inf)

    def states(self, block: LayoutColumns) -> Floats:
        """Return (3, rows, pods): lower bounds on bytes of a block's states, seconds to accumulate
        its gradients, and seconds of its update.
        """
        if isinstance(block, ReplicaBlock):
            return block.states
        states = np.zeros((3, len(block), len(self.estimators)))
        distinct, which = keys(block.dp, block.zero, block.hsdp)
        for number in range(len(distinct)):
            rows = which == number
            layout = block.layout(int(rows.argmax()))
            for pod, estimator in enumerate(self.estimators):
                kinds = [c for c in estimator.costs(layout) if c.is_block]
                parameters = np.array([(c.parameters, c.expert_parameters) for c in kinds])
                per_block = per_parameter(estimator, layout, True) @ parameters.T
                weights, gradients, optimizer, *times = per_block
                bytes_ = weights + optimizer + (not estimator.run.stack.late_gradients) * gradients
                states[:, rows, pod] = np.min([bytes_, *times], axis=1)[:, None]
        return states


def _priced_s(estimator: Estimator, layout: Layout) -> tuple[float, float, float]:
    """Return the least times of a variant's block, and of the layers before and behind all."""
    layout = replace(layout, zero=0, hsdp=1)
    # With the backward pass of fused orders, and with separate weight passes.
    layouts = (replace(layout, schedule=order) for order in (ORDERS[0], ORDERS[-1]))
    steppers = [Stepper(estimator.run, layout) for layout in layouts]
    ends_s, blocks_s = [0.0, 0.0], []
    for cost in estimator.costs(layout):
        passes = (stepper.layer_passes(cost, "none") for stepper in steppers)
        least_s = min(forward.total_s + backward.total_s for forward, backward, _ in passes)
        if cost.is_block:
            blocks_s.append(least_s)
        else:
            ends_s[bool(blocks_s)] += cost.repeat * least_s
    return min(blocks_s), ends_s[0], ends_s[1]


class PipelineAcrossPods(PodUse):
    """Stages of one pipeline, in the order of the pods."""

    def __init__(self, placer: PodEstimator, axes: Axes, pods: tuple[int, ...]) -> None:
        super().__init__(placer, axes, pods, crossed=False)
        layers = self.run.model.layers
        candidates = product(range(layers + 1), repeat=len(pods) - 1)
        self.shares = [
            (*counts, layers - sum(counts)) for counts in candidates if sum(counts) <= layers
        ]
        if self.alike:
            self.shares = self.shares[:1]  # represents the even split

    def groups(self) -> Iterator[Group]:
        for family in families(self.run, self.axes):
            axes = replace(self.axes, schedule=self.orders)
            block = block_of(self.run, axes, family)
            width = family.tp * family.cp * block.dp
            divides = np.all([size % width == 0 for size in self.sizes], axis=0) & (block.pp > 1)
            divides &= self.alike | (block.split == 0)  # otherwise pods divide the blocks
            block = block.part(np.flatnonzero(divides))
            for size in np.unique(block.microbatch):
                part = block.part(np.flatnonzero(block.microbatch == size))
                yield Group(self, part, self.bound_s(part))

    def bound_s(self, block: LayoutColumns, priced: bool = False) -> Floats:
        run, pp, size = self.run, block.pp[:, None], int(block.microbatch[0])
        block_s, front_s, back_s = self.least_s(block, [size] * len(self.pods), priced)
        ends_s = np.zeros(len(self.pods))
        ends_s[0] += front_s[0]
        ends_s[-1] += back_s[-1]
        m = run.global_batch / (block.dp[:, None] * size)
        stages = pp * np.array(self.sizes) / sum(self.sizes)
        if self.alike:
            most = np.ceil(run.model.layers / pp)[:, :, None] * np.ones(len(self.pods))
            all_s = np.array([run.model.layers * block_s[0] + ends_s.sum()])
            mean_s = all_s / pp
        else:
            shares = np.array(self.shares, dtype=np.float64)
            most = np.ceil(shares[None] / stages[:, None])
            pods_s = shares * block_s + ends_s
            all_s = pods_s.sum(axis=1)
            mean_s = (pods_s[None] / stages[:, None]).max(axis=-1)
        v = block.vpp[:, None]
        slow_s = np.maximum((most * block_s).max(axis=-1), mean_s)
        if priced:
            slow_s = slow_s + (2 * v - 1) * self._sent_s(block)[:, None]
        split = np.array([name in SPLIT for name in block.schedules])[block.schedule]
        last = run.model.layers // pp if self.alike else shares[:, -1] // stages[:, -1:]
        last = np.where(block.split[:, None] > 0, 1, last)  # balanced, it may have few
        path_s = all_s + (m - 1) * (last * block_s[-1] + back_s[-1])
        bound_s = np.maximum(m * slow_s, np.where(split[:, None] | (v > 1), 0.0, path_s))
        added_s, update_s = (most * state_s[:, None] for state_s in self.states(block)[1:])
        bound_s += np.where(m > 1, m, 0) * added_s.max(axis=-1) + update_s.max(axis=-1)
        bound_s *= self.slack
        # The last stage of a pod has at least as many microbatches in flight as stages behind it.
        # (With balanced stages, any may have the most blocks.)
        loose = split | (block.split > 0)
        behind = np.where(loose[:, None], 1, 1 + pp - np.cumsum(stages, axis=1))
        bound_s[self.too_large(block, most, size * np.minimum(behind, m))] = np.inf
        if not self.alike:  # a block for every chunk
            order_chunks = np.array([chunks_per_stage(order) for order in block.schedules])
            chunks = (stages * v * order_chunks[block.schedule, None])[:, None]
            bound_s[(shares[None] < chunks).any(axis=-1)] = np.nan
        return np.asarray(bound_s.reshape(-1))

    def _sent_s(self, block: LayoutColumns) -> Floats:
        """Return per row a lower bound on the exposed time of one activation to the next stage."""
        sent_s = np.zeros(len(block))
        for pp in np.unique(block.pp):
            rows = block.pp == pp
            layout = block.layout(int(rows.argmax()))
            kinds = [c.boundary_bytes for c in self.estimators[0].costs(layout) if c.is_block]
            steppers = [Stepper(run, layout) for run in self.runs]
            sent_s[rows] = min(stepper.send_s(max(kinds)) for stepper in steppers)
        return sent_s * (1.0 - self.run.stack.overlap.pipeline)

    def placed(self, block: LayoutColumns, items: Ints, recompute: str) -> list[PodPlacement]:
        rows, options = np.divmod(items, len(self.shares))
        placements = []
        for layout, option in zip(block.layouts(rows, recompute), options, strict=True):
            if not self.alike:
                pods = pod_by_stage(layout.pp, self.sizes)
                blocks = blocks_per_chunk(layout.schedule, pods, layout.vpp, self.shares[option])
                layout = replace(layout, blocks=blocks)
            placements.append(PodPlacement(layout, self.pods, "stages"))
        return placements

    def figures(
        self, placed: Sequence[PodPlacement], choices: Sequence[str]
    ) -> tuple[Floats, Floats]:
        layouts = [placement.layout for placement in placed]
        link_s = self.placer.link_s(self.estimators[0], layouts[0])
        return joined_estimates(joined_sums(self.estimators, layouts, choices, self.sizes, link_s))


class ReplicasPerPod(PodUse):
    """Replicas of the model in every pod, with a microbatch size per pod."""

    def __init__(
        self, placer: PodEstimator, axes: Axes, pods: tuple[int, ...], equal: bool = False
    ) -> None:
        super().__init__(placer, axes, pods, crossed=True)
        self.equal = equal or self.alike

    def groups(self) -> Iterator[Group]:
        run, axes = self.run, replace(self.axes, microbatch=(1,))
        chain = chain_of(run)
        for family in families(run, self.axes):
            for pp in self.axes.pp or divisors(gcd(*self.sizes)):
                model_ranks = family.tp * family.cp * pp
                if pp > run.model.layers + 2 or any(size % model_ranks for size in self.sizes):
                    continue
                counts = [size // model_ranks for size in self.sizes]
                if not (copies := family.sharing_ranks(sum(counts))):
                    continue
                columns = of_stages(axes, self.orders, chain, 1, pp, sum(counts), copies)
                layouts = LayoutColumns(family, self.orders, chain, columns)
                states = self.states(layouts)
                for sizes, m in self._shares(counts):
                    block = ReplicaBlock(layouts, sizes, m, states)
                    yield Group(self, block, self.bound_s(block))

    def _shares(self, counts: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield microbatch sizes per pod, and the number of microbatches that make up the batch."""
        wanted = self.axes.microbatch
        for m in divisors(self.run.global_batch):
            total = self.run.global_batch // m
            if self.equal:
                size, left = divmod(total, sum(counts))
                divisions = [(size,) * len(counts)] if size and not left else []
            else:
                divisions = list(_parts(total, counts))
            yield from (
                (sizes, m) for sizes in divisions if not wanted or set(sizes) <= set(wanted)
            )

    def bound_s(self, block: LayoutColumns, priced: bool = False) -> Floats:
        assert isinstance(block, ReplicaBlock)
        block_s, *ends_s = self.least_s(block, block.microbatch_sizes, priced)
        layers, pp = self.run.model.layers, int(block.pp[0])
        slow_s = np.maximum(-(-layers // pp) * block_s, (layers * block_s + sum(ends_s)) / pp)
        most = np.full((len(block), 1, len(self.pods)), -(-layers // pp))
        large = self.too_large(block, most, np.array([block.microbatch_sizes] * len(block)))[:, 0]
        return np.where(large, np.inf, self.slack * block.m * slow_s.max())

    def placed(self, block: LayoutColumns, items: Ints, recompute: str) -> list[PodPlacement]:
        assert isinstance(block, ReplicaBlock)
        sizes, layouts = block.microbatch_sizes, block.layouts(items, recompute)
        layouts = [replace(layout, microbatch=sizes[0]) for layout in layouts]
        return [PodPlacement(layout, self.pods, "replicas", sizes) for layout in layouts]

    def figures(
        self, placed: Sequence[PodPlacement], choices: Sequence[str]
    ) -> tuple[Floats, Floats]:
        layout, sizes = placed[0].layout, placed[0].microbatches
        counts = [size // (layout.tp * layout.cp * layout.pp) for size in self.sizes]
        m = self.run.global_batch // sum(n * batch for n, batch in zip(counts, sizes, strict=True))
        return replica_estimates(
            self.estimators, [placement.layout for placement in placed], choices, sizes, m
        )


class ReplicaBlock(LayoutColumns):
    """Layouts with the same number of microbatches of a size per pod."""

    def __init__(
        self, block: LayoutColumns, microbatch_sizes: tuple[int, ...], m: int, states: Floats
    ) -> None:
        super().__init__(block.family, block.schedules, block.chain, block.columns)
        self.microbatch_sizes, self.m, self.states = microbatch_sizes, m, states


def _parts(total: int, counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield positive sizes with sum(count * size) = total."""
    first, *further = counts
    if not further:
        if total and total % first == 0:
            yield (total // first,)
        return
    for size in range(1, (total - sum(further)) // first + 1):
        for further_sizes in _parts(total - size * first, further):
            yield size, *further_sizes


def pod_uses(pods: Pods, axes: Axes, equal: bool) -> list[PodUse]:
    """Return the uses of two or more pods; `equal`: with the same microbatch for all."""
    placer, orders = PodEstimator(pods), pods.orders()
    once = (order for order in orders if list(order) == sorted(order))
    pipelines = [PipelineAcrossPods(placer, axes, order) for order in orders]
    return [*pipelines, *(ReplicasPerPod(placer, axes, order, equal) for order in once)]


def search(
    uses: Sequence[PodUse],
    names: Sequence[str],
    first_items: Sequence[TimedPlacement],
    count: int,
    stop: Stop,
    progress: Progress | None = None,
) -> PodSearchResult:
    """Find the fastest `count` layouts that fit, over all uses of pods and `first_items`."""
    groups = [group for use in uses for group in use.groups() if group.size]
    groups.sort(key=lambda group: group.lowest_s)
    total = sum(group.size for group in groups) * len(names)
    best, estimated, not_estimated = sorted(first_items), 0, 0
    bound_s, stopped = np.inf, False
    for number, group in enumerate(groups):
        limit_s = _limit_s(best, count)
        if group.lowest_s >= limit_s:
            break
        try:
            check_stop(stop)
        except StoppedError:
            first_s = best[0].time_s if best else np.inf
            remaining = [later for later in groups[number:] if later.lowest_s < first_s]
            not_estimated = sum(later.size - later.too_large for later in remaining) * len(names)
            bound_s, stopped = group.lowest_s, True
            break
        best, more = _search_group(group, names, best, count)
        estimated += more
        if progress is not None:
            batch = group.use.run.global_batch
            first_s = best[0].time_s if best else np.inf
            least_s = min(first_s, group.lowest_s)
            progress("search", total - estimated, total, batch / first_s, batch / least_s)
    too_large = sum(group.too_large for group in groups) * len(names)
    return PodSearchResult(
        tuple(best), total, too_large, estimated, not_estimated, bound_s, stopped
    )


def _search_group(
    group: Group, names: Sequence[str], best: list[TimedPlacement], count: int
) -> tuple[list[TimedPlacement], int]:
    """Add the faster layouts of a group; return the fastest, and how many were estimated."""
    use, block, estimated, done = group.use, group.block, 0, 0
    bound_s = use.bound_s(block, priced=True)
    order = np.argsort(bound_s, kind="stable")  # what is not in the space comes last
    while done < order.size and bound_s[order[done]] < (limit_s := _limit_s(best, count)):
        batch_limit_s = (1 + BATCH_MARGIN) * bound_s[order[done]]
        end = int((bound_s < min(limit_s, batch_limit_s)).sum())
        items = order[done : min(max(end, done + 1), done + MOST_ITEMS)]
        done += items.size
        estimated += items.size * len(names)
        times_s = use.times_s(block, items, names, limit_s)
        rows, columns = np.nonzero(times_s < limit_s)
        faster = zip(times_s[rows, columns].tolist(), rows, columns.tolist(), strict=True)
        for time_s, row, column in nsmallest(count, faster):
            (placed,) = use.placed(block, items[row : row + 1], names[column])
            best = [*best, TimedPlacement(time_s, placed)]
        best = sorted(best)[:count]
    return best, estimated


def _limit_s(best: Sequence[TimedPlacement], count: int) -> float:
    return best[count - 1].time_s if len(best) >= count else np.inf
