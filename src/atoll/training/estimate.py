"""One training run under one layout: step time by part, memory by part, and whether it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from atoll.cost.pricer import Pricer
from atoll.errors import AtollError
from atoll.hardware.device import Chip
from atoll.notebook import answer_html, bar_text
from atoll.step.bubbles import bubble_s, step_with_transfers_s
from atoll.step.layout import Layout, check_layout
from atoll.step.orders import SPLIT, arrivals
from atoll.step.stages import stage_shares
from atoll.training.accuracy import DIGITS, FEW_DIGITS, Expected, expected_error
from atoll.training.layers import HALF, LayerCost, Share, choices_of, layer_costs
from atoll.training.memory import Memory, stage_memory
from atoll.training.pricing import GpuPricer
from atoll.training.run import Run
from atoll.training.step import StageTime, Step, Stepper
from atoll.units import format_bytes, format_mfu, format_seconds
from atoll.workload.build import shared_parameters
from atoll.workload.flops import model_flops
from atoll.workload.joint import joined
from atoll.workload.layer import Model
from atoll.workload.prepare import prepare

# Bytes moved over bytes needed by Adam on 16-bit states, whose kernels go through fp32: fitted on
# the optimizer times of h200_steps.csv.
HALF_OPTIMIZER_EXCESS = 1.8
VOCABULARY_UNIT = 128  # Megatron-LM pads to this many rows on every tensor rank


@dataclass(frozen=True)
class Estimate:
    """What a layout costs."""

    run: Run
    layout: Layout
    step: Step
    memory: tuple[Memory, ...]
    stages: tuple[StageTime, ...]
    policy: str = ""
    """The recomputation choice that "optimal" came to."""
    rerun: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Under it, the operators of each kind of block that run again."""

    @property
    def worst(self) -> Memory:
        return max(self.memory, key=lambda m: m.needed)

    @property
    def expected_error(self) -> Expected | None:
        """How far such estimates were off; none for the kinds of runs that were validated."""
        return expected_error(self.run, self.layout)

    @property
    def digits(self) -> int:
        """Significant digits that times of this estimate are worth."""
        return FEW_DIGITS if self.expected_error else DIGITS

    def figures(self) -> tuple[str, str, str]:
        """Step, throughput and MFU, to the digits that they are worth."""
        rate, few = self.tokens_per_s_per_device, self.digits < DIGITS
        tokens = float(f"{rate:.{self.digits - 1}e}") if few else rate
        return (
            format_seconds(self.step.time_s, self.digits),
            f"{tokens:,.0f} tokens/s a device",
            format_mfu(self.mfu, 0 if few else 1),
        )

    @property
    def recomputed(self) -> str:
        """The recomputation policy that it comes to."""
        if self.policy and not any(operators for _, operators in self.rerun):
            return "none"
        return self.policy or self.layout.recompute

    @property
    def fits(self) -> bool:
        return self.worst.needed <= self.run.gpu.hbm_bytes

    @property
    def tokens_per_s_per_device(self) -> float:
        return self.run.tokens / self.step.time_s / self.run.devices

    @property
    def mfu(self) -> float:
        """Model FLOPs (`workload.flops`) over the devices' dense 16-bit peak."""
        run = self.run
        flops = run.global_batch * model_flops(run.stored or run.model, run.sequence)
        peak = run.devices * run.gpu.peak_flops(run.gpu.half_dtype)
        return flops / self.step.time_s / peak

    def _repr_html_(self) -> str:
        return answer_html(*self.summary())

    def summary(self) -> tuple[str, list[tuple[str, str]], dict[str, float]]:
        """Title, facts and parts of the step, for people."""
        run, worst = self.run, self.worst
        verdict = "fits" if self.fits else "does not fit"
        step, throughput, mfu = self.figures()
        error = self.expected_error
        facts = [
            ("layout", str(self.layout)),
            ("step", step),
            ("throughput", throughput),
            ("MFU", mfu),
            *([("note", error.sentence())] if error else []),
            (
                "memory",
                f"{format_bytes(worst.needed)} of {format_bytes(run.gpu.hbm_bytes)} on stage "
                f"{worst.stage}: {verdict}",
            ),
        ]
        title = f"{run.model.name} on {run.devices:,} {run.gpu.name}"
        return title, facts, self.step.breakdown()

    def __str__(self) -> str:
        title, facts, parts_s = self.summary()
        rows = [f"  {name:<12}{value}" for name, value in facts]
        return "\n".join([title, *rows, f"  {bar_text(parts_s)}"])

    def to_dict(self) -> dict[str, Any]:
        worst = self.worst
        return {
            "model": self.run.model.name,
            "device": self.run.gpu.name,
            "network": self.run.network.name,
            "devices": self.run.devices,
            "sequence": self.run.sequence,
            "global_batch": self.run.global_batch,
            "stack": self.run.stack.name,
            "states": self.run.states.name,
            "precision": self.run.precision,
            "attention": self.run.attention,
            "imbalance": self.run.imbalance,
            "layout": _layout_dict(self.layout),
            "step_time_s": self.step.time_s,
            "tokens_per_s_per_device": self.tokens_per_s_per_device,
            "mfu": self.mfu,
            "fits": self.fits,
            "memory_bytes": {
                "total": worst.allocated,
                "needed": worst.needed,
                "capacity": self.run.gpu.hbm_bytes,
                "stage": worst.stage,
                "parts": worst.parts(),
                "stages": [memory.to_dict() for memory in self.memory],
            },
            "breakdown_s": self.step.breakdown(),
            **({"notes": list(self.run.notes)} if self.run.notes else {}),
            **({"expected_error": error.to_dict()} if (error := self.expected_error) else {}),
            **({"recomputed": {name: list(ops) for name, ops in self.rerun}} if self.rerun else {}),
        }


