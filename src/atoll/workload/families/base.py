"""Steps of single families (`families.yaml`): encoders, GPT-2's kin, T5, images, latent heads."""

from __future__ import annotations

from dataclasses import replace

from atoll.base.errors import AtollError
from atoll.workload.families.config_fields import ACTIVATIONS, Fields
from atoll.workload.families.model_config import ModelConfig


def four_times(fields: Fields) -> int:
    return 4 * fields.size("hidden_size")


def bert(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Megatron's BERT puts its norms first, drops the one after the embedding and adds a last."""
    megatron = fields.text("model_type") == "megatron-bert"
    fields.choice("position_embedding_type", ("absolute",), "absolute")
    return replace(config, post_norm=not megatron, final_norm=megatron, embedding_norm=not megatron)


def roberta(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Positions are counted from behind the padding index, so that two rows stay unused."""
    unused = fields.count("pad_token_id", 1) + 1
    if config.max_sequence <= unused:
        raise AtollError(
            f"{fields.where}: max_position_embeddings is {config.max_sequence}, but must exceed "
            f"the {unused} rows that no token uses"
        )
    return replace(config, max_sequence=config.max_sequence - unused)


def multi_query(fields: Fields, config: ModelConfig) -> ModelConfig:
    """GPT-BigCode is GPT-2 with one key and value head (arXiv:2305.06161)."""
    bigcode = fields.text("model_type") == "gpt_bigcode"
    single_key_head = bigcode and fields.flag("multi_query", True)
    return replace(config, kv_heads=1) if single_key_head else config


def gptj(fields: Fields, config: ModelConfig) -> ModelConfig:
    if config.rotary_dim > config.head_dim:
        raise AtollError(
            f"{fields.where}: rotary_dim is {config.rotary_dim}, but must be at most the "
            f"{config.head_dim} columns of a head"
        )
    return config


def phi(fields: Fields, config: ModelConfig) -> ModelConfig:
    fields.off("qk_layernorm", "a norm of queries and keys in this family")
    return config


def opt(fields: Fields, config: ModelConfig) -> ModelConfig:
    width = fields.size("word_embed_proj_dim", config.hidden)
    norm_first = fields.flag("do_layer_norm_before", True)
    return replace(
        config,
        position_rows=config.max_sequence + 2,
        post_norm=not norm_first,
        final_norm=norm_first and not fields.flag("_remove_final_layer_norm", False),
        embedding_width=width if width != config.hidden else 0,
    )


def bloom(fields: Fields, config: ModelConfig) -> ModelConfig:
    fields.off("apply_residual_connection_post_layernorm", "a residual that starts at the norm")
    return config


def t5(fields: Fields, config: ModelConfig) -> ModelConfig:
    """An encoder and a decoder; a feed-forward layer with or without a gate."""
    if not fields.flag("is_encoder_decoder", True):
        raise AtollError(
            f"{fields.where}: is_encoder_decoder is false, but an encoder alone is not modelled; "
            "capture the module instead"
        )
    allowed = (*ACTIVATIONS, *(f"gated-{name}" for name in ACTIVATIONS))
    function = fields.choice("feed_forward_proj", allowed, "relu")
    return replace(
        config,
        layers=config.layers + fields.size("num_decoder_layers", config.layers),
        encoder_layers=config.layers,
        activation=ACTIVATIONS[function.removeprefix("gated-")],
        gated=function.startswith("gated-"),
        head_scale=config.tied_embeddings,
    )


def positions(fields: Fields) -> int:
    """Patches of an image, and the class token."""
    image, patch = fields.size("image_size", 224), fields.size("patch_size", 16)
    fields.divides("patch_size", patch, "image_size", image)
    return (image // patch) ** 2 + 1


def labels(fields: Fields) -> int:
    """Number of labels in the file; 2 by default, as in Hugging Face."""
    return len(fields.block("id2label").entries) or 2


def patch_inputs(fields: Fields) -> int:
    """Values per patch."""
    return fields.size("num_channels", 3) * fields.size("patch_size", 16) ** 2


def latent(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Latent attention (arXiv:2405.04434, 2412.19437).

    The modules that predict further tokens (num_nextn_predict_layers) are left out, as in the
    published counts of the main model.
    """
    rotary, unrotated = fields.size("qk_rope_head_dim"), fields.size("qk_nope_head_dim")
    third = fields.text("model_type") in ("deepseek_v3", "kimi_k2")
    return replace(
        config,
        # Keys and values are made for every head, whatever num_key_value_heads says.
        kv_heads=config.heads,
        head_dim=rotary + unrotated,
        rotary_dim=rotary,
        value_dim=fields.size("v_head_dim"),
        latent_kv=fields.size("kv_lora_rank"),
        latent_q=fields.size("q_lora_rank", 0),
        expert_groups=(fields.count("n_group", 0), fields.count("topk_group", 0)),
        router=fields.choice(
            "scoring_func", ("softmax", "sigmoid"), "sigmoid" if third else "softmax"
        ),
    )
