"""Configurations of mixtures of experts: Mixtral, Qwen-MoE, DeepSeek-V2 and V3."""

from __future__ import annotations

from dataclasses import replace

from atoll.errors import AtollError
from atoll.workload.config_fields import Fields
from atoll.workload.model_config import ModelConfig
from atoll.workload.readers_llama import llama, qwen2, qwen3


def mixtral(fields: Fields) -> ModelConfig:
    return with_experts(fields, llama(fields), "num_local_experts")


def qwen2_moe(fields: Fields) -> ModelConfig:
    """Routed experts, and one for every token behind a gate (Qwen1.5-MoE, Qwen2-57B-A14B)."""
    config = qwen_experts(fields, qwen2(fields))
    return replace(config, attention_bias=fields.flag("qkv_bias", True))


def qwen3_moe(fields: Fields) -> ModelConfig:
    return _qwen_moe(fields, qwen3(fields))


def qwen_experts(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Those of Qwen2-MoE: with one for every token behind a gate."""
    shared = fields.size("shared_expert_intermediate_size")
    return replace(_qwen_moe(fields, config), shared_ffn=shared, shared_gate=True)


def _qwen_moe(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Experts in every `decoder_sparse_step`-th block except those in `mlp_only_layers`."""
    step = fields.size("decoder_sparse_step", 1)
    listed = fields.indices("mlp_only_layers", config.layers)
    dense = (i for i in range(config.layers) if i in listed or (i + 1) % step)
    return with_experts(fields, config, "num_experts", tuple(dense), "moe_intermediate_size")


def deepseek(fields: Fields) -> ModelConfig:
    """Latent attention, shared experts, and dense blocks first (arXiv:2405.04434, 2412.19437).

    The modules that predict further tokens (num_nextn_predict_layers) are left out, as in the
    published counts of the main model.
    """
    config = llama(fields)
    dense = dense_first(fields, config.layers)
    rotary, rest = fields.size("qk_rope_head_dim"), fields.size("qk_nope_head_dim")
    third = fields.text("model_type") in ("deepseek_v3", "kimi_k2")
    scoring = fields.choice(
        "scoring_func", ("softmax", "sigmoid"), "sigmoid" if third else "softmax"
    )
    config = replace(
        with_experts(fields, config, "n_routed_experts", dense, "moe_intermediate_size"),
        # Keys and values are made for every head, whatever num_key_value_heads says.
        kv_heads=config.heads,
        head_dim=rotary + rest,
        rotary_dim=rotary,
        value_dim=fields.size("v_head_dim"),
        latent_kv=fields.size("kv_lora_rank"),
        latent_q=fields.size("q_lora_rank", 0),
        router=scoring,
    )
    return replace(config, shared_ffn=fields.count("n_shared_experts", 0) * config.ffn)


def dense_first(fields: Fields, layers: int) -> tuple[int, ...]:
    """Blocks without experts: the first ones, and all but every `moe_layer_freq`-th."""
    first = min(fields.count("first_k_dense_replace", 0), layers)
    step = fields.size("moe_layer_freq", 1)
    return tuple(i for i in range(layers) if i < first or i % step)


def with_experts(
    fields: Fields,
    config: ModelConfig,
    experts_name: str,
    dense: tuple[int, ...] = (),
    width_name: str = "intermediate_size",
) -> ModelConfig:
    """Experts of `width_name` columns in all but the `dense` blocks."""
    experts = fields.size(experts_name)
    chosen = fields.size("num_experts_per_tok")
    if chosen > experts:
        raise AtollError(
            f"{fields.where}: {fields.key('num_experts_per_tok')} is {chosen}, but must be at "
            f"most {fields.key(experts_name)}, {experts}"
        )
    return replace(
        config,
        experts=experts,
        experts_per_token=chosen,
        ffn=fields.size(width_name),
        dense_layers=dense,
        dense_ffn=config.ffn if dense else 0,
    )