def _layout_dict(layout: Layout) -> dict[str, Any]:
    return {name: getattr(layout, name) for name in layout.__slots__}


class Estimator:
    """Estimates layouts of one run; variants of its model are priced once."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.pricer = _pricer(run)
        self._variants: dict[tuple[int, int, int, int, int, bool, bool], tuple[LayerCost, ...]]
        self._variants = {}
        self._models: dict[tuple[int, int, int, int, bool], Model] = {}

    def costs(self, layout: Layout) -> tuple[LayerCost, ...]:
        """Layer costs of the layout's variant of the model."""
        sp = layout.sp and layout.tp > 1
        optimal = layout.recompute.startswith("optimal")
        key = layout.microbatch, layout.tp, layout.cp, layout.ep, layout.etp, sp, optimal
        if key not in self._variants:
            self._variants[key] = layer_costs(
                self.model(layout),
                self.pricer,
                layout.cp,
                layout.ep,
                optimal=optimal,
                stored=self.run.stored is not None,
            )
        return self._variants[key]

    def model(self, layout: Layout) -> Model:
        """One device's share of the model under a layout, operator by operator; its experts are not
        yet spread.
        """
        sp = layout.sp and layout.tp > 1
        key = layout.microbatch, layout.tp, layout.cp, layout.etp, sp
        if key not in self._models:
            share = prepare(
                self.run.stored or self.run.model,
                layout.microbatch,
                self.run.sequence // layout.cp,
                layout.tp,
                sp,
                expert_tensor=layout.etp,
                attention="unfused" if self.run.attention == "unfused" else "flash",
                fusion=self.pricer.fusion,
                vocabulary_unit=VOCABULARY_UNIT if self.run.stack.padded else 1,
                whole_periods=False,
            )
            if self.run.stored is not None and not self.run.stack.split_products:
                share = share.map(joined)
            self._models[key] = share
        return self._models[key]

    def estimate(self, layout: Layout) -> Estimate:
        """What one layout costs; "optimal" recomputation is the fastest choice that fits."""
        run = self.run
        check_layout(layout, run.model, run.devices, run.global_batch, run.sequence)
        if layout.cp > 1 and run.attention == "unfused":
            raise AtollError(
                f"cp is {layout.cp}, but only flash attention goes round a ring; use cp 1 or "
                "attention flash"
            )
        if layout.recompute != "optimal":
            return self._estimate(layout)
        policy = self._policy(layout)
        best = self._estimate(replace(layout, recompute=policy))
        rerun = tuple((c.name, c.kept(policy).rerun) for c in self.costs(layout) if c.optimal)
        return replace(best, layout=layout, policy=policy, rerun=rerun)

    def _policy(self, layout: Layout) -> str:
        """What "optimal" comes to: the fastest choice that fits, or the one that needs least."""
        costs = self.costs(layout)
        shares = stage_shares(costs, layout.schedule, layout.pp, layout.vpp, layout.blocks)
        needed: dict[str, float] = {}
        seconds: dict[str, tuple[float, ...]] = {}
        for choice in choices_of(costs, "optimal"):
            stepper = Stepper(self.run, replace(layout, recompute=choice))
            memory = (self._memory(stepper, stage, x) for stage, x in enumerate(shares))
            needed[choice] = max(m.needed for m in memory)
            seconds[choice] = tuple(s for cost in costs for s in stepper.layer_s(cost))
        fitting = [c for c in needed if needed[c] <= self.run.gpu.hbm_bytes]
        if not fitting:
            return min(needed, key=lambda c: needed[c])
        # A step is no shorter with longer layers (but for weight passes that fill a bubble): only
        # those that no other beats are estimated.
        kept: list[str] = []
        for choice in sorted(fitting, key=lambda c: sum(seconds[c])):
            beaten = any(_no_longer(seconds[other], seconds[choice]) for other in kept)
            if layout.schedule in SPLIT or not beaten:
                kept.append(choice)
        if len(kept) == 1:
            return kept[0]
        return min(kept, key=lambda c: self._estimate(replace(layout, recompute=c)).step.time_s)

    def _estimate(self, layout: Layout) -> Estimate:
        run = self.run
        costs = self.costs(layout)
        shares = stage_shares(costs, layout.schedule, layout.pp, layout.vpp, layout.blocks)
        stepper = Stepper(run, layout)
        stages = tuple(stepper.stage_time(chunks) for chunks in shares)
        step = self._step(stepper, shares, stages)
        memory = tuple(self._memory(stepper, stage, chunks) for stage, chunks in enumerate(shares))
        return Estimate(run, layout, step, memory, stages)

    def _memory(self, stepper: Stepper, stage: int, chunks: Sequence[Share]) -> Memory:
        layout = stepper.layout
        came, _ = arrivals(layout.schedule, layout.pp, len(chunks))[stage]
        boundary = max((c.boundary_bytes for x in chunks for c, _ in x if c.is_block), default=0)
        return stage_memory(
            self.run,
            layout,
            stage,
            chunks,
            stepper.microbatches,
            shared_parameters=self._shared(layout, chunks),
            entering_bytes=boundary if came else 0.0,
        )

    def _shared(self, layout: Layout, chunks: Sequence[Share]) -> int:
        """Parameters that several layers of a stage have in common, which it holds once."""
        model = self.model(layout)
        if layout.pp == 1:
            return model.shared_parameters
        if self.run.stored is not None:
            return 0
        here = {cost.name for chunk in chunks for cost, _ in chunk}
        return shared_parameters(tuple(x for x in model.layers if x[0].name in here))

    def _step(
        self, stepper: Stepper, shares: Sequence[Sequence[Share]], stages: Sequence[StageTime]
    ) -> Step:
        run, layout, overlap = self.run, stepper.layout, self.run.stack.overlap
        m = stepper.microbatches
        boundary = max(
            (c.boundary_bytes for x in shares for k in x for c, _ in k if c.is_block), default=0
        )
        one_way_s = stepper.send_s(boundary)
        slowest = max(stages, key=lambda s: s.total_s)
        parameters = [_parameters(chunks, self._shared(layout, chunks)) for chunks in shares]
        accumulate_s = max(accumulation_s(run, layout, m, *p) for p in parameters)
        passes = [s.passes for s in stages]
        idle_s = bubble_s(layout.schedule, passes, m, layout.vpp)
        passes_s = step_with_transfers_s(
            layout.schedule,
            passes,
            m,
            layout.vpp,
            [one_way_s] * layout.pp,
            1.0 - overlap.pipeline,
        )
        send_total_s = passes_s - m * slowest.total_s - idle_s
        last_s, before_s = max(stepper.gradient_s(dense, expert) for dense, expert in parameters)
        # A backward pass, stretched where the host's launches set the pace.
        behind_s = slowest.total_s - slowest.forward.total_s
        gradient_s = sum(
            times * (wire_s - overlap.gradient * min(wire_s, behind_s))
            for times, wire_s in ((1, last_s), (m - 1, before_s))
        )
        optimizer_s = max(update_s(run, layout, *p) for p in parameters)
        parts_s = passes_s + m * accumulate_s + gradient_s + optimizer_s + run.stack.step_s
        time_s = parts_s * run.stack.slack
        total = slowest.forward + slowest.backward
        again = slowest.recompute
        return Step(
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
            host_s=m * slowest.host_s + run.stack.step_s + time_s - parts_s,
        )


