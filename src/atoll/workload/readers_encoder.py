"""Configurations of encoders: BERT, Megatron's BERT, RoBERTa and the vision transformer."""

from __future__ import annotations

from dataclasses import replace

from atoll.errors import AtollError
from atoll.workload.config_fields import Fields
from atoll.workload.model_config import ModelConfig


def bert(fields: Fields) -> ModelConfig:
    hidden, heads = fields.hidden_and_heads("hidden_size", "num_attention_heads")
    # Megatron's BERT puts its norms first, drops the one after the embedding and adds a last one.
    megatron = fields.text("model_type") == "megatron-bert"
    fields.choice("position_embedding_type", ("absolute",), "absolute")
    positions = fields.size("max_position_embeddings")
    dropout = fields.probability("hidden_dropout_prob", 0.1)
    return ModelConfig(
        name=fields.where,
        family="bert",
        hidden=hidden,
        layers=fields.size("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=fields.size("intermediate_size"),
        vocab=fields.size("vocab_size"),
        max_sequence=positions,
        activation=fields.activation("hidden_act", "gelu"),
        position_rows=positions,
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        dropout=dropout,
        attention_dropout=fields.probability("attention_probs_dropout_prob", 0.1),
        embedding_dropout=dropout,
        causal=False,
        post_norm=not megatron,
        final_norm=megatron,
        embedding_norm=not megatron,
        token_types=fields.size("type_vocab_size", 2),
        mlm_head=True,
    )


def roberta(fields: Fields) -> ModelConfig:
    """BERT with positions counted from behind the padding index, so that two rows stay unused."""
    config = bert(fields)
    unused = fields.count("pad_token_id", 1) + 1
    if config.max_sequence <= unused:
        raise AtollError(
            f"{fields.where}: max_position_embeddings is {config.max_sequence}, but must exceed "
            f"the {unused} rows that no token uses"
        )
    return replace(config, family="roberta", max_sequence=config.max_sequence - unused)


def vit(fields: Fields) -> ModelConfig:
    """Patches of an image and a class token, with a linear classifier over the labels that the
    file names (two where it names none, as Hugging Face has it).
    """
    hidden, heads = fields.hidden_and_heads("hidden_size", "num_attention_heads")
    image, patch = fields.size("image_size", 224), fields.size("patch_size", 16)
    fields.divides("patch_size", patch, "image_size", image)
    positions = (image // patch) ** 2 + 1
    labels = len(fields.block("id2label").given) if fields.given.get("id2label") else 2
    dropout = fields.probability("hidden_dropout_prob", 0.0)
    bias = fields.flag("qkv_bias", True)
    return ModelConfig(
        name=fields.where,
        family="vit",
        hidden=hidden,
        layers=fields.size("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=fields.size("intermediate_size"),
        vocab=fields.size("num_labels", labels),
        max_sequence=positions,
        activation=fields.activation("hidden_act", "gelu"),
        position_rows=positions,
        tied_embeddings=False,
        attention_bias=bias,
        dropout=dropout,
        attention_dropout=fields.probability("attention_probs_dropout_prob", 0.0),
        embedding_dropout=dropout,
        causal=False,
        head_bias=True,
        patch_inputs=fields.size("num_channels", 3) * patch**2,
    )
