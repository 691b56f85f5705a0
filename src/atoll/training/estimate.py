"""Estimate of a training run under one layout: step time by part, memory by part, fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from atoll.answers.answer import DrawableResult
from atoll.answers.layout import ExpectedError, Exportable, Interval, LaunchFile, Uncertainty
from atoll.base.arrays import Ints
from atoll.base.errors import AtollError
from atoll.base.notebook import answer_html, bar_text, summary_lines
from atoll.base.registry import import_named
from atoll.base.units import format_bytes, format_fit, format_mfu, format_seconds, ranges
from atoll.cost.pricer import total
from atoll.hardware.gpu import Gpu
from atoll.step.layout import HOST, Layout, check_layout
from atoll.step.length import WholeRun, run_totals
from atoll.step.parts import Origin
from atoll.step.stages import stage_shares
from atoll.tools.tool import Tool
from atoll.training.accuracy import DIGITS, FEW_DIGITS, UNSURE, beyond_published, run_kind
from atoll.training.batch.choices import figures
from atoll.training.batch.estimates import LayoutSequence, make_tables
from atoll.training.batch.row import layout_row, row_memory
from atoll.training.batch.sums import Sums
from atoll.training.memory import Memory, stage_parameters
from atoll.training.operators.kernel_classes import pass_classes_s
from atoll.training.operators.layer_prices import LayerPrices
from atoll.training.operators.layers import Share, recompute_choices
from atoll.training.operators.step_clock import drawn_W
from atoll.training.run import Run
from atoll.training.shard_kernels import shard_copies_s, update_s
from atoll.training.step import StageTime, Stepper, StepTime
from atoll.training.uncertainty import (
    Spread,
    error_fits,
    is_measured,
    memory_spread,
    most_needed_bytes,
    narrowed,
    step_spread,
    time_shares,
)
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
    messages_s: tuple[tuple[float, float], ...]
    """Seconds of one activation and one gradient into each stage."""
    policies: tuple[str, ...]
    """Recomputation policy per stage: the choices of "optimal", or the layout's policy."""
    rerun: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Under "optimal", the recomputed operators per kind of block."""
    launched: bool = False
    """Whether launch files are requested."""
    prices: Estimator = field(repr=False, compare=False, kw_only=True)
    """Costs of the run's layers, cached."""

    @cached_property
    def launch(self) -> tuple[LaunchFile, ...]:
        """Of the tools that can be told the layout, where wanted; of the others why not."""
        if not self.launched:
            return ()
        files = import_named("atoll.export:launch_files")
        return tuple(files(self.run, self.layout, self.whole_run))

    def _launch_file(self, target: str) -> LaunchFile:
        export_run = import_named("atoll.export:export_run")
        file: LaunchFile = export_run(target, self.run, self.layout, self.whole_run)
        return file

    @property
    def tool(self) -> Tool:
        """Tool that runs it."""
        return self.run.tool

    @property
    def usual_step(self) -> StepTime:
        """Step of a usual device at a usual site: without slack and the wait for the slowest."""
        return self.step.scaled(1 / self.run.slack)

    @property
    def _slowest(self) -> int:
        return max(range(self.layout.pp), key=lambda stage: self.stages[stage].total_s)

    @property
    def worst(self) -> Memory:
        """The stage that needs most memory."""
        return fullest(self.memory)

    @cached_property
    def time_shares(self) -> dict[str, float]:
        """Shares of the step that causes of errors act on."""
        parts_s, (stepper, shares) = self.step.breakdown(), self.prices.shares(self.layout)
        ratio = stepper.launch_ratio(shares[self._slowest], self.policies[self._slowest])
        return time_shares(self.run, self.layout, parts_s, self.kernel_classes_s, ratio)

    @cached_property
    def time_spread(self) -> Spread:
        """Distribution of measured over estimated step times."""
        return step_spread(self.run, self.time_shares)

    @cached_property
    def memory_spread(self) -> Spread:
        """Distribution of measured over estimated memory of the fullest stage."""
        return memory_spread(self.run, self.layout, self.worst)

    @property
    def expected_error(self) -> ExpectedError:
        """The mean error that estimates with such parts have."""
        run, fit, site = self.run, error_fits().step_time, self.run.site
        measured, mean = is_measured(run, self.layout), self.time_spread.mean_error
        if site is not None and site.error is not None:
            return ExpectedError(of=f"at {site.name}", mean=site.error, runs=site.runs, sources=1)
        of = f"{run_kind(run)}, {'measured' if measured else 'extrapolated'} device"
        return ExpectedError(
            of=of, mean=mean, runs=fit.rows, sources=fit.sources, extrapolated=not measured
        )

    @property
    def interval(self) -> Interval:
        """Between what 90 % of such runs were measured."""
        return Interval(
            share=error_fits().share,
            step_time_s=self.time_spread.interval(self.step.time_s),
            memory_bytes=self.memory_spread.interval(self.worst.allocated),
        )

    @property
    def expected_step_time_s(self) -> float:
        """Mean of the distribution of the step time."""
        return self.step.time_s * self.time_spread.expected

    @property
    def out_of_memory(self) -> float:
        """Chance that the fullest stage needs more memory than its device has."""
        worst, run = self.worst, self.run
        free_bytes = run.gpu.hbm_bytes - (worst.needed - worst.allocated)
        return self.memory_spread.chance_above(free_bytes / worst.allocated)

    @property
    def uncertainty(self) -> Uncertainty:
        """Why the interval is as wide as it is, and what would narrow it."""
        time = self.time_spread
        return Uncertainty(
            causes=time.parts(),
            memory_causes=self.memory_spread.parts(),
            narrowed=narrowed(time, self.step.time_s),
            expected_step_time_s=self.expected_step_time_s,
            out_of_memory=self.out_of_memory,
        )

    @property
    def digits(self) -> int:
        """Significant digits that times of this estimate are worth."""
        error = self.expected_error
        return FEW_DIGITS if error.extrapolated or error.mean >= UNSURE else DIGITS

    def figures(self) -> tuple[str, str, str]:
        """Step, throughput and MFU, to the digits that they are worth.

        Returns:
            Three texts.

        Examples:
            >>> import atoll
            >>> atoll.estimate("llama2-7b", "h100", 8, batch=64).figures()[1]  # doctest: +ELLIPSIS
            '... tokens/s (... per device)'
        """
        rate, few = self.tokens_per_s_per_device, self.digits < DIGITS
        every, single = (
            float(f"{tokens:.{self.digits - 1}e}") if few else tokens
            for tokens in (rate * self.run.devices, rate)
        )
        per_device = f" ({single:,.0f} per device)" if self.run.devices > 1 else ""
        step, digits = format_seconds(self.step.time_s, self.digits), 0 if few else 1
        return step, f"{every:,.0f} tokens/s{per_device}", format_mfu(self.mfu, digits)

    @property
    def operator_origins(self) -> dict[Origin, float]:
        """Shares of the operators' time that were measured, interpolated and modelled, if asked."""
        if self.run.timed is None:
            return {}
        costs = self.prices.costs(self.layout)
        operators = total((c.forward + c.backward).times(c.repeat) for c in costs)
        return {name: part_s / operators.total_s for name, part_s in operators.origins_s.items()}

    @cached_property
    def kernel_classes_s(self) -> dict[str, float]:
        """Seconds of kernels per step by class (`KERNEL_CLASSES`), on the slowest stage."""
        return stage_classes_s(self, self._slowest)

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before the figures are believed."""
        run, order = self.run, self.layout.schedule
        notes = (*beyond_published(run, self.mfu, self.step.time_s), *run.notes)
        refusal_of = import_named("atoll.export:refusals")(run, False) if self.launched else None
        if refusal_of is not None and (refusal := refusal_of(self.layout)):
            notes = (*notes, f"{refusal}; timed as if {run.tool.name} ran it")
        elif self.layout.pp > 1 and order not in run.stack.orders:
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
        step_s = self.step.time_s, (interval.low, interval.high)
        state_bytes = run.states.weight + run.states.optimizer
        state_bytes *= trained_parameters(run.stored or run.model, run.adapters)
        return run_totals(run.length, *step_s, run.tokens, run.devices, state_bytes, self.power_W)

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
        return most_needed_bytes(self.run, self.layout, self.worst)

    @property
    def tight(self) -> bool:
        """Whether it fits, but would not at the upper end of the interval."""
        return self.fits and self.most_needed_bytes > self.run.gpu.hbm_bytes

    def verdict(self) -> str:
        """What is needed of the memory, and whether that is there.

        Returns:
            Words, such as "70 GiB needed of 80 GiB: fits, 10 GiB (12%) to spare".

        Examples:
            >>> import atoll
            >>> atoll.estimate("gpt2-xl", "h100", 8, batch=64).verdict()  # doctest: +ELLIPSIS
            '... needed of 79.65 GiB: fits, ... to spare'
        """
        run = self.run
        free = f" less {100 * run.headroom:.4g}% kept free" if run.headroom else ""
        margin = run.capacity_bytes - self.worst.needed
        chance = self.out_of_memory if self.tight else None
        words = format_fit(margin, run.gpu.hbm_bytes, chance)
        if not self.fits:
            words = f"DOES NOT FIT, {format_bytes(-margin)} too much"
        needed, capacity = format_bytes(self.worst.needed), format_bytes(run.gpu.hbm_bytes)
        return f"{needed} needed of {capacity}{free}: {words}"

    @property
    def step_time_s(self) -> float:
        """Time of a step in seconds."""
        return self.step.time_s

    @property
    def tokens_per_s_per_device(self) -> float:
        """Throughput."""
        return self.run.tokens / self.step.time_s / self.run.devices

    @property
    def power_W(self) -> float | None:
        """Mean draw of a device over the step: at most its limit while it computes, less while it
        waits for others, least while it waits for its host; none where its rating is not known.
        """
        run, step = self.run, self.step
        busy = min(1.0, step.busy_s / step.time_s)
        mix = Estimator(run).mix if run.devices == 1 else None
        if mix is None or not isinstance(run.gpu, Gpu):
            return run.gpu.drawn_W(busy)
        passes = 1 - step.optimizer_s / step.busy_s
        return drawn_W(run.gpu, mix.beside_streams(passes), busy)

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
        return answer_html(self.summary(), self.step.breakdown())

    def summary(self) -> list[tuple[str, str]]:
        """Return the answer in short: what to run, step time, memory, cost, confidence.

        Returns:
            Lines as (label, text), in the order in which every answer has them.

        Examples:
            >>> import atoll
            >>> atoll.estimate("gpt2-xl", "h100", 8, batch=64).summary()[0]  # doctest: +ELLIPSIS
            ('Run', 'gpt2-xl on 8 h100 with megatron-lm: ...')
        """
        run, run_length = self.run, self.whole_run
        step, throughput, mfu = self.figures()
        what = f"{run.model.name} on {run.devices:,} {run.gpu.name} with {run.software}"
        return [
            *(("Note", note) for note in self.notes),
            ("Run", f"{what}: {self.layout}"),
            ("Step", f"{step} ({self.interval.sentence(FEW_DIGITS + 1)}), {throughput}, MFU {mfu}"),
            ("Memory", self.verdict()),
            *([] if run_length is None else [("Cost", run_length.cost_sentence())]),
            ("Confidence", self.expected_error.sentence()),
        ]

    def __str__(self) -> str:
        return "\n".join([*summary_lines(self.summary()), bar_text(self.step.breakdown())])


def rank_compute_s(estimate: Estimate, stage: int) -> float:
    """Return the seconds per step of one rank of a stage without communication and waiting."""
    step, stage_time = estimate.usual_step, estimate.stages[stage]
    passes = stage_time.forward, stage_time.backward, stage_time.recompute
    pass_s = sum(seconds.compute_s for seconds in passes) + stage_time.host_s
    stepper, shares = estimate.prices.shares(estimate.layout)
    layers = estimate.prices.layers_of(estimate.layout, shares[stage])
    parts_s = stepper.microbatches * pass_s + step.accumulate_s
    parts_s += update_s(stepper, layers, step.optimizer_s) + shard_copies_s(stepper, shares[stage])
    return parts_s * estimate.run.stack.slack


def stage_classes_s(estimate: Estimate, stage: int) -> dict[str, float]:
    """Return the seconds of kernels per step by class (`KERNEL_CLASSES`), on a stage."""
    estimator, step, layout = estimate.prices, estimate.usual_step, estimate.layout
    stepper, policy = estimator.shares(layout)[0], estimate.policies[stage]

    def classes_s(prices: Estimator) -> dict[str, float]:
        chunks = prices.shares(layout)[1][stage]
        passes_s = pass_classes_s(prices, layout, chunks, policy)
        times_s = {name: stepper.microbatches * pass_s for name, pass_s in passes_s.items()}
        times_s["streaming"] += step.accumulate_s
        times_s["streaming"] += shard_copies_s(stepper, chunks)
        updated_s = update_s(stepper, prices.layers_of(layout, chunks), step.optimizer_s)
        return times_s | {"optimizer": updated_s}

    # Where the host or others limit the step, the device draws less and keeps a higher clock.
    busy_s = sum(classes_s(estimator).values())
    return classes_s(estimator.busy_for(min(1.0, busy_s / step.time_s)))


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
        if layout.recompute == HOST:
            return self._hosted(layout)
        sums, policies, picks = self._picked(layout)
        optimal = layout.recompute == "optimal"
        rerun = _rerun(self.shares(layout)[1], policies) if optimal else ()
        return Estimate(run, layout, *layout_row(sums, picks), policies, rerun, prices=self)

    def has_room(self, layout: Layout) -> bool:
        """Return whether a layout fits and is not `tight`; faster than its estimate."""
        if layout.recompute == HOST:
            estimate = self.estimate(layout)
            return estimate.fits and not estimate.tight
        sums, _, picks = self._picked(layout)
        worst = fullest(row_memory(sums, sums.states(), picks))
        most_bytes = most_needed_bytes(self.run, layout, worst)
        return worst.needed <= self.run.capacity_bytes and most_bytes <= self.run.gpu.hbm_bytes

    def _picked(self, layout: Layout) -> tuple[Sums, tuple[str, ...], Ints]:
        """Return the sums of a layout, and each stage's policy with its index in the sums."""
        choices = recompute_choices(self.costs(layout), layout.recompute)
        sums, optimal = self._sums(layout, choices), layout.recompute == "optimal"
        picks = figures(sums)[2] if optimal else np.zeros(layout.pp, dtype=np.int64)
        return sums, tuple(choices[pick] for pick in picks), picks

    def step_s(self, layout: Layout) -> float:
        """Return only the step time of a layout, to compare sites; not for "optimal" or "host"."""
        sums = self._sums(layout, (layout.recompute,))
        memory, wanted = sums.state_memory(), np.ones((1, 1), dtype=np.bool_)
        return float(sums.step_s(memory.states, sums.passes(memory), wanted).item())

    def _sums(self, layout: Layout, choices: Sequence[str]) -> Sums:
        tables = make_tables(self, LayoutSequence([layout]), choices)
        return Sums(tables, tables.rows)

    def _hosted(self, layout: Layout) -> Estimate:
        """Move tensors of the fewest blocks per stage that make it fit to host memory, or all."""
        blocks = sum(cost.repeat for cost in self.costs(layout) if cost.is_block)

        def hosting(count: int) -> Estimate:
            return self.estimate(replace(layout, recompute=f"{HOST}@{count}" if count else "none"))

        most = -(-blocks // layout.pp)
        return hosting(bisect_left(range(most), True, key=lambda count: hosting(count).fits))

    def shares(self, layout: Layout) -> tuple[Stepper, Sequence[Sequence[Share]]]:
        """Return the layout's stepper, and the layers of every stage and chunk."""
        costs = self.costs(layout)
        shares = stage_shares(costs, layout.schedule, layout.pp, layout.vpp, layout.blocks)
        return Stepper(self.run, layout), shares

    def trained(self, layout: Layout, chunks: Sequence[Share]) -> tuple[float, float]:
        """Return the dense and expert parameters of a stage that are trained."""
        layers = [pair for chunk in chunks for pair in chunk]
        shared = self.shared(layout, [cost for cost, _ in layers])
        return stage_parameters(self.run, layers, shared)[0]


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


def fullest(memory: Sequence[Memory]) -> Memory:
    """Return the stage that needs most memory."""
    return max(memory, key=lambda stage: stage.needed)


def boundary_bytes(shares: Sequence[Sequence[Share]]) -> float:
    """Return the largest activation between two blocks of one microbatch."""
    layers = (layer for chunks in shares for chunk in chunks for layer, _ in chunk)
    return max((layer.boundary_bytes for layer in layers if layer.is_block), default=0)


def estimate(run: Run, layout: Layout) -> Estimate:
    """Estimate one layout."""
    return Estimator(run).estimate(layout)
