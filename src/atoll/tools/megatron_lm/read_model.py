"""A model from the arguments that describe it to Megatron-LM."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from atoll.base.errors import AtollError
from atoll.tools.arguments import LaunchArguments, load_names
from atoll.workload import load_config, zoo_names
from atoll.workload.families.model_config import ModelConfig

NAMES = load_names("megatron_lm")
VOCABULARIES = {
    "gpt2bpetokenizer": 50257,
    "bertwordpiecelowercase": 30522,
    "bertwordpiececase": 28996,
    "llama2tokenizer": 32000,
}
"""Vocabulary size by tokenizer type, where it is fixed."""


def build_model(args: LaunchArguments) -> ModelConfig:
    """Return the decoder that pretrain_gpt.py builds from these arguments."""
    latent = args.has("multi_latent_attention")
    fields = NAMES.read(args, "every_model", "latent_attention" if latent else "attention")
    hidden, heads, gated = fields["hidden"], fields["heads"], fields["gated"]
    if not latent and not fields["head_dim"] and hidden % heads:
        raise AtollError(f"{args.file}: {heads} attention heads do not divide hidden_size {hidden}")
    default_ffn = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    ffn = args.count("ffn_hidden_size") or default_ffn
    if not ffn:
        raise AtollError(f"{args.file}: hidden_size {hidden} gives no ffn_hidden_size; add it")
    args.has("no_position_embedding")
    if args.has("use_rotary_position_embeddings"):
        fields["positions"] = "rotary"
    sequence = args.count("seq_length") or 0
    longest = args.count("max_position_embeddings") or sequence
    if not longest:
        raise AtollError(f"{args.file}: does not say seq_length")
    biased = not args.has("disable_bias_linear")
    window, windows = _windows(args, fields["layers"])
    squared = args.has("squared_relu")
    grouped = args.has("group_query_attention") or "num_key_value_heads" in args.values
    groups = args.count("num_query_groups", "num_key_value_heads")
    fields |= {
        "kv_heads": (groups if grouped else None) or heads,
        "ffn": ffn,
        "vocab": _vocabulary(args),
        "max_sequence": max(longest, sequence),
        "default_sequence": sequence,
        "activation": "silu" if gated else "relu2" if squared else "gelu",
        "position_rows": longest if fields["positions"] == "learned" else 0,
        "attention_bias": biased or args.has("add_qkv_bias"),
        "output_bias": biased,
        "mlp_bias": biased,
        "embedding_dropout": fields["dropout"],
        "window": window,
        "windows": windows,
        "mtp_layers": args.count("mtp_num_layers") or 0,
        "rotary_base": _optional(args, "rotary_base"),
        "norm_epsilon": _optional(args, "norm_epsilon") or _optional(args, "layernorm_epsilon"),
        **(_latent(args) if latent else _head(args, fields["head_dim"] or hidden // heads)),
        **(_experts(args, ffn) if args.count("num_experts") else {}),
    }
    return ModelConfig(name=Path(args.file).stem, family="megatron", **fields)


def _head(args: LaunchArguments, head_dim: int) -> dict[str, int]:
    rotary_dim = int((args.number("rotary_percent") or 1.0) * head_dim)
    return {"head_dim": head_dim, "rotary_dim": rotary_dim}


def _optional(args: LaunchArguments, name: str) -> float | None:
    """Return a number that no time depends on; None if its variable is not set."""
    return None if args.unknown in str(args.values.get(name)) else args.number(name)


def _windows(args: LaunchArguments, layers: int) -> tuple[int, tuple[int, ...]]:
    """Return the sliding window "(127, 0)", or one per block if every n-th block sees all."""
    window_size = args.text("window_size")
    window_parts = (window_size or "").strip("()\"' ").replace(",", " ").split()
    window = int(window_parts[0]) + 1 if window_parts and window_parts[0].isdigit() else 0
    every = (args.text("window_attn_skip_freq") or "") if window else ""
    if not every:
        return window, ()
    if every.isdigit() and int(every):
        return 0, tuple(window if (i + 1) % int(every) else 0 for i in range(layers))
    sliding = set(range(layers)) - set(_zeros(args, "window_attn_skip_freq", layers))
    return 0, tuple(window if i in sliding else 0 for i in range(layers))


def _latent(args: LaunchArguments) -> dict[str, Any]:
    """Return the heads of multi-latent attention, with megatron-core's defaults."""
    args.has("qk_layernorm")  # norms the latents, which the builder adds
    args.count("kv_channels")
    rotary_dim = args.count("qk_pos_emb_head_dim") or 64
    return {
        "rotary_dim": rotary_dim,
        "head_dim": (args.count("qk_head_dim") or 128) + rotary_dim,
        "value_dim": args.count("v_head_dim") or 128,
    }


