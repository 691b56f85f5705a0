"""Results of a search on a wafer, with the same keys as a search on clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from atoll.answers.answer import AnsweredResult, ExplainedResult, build_from, dumped
from atoll.answers.certificate import ArchitectureProof
from atoll.answers.design import ChipFigures, PlacedStageAnswer, PlacementAnswer, SizedChip
from atoll.answers.wafer import (
    BestMapping,
    DetailedStep,
    FaultsAnswer,
    MappingAnswer,
    OtherMapping,
    ResourceWorth,
    WaferAnswer,
    WaferDesign,
    WaferExplanation,
    WaferFigures,
    WaferFront,
    WaferModel,
    WaferPicture,
)
from atoll.base.notebook import summary_lines
from atoll.base.units import counted, format_bytes, format_mfu, format_seconds
from atoll.fabric.mesh import Die, Link
from atoll.hardware.wafer import Wafer
from atoll.placement.replay import replay_difference
from atoll.questions import WaferQuestion
from atoll.step.certificate import Certificate
from atoll.wafer.answer.draw import text_map, wafer_picture
from atoll.wafer.baselines import WaferBaseline
from atoll.wafer.encoding.block_parts import RECOMPUTE
from atoll.wafer.encoding.codes import log10_mappings, parts_of
from atoll.wafer.evaluate import MappingCost
from atoll.wafer.job import options_of
from atoll.workload import load_model
from atoll.workload.flops import model_flops

if TYPE_CHECKING:
    import pandas as pd


OPTIONAL = "offload", "host"
"""Parts of a step left out if zero."""
RESULT = "result.json"
MAPPING = "mapping.json"


def running_power_W(wafer: Wafer, evaluation: MappingCost) -> float:
    """Return the average power over a step: static + dynamic x busy share of the dies."""
    static = wafer.power_parts_W["static"]
    microbatches, busy = evaluation.mapping.microbatches, 0.0
    for stage, cost in zip(evaluation.mapping.stages, evaluation.stages, strict=True):
        layer_s = cost.parts_s["compute"] + cost.parts_s["recompute"]
        work_s = stage.layers * layer_s + cost.ends.time_s
        busy += stage.rectangle.size * microbatches * work_s / evaluation.step_s
    return static + (wafer.peak_power_W - static) * busy / wafer.dies


def placement_of(evaluation: MappingCost) -> PlacementAnswer:
    """Return the mapping as a placement on devices, with dies as devices."""
    mapping = evaluation.mapping
    names = mapping.blocks().saved_names
    stages = []
    data = parts_of(mapping.stages[0].block.stream, mapping.stages[0].digits).get("b", 1)
    for stage, cost in zip(mapping.stages, evaluation.stages, strict=True):
        dropped = [n for n, keep in zip(names, stage.block.keep, strict=True) if keep == RECOMPUTE]
        recompute_s = cost.parts_s["recompute"] * stage.layers
        placed = build_from(
            PlacedStageAnswer,
            cost,
            layers=(f"block x{stage.layers}",),
            devices=stage.rectangle.size // data or 1,
            compute_s=cost.load_s - recompute_s - cost.transfer_s,
            recompute_s=recompute_s,
            receive_s=cost.transfer_s / 2.0,
            recompute=", ".join(dropped) or "none",
            memory_bytes=dict(cost.memory_bytes),
            chunks=(),
        )
        stages.append(placed)
    return build_from(
        PlacementAnswer,
        mapping,
        pipeline=len(stages),
        tensor=max(stage.rectangle.size for stage in mapping.stages) // data or 1,
        data=data,
        step_time_s=evaluation.step_s,
        stages=tuple(stages),
        time_parts_s=time_parts_s(evaluation),
        zero=0,
        cp=1,
        ep=1,
        etp=None,
        vpp=1,
    )


def time_parts_s(evaluation: MappingCost) -> dict[str, float]:
    """Return the slowest stage's step time by cause; the remainder is the pipeline bubble."""
    slowest = max(range(len(evaluation.stages)), key=lambda i: evaluation.stages[i].load_s)
    cost, stage = evaluation.stages[slowest], evaluation.mapping.stages[slowest]
    microbatches = evaluation.mapping.microbatches
    parts = {name: microbatches * stage.layers * value for name, value in cost.parts_s.items()}
    parts["compute"] += microbatches * cost.ends.time_s
    port_wait_s = max(0.0, cost.ports_s - cost.block.time_s)
    parts["sharded_weights"] += microbatches * stage.layers * port_wait_s
    parts["host"] = evaluation.fixed_s
    parts["pipeline_sends"] = microbatches * cost.transfer_s
    parts["pipeline_bubble"] = evaluation.step_s - sum(parts.values())
    return {name: max(0.0, v) for name, v in parts.items() if v or name not in OPTIONAL}


