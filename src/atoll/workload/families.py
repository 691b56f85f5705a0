"""The families of models that Atoll can build: the registry, filled.

A family of another package calls `register` with its own description before it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

from atoll.workload import readers_encoder, readers_gpt, readers_llama, readers_moe, readers_t5
from atoll.workload.families_dense import DENSE
from atoll.workload.families_experts import EXPERTS
from atoll.workload.families_hybrid import HYBRID
from atoll.workload.family import Family, Reader, families, register

__all__ = ["REFUSED", "Family", "families", "family_table", "register"]


def _read_by(reader: Reader, about: str, *types: str) -> Family:
    return Family(types=types, about=about, base=reader)


BASES = (
    _read_by(
        readers_encoder.bert,
        "bidirectional, norms behind the additions (Megatron: before), masked-language-model head",
        "bert",
        "megatron-bert",
    ),
    _read_by(
        readers_encoder.roberta,
        "BERT; two rows of the position table stay unused",
        "roberta",
        "xlm-roberta",
    ),
    _read_by(
        readers_gpt.gpt2,
        "learned positions, tied embeddings; BigCode: one key and value head (MQA)",
        "gpt2",
        "gpt_bigcode",
    ),
    _read_by(
        readers_gpt.gptj,
        "attention and feed-forward layer in parallel from one norm, rotary on `rotary_dim` "
        "columns, bias on the logits",
        "gptj",
    ),
    _read_by(
        readers_gpt.neox,
        "parallel (`use_parallel_residual`) with a norm each, rotary on `rotary_pct` of a head",
        "gpt_neox",
    ),
    _read_by(readers_gpt.phi, "as GPT-J, biases everywhere, `partial_rotary_factor`", "phi"),
    _read_by(
        readers_gpt.opt,
        "learned positions with two more rows, norms before or behind, narrow word table of the "
        "350M model",
        "opt",
    ),
    _read_by(readers_gpt.bloom, "ALiBi, a norm behind the embedding", "bloom"),
    _read_by(readers_llama.llama, "RMS norms, gated feed-forward layer, grouped queries", "llama"),
    _read_by(readers_llama.mistral, "Llama with a sliding window", "mistral"),
    _read_by(readers_llama.qwen2, "biases on queries, keys and values only", "qwen2"),
    _read_by(readers_llama.qwen3, "norms on the heads of queries and keys", "qwen3"),
    _read_by(
        readers_llama.gemma,
        "heads wider than hidden / heads, tied and scaled embeddings",
        "gemma",
    ),
    _read_by(
        readers_llama.gemma2,
        "Gemma with a window in every second block, four norms, capped scores and logits",
        "gemma2",
    ),
    _read_by(readers_llama.phi3, "Llama's block with a window (Phi-3, Phi-4)", "phi3"),
    _read_by(readers_moe.mixtral, "routed experts", "mixtral"),
    _read_by(
        readers_moe.qwen2_moe,
        "routed experts and a gated shared one, dense blocks by `mlp_only_layers` and "
        "`decoder_sparse_step`",
        "qwen2_moe",
    ),
    _read_by(readers_moe.qwen3_moe, "Qwen3 with routed experts", "qwen3_moe"),
    _read_by(
        readers_moe.deepseek,
        "latent attention (MLA), shared experts, dense blocks first; V3 and Kimi: sigmoid router",
        "deepseek_v2",
        "deepseek_v3",
        "kimi_k2",
    ),
    _read_by(
        readers_t5.t5,
        "encoder and decoder, relative positions, RMS norms, no biases, heads of `d_kv` columns; "
        "version 1.1: gated feed-forward layer, a head of its own",
        "t5",
    ),
    _read_by(readers_t5.mt5, "T5 version 1.1 with another vocabulary", "mt5"),
    _read_by(
        readers_encoder.vit, "patches of an image and a class token, linear classifier", "vit"
    ),
)

register(*BASES, *DENSE, *EXPERTS, *HYBRID)


def family_table() -> str:
    """The families as rows of a Markdown table, in the order in which they were registered."""
    found = {id(family): family for family in families().values()}.values()
    rows = (f"| {', '.join(f'`{t}`' for t in f.types)} | {f.about} |" for f in found)
    return "\n".join(("| `model_type` | what sets it apart |", "|---|---|", *rows))


_NO_BUILDER = (
    "an encoder-decoder model, but of these only t5 and mt5 have a builder; capture the module "
    "instead: atoll capture config.json --out model.json"
)
# Known, and known not to fit.
REFUSED: Mapping[str, str] = dict.fromkeys(
    ("umt5", "longt5", "bart", "mbart", "marian", "pegasus", "whisper"), _NO_BUILDER
)
