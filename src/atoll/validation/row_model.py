"""Model of a row of a table of measured runs.

A table may state only sizes (gated models are then like Llama, others like GPT), or all that
determines parameters and activations: norm, positions, biases, experts, latent attention, an
encoder, Mamba blocks by a pattern.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from atoll.base.errors import AtollError
from atoll.validation.tables import RunRow
from atoll.workload.adapters import LORA_RANK, Adapters, targets_named
from atoll.workload.families.layer_kinds import DENSE, EXPERTS, FULL, LINEAR, with_kinds
from atoll.workload.families.model_config import ModelConfig, StateSpace
from atoll.workload.load import load_config

POSITIONS = {"learned_absolute": "learned", "learned": "learned", "rope": "rotary", "none": "none"}
ACTIVATIONS = {"gelu": "gelu", "swiglu": "silu", "silu": "silu", "squared_relu": "relu2"}
NORMS = {"layernorm": "layernorm", "rmsnorm": "rmsnorm"}
LETTERS = {"M": LINEAR, "*": FULL, "-": DENSE, "E": EXPERTS}
# Megatron-Core's defaults of Mamba-2.
MAMBA = {"head-dim": 64, "state-dim": 128, "num-groups": 8}
MAMBA_CHUNK = 128


# Fields of gpt-oss that tables omit (its model card, arXiv:2508.10925).
GPT_OSS: dict[str, Any] = {
    "sinks": True,
    "attention_bias": True,
    "output_bias": True,
    "router_bias": True,
    "expert_bias": True,
}
FAMILIES = {"mpt": "mpt", "bloom": "bloom", "maxtext": "maxtext", r"^qwen$|\bqwen-\d": "qwen"}
"""Families of which tables omit more fields, by patterns of a column and of the model's name; the
first Qwen has modules of its own (Qwen-7B, modeling_qwen.py), later ones have Llama's."""


def row_family(row: RunRow) -> str:
    """Return one of these families, or ""."""
    words = row.text("family").lower(), row.text("model").lower()
    names = (name for pattern, name in FAMILIES.items() for w in words if re.search(pattern, w))
    return next(names, "")


