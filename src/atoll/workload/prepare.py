"""Build, shard, differentiate and fuse a workload in one call."""

from __future__ import annotations

from dataclasses import replace

from atoll.workload.builders.model import build_model
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.fuse import fuse
from atoll.workload.graph.layer import Model
from atoll.workload.shard import shard
from atoll.workload.stored import StoredModel, check_size, instantiate


def prepare(
    config: ModelConfig | StoredModel,
    microbatch: int,
    sequence: int | None = None,
    tp: int = 1,
    sp: bool = False,
    attention: str = "flash",
    fusion: str = "default",
    *,
    expert_tensor: int = 0,
    vocabulary_unit: int = 1,
    merge_periods: bool = True,
) -> Model:
    """Build, shard, differentiate and fuse: one device's share of one microbatch.

    A stored model comes with its loss and its collectives: those arguments do not change it, and
    it knows no sequence parallelism and no width of experts; "flash" fuses attention that it
    computes step by step. Vocabularies are padded to `vocabulary_unit` times the tensor width
    (images have none). Alternating blocks are one layer per period with `merge_periods`.
    """
    if isinstance(config, StoredModel):
        share = instantiate(
            config, microbatch, sequence, tp, vocabulary_unit=vocabulary_unit, attention=attention
        )
        return check_size(fuse(share, fusion))
    config = padded(config, vocabulary_unit * tp if vocabulary_unit > 1 else 1)
    unsharded = build_model(
        config,
        microbatch,
        sequence,
        attention=attention,
        merge_periods=merge_periods,
        backward=tp == max(1, expert_tensor) == 1,
    )
    return fuse(shard(unsharded, tp, sp, expert_tensor), fusion)


def padded(config: ModelConfig, unit: int) -> ModelConfig:
    """Round the vocabulary up to a multiple of `unit`."""
    if unit == 1 or config.patch_inputs:
        return config
    return replace(config, vocab=-(-config.vocab // unit) * unit)


def in_context(config: ModelConfig | StoredModel, devices: int) -> ModelConfig | StoredModel:
    """Set the devices that share a sequence; a stored model has undivided sequences."""
    return config if isinstance(config, StoredModel) else replace(config, context=devices)