def _experts(args: LaunchArguments, dense_ffn: int) -> dict[str, Any]:
    fields = NAMES.read(args, "experts")
    layers = args.size("num_layers")
    frequency = (args.text("moe_layer_freq") or "1").strip("\"' ")
    if frequency.isdigit() and (every := int(frequency)):  # all but every n-th are dense
        dense = tuple(i for i in range(layers) if i % every)
    else:
        dense = _zeros(args, "moe_layer_freq", layers)
    args.has("moe_router_enable_expert_bias")
    return fields | {
        "ffn": fields["ffn"] or dense_ffn,
        "dense_layers": dense,
        "dense_ffn": dense_ffn if dense else 0,
    }


def _zeros(args: LaunchArguments, name: str, layers: int) -> tuple[int, ...]:
    """Return the indexes of zeros in a list such as "([0]*3+[1]*58)"."""
    text = args.text(name) or ""
    try:
        pattern = _list(ast.parse(text.strip("\"' "), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise AtollError(f"{args.file}: {name} {text[:40]!r} is not a number or a list") from None
    return tuple(i for i, value in enumerate(pattern[:layers]) if not value)


def _list(node: ast.AST) -> list[int]:
    """Return the list that sums and multiples of lists describe: parsed, not evaluated."""
    match node:
        case ast.List():
            return [item.value for item in node.elts if isinstance(item, ast.Constant)]  # type: ignore[misc]
        case ast.BinOp(op=ast.Add()):
            return _list(node.left) + _list(node.right)
        case ast.BinOp(op=ast.Mult(), right=ast.Constant(value=int(times))) if times <= 4096:
            return _list(node.left) * times
    raise ValueError


def _zoo_vocabulary(args: LaunchArguments) -> int | None:
    """Return the vocabulary of zoo models of this shape, if they agree on one."""
    shape = args.size("hidden_size"), args.size("num_layers"), args.size("num_attention_heads")
    configs = (load_config(name) for name in zoo_names())
    vocabularies = {c.vocab for c in configs if (c.hidden, c.layers, c.heads) == shape}
    return vocabularies.pop() if len(vocabularies) == 1 else None


def _vocabulary(args: LaunchArguments) -> int:
    """Return the rows of the embedding table as Megatron-LM pads it."""
    padded = args.count("padded_vocab_size")
    tokenizer_type = args.text("tokenizer_type")
    unit = args.count("make_vocab_size_divisible_by") or 128  # times tp
    tokenizer = tokenizer_type or ("GPT2BPETokenizer" if "merge_file" in args.values else "")
    size = args.count("vocab_size") or VOCABULARIES.get(tokenizer.lower())
    if tokenizer == "NullTokenizer" and size is not None:
        size += 1  # its end of a document
    if padded:
        return padded
    size = args.vocab or size or _zoo_vocabulary(args)
    if size is None:
        raise AtollError(
            f"{args.file}: does not say how large the vocabulary is (its tokenizer does); add "
            "--vocab N to this command"
        )
    unit *= args.count("tensor_model_parallel_size") or 1
    return -(-size // unit) * unit
