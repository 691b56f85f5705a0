"""FLOPs that training a model takes: one convention behind every MFU that is shown.

Counted are the products of the forward pass, and twice as many for the backward pass: attention
only where the mask leaves it (causal: half; a sliding window: less), experts only where tokens go.
Recomputation and what a kernel computes twice (the scores of fused attention) are work of an
implementation, not of the model. No device gets by with less, so that MFU never
exceeds 100 % of the peak at the precision of the products.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from atoll.workload.adapters import Adapters, with_adapters
from atoll.workload.builders.model import build_model
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.graph.layer import Model, block_names
from atoll.workload.prepare import prepare
from atoll.workload.stored import StoredModel


def model_flops(
    model: ModelConfig | StoredModel, sequence: int | None = None, adapters: Adapters | None = None
) -> float:
    """FLOPs of one sample, forward and backward; with `adapters` on frozen weights."""
    if isinstance(model, StoredModel):
        built = prepare(model, model.file.microbatch or 1, sequence, fusion="none")
        return _needed(built) / built.microbatch
    return _built(model, sequence, adapters)


def block_flops(model: ModelConfig, sequence: int | None = None) -> float:
    """FLOPs of one sample in a forward pass of the blocks, which full recomputation repeats."""
    built = build_model(model, 1, sequence)
    blocks = tuple((layer, n) for layer, n in built.layers if layer.name in block_names(built))
    return _needed(replace(built, layers=blocks)) / 3


def trained_parameters(model: ModelConfig | StoredModel, adapters: Adapters | None = None) -> float:
    """Number of trained parameters, whose states a checkpoint holds."""
    if isinstance(model, StoredModel):
        return prepare(model, model.file.microbatch or 1, fusion="none").parameters
    built = build_model(model, 1)
    if adapters is None:
        return built.parameters
    return with_adapters(built, adapters, apart=False).parameters - built.parameters


@lru_cache(maxsize=256)
def _built(config: ModelConfig, sequence: int | None, adapters: Adapters | None) -> float:
    model = build_model(config, 1, sequence)
    if adapters is None:
        return _needed(model)
    return _needed(with_adapters(model, adapters, apart=False), frozen=True)


def _needed(model: Model, *, frozen: bool = False) -> float:
    """FLOPs of both passes; products of frozen weights have only a data gradient."""
    return sum(
        (2 if frozen and op.kind == "linear" else 3) * repeat * product.flops * product.fraction
        for layer, repeat in model.layers
        for op in layer.forward
        for product in op.matmuls
    )
