"""Estimate of a training run under one layout: step time by part, memory by part, fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from atoll.answers.answer import DrawableResult
from atoll.answers.layout import ExpectedError, Exportable, Interval, LaunchFile
from atoll.base.errors import AtollError
from atoll.base.notebook import answer_html, bar_text
from atoll.base.registry import import_named
from atoll.base.units import format_bytes, format_mfu, format_seconds, ranges
from atoll.cost.pricer import total
from atoll.step.layout import HOST, Layout, check_layout
from atoll.step.length import WholeRun, run_totals
from atoll.step.orders import SPLIT, arrivals
from atoll.step.parts import Origin
from atoll.step.replay import PassTime, pipeline_s
from atoll.step.stages import stage_shares
from atoll.training.accuracy import (
    DIGITS,
    FEW_DIGITS,
    UNSURE,
    Accuracy,
    accuracy,
    beyond_published,
)
from atoll.training.batch.estimates import stage_choices
from atoll.training.memory import Memory, stage_memory, stage_parameters
from atoll.training.operators.layer_prices import LayerPrices
from atoll.training.operators.layers import LayerCost, Share, recompute_choices
from atoll.training.operators.tables import Floats
from atoll.training.run import Run
from atoll.training.step import StageTime, Stepper, StepTime, accumulation_s, update_s
from atoll.workload.flops import model_flops, trained_parameters

if TYPE_CHECKING:
    from atoll.answers.plan import EstimateAnswer  # noqa: F401 (base class)


@dataclass(frozen=True)
class Estimate(Exportable, DrawableResult["EstimateAnswer"]):
    """What a layout costs: step time and memory by part.

    Examples:
        >>> import atoll
        >>> found = atoll.estimate("llama3-70b", "h100", 512, tp=8, pp=4, batch=1024)
        >>> found.fits, found.layout.dp
        (True, 16)
    """

    answer_builder = "atoll.training.planner.answer:estimate_answer"
    run: Run
    layout: Layout
    step: StepTime
    memory: tuple[Memory, ...]
    stages: tuple[StageTime, ...]
    policies: tuple[str, ...]
    """Recomputation policy per stage: the choices of "optimal", or the layout's policy."""
    rerun: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Under "optimal", the recomputed operators per kind of block."""
    launched: bool = False
    """Whether launch files are requested."""

    @cached_property
    def launch(self) -> tuple[LaunchFile, ...]:
        """Of the tools that can be told the layout, where wanted; of the others why not."""
        if not self.launched:
            return ()
        files: tuple[LaunchFile, ...] = import_named("atoll.export:launch_files")(
            self.run, self.layout
        )
        return files

    def _launch_file(self, target: str) -> LaunchFile:
        file: LaunchFile = import_named("atoll.export:export_run")(target, self.run, self.layout)
        return file

    @property
    def worst(self) -> Memory:
        """The stage that needs most memory."""
        return max(self.memory, key=lambda m: m.needed)

    @property
    def accuracy(self) -> Accuracy:
        """How far estimates of such runs were off."""
        return accuracy(self.run, self.layout)

    @property
    def expected_error(self) -> ExpectedError:
        """The mean error of estimates of such runs."""
        return self.accuracy.expected

    @property
    def interval(self) -> Interval:
        """Between what 90 % of such runs were measured."""
        return self.accuracy.interval(self.step.time_s, self.worst.allocated)

    @property
    def digits(self) -> int:
        """Significant digits that times of this estimate are worth."""
        error = self.expected_error
        return FEW_DIGITS if error.extrapolated or error.mean >= UNSURE else DIGITS

    def sureness(self) -> str:
        """Where such runs lie, and what is known of them.

        Returns:
            A sentence.

        Examples:
            >>> import atoll
            >>> atoll.estimate("llama2-7b", "h100", 8, batch=64).sureness()  # doctest: +ELLIPSIS
            '90% of runs of this kind lie between ... and ...'
        """
        return f"{self.interval.sentence(FEW_DIGITS + 1)} ({self.expected_error.sentence()})"

    def figures(self) -> tuple[str, str, str]:
        """Step, throughput and MFU, to the digits that they are worth.

        Returns:
            Three texts.

        Examples:
            >>> import atoll
            >>> atoll.estimate("llama2-7b", "h100", 8, batch=64).figures()[1]  # doctest: +ELLIPSIS
            '... tokens/s per device'
        """
        rate, few = self.tokens_per_s_per_device, self.digits < DIGITS
        tokens = float(f"{rate:.{self.digits - 1}e}") if few else rate
        return (
            format_seconds(self.step.time_s, self.digits),
            f"{tokens:,.0f} tokens/s per device",
            format_mfu(self.mfu, 0 if few else 1),
        )

    @property
    def operator_origins(self) -> dict[Origin, float]:
        """Of the time of operators of a microbatch, what was measured, what was interpolated and
        what is the model's; nothing where measurements were not asked for.
        """
        if self.run.timed is None:
            return {}
        costs = Estimator(self.run).costs(self.layout)
        operators = total((c.forward + c.backward).times(c.repeat) for c in costs)
        return {name: part_s / operators.total_s for name, part_s in operators.origins_s.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before the figures are believed."""
        run, order = self.run, self.layout.schedule
        notes = (*beyond_published(run, self.mfu, self.step.time_s), *run.notes)
        if self.layout.pp > 1 and order not in run.stack.orders:
            notes = (*notes, f"{run.stack.name} does not run {order}; timed as if it did")
        if run.timed is None:
            return notes
        parts = ", ".join(f"{part:.0%} {name}" for name, part in self.operator_origins.items())
        return (*notes, f"time of operators, by {run.timed.source}: {parts}")

    @property
    def whole_run(self) -> WholeRun | None:
        """The run from its first token to its last, where its tokens are known."""
        run, interval = self.run, self.interval.step_time_s
        if run.length is None:
            return None
        kept = run.states.weight + run.states.optimizer
        return run_totals(
            run.length,
            self.step.time_s,
            (interval.low, interval.high),
            run.tokens,
            run.devices,
            kept * trained_parameters(run.stored or run.model, run.adapters),
            self.power_W,
        )

    @property
    def recomputed(self) -> str:
        """The recomputation policy that it comes to, if it is one for all stages."""
        if self.rerun and not any(operators for _, operators in self.rerun):
            return "none"
        return self.policies[0] if len(set(self.policies)) == 1 else self.layout.recompute

    @property
    def fits(self) -> bool:
        """Whether every stage has the memory that it needs, and leaves free what is to stay so."""
        return self.worst.needed <= self.run.capacity_bytes

    @property
    def most_needed_bytes(self) -> float:
        """What the fullest stage needs at the upper end of the interval."""
        worst = self.worst
        return self.interval.memory_bytes.high + worst.needed - worst.allocated

    @property
    def tight(self) -> bool:
        """Whether it fits, but would not at the upper end of the interval."""
        return self.fits and self.most_needed_bytes > self.run.gpu.hbm_bytes

    def verdict(self) -> str:
        """What is needed of the memory, and whether that is there.

        Returns:
            Words, such as "70 GiB needed of 80 GiB: fits".

        Examples:
            >>> import atoll
            >>> atoll.estimate("gpt2-xl", "h100", 8, batch=64).verdict()  # doctest: +ELLIPSIS
            '... needed of 80 GiB: fits'
        """
        run = self.run
        free = f" less {100 * run.headroom:.4g}% kept free" if run.headroom else ""
        words = "fits" if self.fits else "DOES NOT FIT"
        if self.tight:
            most = format_bytes(self.most_needed_bytes)
            words = f"fits, but tight: some runs of this kind would need {most}"
        return (
            f"{format_bytes(self.worst.needed)} needed of {format_bytes(run.gpu.hbm_bytes)}"
            f"{free}: {words}"
        )

    @property
    def tokens_per_s_per_device(self) -> float:
        """Throughput."""
        return self.run.tokens / self.step.time_s / self.run.devices

    @property
    def power_W(self) -> float | None:
        """Mean draw of a device over the step: at its limit while it computes, less while it waits
        for others; none where its rating is not known.
        """
        return self.run.gpu.drawn_W(min(1.0, self.step.busy_s / self.step.time_s))

    @property
    def energy_per_token_J(self) -> float | None:
        """Of the devices."""
        watts = self.power_W
        return None if watts is None else watts / self.tokens_per_s_per_device

    @property
    def mfu(self) -> float:
        """Model FLOPs (`workload.flops`) over the devices' dense 16-bit peak."""
        run = self.run
        flops = run.global_batch * model_flops(run.stored or run.model, run.sequence, run.adapters)
        peak = run.devices * run.gpu.peak_flops(run.gpu.half_dtype)
        return flops / self.step.time_s / peak

    def _repr_html_(self) -> str:
        return answer_html(*self.summary())

    def summary(self) -> tuple[str, list[tuple[str, str]], dict[str, float]]:
        """What is shown to people.

        Returns:
            Title, facts by name, and the parts of the step in seconds.

        Examples:
            >>> import atoll
            >>> atoll.estimate("gpt2-xl", "h100", 8, batch=64).summary()[0]
            'gpt2-xl on 8 h100'
        """
        run = self.run
        step, throughput, mfu = self.figures()
        facts = [
            *(("note", note) for note in self.notes),
            ("layout", str(self.layout)),
            ("step", step),
            ("throughput", throughput),
            ("MFU", mfu),
            ("interval", self.sureness()),
            ("memory", f"on stage {self.worst.stage} {self.verdict()}"),
        ]
        title = f"{run.model.name} on {run.devices:,} {run.gpu.name}"
        return title, facts, self.step.breakdown()

    def __str__(self) -> str:
        title, facts, parts_s = self.summary()
        rows = [f"  {name:<12}{value}" for name, value in facts]
        return "\n".join([title, *rows, f"  {bar_text(parts_s)}"])


