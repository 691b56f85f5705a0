"""One layout on several pods: step time and memory of every stage, by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from atoll.fabric.nested import send_s
from atoll.fabric.network import Network
from atoll.step.layout import Layout, check_layout
from atoll.step.orders import arrivals
from atoll.training.estimate import Estimator, boundary_bytes
from atoll.training.memory import Memory
from atoll.training.mixed.joined import joined_choices, pods_of_stages
from atoll.training.mixed.pods import Pods
from atoll.training.operators.layers import Share, choices_of
from atoll.training.replay import (
    ReplayedStep,
    replay_estimate,
    replay_step,
    stage_passes,
)
from atoll.training.step import StageTime, Stepper, StepTime
from atoll.units import format_bytes, ranges

By = Literal["alone", "stages", "replicas"]


@dataclass(frozen=True, slots=True)
class Placed:
    """A layout, and who runs what of it."""

    layout: Layout
    """Of all devices of its pods; the microbatch is that of the first."""
    pods: tuple[int, ...]
    """In the order of ranks."""
    by: By
    """One pod alone; stages of one pipeline, in the order of the pods; or replicas of the model,
    whole ones in each pod."""
    microbatches: tuple[int, ...] = ()
    """Of replicas, sequences in a microbatch of each pod."""

    def __str__(self) -> str:
        shares = "/".join(map(str, self.microbatches))
        own = f"mbs{self.layout.microbatch}"
        words = str(self.layout)
        return words.replace(own, f"mbs{shares}") if len(set(self.microbatches)) > 1 else words


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """One pipeline stage in one pod."""

    pod: int
    stage: int
    blocks: int
    time: StageTime
    memory: Memory
    recompute: str


@dataclass(frozen=True)
class MixedEstimate:
    """What a layout on several pods costs."""

    pods: Pods
    placed: Placed
    time_s: float
    step: StepTime
    """By part; of replicas in several pods, of those that take longest."""
    stages: tuple[PlacedStage, ...]
    replayed: ReplayedStep = field(repr=False)
    """Its passes, one by one."""

    def _room(self, stage: PlacedStage) -> float:
        return self.pods.runs[stage.pod].capacity_bytes - stage.memory.needed

    @property
    def fits(self) -> bool:
        """Whether every stage has the memory that it needs on its own device."""
        return all(self._room(stage) >= 0 for stage in self.stages)

    @property
    def fullest(self) -> PlacedStage:
        """The stage with least memory left."""
        return min(self.stages, key=self._room)

    @property
    def slowest(self) -> PlacedStage:
        """The stage that all others wait for."""
        return max(self.stages, key=lambda stage: stage.time.total_s)

    @property
    def devices(self) -> int:
        return sum(self.pods.runs[i].devices for i in self.placed.pods)

    @cached_property
    def left_out(self) -> tuple[str, ...]:
        """Pods that it does not use."""
        return tuple(
            f"{run.devices:,} {run.gpu.name}"
            for i, run in enumerate(self.pods.runs)
            if i not in self.placed.pods
        )

    def crossing(self) -> str:
        """Where what joins the pods is crossed."""
        layout, by = self.placed.layout, self.placed.by
        if by == "alone":
            return "nothing crosses to another pod"
        if by == "replicas":
            what = {0: "gradients", 1: "gradients and weights", 2: "gradients and weights"}
            each = "weights and gradients of every layer in every pass"
            return f"{what.get(layout.zero, each)} cross between pods (data parallelism)"
        where = pods_of_stages(
            layout.pp, tuple(self.pods.runs[i].devices for i in self.placed.pods)
        )
        ends = [i for i in range(1, layout.pp) if where[i] != where[i - 1]]
        before = " and ".join(ranges("stage", [i]) for i in ends)
        return f"activations and gradients cross between pods before {before} (pipeline)"

    def words(self) -> str:
        """How it uses the pods, on one line."""
        names = [self.pods.runs[pod].gpu.name for pod in self.placed.pods]
        if self.placed.by == "alone":
            return f"{names[0]} alone"
        if self.placed.by == "replicas":
            return f"replicas on {' and '.join(names)}"
        stages = [[x.blocks for x in self.stages if x.pod == pod] for pod in self.placed.pods]
        pairs = zip(names, stages, strict=True)
        return ", then ".join(f"{sum(blocks)} blocks on {name}" for name, blocks in pairs)

    def sentences(self) -> list[str]:
        """Which stages lie where, and what limits them."""
        names = [run.gpu.name for run in self.pods.runs]
        rows = []
        for pod in self.placed.pods:
            mine = [stage for stage in self.stages if stage.pod == pod]
            blocks = ", ".join(str(stage.blocks) for stage in mine)
            rows.append(
                f"{self.pods.runs[pod].devices:,} {names[pod]}: "
                f"{ranges('stage', [stage.stage for stage in mine])}, blocks {blocks}"
            )
            if len(set(self.placed.microbatches)) > 1:
                share = self.placed.microbatches[self.placed.pods.index(pod)]
                rows[-1] += f", microbatches of {share}"
        return [*rows, f"bottleneck: {self.bottleneck()}", self.crossing()]

    def bottleneck(self) -> str:
        """The stage that sets the pace, and the one with least memory left."""
        slow, full = self.slowest, self.fullest
        names = [run.gpu.name for run in self.pods.runs]
        capacity = format_bytes(self.pods.runs[full.pod].gpu.hbm_bytes)
        return (
            f"in time stage {slow.stage} on {names[slow.pod]}; in memory stage {full.stage} on "
            f"{names[full.pod]}, {format_bytes(full.memory.needed)} needed of {capacity}"
        )


class Placer:
    """Estimates layouts on pods; each pod's variants of the model are priced once."""

    def __init__(self, pods: Pods) -> None:
        self.pods = pods
        self._known: dict[tuple[frozenset[int], int, bool], Estimator] = {}

    def estimators(self, some: Sequence[int], crossed: bool) -> list[Estimator]:
        """Of the run on these pods together, for each of them."""
        for i, run in zip(some, self.pods.together(some, crossed), strict=True):
            key = frozenset(some), i, crossed
            if key not in self._known:
                self._known[key] = Estimator(run)
        return [self._known[frozenset(some), i, crossed] for i in some]

    def sizes(self, some: Sequence[int]) -> tuple[int, ...]:
        """Devices of these pods."""
        return tuple(self.pods.runs[i].devices for i in some)

    def estimate(self, placed: Placed) -> MixedEstimate:
        if placed.by == "stages":
            return self._stages(placed)
        return self._replicas(placed)

    def _stages(self, placed: Placed) -> MixedEstimate:
        layout, own = placed.layout, self.estimators(placed.pods, crossed=False)
        run, sizes = own[0].run, self.sizes(placed.pods)
        check_layout(layout, run.model, run.devices, run.global_batch, run.sequence)
        where = pods_of_stages(layout.pp, sizes)
        costs = [one.shares(layout) for one in own]
        shares = [costs[pod][1][stage] for stage, pod in enumerate(where)]
        steppers = [costs[pod][0] for pod in where]
        link_s = self.link_s(steppers[0], boundary_bytes(shares))
        policies: tuple[str, ...] = (layout.recompute,) * layout.pp
        if layout.recompute == "optimal":
            choices = max((choices_of(o.costs(layout), "optimal") for o in own), key=len)
            policies = joined_choices(own, layout, choices, sizes, link_s)
        times = [s.stage_time(x, p) for s, x, p in zip(steppers, shares, policies, strict=True)]
        sends_s = [s.send_s(boundary_bytes(shares)) for s, _ in costs]
        over_s = max(*sends_s, link_s)
        came = arrivals(layout.schedule, layout.pp, len(shares[0]))
        over = arrivals(layout.schedule, layout.pp, len(shares[0]), where)
        arriving_s = [
            tuple((n - k) * sends_s[pod] + k * over_s for n, k in zip(all_, far, strict=True))
            for pod, all_, far in zip(where, came, over, strict=True)
        ]
        main = max(own, key=lambda one: one.run.slack)
        pairs_s = [(a, g) for a, g in arriving_s]
        step = main.combine_stages(steppers, shares, times, pairs_s)
        stages = [
            PlacedStage(
                placed.pods[pod],
                stage,
                blocks_held(shares[stage]),
                times[stage],
                own[pod].peak_memory(steppers[stage], stage, shares[stage], policies[stage]),
                policies[stage],
            )
            for stage, pod in enumerate(where)
        ]
        replayed = replay_step(stage_passes(main.run, layout, step, times, pairs_s))
        return MixedEstimate(self.pods, placed, step.time_s, step, tuple(stages), replayed)

    def link_s(self, stepper: Stepper, bytes_: float) -> float:
        """One activation over the link between pods, every device its part."""
        if self.pods.link is None:
            return 0.0
        link = Network("link", (replace(self.pods.link, devices=2),))
        return send_s(link, stepper.sent_bytes(bytes_), 1)

    def _replicas(self, placed: Placed) -> MixedEstimate:
        """Gradients are summed once all pods have theirs; then the slowest update counts."""
        layout = placed.layout
        if placed.by == "alone":
            runs = [self.pods.runs[placed.pods[0]]]
        else:
            runs = [one.run for one in self.estimators(placed.pods, crossed=True)]
        # Sequences that one microbatch of every replica makes.
        per = layout.tp * layout.cp * layout.pp
        counts = zip(self.sizes(placed.pods), placed.microbatches, strict=True)
        m = runs[0].global_batch // sum(size // per * each for size, each in counts)
        times_s, stages, every = [], [], []
        for pod, run, each in zip(placed.pods, runs, placed.microbatches, strict=True):
            own = Estimator(replace(run, global_batch=layout.dp * each * m))
            found = own.estimate(replace(layout, microbatch=each))
            step, (_, shares) = found.step, own.shares(found.layout)
            after_s = max(1.0, run.slack) * step.optimizer_s
            times_s.append((step.time_s - after_s, after_s))
            every.append(found)
            stages += [
                PlacedStage(pod, i, blocks_held(shares[i]), *of)
                for i, of in enumerate(zip(found.stages, found.memory, found.policies, strict=True))
            ]
        time_s = sum(max(part_s) for part_s in zip(*times_s, strict=True))
        longest = max(every, key=lambda found: found.step.time_s)
        replayed = replay_estimate(longest)
        return MixedEstimate(self.pods, placed, time_s, longest.step, tuple(stages), replayed)


def blocks_held(chunks: Sequence[Share]) -> int:
    """Blocks of a stage."""
    return sum(n for chunk in chunks for cost, n in chunk if cost.is_block)
