"""A model from the arguments that describe it to Megatron-LM."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from atoll.errors import AtollError
from atoll.launch.account import Arguments
from atoll.workload import load_config, zoo_names
from atoll.workload.families.model_config import ModelConfig

VOCABULARIES = {
    "gpt2bpetokenizer": 50257,
    "bertwordpiecelowercase": 30522,
    "bertwordpiececase": 28996,
    "llama2tokenizer": 32000,
}
"""Tokens of tokenizers that have one vocabulary."""
POSITIONS = {"learned_absolute": "learned", "rope": "rotary", "rotary": "rotary",
             "mrope": "rotary", "yarn": "rotary", "relative": "relative",
             "none": "none"}  # fmt: skip
UNIT = 128  # of a padded vocabulary, for each tensor rank


def model_of(given: Arguments) -> ModelConfig:
    """The decoder that pretrain_gpt.py builds from these arguments."""
    hidden, heads = given.size("hidden_size"), given.size("num_attention_heads")
    gated = given.has("swiglu", "gated_linear_unit", "quick_geglu")
    ffn = given.count("ffn_hidden_size") or _usual_ffn(hidden, gated)
    experts = given.count("num_experts") or 0
    biased = not given.has("disable_bias_linear")
    latent = _latent(given) if given.has("multi_latent_attention") else {}
    head_dim = given.count("kv_channels") or hidden // heads
    grouped = given.has("group_query_attention") or "num_key_value_heads" in given.given
    groups = given.count("num_query_groups", "num_key_value_heads")
    positions = given.text("position_embedding_type") or "learned_absolute"
    given.has("no_position_embedding")
    if given.has("use_rotary_position_embeddings"):
        positions = "rope"
    if positions not in POSITIONS:
        raise AtollError(f"{given.file}: position_embedding_type {positions!r} is not modelled")
    sequence = given.count("seq_length") or 0
    longest = given.count("max_position_embeddings") or sequence
    if not longest:
        raise AtollError(f"{given.file}: does not say seq_length")
    percent = given.number("rotary_percent")
    layers = given.size("num_layers")
    window, windows = _windows(given, layers)
    squared = given.has("squared_relu")
    dropout = given.number("hidden_dropout")
    attention_dropout = given.number("attention_dropout")
    return ModelConfig(
        name=Path(given.file).stem,
        family="megatron",
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=groups if grouped and groups else heads,
        ffn=(given.count("moe_ffn_hidden_size") or ffn) if experts else ffn,
        vocab=_vocabulary(given),
        max_sequence=max(longest, sequence),
        default_sequence=sequence,
        gated=gated,
        activation="silu" if gated else "relu2" if squared else "gelu",
        norm="rmsnorm" if given.text("normalization") == "RMSNorm" else "layernorm",
        positions=POSITIONS[positions],
        position_rows=longest if POSITIONS[positions] == "learned" else 0,
        rotary_dim=latent.pop("rotary_dim", int((percent or 1.0) * head_dim)),
        tied_embeddings=not given.has("untie_embeddings_and_output_weights"),
        attention_bias=biased or given.has("add_qkv_bias"),
        output_bias=biased,
        mlp_bias=biased,
        dropout=0.1 if dropout is None else dropout,
        attention_dropout=0.1 if attention_dropout is None else attention_dropout,
        embedding_dropout=0.1 if dropout is None else dropout,
        # (Of latent attention it norms the latents, which the builder knows.)
        qk_norm=given.has("qk_layernorm", "qk_l2_norm") and "latent_kv" not in latent,
        window=window,
        windows=windows,
        mtp_layers=given.count("mtp_num_layers") or 0,
        rotary_base=_told(given, "rotary_base"),
        norm_epsilon=_told(given, "norm_epsilon") or _told(given, "layernorm_epsilon"),
        head_dim=latent.pop("head_dim", head_dim),
        **latent,
        **(_experts(given, experts, ffn) if experts else {}),
    )


def _told(given: Arguments, name: str) -> float | None:
    """A number that no time depends on, so that one which the file leaves open is not asked for."""
    return None if given.unknown in str(given.given.get(name)) else given.number(name)


def _windows(given: Arguments, layers: int) -> tuple[int, tuple[int, ...]]:
    """The sliding window "(127, 0)", and that of each block where every so many see all."""
    said = given.text("window_size")
    first = (said or "").strip("()\"' ").replace(",", " ").split()
    window = int(first[0]) + 1 if first and first[0].isdigit() else 0
    every = (given.text("window_attn_skip_freq") or "") if window else ""
    if not every:
        return window, ()
    if every.isdigit() and int(every):
        return 0, tuple(window if (i + 1) % int(every) else 0 for i in range(layers))
    sliding = set(range(layers)) - set(_zeros(given, "window_attn_skip_freq", layers))
    return 0, tuple(window if i in sliding else 0 for i in range(layers))


def _usual_ffn(hidden: int, gated: bool) -> int:
    return int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden


def _latent(given: Arguments) -> dict[str, Any]:
    """Multi-latent attention, with megatron-core's defaults."""
    turned = given.count("qk_pos_emb_head_dim") or 64
    return {
        "latent_kv": given.count("kv_lora_rank") or 512,
        "latent_q": given.count("q_lora_rank") or 0,
        "rotary_dim": turned,
        "head_dim": (given.count("qk_head_dim") or 128) + turned,
        "value_dim": given.count("v_head_dim") or 128,
    }