class Estimator(LayerPrices):
    """Estimates layouts of one run; costs of its model's variants are cached."""

    def estimate(self, layout: Layout) -> Estimate:
        """Estimate one layout. Under "optimal" recomputation each stage has the fastest choice that
        fits, or one choice for all if that is faster; under "host" the fewest blocks use host
        memory.
        """
        run = self.run
        check_layout(layout, run.model, run.devices, run.global_batch, run.sequence)
        if layout.cp > 1 and run.attention == "unfused":
            raise AtollError(
                f"cp is {layout.cp}, but only flash attention goes round a ring; use cp 1 or "
                "attention flash"
            )
        choices = recompute_choices(self.costs(layout), layout.recompute)
        if layout.recompute == "optimal":
            return self._estimate(layout, stage_choices(self, layout, choices))
        if layout.recompute == HOST:
            return self._hosted(layout)
        return self._estimate(layout)

    def _hosted(self, layout: Layout) -> Estimate:
        """Move the tensors of the fewest blocks per stage that make it fit to host memory, or of
        all blocks if nothing fits.
        """
        blocks = sum(cost.repeat for cost in self.costs(layout) if cost.is_block)

        def hosting(count: int) -> Estimate:
            return self._estimate(replace(layout, recompute=f"{HOST}@{count}" if count else "none"))

        most = -(-blocks // layout.pp)
        return hosting(bisect_left(range(most), True, key=lambda count: hosting(count).fits))

    def step(self, layout: Layout) -> StepTime:
        """Estimate only the step of a layout, to compare sites."""
        stepper, shares = self.shares(layout)
        stages = [stepper.stage_time(chunks, layout.recompute) for chunks in shares]
        return self.combine_stages([stepper] * layout.pp, shares, stages)

    def shares(self, layout: Layout) -> tuple[Stepper, Sequence[Sequence[Share]]]:
        """Return the layout's stepper, and the layers of every stage and chunk."""
        costs = self.costs(layout)
        shares = stage_shares(costs, layout.schedule, layout.pp, layout.vpp, layout.blocks)
        return Stepper(self.run, layout), shares

    def _estimate(self, layout: Layout, policies: tuple[str, ...] = ()) -> Estimate:
        """Estimate with one policy per stage, or the layout's for all."""
        run, policies = self.run, policies or (layout.recompute,) * layout.pp
        stepper, shares = self.shares(layout)
        stages = tuple(map(stepper.stage_time, shares, policies))
        step = self.combine_stages([stepper] * layout.pp, shares, stages)
        memory = tuple(map(partial(self.peak_memory, stepper), range(layout.pp), shares, policies))
        rerun = _rerun(shares, policies) if layout.recompute == "optimal" else ()
        return Estimate(run, layout, step, memory, stages, policies, rerun)

    def peak_memory(
        self, stepper: Stepper, stage: int, chunks: Sequence[Share], recompute: str
    ) -> Memory:
        """Return the peak memory of one stage."""
        layout = stepper.layout
        activations, _ = arrivals(layout.schedule, layout.pp, len(chunks))[stage]
        boundary = boundary_bytes([chunks])
        return stage_memory(
            self.run,
            layout,
            stage,
            chunks,
            stepper.microbatches,
            recompute,
            shared_parameters=self.shared(layout, _costs(chunks)),
            entering_bytes=boundary if activations else 0.0,
        )

    def trained(self, layout: Layout, chunks: Sequence[Share]) -> tuple[float, float]:
        """Return the dense and expert parameters of a stage that are trained."""
        layers = [pair for chunk in chunks for pair in chunk]
        return stage_parameters(self.run, layers, self.shared(layout, _costs(chunks)))[0]

    def combine_stages(
        self,
        steppers: Sequence[Stepper],
        shares: Sequence[Sequence[Share]],
        stages: Sequence[StageTime],
        arriving_s: Sequence[tuple[float, float]] = (),
    ) -> StepTime:
        """Combine stages, each on the devices of its stepper, into a step. `arriving_s` are seconds
        of (activations, gradients) into each stage; empty: over the run's network.
        """
        run, layout, overlap = self.run, steppers[0].layout, self.run.stack.overlap
        m = steppers[0].microbatches
        if not arriving_s:
            send_s = steppers[0].send_s(boundary_bytes(shares))
            counts = arrivals(layout.schedule, layout.pp, len(shares[0]))
            arriving_s = [(n * send_s, k * send_s) for n, k in counts]
        slowest = max(stages, key=lambda s: s.total_s)
        parameters = [self.trained(layout, chunks) for chunks in shares]
        placed = [(stepper.run, *p) for stepper, p in zip(steppers, parameters, strict=True)]
        accumulate_s = max(accumulation_s(stage_run, layout, m, *p) for stage_run, *p in placed)
        order, shown = layout.schedule, 1.0 - overlap.pipeline
        last_s, before_s = max(
            stepper.gradient_s(*p) for stepper, p in zip(steppers, parameters, strict=True)
        )
        hidden = overlap.hidden_gradient(layout.zero, layout.pp)

        def reduced_s(behind_s: float) -> float:
            return sum(
                times * (wire_s - hidden * min(wire_s, behind_s))
                for times, wire_s in ((1, last_s), (m - 1, before_s))
            )

        paces = list(zip(*(s.paces(order) for s in stages), strict=True))
        message_s = messages_s(order, len(shares[0]), arriving_s)
        parts = np.array([shown * message_s, (1.0 - shown) * message_s])
        pace_times = [
            (seconds, reduced_s(_behind_s(order, stages, passes)))
            for seconds, passes in zip(pipelines_s(order, stages, m, *parts), paces, strict=True)
        ]
        passes_s = max(passes_s for passes_s, _ in pace_times)
        gradient_s = max(map(sum, pace_times)) - passes_s
        alone_s = max(pipelines_s(order, stages, m, *(0.0 * parts)))
        idle_s = max(0.0, alone_s - m * slowest.total_s)
        send_total_s = max(0.0, passes_s - m * slowest.total_s - idle_s)
        optimizer_s = max(update_s(stage_run, layout, *p) for stage_run, *p in placed)
        parts_s = passes_s + m * accumulate_s + gradient_s + optimizer_s + run.stack.step_s
        time_s = parts_s * run.slack
        total = slowest.forward + slowest.backward
        again = slowest.recompute
        step = StepTime(
            time_s=time_s,
            compute_s=m * total.compute_s,
            accumulate_s=m * accumulate_s,
            recompute_s=m * again.compute_s,
            tensor_s=m * (total.tensor_s + again.tensor_s),
            context_s=m * (total.context_s + again.context_s),
            expert_s=m * (total.expert_s + again.expert_s),
            sharded_s=m * (total.sharded_s + again.sharded_s),
            bubble_s=idle_s,
            send_s=send_total_s,
            gradient_s=gradient_s,
            optimizer_s=optimizer_s,
            host_s=m * slowest.host_s + run.stack.step_s + max(0.0, time_s - parts_s),
        )
        return step if time_s >= parts_s else step.shrunk(run.slack)


def _rerun(
    shares: Sequence[Sequence[Share]], policies: Sequence[str]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the recomputed operators by kind of block, and by stages if these differ."""
    by_kind: dict[str, dict[int, tuple[str, ...]]] = {}
    for stage, (chunks, policy) in enumerate(zip(shares, policies, strict=True)):
        for cost, count in (pair for chunk in chunks for pair in chunk):
            if cost.optimal and count:
                by_kind.setdefault(cost.name, {})[stage] = cost.kept(policy).rerun
    return tuple(
        (name if len(set(by_stage.values())) == 1 else f"{name} of {ranges('stage', stages)}", ops)
        for name, by_stage in by_kind.items()
        for ops in dict.fromkeys(by_stage.values())
        for stages in ([stage for stage, again in by_stage.items() if again == ops],)
    )


def _behind_s(order: str, stages: Sequence[StageTime], passes: Sequence[PassTime]) -> float:
    """Return the backward pass of the slowest stage, with host time in orders that do not split
    weight passes.
    """
    if order in SPLIT:
        slowest_pass = max(passes, key=lambda p: p.total_s)
        return slowest_pass.backward_s + slowest_pass.weight_s
    slowest = max(stages, key=lambda s: s.total_s)
    return slowest.total_s - slowest.forward.total_s


def messages_s(order: str, chunks: int, arriving_s: Sequence[tuple[float, float]]) -> Floats:
    """Return (stages, 2): seconds of one activation and one gradient into each stage, from those of
    all messages per microbatch.
    """
    counts = np.array(arrivals(order, len(arriving_s), chunks))
    return np.asarray(np.array(arriving_s) / np.where(counts > 0, counts, 1.0))


def pipelines_s(
    order: str, stages: Sequence[StageTime], microbatches: int, waits_s: Floats, delays_s: Floats
) -> list[float]:
    """Return the seconds of all microbatches with device times and, for separate weight passes,
    with host times; `waits_s` and `delays_s` as in `step.replay`.
    """
    if len(stages) == 1:
        return [microbatches * pace.total_s for pace in stages[0].paces(order)]
    chunks = [[chunk.paces(order) for chunk in stage.chunks or (stage,)] for stage in stages]
    passes_s = np.moveaxis(np.array(chunks), 2, 0)
    rows = len(passes_s)
    messages = (np.repeat(message_s[None], rows, axis=0) for message_s in (waits_s, delays_s))
    return list(map(float, pipeline_s(order, passes_s, microbatches, *messages)))


def boundary_bytes(shares: Sequence[Sequence[Share]]) -> float:
    """Return the largest activation between two blocks of one microbatch."""
    layers = (layer for chunks in shares for chunk in chunks for layer, _ in chunk)
    return max((layer.boundary_bytes for layer in layers if layer.is_block), default=0)


def _costs(chunks: Sequence[Share]) -> list[LayerCost]:
    return [cost for chunk in chunks for cost, _ in chunk]


def estimate(run: Run, layout: Layout) -> Estimate:
    """Estimate one layout."""
    return Estimator(run).estimate(layout)
