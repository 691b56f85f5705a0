"""Model variants: what one device computes for each model in one microbatch.

A variant is one model with one microbatch size, sharded by tensor, context and expert parallelism.
All variants of all models share one set of passes, so each distinct operator is priced once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, floor

import numpy as np

from atoll.base.arrays import Bools, Ints
from atoll.base.errors import AtollError
from atoll.base.stopping import StopCheck, check_stop, never
from atoll.cost.table import PassSet, flatten
from atoll.placement.facts import ChainFacts, chain_facts
from atoll.profile import Profile
from atoll.questions import SearchQuestion
from atoll.schedule.chip import RING_TURN, in_turns
from atoll.schedule.series import series_begins
from atoll.step.orders import SPLIT
from atoll.training.operators.layers import spread_experts
from atoll.workload import ModelConfig, StoredModel, load_model, prepare, widths
from atoll.workload.fuse import fuse
from atoll.workload.graph.layer import Layer, Model
from atoll.workload.low_precision import check_precision, narrowed
from atoll.workload.prepare import in_context

LONG = 8192  # sequence length in tokens from which cp of 4 and 8 are also tried


@dataclass(frozen=True)
class Workload:
    """One model to train, with its sequence length and global batch."""

    name: str
    config: ModelConfig | StoredModel
    sequence: int
    global_batch: int
    precision: str = "bf16"  # precision of the matrix products (`workload.low_precision`)


@dataclass(frozen=True, slots=True)
class Spreads:
    """Values to try for the axes other than tp; values that a model cannot use are skipped."""

    cp: tuple[int, ...] = (1,)  # context parallelism
    ep: tuple[int, ...] = (1,)
    etp: tuple[int, ...] = ()  # tensor-parallel degrees of the experts; empty: tp
    sp: tuple[bool, ...] = ()  # sequence parallelism if tp > 1; empty: as given by the profile
    apart: bool = False
    """Whether weight passes are also priced separately, for schedules that delay them."""


NO_SPREADS = Spreads()


@dataclass(frozen=True, eq=False)
class Variant:
    """The part of a model that one device computes in one microbatch."""

    workload: int
    config: ModelConfig | StoredModel
    microbatch: int
    tp: int
    model: Model  # the device's share of the model, before expert parallelism
    facts: ChainFacts
    first_layer: int  # index of its first layer in the pass set
    microbatches: int  # number of microbatches in the global batch
    passes: tuple[Layer, ...]
    """Distinct layers as priced. If weight passes are priced separately, each layer appears a
    second time, with its backward pass without weight gradients in place of the forward pass and
    its weight pass in place of the backward pass."""
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sp: bool = True

    @property
    def layers(self) -> int:
        """Return the number of distinct layers."""
        return len(self.facts.layers)

    @property
    def width(self) -> int:
        """Return the number of devices that share one microbatch in a stage."""
        return self.tp * self.cp

    @property
    def plain(self) -> bool:
        """Return whether only tensor parallelism divides the model."""
        return self.cp == self.ep == 1 and self.etp == self.tp

    @property
    def turns(self) -> Ints:
        """Return, for each forward operator of the blocks, the index of its first ring step among
        the priced operators, shape (operators,)."""
        priced = [op for kind in self.facts.blocks for op in self.passes[kind.layer].forward]
        first = [i for i, op in enumerate(priced) if not op.name.endswith(RING_TURN)]
        return np.array(first, np.int64)


@dataclass(frozen=True, eq=False)
class Variants:
    """All variants of all workloads over one set of passes."""

    workloads: tuple[Workload, ...]
    variants: tuple[Variant, ...]
    passes: PassSet
    begins: Bools
    """Whether each operator begins a part of a series (`series_begins`), shape (operators,)."""

    @property
    def layer_ranges(self) -> Ints:
        """Return the first layer of each variant, then the number of layers, (variants + 1,)."""
        ends = [variant.first_layer for variant in self.variants]
        return np.array([*ends, len(self.passes.layers)], np.int64)

    def part(self, numbers: Iterable[int]) -> Variants:
        """Return some of the variants with only their operators, which are faster to price."""
        chosen: list[Variant] = []
        layers: list[int] = []
        for number in numbers:
            variant = self.variants[number]
            chosen.append(replace(variant, first_layer=len(layers)))
            layers += range(variant.first_layer, variant.first_layer + len(variant.passes))
        passes, at = self.passes.subset(np.array(layers, np.int64))
        return Variants(self.workloads, tuple(chosen), passes, self.begins[at])

    def of_workload(self, workload: int) -> Variants:
        """Return the variants of one workload."""
        chosen = self.part(self.of(workload))
        renumbered = tuple(replace(variant, workload=0) for variant in chosen.variants)
        return replace(chosen, workloads=(self.workloads[workload],), variants=renumbered)

    def of(self, workload: int) -> list[int]:
        return [i for i, variant in enumerate(self.variants) if variant.workload == workload]


def make_workload(
    name: str, global_batch: int, sequence: int | None = None, precision: str = "bf16"
) -> Workload:
    config = load_model(name)
    check_precision(config, name, precision)
    length = config.sequence if sequence is None else sequence
    return Workload(name, config, length, global_batch, precision)


def spreads_of(
    job: SearchQuestion, workloads: Sequence[Workload], orders: Sequence[str]
) -> Spreads:
    """Return the values given in the question, or the defaults for its models."""
    long = any(workload.sequence >= LONG for workload in workloads)
    experts = max([1, *(w.config.experts for w in workloads if isinstance(w.config, ModelConfig))])
    powers = tuple(2**i for i in range(experts.bit_length()) if 2**i < experts)
    return Spreads(
        cp=job.cp or ((1, 2, 4, 8) if long else (1, 2)),
        ep=job.ep or (*powers, experts),
        etp=job.etp,
        sp=() if job.sp is None else (job.sp,),
        apart=any(order in SPLIT for order in orders),
    )


def make_variants(
    workloads: Sequence[Workload],
    microbatches: Sequence[int],
    tps: Sequence[int],
    devices: int,
    recompute: str,
    profile: Profile,
    stop: StopCheck = never,
    spreads: Spreads = NO_SPREADS,
) -> Variants:
    """Build every model with every microbatch, tp and other axis values that it allows."""
    variants: list[Variant] = []
    layers: list[Layer] = []
    for index, workload in enumerate(workloads):
        allowed = [t for t in widths(workload.config, tuple(tps)) if t <= devices]
        if not allowed:
            raise AtollError(
                f"model {workload.name}: no tensor width of {list(tps)} divides its heads"
                f" on {devices} devices; width 1 always does."
            )
        # A microbatch that does not divide the batch would count samples that never run.
        sizes = [b for b in microbatches if workload.global_batch % b == 0]
        if not sizes:
            raise AtollError(_no_microbatch(workload, microbatches))
        shares = list(_shares(workload, allowed, devices, profile, spreads))
        degrees = _expert_widths(workload.config, spreads.ep, devices)
        if not shares or not degrees:
            raise AtollError(_no_spread(workload, spreads, devices, bool(shares)))
        for microbatch in sizes:
            for tensor, cp, etp, sp in shares:
                check_stop(stop)
                share = prepare(
                    in_context(workload.config, cp),
                    microbatch,
                    workload.sequence // cp,
                    tp=tensor,
                    sp=sp,
                    attention=profile.attention,
                    fusion="none",
                    expert_tensor=etp,
                    merge_periods=False,
                )
                model = fuse(narrowed(share, workload.precision), profile.fusion)
                facts = chain_facts(model, recompute)
                for ep in degrees:
                    passes = priced_layers(model, cp, ep, spreads.apart)
                    variants.append(
                        Variant(
                            workload=index,
                            config=workload.config,
                            microbatch=microbatch,
                            tp=tensor,
                            model=model,
                            facts=facts,
                            first_layer=len(layers),
                            microbatches=workload.global_batch // microbatch,
                            passes=passes,
                            cp=cp,
                            ep=ep,
                            etp=etp,
                            sp=sp,
                        )
                    )
                    layers.extend(passes)
    priced = flatten(layers)
    ptr, _, pred_ptr, pred_idx = priced.arrays
    begins = series_begins(ptr, pred_ptr, pred_idx)
    return Variants(tuple(workloads), tuple(variants), priced, begins)


def _shares(
    workload: Workload, tps: Sequence[int], devices: int, profile: Profile, spreads: Spreads
) -> Iterator[tuple[int, int, int, bool]]:
    """Yield the allowed combinations of tp, cp, etp and sp."""
    config, sequence = workload.config, workload.sequence
    width = 0 if isinstance(config, StoredModel) else config.expert_width  # of experts
    ring = _has_rings(config, profile)
    for tp, cp in product(tps, spreads.cp):
        if tp * cp > devices or (cp > 1 and (not ring or sequence % (2 * cp))):
            continue
        divided = spreads.sp or ((True, False) if profile.sequence_parallel else (False,))
        for sp in dict.fromkeys(wanted and tp > 1 for wanted in divided):
            if cp > 1 and sp and (sequence // cp) % tp:
                continue
            for etp in spreads.etp or (tp,):
                divides = width > 0 and width % etp == 0 and (sp or tp == 1)
                if divides or etp == tp:
                    yield tp, cp, etp, sp


def _has_rings(config: ModelConfig | StoredModel, profile: Profile) -> bool:
    """Return whether context parallelism is possible, which needs ring flash attention."""
    if isinstance(config, StoredModel) or profile.attention != "flash":
        return False
    return not (config.encoder_layers or config.recurrent)


def left_out_notes(job: SearchQuestion, profile: Profile, variants: Variants) -> Iterator[str]:
    """Yield what the proof does not cover: axis values not tried for any model, and microbatches
    that do not divide a model's batch."""
    every = variants.variants
    configs = [workload.config for workload in variants.workloads]
    listed = {"microbatch": {v.microbatch for v in every}, "tp": {v.tp for v in every}}
    if any(_has_rings(config, profile) for config in configs):
        listed["cp"] = {v.cp for v in every}
    if any(isinstance(config, ModelConfig) and config.experts for config in configs):
        listed["ep"] = {v.ep for v in every}
    tried = {v.sp for v in every if v.tp > 1 and isinstance(v.config, ModelConfig)}
    others = [f"{axis} other than {_numbers(values)}" for axis, values in listed.items()]
    if len(tried) == 1:
        others.append("sp off" if tried == {True} else "sp on")
    yield f"layouts not tried: {'; '.join(others)}"
    for index, workload in enumerate(variants.workloads):
        left = {*job.microbatch} - {every[v].microbatch for v in variants.of(index)}
        if left:
            yield (
                f"microbatch {_numbers(left)} left out: not a divisor of {workload.name}'s batch "
                f"of {workload.global_batch:,}"
            )