def _experts(given: Arguments, experts: int, dense_ffn: int) -> dict[str, Any]:
    dense = _dense_layers(given, given.size("num_layers"))
    given.has("moe_router_enable_expert_bias")
    return {
        "experts": experts,
        "experts_per_token": given.count("moe_router_topk") or 2,
        "router": given.text("moe_router_score_function") or "softmax",
        "shared_ffn": given.count("moe_shared_expert_intermediate_size") or 0,
        "shared_gate": given.has("moe_shared_expert_gate"),
        "dense_layers": dense,
        "dense_ffn": dense_ffn if dense else 0,
    }


def _dense_layers(given: Arguments, layers: int) -> tuple[int, ...]:
    """Blocks without experts: every so many has some, or a list such as "([0]*3+[1]*58)"."""
    frequency = given.text("moe_layer_freq") or "1"
    if frequency.strip("\"' ").isdigit() and (every := int(frequency.strip("\"' "))):
        return tuple(i for i in range(layers) if i % every)
    return _zeros(given, "moe_layer_freq", layers)


def _zeros(given: Arguments, name: str, layers: int) -> tuple[int, ...]:
    """Where a list such as "([0]*3+[1]*58)" has zeros."""
    text = given.text(name) or ""
    try:
        pattern = _list(ast.parse(text.strip("\"' "), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise AtollError(f"{given.file}: {name} {text[:40]!r} is not a number or a list") from None
    return tuple(i for i, value in enumerate(pattern[:layers]) if not value)


def _list(node: ast.AST) -> list[int]:
    """A list of zeros and ones from sums and multiples of lists: parsed, not evaluated."""
    if isinstance(node, ast.List):
        return [item.value for item in node.elts if isinstance(item, ast.Constant)]  # type: ignore[misc]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _list(node.left) + _list(node.right)
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mult)
        and isinstance(node.right, ast.Constant)
        and isinstance(node.right.value, int)
        and node.right.value <= 4096
    ):
        return _list(node.left) * node.right.value
    raise ValueError


def _of_the_zoo(given: Arguments) -> int | None:
    """The vocabulary of the models that have this shape, where it is one."""
    shape = given.size("hidden_size"), given.size("num_layers"), given.size("num_attention_heads")
    alike = (load_config(name) for name in zoo_names())
    found = {c.vocab for c in alike if (c.hidden, c.layers, c.heads) == shape}
    return found.pop() if len(found) == 1 else None


def _vocabulary(given: Arguments) -> int:
    """Rows of the word table as Megatron-LM pads it."""
    padded = given.count("padded_vocab_size")
    said = given.text("tokenizer_type")
    unit = given.count("make_vocab_size_divisible_by") or UNIT
    tokenizer = said or ("GPT2BPETokenizer" if "merge_file" in given.given else "")
    size = given.count("vocab_size") or VOCABULARIES.get(tokenizer.lower())
    if tokenizer == "NullTokenizer" and size is not None:
        size += 1  # its end of a document
    if padded:
        return padded
    size = given.vocab or size or _of_the_zoo(given)
    if size is None:
        raise AtollError(
            f"{given.file}: does not say how large the vocabulary is (its tokenizer does); add "
            "--vocab N to this command"
        )
    unit *= given.count("tensor_model_parallel_size") or 1
    return -(-size // unit) * unit