def model_from_row(row: RunRow, dropout: float) -> ModelConfig:
    """Return a transformer of the row's shape; `dropout` is the default."""
    family = row_family(row)
    hidden, sequence = row.integer("hidden"), row.integer("seq")
    heads = row.integer("heads", max(1, hidden // 128))
    width = row.integer("kv_channels", row.integer("head_dim", 256 if family == "maxtext" else 0))
    if not width and hidden % heads:
        raise AtollError(f"{row.where}: heads {heads} do not divide hidden {hidden}")
    gated = bool(row.integer("mlp_gated", 0))
    plain = family == "mpt"
    biased = bool(row.integer("bias_linear", int(not gated and not plain)))
    learned = "alibi" if family == "bloom" else "learned"
    dropped = row.number("hidden_dropout", row.number("dropout", dropout))
    config = ModelConfig(
        name=row.text("model", row.id),
        family="qwen" if family == "qwen" else "llama" if gated else "gpt",
        hidden=hidden,
        layers=row.integer("layers"),
        heads=heads,
        kv_heads=row.integer("kv_heads", heads),
        head_dim=width or hidden // heads,
        ffn=row.integer("ffn", 4 * hidden),
        vocab=row.integer("vocab", 51200),
        max_sequence=sequence,
        position_rows=sequence,
        gated=gated,
        activation=_word(row, "activation", ACTIVATIONS, "silu" if gated else "gelu"),
        norm=_word(row, "normalization", NORMS, "rmsnorm" if gated else "layernorm"),
        positions=_word(row, "position_embedding", POSITIONS, "rotary" if gated else learned),
        tied_embeddings=_tied(row, not gated),
        attention_bias=bool(row.integer("bias_qkv", int(biased))),
        output_bias=biased,
        mlp_bias=biased,
        dropout=dropped,
        attention_dropout=row.number("attention_dropout", dropped),
        embedding_dropout=dropped,
        embedding_norm=family == "bloom",
        qk_norm=bool(row.integer("qk_layernorm", 0)),
        mtp_layers=row.integer("mtp_layers", 0),
    )
    config = _windows(row, _latent(row, _experts(row, config)))
    if "deepseek" in config.name.lower() and not config.latent_kv:
        config = _deepseek(config)
    elif config.latent_kv and config.experts == 256:
        config = replace(config, expert_groups=(8, 4))  # DeepSeek-V3, arXiv:2412.19437
    elif "gpt-oss" in config.name.lower():
        config = replace(config, **GPT_OSS)
    return _architecture(row, config)


def adapters_from_row(row: RunRow) -> Adapters | None:
    """Return the adapters of a row with frozen weights, None for other rows."""
    rank = row.integer("lora_rank", 0)
    if row.text("method") != "lora" and not rank:
        return None
    # "attention qkv+proj": the last word lists them
    words = row.text("lora_targets").split()
    return Adapters(rank or LORA_RANK, targets_named("".join(words[-1:])))


def _word(row: RunRow, column: str, meanings: dict[str, str], default: str) -> str:
    """Translate a column's word to a configuration's."""
    word = row.text(column).lower()
    if word and word not in meanings:
        raise AtollError(f"{row.where}: {column} {word!r} is not modelled")
    return meanings[word] if word else default


def _tied(row: RunRow, default: bool) -> bool:
    if row.text("untied_embeddings"):
        return not row.integer("untied_embeddings", 0)
    return bool(row.integer("tied_embeddings", int(default)))


def _experts(row: RunRow, config: ModelConfig) -> ModelConfig:
    """Add experts; `ffn` is theirs, or that of dense blocks if there is a `moe_ffn`."""
    experts = row.integer("n_experts", 0)
    if not experts:
        return config
    expert_ffn = row.integer("moe_ffn", 0)
    dense = config.layers - row.integer("n_moe_layers", config.layers)
    dense = row.integer("dense_layers", dense)
    shared = row.integer("shared_experts", 0) * (expert_ffn or config.ffn)
    shared = row.integer("shared_expert_ffn", shared)
    return replace(
        config,
        experts=experts,
        experts_per_token=row.integer("top_k", 1),
        ffn=expert_ffn or config.ffn,
        shared_ffn=shared,
        dense_layers=tuple(range(dense)),
        dense_ffn=row.integer("dense_ffn", config.ffn if expert_ffn else 0) if dense else 0,
    )


def _windows(row: RunRow, config: ModelConfig) -> ModelConfig:
    """Add a sliding window of attention, in all blocks but every n-th."""
    window, every = row.integer("window", 0), row.integer("full_attention_every", 0)
    if not window or not every:
        return replace(config, window=window)
    sizes = (0 if (block + 1) % every == 0 else window for block in range(config.layers))
    return replace(config, windows=tuple(sizes))


def _latent(row: RunRow, config: ModelConfig) -> ModelConfig:
    """Add latent attention, by Megatron-Core's or DeepSeek's names of its widths."""
    latent = row.integer("kv_lora_rank", 0)
    if not latent:
        return config
    rotated = row.integer("qk_pos_emb_head_dim", row.integer("qk_rope_dim", 64))
    unrotated = row.integer("qk_head_dim", row.integer("qk_nope_dim", 128))
    return replace(
        config,
        head_dim=unrotated + rotated,
        kv_heads=config.heads,
        rotary_dim=rotated,
        value_dim=row.integer("v_head_dim", unrotated),
        latent_kv=latent,
        latent_q=row.integer("q_lora_rank", 0),
        qk_norm=False,  # the builder norms the latents
    )


def _deepseek(config: ModelConfig) -> ModelConfig:
    """Fill in omitted fields from DeepSeek's configuration; a truncated model has 1 dense layer."""
    full = load_config("deepseek-v3" if config.experts == 256 else "deepseek-v2")
    dense = full.dense_layers if config.layers >= full.layers else (0,)
    return replace(
        full,
        name=config.name,
        layers=config.layers,
        dense_layers=dense,
        vocab=config.vocab,
        mtp_layers=config.mtp_layers,
        max_sequence=max(config.max_sequence, full.max_sequence),
    )


def _architecture(row: RunRow, config: ModelConfig) -> ModelConfig:
    """Apply architectures other than a chain of equal decoder blocks."""
    arch = row.text("arch", "gpt")
    if arch == "bert":
        return replace(config, causal=False, mlm_head=True, token_types=2)
    if arch == "t5":
        decoder = row.integer("decoder_layers", config.layers)
        return replace(
            config,
            layers=config.layers + decoder,
            encoder_layers=config.layers,
            decoder_sequence=row.integer("decoder_seq", 0),
        )
    pattern = row.text("hybrid_pattern").partition("/")[0].replace("|", "")
    if not pattern:
        return config
    if set(pattern) - set(LETTERS):
        raise AtollError(f"{row.where}: hybrid_pattern must say M, *, - or E")
    words = tuple(LETTERS[letter] for letter in pattern)
    sizes = {**MAMBA, **_mamba_sizes(row)}
    scan = StateSpace(
        heads=sizes.get("num-heads", 2 * config.hidden // sizes["head-dim"]),
        head_dim=sizes["head-dim"],
        state=sizes["state-dim"],
        groups=sizes["num-groups"],
        kernel=4,
        chunk=MAMBA_CHUNK,
        conv_bias=True,
    )
    config = replace(config, layers=len(words), one_branch=True, scan=scan)
    dense = tuple(i for i, word in enumerate(words) if word == DENSE)
    if config.experts:
        config = replace(config, dense_layers=dense, dense_ffn=row.integer("ffn") if dense else 0)
    return with_kinds(config, words, "mamba2")


def _mamba_sizes(row: RunRow) -> dict[str, int]:
    """Parse sizes such as "mamba-num-heads=64;mamba-head-dim=64"."""
    sizes = {}
    for pair in filter(None, row.text("mamba").split(";")):
        name, _, value = pair.partition("=")
        if not value.isdigit() or int(value) < 1:
            raise AtollError(f"{row.where}: mamba says {pair!r}, expected a size")
        sizes[name.strip().removeprefix("mamba-")] = int(value)
    return sizes