def _numbers(values: Iterable[int]) -> str:
    return ", ".join(str(value) for value in sorted(values))


def _expert_widths(
    config: ModelConfig | StoredModel, wanted: Sequence[int], devices: int
) -> list[int]:
    """Return the allowed values of ep; only 1 for a model without experts."""
    experts = 0 if isinstance(config, StoredModel) else config.experts
    if not experts:
        return [1]
    return [ep for ep in wanted if ep <= devices and experts % ep == 0]


def _no_spread(workload: Workload, spreads: Spreads, devices: int, shares: bool) -> str:
    """Return the error message for values of ep or cp that allow no variant."""
    if shares:
        axis, tried, why = "ep", spreads.ep, "has to divide its experts"
    else:
        axis, tried = "cp", spreads.cp
        why = f"needs flash attention over 2 x cp equal parts of {workload.sequence} tokens"
    wanted = ", ".join(str(degree) for degree in tried)
    return (
        f"model {workload.name}: no {axis} of {wanted} can be had on {devices} devices: it {why}; "
        f"{axis} 1 always can."
    )


def priced_layers(model: Model, cp: int, ep: int, apart: bool) -> tuple[Layer, ...]:
    """Return the distinct layers as one chip runs them: attention in ring steps, and the device's
    share of the experts. If `apart`, the halves of each backward pass follow."""
    passes_of_layers = [in_turns(spread_experts(layer, ep), cp) for layer, _ in model.kinds]
    return (*passes_of_layers, *(_halves(layer) for layer in passes_of_layers if apart))


def _halves(layer: Layer) -> Layer:
    data = tuple(op for op in layer.backward if not op.weighs)
    return replace(layer, forward=data, backward=tuple(op for op in layer.backward if op.weighs))


def _no_microbatch(workload: Workload, microbatches: Sequence[int]) -> str:
    """Return the error message, with the nearest batch and the largest microbatch that work."""
    batch = workload.global_batch
    nearest = min(
        {max(1, round_(batch / b)) * b for b in microbatches for round_ in (floor, ceil)},
        key=lambda candidate: (abs(candidate - batch), candidate),
    )
    size = max(b for b in range(1, min(max(microbatches), batch) + 1) if batch % b == 0)
    tried = ", ".join(str(b) for b in sorted(set(microbatches)))
    return (
        f"model {workload.name}: no microbatch of {tried} divides a batch of {batch}; take a batch "
        f"of {nearest}, or a microbatch of {size}."
    )
