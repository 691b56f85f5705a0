"""Estimate of one layout on several pods: step time and memory of every stage, by part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from atoll.base.units import format_bytes, ranges
from atoll.fabric.nested import send_s
from atoll.fabric.network import Network
from atoll.placement.replay import ReplayedStep, replay_step
from atoll.step.layout import Layout, check_layout
from atoll.training.estimate import Estimator, boundary_bytes
from atoll.training.memory import Memory
from atoll.training.mixed.pod_sums import joined_row, joined_sums, pod_by_stage
from atoll.training.mixed.pods import Pods
from atoll.training.operators.layers import Share, recompute_choices
from atoll.training.replay import replay_estimate, stage_passes
from atoll.training.step import StageTime, StepTime

By = Literal["alone", "stages", "replicas"]


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """A layout and the pods that run it."""

    layout: Layout
    """Over all devices of its pods; the microbatch is that of the first pod."""
    pods: tuple[int, ...]
    """In the order of ranks."""
    by: By
    """How pods are used: one pod alone; stages of one pipeline, in the order of the pods; or
    complete replicas of the model in each pod."""
    microbatches: tuple[int, ...] = ()
    """Sequences per microbatch of each pod's replicas."""

    def __str__(self) -> str:
        words, sizes = str(self.layout), "/".join(map(str, self.microbatches))
        if len(set(self.microbatches)) <= 1:
            return words
        return words.replace(f"mbs{self.layout.microbatch}", f"mbs{sizes}")


@dataclass(frozen=True, slots=True)
class PodStage:
    """One pipeline stage in one pod."""

    pod: int
    stage: int
    blocks: int
    time: StageTime
    memory: Memory
    recompute: str


@dataclass(frozen=True)
class MixedEstimate:
    """Step time and memory of a layout on several pods."""

    pods: Pods
    placed: PodPlacement
    time_s: float
    step: StepTime
    """By part; for replicas in several pods those of the slowest."""
    stages: tuple[PodStage, ...]
    replayed: ReplayedStep = field(repr=False)
    """Its single passes."""

    def _free_bytes(self, stage: PodStage) -> float:
        return self.pods.runs[stage.pod].capacity_bytes - stage.memory.needed

    @property
    def fits(self) -> bool:
        """Whether every stage fits its device."""
        return all(self._free_bytes(stage) >= 0 for stage in self.stages)

    @property
    def fullest(self) -> PodStage:
        """The stage with least memory left."""
        return min(self.stages, key=self._free_bytes)

    @property
    def slowest(self) -> PodStage:
        """The slowest stage."""
        return max(self.stages, key=lambda stage: stage.time.total_s)

    @property
    def devices(self) -> int:
        return sum(self.pods.sizes(self.placed.pods))

    @cached_property
    def left_out(self) -> tuple[str, ...]:
        """Unused pods."""
        unused = (run for i, run in enumerate(self.pods.runs) if i not in self.placed.pods)
        return tuple(f"{run.devices:,} {run.gpu.name}" for run in unused)

    def crossing(self) -> str:
        """Describe what is sent between pods."""
        layout, by = self.placed.layout, self.placed.by
        if by == "alone":
            return "nothing crosses to another pod"
        if by == "replicas":
            what = {0: "gradients", 1: "gradients and weights", 2: "gradients and weights"}
            all_passes = "weights and gradients of every layer in every pass"
            return f"{what.get(layout.zero, all_passes)} cross between pods (data parallelism)"
        stage_pods = pod_by_stage(layout.pp, self.pods.sizes(self.placed.pods))
        ends = [i for i in range(1, layout.pp) if stage_pods[i] != stage_pods[i - 1]]
        before = " and ".join(ranges("stage", [i]) for i in ends)
        return f"activations and gradients cross between pods before {before} (pipeline)"

    def words(self) -> str:
        """Describe the use of the pods in one line."""
        names = [self.pods.runs[pod].gpu.name for pod in self.placed.pods]
        if self.placed.by == "alone":
            return f"{names[0]} alone"
        if self.placed.by == "replicas":
            return f"replicas on {' and '.join(names)}"
        blocks = Counter[int]()
        for stage in self.stages:
            blocks[stage.pod] += stage.blocks
        pairs = zip(names, self.placed.pods, strict=True)
        return ", then ".join(f"{blocks[pod]} blocks on {name}" for name, pod in pairs)

    def sentences(self) -> list[str]:
        """Describe the stages of each pod, and the bottleneck."""
        rows = []
        for place, pod in enumerate(self.placed.pods):
            run, mine = self.pods.runs[pod], [stage for stage in self.stages if stage.pod == pod]
            stages = ranges("stage", [stage.stage for stage in mine])
            blocks = ", ".join(str(stage.blocks) for stage in mine)
            row = f"{run.devices:,} {run.gpu.name}: {stages}, blocks {blocks}"
            if len(set(self.placed.microbatches)) > 1:
                row += f", microbatches of {self.placed.microbatches[place]}"
            rows.append(row)
        return [*rows, f"bottleneck: {self.bottleneck()}", self.crossing()]

    def bottleneck(self) -> str:
        """Describe the slowest stage, and the one with least memory left."""
        slow, full = self.slowest, self.fullest
        names = [run.gpu.name for run in self.pods.runs]
        capacity = format_bytes(self.pods.runs[full.pod].gpu.hbm_bytes)
        return (
            f"in time stage {slow.stage} on {names[slow.pod]}; in memory stage {full.stage} on "
            f"{names[full.pod]}, {format_bytes(full.memory.needed)} needed of {capacity}"
        )


