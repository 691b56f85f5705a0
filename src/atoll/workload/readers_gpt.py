"""Configurations of decoders with layer norms and plain feed-forward layers: GPT-2 and its kin."""

from __future__ import annotations

from atoll.errors import AtollError
from atoll.workload.config_fields import Fields
from atoll.workload.model_config import ModelConfig


def gpt2(fields: Fields) -> ModelConfig:
    """GPT-2, and GPT-BigCode: the same with one key and value head (arXiv:2305.06161)."""
    hidden, heads = fields.hidden_and_heads("n_embd", "n_head")
    positions = fields.size("n_positions")
    bigcode = fields.text("model_type") == "gpt_bigcode"
    return ModelConfig(
        name=fields.where,
        family=fields.text("model_type"),
        hidden=hidden,
        layers=fields.size("n_layer"),
        heads=heads,
        kv_heads=1 if bigcode and fields.flag("multi_query", True) else heads,
        head_dim=hidden // heads,
        ffn=fields.size("n_inner", 4 * hidden),
        vocab=fields.size("vocab_size"),
        max_sequence=positions,
        activation=fields.activation("activation_function", "gelu_new"),
        position_rows=positions,
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        dropout=fields.probability("resid_pdrop", 0.1),
        attention_dropout=fields.probability("attn_pdrop", 0.1),
        embedding_dropout=fields.probability("embd_pdrop", 0.1),
    )


def gptj(fields: Fields) -> ModelConfig:
    """Parallel branches from one norm, biases only in the feed-forward layer and on the logits."""
    hidden, heads = fields.hidden_and_heads("n_embd", "n_head")
    rotary = fields.size("rotary_dim", 64)
    if rotary > hidden // heads:
        raise AtollError(
            f"{fields.where}: rotary_dim is {rotary}, but must be at most the {hidden // heads} "
            "columns of a head"
        )
    return ModelConfig(
        name=fields.where,
        family="gptj",
        hidden=hidden,
        layers=fields.size("n_layer"),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=fields.size("n_inner", 4 * hidden),
        vocab=fields.size("vocab_size"),
        max_sequence=fields.size("n_positions"),
        activation=fields.activation("activation_function", "gelu_new"),
        positions="rotary",
        rotary_dim=rotary,
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=False,
        output_bias=False,
        dropout=fields.probability("resid_pdrop", 0.0),
        attention_dropout=fields.probability("attn_pdrop", 0.0),
        embedding_dropout=fields.probability("embd_pdrop", 0.0),
        parallel=True,
        one_norm=True,
        head_bias=True,
    )


def neox(fields: Fields) -> ModelConfig:
    """Parallel branches, each with its norm (Black et al., arXiv:2204.06745)."""
    hidden, heads = fields.hidden_and_heads("hidden_size", "num_attention_heads")
    bias = fields.flag("attention_bias", True)
    share = fields.rotary_share("rotary_pct", 0.25)
    return ModelConfig(
        name=fields.where,
        family="gpt_neox",
        hidden=hidden,
        layers=fields.size("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=fields.size("intermediate_size"),
        vocab=fields.size("vocab_size"),
        max_sequence=fields.size("max_position_embeddings"),
        activation=fields.activation("hidden_act", "gelu"),
        positions="rotary",
        rotary_dim=fields.rotated(share, hidden // heads, "rotary_pct"),
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=bias,
        output_bias=bias,
        dropout=fields.probability("hidden_dropout", 0.0),
        attention_dropout=fields.probability("attention_dropout", 0.0),
        embedding_dropout=fields.probability("hidden_dropout", 0.0),
        parallel=fields.flag("use_parallel_residual", True),
    )


def phi(fields: Fields) -> ModelConfig:
    """Phi-1 to Phi-2: GPT-J's block with biases everywhere."""
    hidden = fields.size("hidden_size")
    heads, kv_heads = fields.heads_and_key_heads()
    fields.divides("num_attention_heads", heads, "hidden_size", hidden)
    fields.off("qk_layernorm", "a norm of queries and keys in this family")
    share = fields.rotary_share("partial_rotary_factor", 0.5)
    return ModelConfig(
        name=fields.where,
        family="phi",
        hidden=hidden,
        layers=fields.size("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        ffn=fields.size("intermediate_size"),
        vocab=fields.size("vocab_size"),
        max_sequence=fields.size("max_position_embeddings"),
        activation=fields.activation("hidden_act", "gelu_new"),
        positions="rotary",
        rotary_dim=fields.rotated(share, hidden // heads, "partial_rotary_factor"),
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        dropout=fields.probability("resid_pdrop", 0.0),
        attention_dropout=fields.probability("attention_dropout", 0.0),
        embedding_dropout=fields.probability("embd_pdrop", 0.0),
        parallel=True,
        one_norm=True,
        head_bias=True,
    )


def opt(fields: Fields) -> ModelConfig:
    hidden, heads = fields.hidden_and_heads("hidden_size", "num_attention_heads")
    positions = fields.size("max_position_embeddings")
    width = fields.size("word_embed_proj_dim", hidden)
    bias = fields.flag("enable_bias", True)
    norm_first = fields.flag("do_layer_norm_before", True)
    return ModelConfig(
        name=fields.where,
        family="opt",
        hidden=hidden,
        layers=fields.size("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=fields.size("ffn_dim"),
        vocab=fields.size("vocab_size"),
        max_sequence=positions,
        activation=fields.activation("activation_function", "relu"),
        position_rows=positions + 2,
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        dropout=fields.probability("dropout", 0.1),
        attention_dropout=fields.probability("attention_dropout", 0.0),
        post_norm=not norm_first,
        final_norm=norm_first and not fields.flag("_remove_final_layer_norm", False),
        embedding_width=width if width != hidden else 0,
    )


def bloom(fields: Fields) -> ModelConfig:
    """ALiBi instead of positions, and a norm behind the embedding (arXiv:2211.05100)."""
    # Old files, that of the 176B model among them, say n_embed and num_attention_heads.
    width = "hidden_size" if fields.given.get("hidden_size") is not None else "n_embed"
    heads_name = "n_head" if fields.given.get("n_head") is not None else "num_attention_heads"
    hidden, heads = fields.hidden_and_heads(width, heads_name)
    fields.off("apply_residual_connection_post_layernorm", "a residual that starts at the norm")
    return ModelConfig(
        name=fields.where,
        family="bloom",
        hidden=hidden,
        layers=fields.size("n_layer"),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        vocab=fields.size("vocab_size"),
        # ALiBi has no longest sequence; the file states the one of the training.
        max_sequence=fields.size("seq_length", 2048),
        positions="alibi",
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        embedding_norm=True,
        dropout=fields.probability("hidden_dropout", 0.0),
        attention_dropout=fields.probability("attention_dropout", 0.0),
    )