@dataclass(frozen=True)
class WaferEstimate(AnsweredResult[MappingAnswer]):
    """What one mapping on a wafer costs.

    Examples:
        >>> import atoll
        >>> result = atoll.search("wafer-job.yaml", out="run")
        >>> found = atoll.estimate(wafer="small.yaml", mapping="run/mapping.json")
        >>> found.evaluation.step_s == result.best.step_s
        True
    """

    wafer: Wafer
    evaluation: MappingCost
    detailed: DetailedStep
    """The replay with links as queues: its difference from the fast model."""
    dead_dies: tuple[Die, ...] = ()
    dead_links: tuple[Link, ...] = ()

    @cached_property
    def placement(self) -> PlacementAnswer:
        return placement_of(self.evaluation)

    @cached_property
    def picture(self) -> WaferPicture:
        return wafer_picture(self.wafer, self.evaluation, self.dead_dies, self.dead_links)

    @cached_property
    def mfu(self) -> float:
        """Model FLOPs over what all dies together could do."""
        mapping, model = self.evaluation.mapping, self.evaluation.mapping.model
        config = load_model(model) if isinstance(model, str) else model
        flops = model_flops(config, mapping.sequence)
        return flops * self.evaluation.samples_per_s / self.wafer.peak_flops

    @property
    def power_W(self) -> float:
        """Of the whole wafer, on average over a step."""
        return running_power_W(self.wafer, self.evaluation)

    @cached_property
    def answer(self) -> MappingAnswer:
        evaluation = self.evaluation
        return build_from(
            MappingAnswer,
            self,
            model=evaluation.mapping.model,
            step_time_s=evaluation.step_s,
            samples_per_s=evaluation.samples_per_s,
            tokens_per_s=evaluation.samples_per_s * evaluation.mapping.sequence,
            fits=evaluation.fits,
            memory_bytes_per_die=evaluation.memory_bytes,
            accelerator=ChipFigures.of(self.wafer.chip),
            wafer=WaferFigures.of(self.wafer),
            mapping=evaluation.mapping.file(),
        )

    def summary(self) -> list[tuple[str, str]]:
        """Return the mapping in short: the wafer, what to run on it, step time, memory.

        Returns:
            Lines as (label, text), in the order in which every answer has them.

        Examples:
            >>> import atoll
            >>> result = atoll.search("wafer-job.yaml")
            >>> [label for label, _ in result.best_estimate.summary()]
            ['Wafer', 'Run', 'Step', 'Memory']
        """
        wafer, cost, placement = self.wafer, self.evaluation, self.placement
        mapping, needed, capacity = cost.mapping, cost.memory_bytes, wafer.memory_bytes
        rectangle, rate = mapping.stages[0].rectangle, cost.samples_per_s
        margin = abs(capacity - needed)
        fit = f"fits, {format_bytes(margin)} ({margin / capacity:.0%}) to spare"
        if not cost.fits:
            fit = f"DOES NOT FIT, {format_bytes(margin)} too much"
        return [
            (
                "Wafer",
                f"{wafer.name}: {wafer.rows} x {wafer.columns} dies of "
                f"{wafer.core.peak_flops / 1e12:.0f} TFLOP/s, {wafer.peak_power_W / 1e3:.1f} kW at "
                f"peak, {wafer.cost_dollars:,.0f} dollars",
            ),
            (
                "Run",
                f"{mapping.model}, batch {mapping.batch}, {mapping.sequence} tokens: "
                f"{counted(placement.pipeline, 'stage')} of {rectangle.width} x {rectangle.height} "
                f"dies, microbatch {mapping.microbatch}, {mapping.schedule}, recompute "
                f"{placement.recompute}",
            ),
            (
                "Step",
                f"{format_seconds(cost.step_s)}, {rate:,.2f} samples/s, "
                f"{rate * mapping.sequence:,.0f} tokens/s, MFU {format_mfu(self.mfu)}, "
                f"{self.power_W / 1e3:.1f} kW",
            ),
            ("Memory", f"{format_bytes(needed)} needed of {format_bytes(capacity)} per die: {fit}"),
        ]

    def text_map(self) -> str:
        """The mapping as `atoll estimate --wafer` draws it.

        Returns:
            A line per row of dies.

        Examples:
            >>> import atoll
            >>> result = atoll.search("wafer-job.yaml", out="run")
            >>> found = atoll.estimate(wafer="small.yaml", mapping="run/mapping.json")
            >>> found.text_map() == result.text_map()
            True
        """
        return text_map(self.picture)


