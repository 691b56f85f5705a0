"""A family of models: a small description of how its configuration is written and what it means.

Most families are another one with a few differences: fields spelled differently, values that the
file leaves out, properties that all of its models have, and a pattern of blocks. A `Family` says
just that. Other packages bring theirs by entry points, one for each `model_type`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atoll.base.registry import Registry
from atoll.workload.families.config_fields import Fields
from atoll.workload.families.model_config import ModelConfig

Step = Callable[[Fields, ModelConfig], ModelConfig]


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models of one (or several) `model_type`."""

    types: tuple[str, ...]
    about: str
    """What sets it apart."""
    base: str = "llama"
    """A `model_type` of the family from which it differs; "" for none."""
    spelling: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For a field of the base, the names that files of this family use."""
    silent: Mapping[str, object] = field(default_factory=dict)
    """For a field of the base, its value where a file does not mention it."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `ModelConfig` that are the same in all of its models."""
    given: Mapping[str, Callable[[Fields], Any]] = field(default_factory=dict)
    """Fields of `ModelConfig` and how to read them."""
    steps: tuple[Step, ...] = ()
    """Larger parts: experts, the pattern of blocks, a state space."""

    def read(self, fields: Fields) -> ModelConfig:
        config = self._config(fields)
        fields.near_miss()
        return config

    def _config(self, fields: Fields) -> ModelConfig:
        fields = fields.spelled(self.spelling, self.silent)
        config = FAMILIES[self.base]._config(fields) if self.base else transformer(fields)
        read = {name: reader(fields) for name, reader in self.given.items()}
        config = replace(config, **self.fixed, **read)
        for step in self.steps:
            config = step(fields, config)
        return config


def transformer(fields: Fields) -> ModelConfig:
    """What every configuration says, under the names that most families use."""
    hidden = fields.size("hidden_size")
    heads, kv_heads = fields.heads_and_key_heads()
    head_dim = fields.size("head_dim", 0)
    if not head_dim:
        fields.divides("num_attention_heads", heads, "hidden_size", hidden)
        head_dim = hidden // heads
    bias = fields.flag("attention_bias", True)
    return ModelConfig(
        name=fields.where,
        family=fields.text("model_type"),
        hidden=hidden,
        layers=fields.size("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=fields.size("intermediate_size"),
        vocab=fields.size("vocab_size"),
        max_sequence=fields.size("max_position_embeddings"),
        activation=fields.activation("hidden_act", "gelu"),
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", True),
        attention_dropout=fields.probability("attention_dropout", 0.0),
    )


FAMILIES = Registry("families", Family, names=lambda family: family.types, noun="model_type")
"""Every known family by its model types; `known` adds ours."""


def partial_rotary(default: float, name: str = "partial_rotary_factor") -> Step:
    """Only a share of each head is rotated."""

    def step(fields: Fields, config: ModelConfig) -> ModelConfig:
        columns = fields.rotated(fields.rotary_share(name, default), config.head_dim, name)
        return replace(config, rotary_dim=columns)

    return step