class PodEstimator:
    """Estimates layouts on pods; costs of each pod's model variants are cached."""

    def __init__(self, pods: Pods) -> None:
        self.pods = pods
        self._estimators: dict[tuple[frozenset[int], int, bool], Estimator] = {}

    def estimators(self, pods: Sequence[int], crossed: bool) -> list[Estimator]:
        """Return an estimator per pod for the run on these pods together."""
        for i, run in zip(pods, self.pods.combined_runs(pods, crossed), strict=True):
            key = frozenset(pods), i, crossed
            if key not in self._estimators:
                self._estimators[key] = Estimator(run)
        return [self._estimators[frozenset(pods), i, crossed] for i in pods]

    def estimate(self, placed: PodPlacement) -> MixedEstimate:
        return self._stages(placed) if placed.by == "stages" else self._replicas(placed)

    def _stages(self, placed: PodPlacement) -> MixedEstimate:
        layout, estimators = placed.layout, self.estimators(placed.pods, crossed=False)
        run, sizes = estimators[0].run, self.pods.sizes(placed.pods)
        check_layout(layout, run.model, run.devices, run.global_batch, run.sequence)
        (_, shares), link_s = estimators[0].shares(layout), self.link_s(estimators[0], layout)
        choices = longest_choices(estimators, layout)
        make_sums = joined_sums(estimators, [layout], choices, sizes, link_s)
        (step, memory, times, messages_s), policies = joined_row(make_sums, choices)
        stage_pods = [placed.pods[pod] for pod in pod_by_stage(layout.pp, sizes)]
        stages = _pod_stages(stage_pods, shares, times, memory, policies)
        main = max((pod.run for pod in estimators), key=lambda pod_run: pod_run.slack)
        replayed = replay_step(stage_passes(main, layout, step, times, messages_s))
        return MixedEstimate(self.pods, placed, step.time_s, step, stages, replayed)

    def link_s(self, estimator: Estimator, layout: Layout) -> float:
        """Return the time of one activation over the link between pods."""
        if self.pods.link is None:
            return 0.0
        stepper, shares = estimator.shares(layout)
        link = Network("link", (replace(self.pods.link, devices=2),))
        return send_s(link, stepper.sent_bytes(boundary_bytes(shares)), 1)

    def _replicas(self, placed: PodPlacement) -> MixedEstimate:
        """Estimate replicas: the slowest pod's passes and gradients, then the slowest update."""
        layout = placed.layout
        if placed.by == "alone":
            runs = [self.pods.runs[placed.pods[0]]]
        else:
            runs = [estimator.run for estimator in self.estimators(placed.pods, crossed=True)]
        # Microbatches of all replicas together have this many sequences.
        model_ranks = layout.tp * layout.cp * layout.pp
        counts = zip(self.pods.sizes(placed.pods), placed.microbatches, strict=True)
        m = runs[0].global_batch // sum(size // model_ranks * n for size, n in counts)
        stages: tuple[PodStage, ...] = ()
        times_s, estimates = [], []
        for pod, run, microbatch in zip(placed.pods, runs, placed.microbatches, strict=True):
            pod_estimator = Estimator(replace(run, global_batch=layout.dp * microbatch * m))
            estimate = pod_estimator.estimate(replace(layout, microbatch=microbatch))
            step, (_, shares) = estimate.step, pod_estimator.shares(estimate.layout)
            times_s.append((step.time_s - step.optimizer_s, step.optimizer_s))
            estimates.append(estimate)
            parts = estimate.stages, estimate.memory, estimate.policies
            stages += _pod_stages([pod] * layout.pp, shares, *parts)
        time_s = sum(max(part_s) for part_s in zip(*times_s, strict=True))
        longest = max(estimates, key=lambda estimate: estimate.step.time_s)
        replayed = replay_estimate(longest)
        return MixedEstimate(self.pods, placed, time_s, longest.step, stages, replayed)


def longest_choices(estimators: Sequence[Estimator], layout: Layout) -> tuple[str, ...]:
    """Return the recomputation choices of a layout, of the pod that has most."""
    every = (recompute_choices(pod.costs(layout), layout.recompute) for pod in estimators)
    return max(every, key=len)


def _pod_stages(
    pods: Sequence[int], shares: Sequence[Sequence[Share]], *parts: Sequence[Any]
) -> tuple[PodStage, ...]:
    """Return the stages of a layout, given the pod, layers, times, memory and policy of each."""
    blocks = [sum(n for chunk in x for cost, n in chunk if cost.is_block) for x in shares]
    return tuple(map(PodStage, pods, range(len(pods)), blocks, *parts))