@dataclass(frozen=True)
class WaferResult(ExplainedResult[WaferAnswer, WaferExplanation]):
    """The best mapping on a wafer, or on the best wafer of a space, with its bound.

    Examples:
        >>> import atoll
        >>> result = atoll.search("wafer-job.yaml")
        >>> result.throughput_samples_per_s > 0
        True
    """

    job: WaferQuestion
    wafer: Wafer
    best: MappingCost
    certificate: Certificate
    baselines: Mapping[str, WaferBaseline | None]
    detailed: DetailedStep
    """The event-driven replay of the winner: its difference from the fast model."""
    designs: tuple[WaferDesign, ...] = ()
    pareto: Mapping[str, WaferFront] = field(default_factory=dict)
    runners_up: tuple[MappingCost, ...] = ()
    faults: FaultsAnswer = field(default_factory=FaultsAnswer)
    explanation: tuple[ResourceWorth, ...] = ()
    """What a little more of each resource is worth, where the job asks for it."""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    wall_time_s: float = 0.0
    stopped: str = ""
    """Why the search ended before it was done, if it did."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What there was no time for, and why."""

    @property
    def ended_early(self) -> bool:
        """Whether a limit or Ctrl-C came before the end."""
        return bool(self.stopped or self.left_out)

    @property
    def throughput_samples_per_s(self) -> float:
        """Samples per second of the best mapping."""
        return self.best.samples_per_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of the best mapping."""
        return self.best.samples_per_s * self.best.mapping.sequence

    @cached_property
    def best_estimate(self) -> WaferEstimate:
        """What the best mapping costs."""
        dead = self.job.dead_dies, self.job.dead_links
        return WaferEstimate(self.wafer, self.best, self.detailed, *dead)

    @property
    def mfu(self) -> float:
        """Model FLOPs over what all dies together could do."""
        return self.best_estimate.mfu

    @property
    def placement(self) -> PlacementAnswer:
        """The best mapping's stages, as placements on devices are told."""
        return self.best_estimate.placement

    @cached_property
    def log10_mappings(self) -> float:
        """log10 of the number of mappings with stages of one shape."""
        job, tokens = self.job, self.best.mapping.sequence
        homes = options_of(job, self.wafer).homes
        return log10_mappings(self.wafer, job.model, job.batch, tokens, homes, job.microbatch)

    @cached_property
    def replay_difference(self) -> float:
        return replay_difference(self.placement)

    @cached_property
    def answer(self) -> WaferAnswer:
        mapping_answer, proof = self.best_estimate.answer, self.certificate
        model = build_from(
            WaferModel,
            mapping_answer,
            microbatch=self.best.mapping.microbatch,
            recompute=self.placement.recompute,
            tokens_per_s_per_device=self.tokens_per_s / self.wafer.dies,
            energy_per_token_J=mapping_answer.power_W / self.tokens_per_s,
            replay_difference=self.replay_difference,
        )
        area_mm2, watts = self.wafer.site_mm2 * self.wafer.dies, self.wafer.peak_power_W
        chip = build_from(
            SizedChip, mapping_answer.accelerator, area_mm2=area_mm2, peak_power_W=watts
        )
        return build_from(
            WaferAnswer,
            self,
            summary=tuple(self.summary()),
            best=build_from(
                BestMapping,
                model,
                accelerator=chip,
                wafer=mapping_answer.wafer,
                mapping=mapping_answer.mapping,
                models=(model,),
            ),
            score=self.best.samples_per_s,
            certificate=ArchitectureProof.of(proof, architectures=proof.items),
            baselines={name: b and b.samples_per_s for name, b in self.baselines.items()},
            baseline_details={n: b.answer() for n, b in self.baselines.items() if b is not None},
            wafer=mapping_answer.picture,
            runners_up=tuple(map(_runner_up, self.runners_up)),
            job=self.job.to_dict(),
        )

    def to_dataframe(self) -> pd.DataFrame:
        """Every architecture that was evaluated, best first.

        Returns:
            One row per wafer of the space.

        Examples:
            >>> import atoll
            >>> result = atoll.search("wafer-job.yaml")
            >>> len(result.to_dataframe())
            1
        """
        import pandas as pd

        return pd.DataFrame([dumped(row) for row in self.designs])

    def text_map(self) -> str:
        """The best mapping as `atoll search --wafer` draws it.

        Returns:
            A line per row of dies.

        Examples:
            >>> import atoll
            >>> result = atoll.search("wafer-job.yaml")
            >>> len(result.text_map().splitlines()) > 1
            True
        """
        return self.best_estimate.text_map()

    def summary(self) -> list[tuple[str, str]]:
        """Return the answer in short: the best mapping with its proof.

        Returns:
            Lines as (label, text), in the order in which every answer has them.

        Examples:
            >>> import atoll
            >>> [label for label, _ in atoll.search("wafer-job.yaml").summary()]
            ['Wafer', 'Run', 'Step', 'Memory', 'Confidence']
        """
        notes = [f"{self.stopped}: the best mapping so far"] if self.stopped else []
        notes += [f"left out: {', '.join(self.left_out)}"] if self.left_out else []
        lines = [*(("Note", words) for words in notes), *self.best_estimate.summary()]
        return [*lines, ("Confidence", self.certificate.sentence())]

    def __str__(self) -> str:
        return "\n".join([*summary_lines(self.summary()), self.text_map()])


def _runner_up(evaluation: MappingCost) -> OtherMapping:
    stages = evaluation.mapping.stages
    rectangle = stages[0].rectangle.width, stages[0].rectangle.height
    sources = evaluation, evaluation.mapping
    return build_from(OtherMapping, *sources, stages=len(stages), rectangle=rectangle)


def baseline_words(baseline: WaferBaseline | None, ours: float) -> str:
    if baseline is None:
        return "cannot run on this wafer"
    fixed = ""
    if baseline.fixed is not None and baseline.fixed.setting != baseline.setting:
        fixed = f"; as its paper fixes it {baseline_words(baseline.fixed, ours)}"
    if baseline.samples_per_s is None:
        return f"out of memory ({format_bytes(baseline.needed_bytes)} per die){fixed}"
    note = "" if baseline.fits_as_published else " (out of memory as published)"
    ratio = ours / baseline.samples_per_s
    return f"{baseline.samples_per_s:,.2f} samples/s ({ratio:.2f}x){note}{fixed}"


def wafer_files(result: WaferResult) -> dict[str, str]:
    """Return the folder's contents by file name."""
    return {RESULT: result.answer.to_json(indent=1), MAPPING: result.best.mapping.to_json() + "\n"}
