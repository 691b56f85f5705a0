"""Families from which others differ: encoders, GPT-2 and its kin, T5, the vision transformer."""

from __future__ import annotations

from dataclasses import replace

from atoll.errors import AtollError
from atoll.workload.families.config_fields import ACTIVATIONS, Fields
from atoll.workload.families.family import Family, flag, partial_rotary, probability, size
from atoll.workload.families.model_config import ModelConfig

_ROWS = {"position_rows": size("max_position_embeddings")}
_DROPPED = {"attention_dropout": ("attention_probs_dropout_prob",)}
_GPT_DROPOUT = {
    "dropout": probability("resid_pdrop", 0.0),
    "embedding_dropout": probability("embd_pdrop", 0.0),
}
_ONE_NORM = {"positions": "rotary", "parallel": True, "one_norm": True, "head_bias": True}


def _four_times(fields: Fields) -> int:
    return 4 * fields.size("hidden_size")


def _bert(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Megatron's BERT puts its norms first, drops the one after the embedding and adds a last."""
    megatron = fields.text("model_type") == "megatron-bert"
    fields.choice("position_embedding_type", ("absolute",), "absolute")
    return replace(config, post_norm=not megatron, final_norm=megatron, embedding_norm=not megatron)


def _roberta(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Positions are counted from behind the padding index, so that two rows stay unused."""
    unused = fields.count("pad_token_id", 1) + 1
    if config.max_sequence <= unused:
        raise AtollError(
            f"{fields.where}: max_position_embeddings is {config.max_sequence}, but must exceed "
            f"the {unused} rows that no token uses"
        )
    return replace(config, max_sequence=config.max_sequence - unused)


def _multi_query(fields: Fields, config: ModelConfig) -> ModelConfig:
    """GPT-BigCode is GPT-2 with one key and value head (arXiv:2305.06161)."""
    bigcode = fields.text("model_type") == "gpt_bigcode"
    one = bigcode and fields.flag("multi_query", True)
    return replace(config, kv_heads=1) if one else config


def _gptj(fields: Fields, config: ModelConfig) -> ModelConfig:
    if config.rotary_dim > config.head_dim:
        raise AtollError(
            f"{fields.where}: rotary_dim is {config.rotary_dim}, but must be at most the "
            f"{config.head_dim} columns of a head"
        )
    return config


def _phi(fields: Fields, config: ModelConfig) -> ModelConfig:
    fields.off("qk_layernorm", "a norm of queries and keys in this family")
    return config


def _opt(fields: Fields, config: ModelConfig) -> ModelConfig:
    width = fields.size("word_embed_proj_dim", config.hidden)
    norm_first = fields.flag("do_layer_norm_before", True)
    return replace(
        config,
        post_norm=not norm_first,
        final_norm=norm_first and not fields.flag("_remove_final_layer_norm", False),
        embedding_width=width if width != config.hidden else 0,
    )


def _bloom(fields: Fields, config: ModelConfig) -> ModelConfig:
    fields.off("apply_residual_connection_post_layernorm", "a residual that starts at the norm")
    return config


def _t5(fields: Fields, config: ModelConfig) -> ModelConfig:
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


def _positions(fields: Fields) -> int:
    """Patches of an image, and the class token."""
    image, patch = fields.size("image_size", 224), fields.size("patch_size", 16)
    fields.divides("patch_size", patch, "image_size", image)
    return (image // patch) ** 2 + 1


def _labels(fields: Fields) -> int:
    """Those that the file names; two where it names none, as Hugging Face has it."""
    return len(fields.block("id2label").given) or 2


PLAIN = (
    Family(
        types=("bert", "megatron-bert"),
        about="bidirectional, norms behind the additions (Megatron: before), "
        "masked-language-model head",
        base="",
        spelling=_DROPPED,
        silent={"attention_dropout": 0.1},
        fixed={"family": "bert", "causal": False, "mlm_head": True},
        given={
            **_ROWS,
            "token_types": size("type_vocab_size", 2),
            "dropout": probability("hidden_dropout_prob", 0.1),
            "embedding_dropout": probability("hidden_dropout_prob", 0.1),
        },
        steps=(_bert,),
    ),
    Family(
        types=("roberta", "xlm-roberta"),
        about="BERT; two rows of the position table stay unused",
        base="bert",
        fixed={"family": "roberta"},
        steps=(_roberta,),
    ),
    Family(
        types=("gpt2", "gpt_bigcode"),
        about="learned positions, tied embeddings; BigCode: one key and value head (MQA)",
        base="",
        spelling={
            "hidden_size": ("n_embd",),
            "num_attention_heads": ("n_head",),
            "num_hidden_layers": ("n_layer",),
            "intermediate_size": ("n_inner",),
            "max_position_embeddings": ("n_positions",),
            "hidden_act": ("activation_function",),
            "attention_dropout": ("attn_pdrop",),
        },
        silent={
            "intermediate_size": _four_times,
            "attention_dropout": 0.1,
            "resid_pdrop": 0.1,
            "embd_pdrop": 0.1,
        },
        given={**_ROWS, **_GPT_DROPOUT},
        steps=(_multi_query,),
    ),
    Family(
        types=("gptj",),
        about="attention and feed-forward layer in parallel from one norm, rotary on `rotary_dim` "
        "columns, bias on the logits",
        base="gpt2",
        silent={
            "attention_dropout": 0.0,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "tie_word_embeddings": False,
        },
        fixed={**_ONE_NORM, "position_rows": 0, "attention_bias": False, "output_bias": False},
        given={"rotary_dim": size("rotary_dim", 64)},
        steps=(_gptj,),
    ),
    Family(  # Black et al., arXiv:2204.06745
        types=("gpt_neox",),
        about="parallel (`use_parallel_residual`) with a norm each, rotary on `rotary_pct` of a "
        "head",
        base="",
        silent={"tie_word_embeddings": False},
        fixed={"positions": "rotary"},
        given={
            "dropout": probability("hidden_dropout", 0.0),
            "embedding_dropout": probability("hidden_dropout", 0.0),
            "parallel": flag("use_parallel_residual", True),
        },
        steps=(partial_rotary(0.25, "rotary_pct"),),
    ),
    Family(
        types=("phi",),
        about="as GPT-J, biases everywhere, `partial_rotary_factor`",
        base="",
        silent={"tie_word_embeddings": False},
        fixed=_ONE_NORM,
        given=_GPT_DROPOUT,
        steps=(_phi, partial_rotary(0.5)),
    ),
    Family(
        types=("opt",),
        about="learned positions with two more rows, norms before or behind, narrow word table of "
        "the 350M model",
        base="",
        spelling={
            "intermediate_size": ("ffn_dim",),
            "hidden_act": ("activation_function",),
            "attention_bias": ("enable_bias",),
            "mlp_bias": ("enable_bias",),
        },
        silent={"hidden_act": "relu"},
        given={
            "position_rows": lambda fields: fields.size("max_position_embeddings") + 2,
            "dropout": probability("dropout", 0.1),
        },
        steps=(_opt,),
    ),
    Family(  # arXiv:2211.05100
        types=("bloom",),
        about="ALiBi, a norm behind the embedding",
        base="",
        # Old files, that of the 176B model among them, say n_embed and num_attention_heads.
        spelling={
            "hidden_size": ("hidden_size", "n_embed"),
            "num_attention_heads": ("n_head", "num_attention_heads"),
            "num_hidden_layers": ("n_layer",),
            "max_position_embeddings": ("seq_length",),
        },
        # ALiBi has no longest sequence; the file states the one of the training.
        silent={"max_position_embeddings": 2048, "intermediate_size": _four_times},
        fixed={"positions": "alibi", "embedding_norm": True},
        given={"dropout": probability("hidden_dropout", 0.0)},
        steps=(_bloom,),
    ),
)

OTHERS = (
    Family(  # arXiv:1910.10683
        types=("t5",),
        about="encoder and decoder, relative positions, RMS norms, no biases, heads of `d_kv` "
        "columns; version 1.1: gated feed-forward layer, a head of its own",
        base="",
        spelling={
            "hidden_size": ("d_model",),
            "num_attention_heads": ("num_heads",),
            "head_dim": ("d_kv",),
            "num_hidden_layers": ("num_layers",),
            "intermediate_size": ("d_ff",),
            "max_position_embeddings": ("n_positions",),
        },
        # Relative positions know no longest sequence; the checkpoints were trained on 512 tokens.
        silent={
            "head_dim": size("d_kv"),
            "max_position_embeddings": 512,
            "attention_bias": False,
            "mlp_bias": False,
        },
        fixed={"norm": "rmsnorm", "positions": "relative"},
        given={
            "position_buckets": size("relative_attention_num_buckets", 32),
            **dict.fromkeys(
                ("dropout", "attention_dropout", "embedding_dropout", "inner_dropout"),
                probability("dropout_rate", 0.1),
            ),
        },
        steps=(_t5,),
    ),
    Family(  # arXiv:2010.11934
        types=("mt5",),
        about="T5 version 1.1 with another vocabulary",
        base="t5",
        silent={"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    Family(
        types=("vit",),
        about="patches of an image and a class token, linear classifier",
        base="",
        spelling={**_DROPPED, "vocab_size": ("num_labels",), "attention_bias": ("qkv_bias",)},
        silent={"vocab_size": _labels, "max_position_embeddings": _positions},
        fixed={
            "tied_embeddings": False,
            "output_bias": True,
            "causal": False,
            "head_bias": True,
        },
        given={
            **_ROWS,
            "dropout": probability("hidden_dropout_prob", 0.0),
            "embedding_dropout": probability("hidden_dropout_prob", 0.0),
            "patch_inputs": lambda fields: (
                fields.size("num_channels", 3) * fields.size("patch_size", 16) ** 2
            ),
        },
    ),
)
