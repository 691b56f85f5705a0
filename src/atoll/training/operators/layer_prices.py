"""Layer costs of the variants of a run's model (one microbatch on one device), cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Any, Self, TypeVar

from atoll.base.registry import import_named
from atoll.cost.gpu_gemm import fastest_flops
from atoll.cost.pricer import Pricer, total
from atoll.hardware.device import TemplateChip
from atoll.hardware.gpu import ELEMENT_BYTES, SCALED, Gpu
from atoll.step.layout import FULL_BLOCKS, HOST, RECOMPUTE, Layout
from atoll.step.stages import ChainWork
from atoll.training.operators.gpu_pricer import GpuPricer
from atoll.training.operators.kernels.launched import attention_form, launched
from atoll.training.operators.kernels.wide_products import is_wide
from atoll.training.operators.layers import HALF, LayerCost, Share, layer_costs
from atoll.training.operators.step_clock import KernelMix, in_step
from atoll.training.operators.timings import Timings
from atoll.training.run import Run
from atoll.workload.adapters import with_adapters
from atoll.workload.builders.model import shared_parameters
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.fuse import fuse
from atoll.workload.graph.layer import Layer, Model, block_names
from atoll.workload.graph.operator import CollectiveKind, Operator
from atoll.workload.joined_products import (
    CONCATENATED_FAMILIES,
    JOINT_FAMILIES,
    copied_heads,
    joined,
    one_projection,
    views_of_projection,
)
from atoll.workload.low_precision import check_precision, narrowed
from atoll.workload.prepare import in_context, prepare

T = TypeVar("T")
MIX_TOKENS = 8192  # of a microbatch whose kernels decide on the clock
SAME_WORK = 0.05  # blocks whose FLOPs differ by less are split as equal ones
VOCABULARY_UNIT = 128  # Megatron-LM pads to this many rows on every tensor rank


class LayerPrices:
    """Layer costs of one run's variants."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.pricer = _pricer(run)
        self._variants: dict[tuple[object, ...], tuple[LayerCost, ...]] = {}
        self._models: dict[tuple[int, int, int, int, bool], Model] = {}
        self._cache: dict[tuple[object, ...], Any] = {}
        self.mix: KernelMix | None = None
        if isinstance(self.pricer, GpuPricer) and self.pricer.gpu.calibration.limit_throttle:
            self.mix = self._mix(self.pricer.gpu)
            self._set_clock(self.pricer.gpu, self.mix)

    def _mix(self, gpu: Gpu) -> KernelMix:
        """Return the mix of kernels of the undivided model, by which the clock is chosen."""
        layout = Layout(microbatch=max(1, MIX_TOKENS // self.run.sequence))
        passes = total((c.forward + c.backward).times(c.repeat) for c in self.costs(layout))
        formats = {True: self.run.precision, False: gpu.half_dtype}
        rates = {linear: fastest_flops(gpu, dtype) for linear, dtype in formats.items()}
        products_s = attention_s = 0.0
        for layer, repeat in self.model(layout).layers:
            for op in (*layer.forward, *layer.backward):
                flops = sum(product.flops * product.fraction for product in op.matmuls)
                fastest_s = repeat * flops / rates[op.kind.startswith("linear")]
                if op.kind in ("attention", "attention_bwd"):
                    attention_s += fastest_s
                elif not is_wide(self.run.stack, op):
                    products_s += fastest_s
        times_s = products_s, attention_s, passes.vector_s
        return KernelMix(*(time_s / passes.total_s for time_s in times_s))

    def with_run(self, run: Run) -> Self:
        """Return the costs of a run that differs only in machine rates; both share the model."""
        prices = type(self)(run)
        prices._models = self._models
        return prices

    def at(self, run: Run) -> Self:
        """Return the same layer costs for the run at a site that does not change them."""
        prices = copy(self)
        prices.run, prices._cache = run, {}
        return prices

    def busy_for(self, share: float) -> Self:
        """Return the costs at the clock of a device whose kernels run for a share of the time."""
        if self.mix is None or not isinstance(self.run.gpu, Gpu):
            return self
        prices = copy(self)
        prices._set_clock(self.run.gpu, self.mix.times(share))
        return prices

    def _set_clock(self, gpu: Gpu, mix: KernelMix) -> None:
        """Price all kernels at the clock of this mix."""
        self.pricer = _pricer(replace(self.run, gpu=in_step(gpu, mix)))
        self._variants, self._cache = {}, {}

    def lower_bounds(self) -> Self:
        """Return faster lower bounds on the costs of chips, whose passes are schedules; costs of
        existing devices are returned unchanged.
        """
        if not isinstance(self.run.gpu, TemplateChip):
            return self
        bounds = type(self)(self.run)
        bounds.pricer = _pricer(self.run, bounds_only=True)
        bounds._models = self._models
        return bounds

    def once(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        """Return the cached result of `make` for this key."""
        if key not in self._cache:
            self._cache[key] = make()
        cached: T = self._cache[key]
        return cached

    def costs(self, layout: Layout) -> tuple[LayerCost, ...]:
        """Return the layer costs of the layout's variant of the model."""
        sp = layout.sp and layout.tp > 1
        optimal = layout.recompute.startswith("optimal")
        modules = "" if optimal or layout.recompute in RECOMPUTE else layout.recompute
        stages = layout.pp if modules.startswith(FULL_BLOCKS) or HOST in modules else 1
        key = layout.microbatch, layout.tp, layout.cp, layout.ep, layout.etp, sp, (modules, stages)
        if key not in self._variants:
            self._variants[key] = layer_costs(
                self.model(layout),
                self.pricer,
                layout.cp,
                layout.ep,
                modules=modules,
                stages=stages,
                stored=self.run.stored is not None,
                frozen=self.run.adapters is not None,
            )
        return self._variants[key]

    def layers_of(self, layout: Layout, chunks: Sequence[Share]) -> list[tuple[Layer, int]]:
        """Return the layers of a stage's costs, and how often each occurs."""
        models = zip(self.costs(layout), self.model(layout).layers, strict=True)
        layers = {id(cost): layer for cost, (layer, _) in models}
        return [(layers[id(cost)], count) for chunk in chunks for cost, count in chunk]

    def model(self, layout: Layout) -> Model:
        """Return one device's share of the model's operators, before experts are spread."""
        sp = layout.sp and layout.tp > 1
        key = layout.microbatch, layout.tp, layout.cp, layout.etp, sp
        if key not in self._models:
            share = prepare(
                in_context(self.run.stored or self.run.model, layout.cp),
                layout.microbatch,
                self.run.sequence // layout.cp,
                layout.tp,
                sp,
                expert_tensor=layout.etp,
                attention=attention_form(self.run),
                fusion="none",
                vocabulary_unit=VOCABULARY_UNIT if self.run.stack.padded else 1,
                merge_periods=False,
            )
            if layout.tp > 1 and not self.run.stack.divides_table:
                first, *_, last = self.model(replace(layout, tp=1, etp=1, sp=False)).layers
                share = replace(share, layers=(first, *share.layers[1:-1], last))
            if self.run.stored is not None and not self.run.stack.split_products:
                share = share.map(joined)
            apart = self.run.stack.split_products
            modules = apart and isinstance(self.pricer, GpuPricer) and layout.tp == 1
            family, rotary = self.run.model.family, self.run.stack.passes.get("rotary")
            eager = rotary is not None and rotary.kernels > 1
            if modules and family in JOINT_FAMILIES:
                share = share.map(one_projection)
                share = share.map(views_of_projection) if eager else share
            if modules and eager and family in CONCATENATED_FAMILIES:
                share = share.map(copied_heads)
            if self.run.adapters is not None:
                share = with_adapters(share, self.run.adapters, apart=apart)
            elif self._casts_gathers:
                blocks = block_names(share)
                share = share.map(
                    lambda layer: (
                        cast_gathers(layer, self.run.precision) if layer.name in blocks else layer
                    )
                )
            if isinstance(self.pricer, GpuPricer):
                share = share.map(lambda layer: launched(layer, self.run, layout.microbatch))
            if isinstance(self.run.gpu, TemplateChip):
                check_precision(self.run.stored, share.name, self.run.precision)
                share = narrowed(share, self.run.precision)
            self._models[key] = fuse(share, self.pricer.fusion)
        return self._models[key]

    @property
    def _casts_gathers(self) -> bool:
        """Whether the software casts before it gathers (GPUs); chips cast before a product."""
        run = self.run
        narrow = run.stack.scaled_inputs and run.precision in SCALED
        return narrow and not isinstance(run.gpu, TemplateChip)

    def shared(self, layout: Layout, costs: Sequence[LayerCost]) -> int:
        """Return the parameters that several layers of a stage share."""
        model = self.model(layout)
        if layout.pp == 1:
            return model.shared_parameters
        if self.run.stored is not None:
            return 0
        layer_names = frozenset(cost.name for cost in costs)
        return self.once(
            ("held twice", id(model), layer_names),
            lambda: shared_parameters(
                tuple((layer, n) for layer, n in model.layers if layer.name in layer_names)
            ),
        )


def chain_work(run: Run) -> ChainWork:
    """Return the FLOPs of the blocks and of the layers behind them, relative to the mean block."""
    if run.stored is None:
        return _config_work(run.model, run.sequence)
    return _model_work(prepare(run.stored, run.stored.file.microbatch or 1, run.sequence))


@lru_cache(maxsize=64)
def _config_work(config: ModelConfig, sequence: int) -> ChainWork:
    return _model_work(prepare(config, 1, sequence, merge_periods=False))


def _model_work(model: Model) -> ChainWork:
    names = block_names(model)
    is_block = [layer.name in names for layer, _ in model.layers]
    flops = [sum(op.flops for op in layer.forward) for layer, _ in model.layers]
    block_flops = [
        layer_flops
        for block, layer_flops, (_, n) in zip(is_block, flops, model.layers, strict=True)
        for _ in range(n if block else 0)
    ]
    first, behind = is_block.index(True), len(is_block) - is_block[::-1].index(True)
    head_flops = sum(
        n * layer_flops
        for layer_flops, (_, n) in zip(flops[behind:], model.layers[behind:], strict=True)
    )
    front, blocks, back = (
        sum(n * layer.parameters for layer, n in model.layers[part])
        for part in (slice(first), slice(first, behind), slice(behind, None))
    )
    mean, mean_parameters = sum(block_flops) / len(block_flops), blocks / len(block_flops)
    if not mean or not mean_parameters:
        return ChainWork(len(block_flops), 0.0)
    differ = max(block_flops) - min(block_flops) > SAME_WORK * mean
    block_work = tuple(work / mean for work in block_flops) if differ else ()
    end_parameters = front / mean_parameters, back / mean_parameters
    parameters = tuple(
        layer.parameters / mean_parameters
        for block, (layer, n) in zip(is_block, model.layers, strict=True)
        for _ in range(n if block and differ else 0)
    )
    work = head_flops / mean, block_work, end_parameters, parameters
    return ChainWork(len(block_flops), *work)


def cast_gathers(layer: Layer, precision: str) -> Layer:
    """Cast tensors that are gathered only for products before they are sent, as Transformer
    Engine's linear modules do. Block scales lie along the rows of one product, so a gradient in two
    products is sent in two casts. (Modules with adapters return the gathered 16-bit tensor.)
    """

    def cast(op: Operator, operators: Sequence[Operator]) -> Operator:
        sent = op.collective
        kinds = [reader.kind for reader in operators if set(reader.reads) & set(op.writes)]
        if sent is None or sent.kind is not CollectiveKind.ALL_GATHER or not kinds:
            return op
        if not all(kind.startswith("linear") for kind in kinds):
            return op
        casts = len(kinds) if precision != "fp8" else 1
        share = min(1.0, casts * ELEMENT_BYTES[precision] / HALF)
        return replace(op, collective=replace(sent, bytes=round(share * sent.bytes)))

    return replace(
        layer,
        forward=tuple(cast(op, layer.forward) for op in layer.forward),
        backward=tuple(cast(op, layer.backward) for op in layer.backward),
    )


def _pricer(run: Run, *, bounds_only: bool = False) -> Pricer:
    if isinstance(run.gpu, TemplateChip):
        # Imports scipy and kernels: slow, rarely needed.
        from atoll.profiles import DEFAULT
        from atoll.schedule.chip import ChipPricer

        hidden = run.stack.overlap.tensor_products
        chip = run.gpu.accelerator
        return ChipPricer(chip, run.network, DEFAULT, hidden, bounds_only=bounds_only)
    timings: Timings | None = None
    if run.timed is not None:
        timings = import_named("atoll.calibration.timed_tables:timings")(
            run.gpu.name, run.precision
        )
    return GpuPricer(
        run.gpu,
        run.stack,
        run.precision,
        run.alias,
        attention=run.attention,
        stored=run.stored is not None,
        frozen=run.adapters is not None,
        timings=timings,
    )
