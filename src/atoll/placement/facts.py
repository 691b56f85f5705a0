"""A sharded model as a chain of layers: the properties that do not depend on times."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.base.errors import AtollError
from atoll.placement.recompute import KeepChoice, frontier, keep_choices, rerun_table
from atoll.workload.graph.layer import Layer, Model, block_names

RECOMPUTE = ("optimal", "none", "full")
"""Recomputation policies: chosen per operator, nothing, everything except layer inputs."""


@dataclass(frozen=True, eq=False)
class BlockKind:
    """A kind of block with its choices of tensors to keep."""

    layer: int
    """Index into `ChainFacts.layers`."""
    choices: tuple[KeepChoice, ...]
    """Choices that the recomputation policy allows."""
    kept_bytes: Floats
    """Bytes kept, shape (choices,)."""
    rerun: Floats
    """1 where a choice recomputes an operator, shape (choices, forward operators)."""


@dataclass(frozen=True, eq=False)
class ChainFacts:
    """Properties of a sharded model that a placement needs, one array entry per layer."""

    model: Model
    layers: tuple[tuple[Layer, int], ...]
    """Distinct layers, each with its number of repeats in the chain."""
    kind: Ints  # index into layers
    saved_bytes: Floats
    parameters: Floats
    block: Ints  # index into blocks; -1 for other layers
    boundary_bytes: Floats  # shape (layers + 1,): activation that enters each layer
    blocks: tuple[BlockKind, ...]

    @property
    def repeats(self) -> Ints:
        """Return the number of repeats of each distinct layer, shape (distinct layers,)."""
        return np.array([repeat for _, repeat in self.layers], np.int64)

    @cached_property
    def operators(self) -> tuple[slice, ...]:
        """Return the slice of each kind of block in arrays of all blocks' forward operators."""
        ends = [0, *accumulate(kind.rerun.shape[1] for kind in self.blocks)]
        return tuple(slice(*span) for span in pairwise(ends))

    @property
    def operator_count(self) -> int:
        """Return the number of forward operators of all kinds of blocks."""
        return sum(kind.rerun.shape[1] for kind in self.blocks)

    def frontiers(self, forward_s: Floats) -> list[tuple[Floats, Floats, Ints]]:
        """Return the `frontier` of each kind of block, given the seconds of forward operators."""
        pairs = zip(self.blocks, self.operators, strict=True)
        return [frontier(kind.kept_bytes, kind.rerun @ forward_s[span]) for kind, span in pairs]


def chain_facts(model: Model, recompute: str) -> ChainFacts:
    """Return the chain of a model, whose blocks may recompute under the given policy."""
    if recompute not in RECOMPUTE:
        raise AtollError(
            f"recompute: unknown policy {recompute!r}; allowed are {', '.join(RECOMPUTE)}."
        )
    kinds, names = model.kinds, block_names(model)
    layers = [layer for layer, _ in kinds]
    number = {id(layer): k for k, layer in enumerate(layers)}
    kind = np.repeat(
        [number[id(layer)] for layer, _ in model.layers], [repeat for _, repeat in model.layers]
    )
    blocks = tuple(
        _block_kind(k, layer, recompute) for k, layer in enumerate(layers) if layer.name in names
    )
    numbers = {kind_of_block.layer: i for i, kind_of_block in enumerate(blocks)}
    return ChainFacts(
        model=model,
        layers=kinds,
        kind=kind,
        saved_bytes=np.array([float(layers[k].saved_bytes) for k in kind]),
        parameters=np.array([float(layers[k].parameters) for k in kind]),
        block=np.array([numbers.get(k, -1) for k in kind.tolist()], np.int64),
        # Nothing enters the first layer from another stage, and nothing leaves the last.
        boundary_bytes=np.array([0.0, *(float(layers[k].boundary_bytes) for k in kind[:-1]), 0.0]),
        blocks=blocks,
    )


def _block_kind(number: int, layer: Layer, recompute: str) -> BlockKind:
    choices = keep_choices(layer)
    if recompute == "none":
        choices = choices[-1:]
    elif recompute == "full":
        choices = choices[:1]
    return BlockKind(
        layer=number,
        choices=choices,
        kept_bytes=np.array([float(choice.kept_bytes) for choice in choices]),
        rerun=rerun_table(choices, len(layer.forward)),
    )
