"""The layouts' raw material: each model at each microbatch and tensor width, with its graphs.

A variant is one model sharded for one microbatch and one tensor width. All variants of all models
are flattened into one set of passes, so that distinct operators are costed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from atoll.cost.table import PassSet, flatten
from atoll.errors import AtollError
from atoll.placement.chain import ChainFacts, chain_facts
from atoll.profile import Profile
from atoll.stopping import Asked, go_on, never
from atoll.workload import ModelConfig, StoredModel, load_model, prepare, widths
from atoll.workload.graph.layer import Layer, Model


@dataclass(frozen=True)
class Workload:
    """One model to train, with the batch it is trained with."""

    name: str
    config: ModelConfig | StoredModel
    sequence: int
    global_batch: int


@dataclass(frozen=True, eq=False)
class Variant:
    workload: int
    microbatch: int
    tensor: int
    model: Model
    facts: ChainFacts
    first_layer: int
    """Index of its first layer in the pass set."""
    microbatches: int
    """Microbatches in the whole batch."""

    @property
    def layers(self) -> int:
        return len(self.model.layers)


@dataclass(frozen=True, eq=False)
class Variants:
    """All variants of all workloads over one set of passes."""

    workloads: tuple[Workload, ...]
    variants: tuple[Variant, ...]
    passes: PassSet

    @property
    def layer_ranges(self) -> NDArray[np.int64]:
        """First layer of each variant in the pass set, and the number of layers."""
        ends = [variant.first_layer for variant in self.variants]
        return np.array([*ends, len(self.passes.layers)], np.int64)

    def only(self, number: int) -> Variants:
        """One variant alone, with its own operators: pricing a single chip is then quick."""
        variant = replace(self.variants[number], first_layer=0)
        layers = (layer for layer, _ in variant.model.layers)
        return Variants(self.workloads, (variant,), flatten(layers))

    def of(self, workload: int) -> list[int]:
        return [i for i, variant in enumerate(self.variants) if variant.workload == workload]


def make_workload(name: str, global_batch: int, sequence: int | None = None) -> Workload:
    config = load_model(name)
    length = config.sequence if sequence is None else sequence
    return Workload(name, config, length, global_batch)


def make_variants(
    workloads: Sequence[Workload],
    microbatches: Sequence[int],
    tensor_widths: Sequence[int],
    devices: int,
    recompute: str,
    profile: Profile,
    stop: Asked = never,
) -> Variants:
    """Build every model at every microbatch and every tensor width that it allows."""
    variants: list[Variant] = []
    layers: list[Layer] = []
    for index, workload in enumerate(workloads):
        allowed = [t for t in widths(workload.config, tuple(tensor_widths)) if t <= devices]
        if not allowed:
            raise AtollError(
                f"model {workload.name}: no tensor width of {list(tensor_widths)} divides its heads"
                f" on {devices} devices; width 1 always does."
            )
        # A microbatch that leaves a remainder would be credited with samples that it never runs.
        sizes = [b for b in microbatches if workload.global_batch % b == 0]
        if not sizes:
            raise AtollError(_no_microbatch(workload, microbatches))
        for microbatch in sizes:
            for tensor in allowed:
                go_on(stop)
                model = prepare(
                    workload.config,
                    microbatch,
                    workload.sequence,
                    tensor_parallel=tensor,
                    sequence_parallel=profile.sequence_parallel and tensor > 1,
                    attention=profile.attention,
                    fusion=profile.fusion,
                )
                variants.append(
                    Variant(
                        workload=index,
                        microbatch=microbatch,
                        tensor=tensor,
                        model=model,
                        facts=chain_facts(model, recompute),
                        first_layer=len(layers),
                        microbatches=workload.global_batch // microbatch,
                    )
                )
                layers.extend(layer for layer, _ in model.layers)
    return Variants(tuple(workloads), tuple(variants), flatten(layers))


def _no_microbatch(workload: Workload, microbatches: Sequence[int]) -> str:
    """The refusal, with the nearest batch and the largest microbatch that would do."""
    batch = workload.global_batch
    nearest = min(
        {max(1, round_(batch / b)) * b for b in microbatches for round_ in (floor, ceil)},
        key=lambda other: (abs(other - batch), other),
    )
    size = max(b for b in range(1, min(max(microbatches), batch) + 1) if batch % b == 0)
    tried = ", ".join(str(b) for b in sorted(set(microbatches)))
    return (
        f"model {workload.name}: no microbatch of {tried} divides a batch of {batch}; take a batch "
        f"of {nearest}, or a microbatch of {size}."
    )