def _pricer(run: Run) -> Pricer:
    if isinstance(run.gpu, Chip):
        # With scipy and kernels: slow to import, rarely needed.
        from atoll.profiles import DEFAULT
        from atoll.schedule.chip import ChipPricer

        return ChipPricer(run.gpu.accelerator, run.network, DEFAULT)
    return GpuPricer(
        run.gpu,
        run.stack,
        run.precision,
        run.alias,
        attention=run.attention,
        stored=run.stored is not None,
    )


def accumulation_s(run: Run, layout: Layout, m: int, dense: float, expert: float) -> float:
    """A microbatch's gradients added to the sum of those before: by a kernel of its own for 16-bit
    ones, in the product's epilogue for fp32 ones. Under ZeRO 2 all are copied into the buckets that
    are reduced, and a rank's part is added (under ZeRO 3 copies are within what was fitted to
    gathers). Under DualPipe a microbatch has gradients of one of a stage's copies. Linear in the
    parameters.
    """
    own = layout.divided(dense, expert) if layout.zero >= 2 else dense + expert
    moved = own * run.stack.accumulated_bytes / layout.copies if m > layout.copies else 0.0
    if layout.zero == 2:
        moved += (dense + expert) * (HALF + run.states.reduced)
    return moved / run.gpu.stream_Bps


def update_s(run: Run, layout: Layout, dense: float, expert: float) -> float:
    """The optimizer's step: bytes of states through HBM, at the calibrated excess of its kernel.
    Linear in the parameters.
    """
    own = layout.divided(dense, expert) if layout.zero >= 1 else dense + expert
    excess = run.gpu.optimizer_traffic
    if run.states.name == "bf16" and excess > 1.0:
        excess = HALF_OPTIMIZER_EXCESS
    return own * run.states.update * excess / run.gpu.stream_Bps


def _no_longer(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


def _parameters(chunks: Sequence[Share], shared: int) -> tuple[float, float]:
    """Dense and expert parameters of a stage."""
    dense = sum(c.parameters * n for chunk in chunks for c, n in chunk) - shared
    expert = sum(c.expert_parameters * n for chunk in chunks for c, n in chunk)
    return float(dense), float(expert)


def estimate(run: Run, layout: Layout) -> Estimate:
    """What one layout costs."""
    return Estimator(run).estimate(layout)
