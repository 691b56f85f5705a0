"""Configurations of T5 (arXiv:1910.10683), its version 1.1 and mT5 (arXiv:2010.11934)."""

from __future__ import annotations

from atoll.errors import AtollError
from atoll.workload.config_fields import ACTIVATIONS, Fields
from atoll.workload.model_config import ModelConfig


def t5(fields: Fields, feed_forward: str = "relu", tied: bool = True) -> ModelConfig:
    """T5; the other arguments are what a family takes where the file is silent."""
    if not fields.flag("is_encoder_decoder", True):
        raise AtollError(
            f"{fields.where}: is_encoder_decoder is false, but an encoder alone is not modelled; "
            "capture the module instead"
        )
    encoder = fields.size("num_layers")
    heads = fields.size("num_heads")
    activation, gated = _feed_forward(fields, feed_forward)
    tied = fields.flag("tie_word_embeddings", tied)
    dropout = fields.probability("dropout_rate", 0.1)
    return ModelConfig(
        name=fields.where,
        family=fields.text("model_type"),
        hidden=fields.size("d_model"),
        layers=encoder + fields.size("num_decoder_layers", encoder),
        encoder_layers=encoder,
        heads=heads,
        kv_heads=heads,
        head_dim=fields.size("d_kv"),
        ffn=fields.size("d_ff"),
        vocab=fields.size("vocab_size"),
        # Relative positions know no longest sequence; the checkpoints were trained on 512 tokens.
        max_sequence=fields.size("n_positions", 512),
        gated=gated,
        activation=activation,
        norm="rmsnorm",
        positions="relative",
        position_buckets=fields.size("relative_attention_num_buckets", 32),
        tied_embeddings=tied,
        head_scale=tied,
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        dropout=dropout,
        attention_dropout=dropout,
        embedding_dropout=dropout,
        inner_dropout=dropout,
    )


def mt5(fields: Fields) -> ModelConfig:
    """T5 version 1.1 with another vocabulary."""
    return t5(fields, feed_forward="gated-gelu", tied=False)


def _feed_forward(fields: Fields, default: str) -> tuple[str, bool]:
    """Activation function, and whether it is a gate."""
    allowed = (*ACTIVATIONS, *(f"gated-{name}" for name in ACTIVATIONS))
    given = fields.choice("feed_forward_proj", allowed, default)
    return ACTIVATIONS[given.removeprefix("gated-")], given.startswith("gated-")
