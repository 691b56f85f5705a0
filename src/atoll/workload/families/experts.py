"""Steps of mixtures of experts (`families.yaml`): how many, how wide, in which blocks."""

from __future__ import annotations

from dataclasses import replace

from atoll.base.errors import AtollError
from atoll.workload.families.config_fields import Fields
from atoll.workload.families.family import Step
from atoll.workload.families.layer_kinds import CHUNKED, FULL, kinds, rotary_list
from atoll.workload.families.model_config import ModelConfig


def experts(
    name: str = "num_local_experts", width: str = "intermediate_size", shared: str = ""
) -> Step:
    """Experts in every block; `shared` names the columns of those that see every token."""

    def step(fields: Fields, config: ModelConfig) -> ModelConfig:
        config = with_experts(fields, config, name, (), width)
        return replace(config, shared_ffn=fields.count(shared, 0)) if shared else config

    return step


def with_experts(
    fields: Fields, config: ModelConfig, experts_name: str, dense: tuple[int, ...], width: str
) -> ModelConfig:
    """Experts of `width` columns, a field's name, in all but the `dense` blocks."""
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
        ffn=fields.size(width),
        dense_layers=dense,
        dense_ffn=config.ffn if dense else 0,
    )


def qwen_moe(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Experts in every `decoder_sparse_step`-th block except those in `mlp_only_layers`."""
    step = fields.size("decoder_sparse_step", 1)
    listed = fields.indices("mlp_only_layers", config.layers)
    dense = (i for i in range(config.layers) if i in listed or (i + 1) % step)
    return with_experts(fields, config, "num_experts", tuple(dense), "moe_intermediate_size")


def qwen_experts(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Those of Qwen2-MoE: with one for every token behind a gate."""
    shared = fields.size("shared_expert_intermediate_size")
    return replace(qwen_moe(fields, config), shared_ffn=shared, shared_gate=True)


def deepseek_experts(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Shared experts, and blocks without experts: the first ones, and all but every
    `moe_layer_freq`-th."""
    first = min(fields.count("first_k_dense_replace", 0), config.layers)
    step = fields.size("moe_layer_freq", 1)
    dense = tuple(i for i in range(config.layers) if i < first or i % step)
    config = with_experts(fields, config, "n_routed_experts", dense, "moe_intermediate_size")
    return replace(config, shared_ffn=fields.count("n_shared_experts", 0) * config.ffn)


def llama4(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Experts in every n-th block, beside one that sees every token; chunks where positions are."""
    step = fields.size("interleave_moe_layer_step", 1)
    sparse = fields.indices("moe_layers", config.layers) or range(step - 1, config.layers, step)
    dense = tuple(i for i in range(config.layers) if i not in sparse)
    width = fields.size("intermediate_size_mlp")
    config = with_experts(fields, config, "num_local_experts", dense, "intermediate_size")
    config = replace(config, shared_ffn=config.ffn, dense_ffn=width if dense else 0)
    config = rotary_list(fields, config)
    usual = (FULL if i in config.unrotated else CHUNKED for i in range(config.layers))
    return kinds(lambda *_: tuple(usual))(fields, config)


def ernie(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Experts in every n-th block of a range, counted from either end."""
    layers = config.layers
    start, interval = fields.count("moe_layer_start_index", 1), fields.size("moe_layer_interval", 1)
    end = fields.get("moe_layer_end_index")
    stop = end if type(end) is int and 0 <= end < layers else layers - 1
    sparse = [i for i in range(start, stop + 1) if (i + 1) % interval == 0]
    dense = tuple(i for i in range(layers) if i not in sparse)
    config = with_experts(fields, config, "num_experts", dense, "moe_intermediate_size")
    return replace(config, shared_ffn=fields.count("moe_num_shared_experts", 0) * config.ffn)


def hunyuan(fields: Fields, config: ModelConfig) -> ModelConfig:
    """One shared expert of the routed ones' width; lists hold the same number for all blocks."""
    return replace(
        config,
        experts=fields.uniform("num_experts"),
        experts_per_token=fields.uniform("moe_topk"),
        shared_ffn=config.ffn,
    )
