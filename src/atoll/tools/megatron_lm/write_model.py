"""A model's shape as Megatron-LM arguments, for the decoders that pretrain_gpt.py can build."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from atoll.base.errors import AtollError
from atoll.files.yamlfile import shipped_table
from atoll.tools.arguments import load_names
from atoll.tools.launch_plan import LaunchPlan, Settings, refuse, refuse_model
from atoll.workload.families.model_config import ModelConfig

NAMES = load_names("megatron_lm")
TARGET = "megatron-lm"
NO_ARGUMENT: Mapping[str, str] = shipped_table("atoll.tools.megatron_lm", "no_argument.yaml")
"""Fields of a model for which pretrain_gpt.py takes no argument, in words."""


def model_values(plan: LaunchPlan) -> tuple[Settings, list[str]]:
    """Return arguments by name (None and False are omitted), and notes on open settings."""
    model = plan.model
    _check(model)
    notes: list[str] = []
    shape = NAMES.write(model, "every_model")
    dropouts = {name: shape.pop(name) for name in ("hidden_dropout", "attention_dropout")}
    values: Settings = {
        **shape,
        "ffn_hidden_size": model.dense_ffn or model.ffn,
        **_biases(model),
        **_positions(plan, notes),
        **(_latent_attention if model.latent_kv else _attention)(model, notes),
        **(_experts(model, notes) if model.experts else {}),
        **_vocabulary(plan, notes),
        **dropouts,
    }
    if model.embedding_dropout != model.dropout:
        notes.append(
            f"Megatron drops embeddings at the rate of the residual branches ({model.dropout}); "
            f"{model.name} has {model.embedding_dropout}."
        )
    return values, notes


def _check(model: ModelConfig) -> None:
    gate = "gated " if model.gated else ""
    ffn = f"a {gate}{model.activation} feed-forward layer"
    features = {words: getattr(model, field) for field, words in NO_ARGUMENT.items()} | {
        model.special: model.special,
        "no norm before its head": not model.final_norm,
        "attention to later tokens": not model.causal,
        f"{model.positions} positions": model.positions not in ("learned", "rotary", "none"),
        ffn: (model.gated, model.activation) not in ((True, "silu"), (False, "gelu")),
    }
    for words in filter(features.get, features):
        raise _no_argument(model, words)


def _no_argument(model: ModelConfig, words: str) -> AtollError:
    return refuse_model(
        TARGET,
        f"{model.name} has {words}, for which pretrain_gpt.py takes no argument; export to "
        "deepspeed or nemo, which do not describe the model",
    )


def _biases(model: ModelConfig) -> Settings:
    queries, *others = model.attention_bias, model.output_bias, model.mlp_bias
    if others not in ([queries, queries], [False, False]):
        raise _no_argument(model, "biases on some of its layers only")
    return {"disable_bias_linear": not any(others), "add_qkv_bias": queries and not any(others)}


def _positions(plan: LaunchPlan, notes: list[str]) -> Settings:
    model = plan.model
    rows = max(model.max_sequence, plan.sequence)
    if model.positions == "learned":
        rows = model.position_rows or model.max_sequence
        if plan.sequence > rows:
            raise refuse(
                TARGET,
                f"sequence {plan.sequence} is longer than the {rows} learned positions of "
                f"{model.name}; shorten it",
            )
    rotary = model.positions == "rotary"
    base = model.rotary_base if rotary else None
    numbers = {"rotary_base": base, "norm_epsilon": model.norm_epsilon}
    if missing := [name for name in numbers if rotary and numbers[name] is None]:
        words = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
        notes.append(f"The model's description has no {words}: add the values it was built with.")
    if rotary and model.rotary_scaling:
        notes.append(
            f"Its rotary positions are scaled ({model.rotary_scaling}); set it as trained."
        )
    partial = rotary and not model.latent_kv and model.rotated != model.head_dim
    return {
        "max_position_embeddings": rows,
        # Megatron-LM reads integers: 500000.0 is 500000.
        **{n: int(v) if v is not None and v.is_integer() else v for n, v in numbers.items()},
        "rotary_percent": model.rotated / model.head_dim if partial else None,
    }


def _attention(model: ModelConfig, notes: list[str]) -> Settings:
    if model.value_dim not in (0, model.head_dim):
        raise _no_argument(model, f"values {model.value_dim} wide beside keys {model.head_dim}")
    grouped = model.kv_heads != model.heads
    return NAMES.write(model, "attention") | {
        "group_query_attention": grouped,
        "num_query_groups": model.kv_heads if grouped else None,
        # Megatron counts the tokens to the left of a query; the model's window includes it.
        "window_size": f"{model.window - 1},0" if model.window else None,
    }


def _latent_attention(model: ModelConfig, notes: list[str]) -> Settings:
    notes.append(
        "Multi-latent attention takes YaRN positions by default; set --rope-type, "
        "--rotary-scaling-factor and --mscale as the model needs."
    )
    return NAMES.write(model, "latent_attention") | {
        "multi_latent_attention": True,
        "qk_head_dim": model.head_dim - model.rotated,
        "qk_pos_emb_head_dim": model.rotated,
        "v_head_dim": model.value_width,
        "qk_layernorm": True,
    }


def _experts(model: ModelConfig, notes: list[str]) -> Settings:
    notes.append(
        "Atoll does not keep how the router balances, scales or groups experts; add "
        "--moe-router-load-balancing-type, --moe-aux-loss-coeff, --moe-router-pre-softmax and "
        "the like."
    )
    return NAMES.write(model, "experts") | {
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": True,
        "moe_router_enable_expert_bias": model.router == "sigmoid",
        "moe_layer_freq": _layer_pattern(model) if model.dense_layers else None,
    }


def _layer_pattern(model: ModelConfig) -> str:
    """Return blocks with (1) and without experts (0) as a list expression of Megatron."""
    dense = set(model.dense_layers)
    runs = groupby(int(i not in dense) for i in range(model.layers))
    return f"({'+'.join(f'[{with_experts}]*{len([*run])}' for with_experts, run in runs)})"


def _vocabulary(plan: LaunchPlan, notes: list[str]) -> Settings:
    """Return the vocabulary as estimated: padded to a multiple of tp."""
    vocab, tp = plan.model.vocab, plan.layout.tp
    padded = -(-vocab // tp) * tp
    if padded != vocab:
        notes.append(f"The vocabulary of {vocab} is padded to {padded}, a multiple of tp {tp}.")
    return {"padded_vocab_size": padded}
