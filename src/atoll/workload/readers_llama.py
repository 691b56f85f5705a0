"""Configurations of decoders with RMS norms and gated feed-forward layers: Llama and its kin."""

from __future__ import annotations

from dataclasses import replace

from atoll.workload.config_fields import Fields
from atoll.workload.model_config import ModelConfig

SLIDING, FULL = "sliding_attention", "full_attention"


def llama(fields: Fields, head_dim: int = 0, tied: bool = False, window: int = 0) -> ModelConfig:
    """Llama; the other arguments are what a family takes where the file is silent."""
    hidden = fields.size("hidden_size")
    heads, kv_heads = fields.heads_and_key_heads()
    head_dim = fields.size("head_dim", head_dim)
    if not head_dim:
        fields.divides("num_attention_heads", heads, "hidden_size", hidden)
        head_dim = hidden // heads
    bias = fields.flag("attention_bias", False)
    written = fields.key("sliding_window") in fields.given
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
        gated=True,
        activation=fields.activation("hidden_act", "silu"),
        norm="rmsnorm",
        positions="rotary",
        tied_embeddings=fields.flag("tie_word_embeddings", tied),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
        attention_dropout=fields.probability("attention_dropout", 0.0),
        # A window of null is none; one that is not mentioned is the family's.
        window=fields.size("sliding_window", 0 if written else window),
    )


def mistral(fields: Fields) -> ModelConfig:
    return llama(fields, window=4096)


def qwen2(fields: Fields) -> ModelConfig:
    """Biases on queries, keys and values only; windows off unless asked for."""
    config = replace(llama(fields, window=4096), attention_bias=True, output_bias=False)
    return _qwen_windows(fields, config)


def qwen3(fields: Fields) -> ModelConfig:
    """Norms on the heads of queries and keys (Yang et al., arXiv:2505.09388)."""
    config = llama(fields, head_dim=128, window=4096)
    return _qwen_windows(fields, replace(config, qk_norm=True))


def _qwen_windows(fields: Fields, config: ModelConfig) -> ModelConfig:
    """With `use_sliding_window` the blocks from `max_window_layers` on have a window."""
    window = config.window if fields.flag("use_sliding_window", False) else 0
    first = fields.count("max_window_layers", config.layers)
    if not window:
        return replace(config, window=0)
    pattern = (FULL if layer < first else SLIDING for layer in range(config.layers))
    return with_windows(fields, config, tuple(pattern))


def with_windows(fields: Fields, config: ModelConfig, usual: tuple[str, ...]) -> ModelConfig:
    """Each block's window: as `layer_types` says (newer files), or as usual in the family."""
    given = fields.names("layer_types", (SLIDING, FULL), config.layers)
    kinds = given or usual
    if len(set(kinds)) == 1:
        return replace(config, window=config.window if kinds[0] == SLIDING else 0)
    windows = tuple(config.window if kind == SLIDING else 0 for kind in kinds)
    return replace(config, window=0, windows=windows)


def gemma(fields: Fields, window: int = 0) -> ModelConfig:
    """Heads wider than hidden / heads, GELU gates, tied and scaled embeddings (2403.08295)."""
    config = llama(fields, head_dim=256, tied=True, window=window)
    # `hidden_activation` came later and wins; the exact and the tanh form cost the same here.
    name = "hidden_activation" if fields.get("hidden_activation") else "hidden_act"
    activation = fields.activation(name, "gelu_pytorch_tanh")
    return replace(config, activation=activation, embedding_scale=True)


def gemma2(fields: Fields) -> ModelConfig:
    """A window in every second block, norms on both sides of a branch, capped scores and logits
    (arXiv:2408.00118).
    """
    config = replace(
        gemma(fields, window=4096),
        branch_norms=True,
        score_cap=fields.present("attn_logit_softcapping", True),
        logit_cap=fields.present("final_logit_softcapping", True),
    )
    pattern = (FULL if layer % 2 else SLIDING for layer in range(config.layers))
    return with_windows(fields, config, tuple(pattern)) if config.window else config


def phi3(fields: Fields) -> ModelConfig:
    """Llama's block with dropout on its branches (arXiv:2404.14219)."""
    config = llama(fields)
    share = fields.rotary_share("partial_rotary_factor", 1.0)
    return replace(
        config,
        rotary_dim=fields.rotated(share, config.head_dim, "partial_rotary_factor"),
        dropout=fields.probability("resid_pdrop", 0.0),
        embedding_dropout=fields.probability("embd_pdrop", 0.0),
    )
