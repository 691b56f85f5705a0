"""Families of mixtures of experts that are known ones with differences."""

from __future__ import annotations

from dataclasses import replace

from atoll.workload.families.config_fields import Fields
from atoll.workload.families.dense import CONSTANTS, TIED
from atoll.workload.families.family import Family, flag, partial_rotary
from atoll.workload.families.layer_kinds import CHUNKED, FULL, every, kinds, rotary_list
from atoll.workload.families.llama import deepseek_experts, experts, last_windows, with_experts
from atoll.workload.families.model_config import ModelConfig


def _llama4(fields: Fields, config: ModelConfig) -> ModelConfig:
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


def _ernie(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Experts in every n-th block of a range, counted from either end."""
    layers = config.layers
    start, interval = fields.count("moe_layer_start_index", 1), fields.size("moe_layer_interval", 1)
    end = fields.get("moe_layer_end_index")
    stop = (
        end
        if isinstance(end, int) and not isinstance(end, bool) and 0 <= end < layers
        else layers - 1
    )
    sparse = [i for i in range(start, stop + 1) if (i + 1) % interval == 0]
    dense = tuple(i for i in range(layers) if i not in sparse)
    config = with_experts(fields, config, "num_experts", dense, "moe_intermediate_size")
    return replace(config, shared_ffn=fields.count("moe_num_shared_experts", 0) * config.ffn)


def _hunyuan(fields: Fields, config: ModelConfig) -> ModelConfig:
    """One shared expert of the routed ones' width; lists hold the same number for all blocks."""
    return replace(
        config,
        experts=fields.uniform("num_experts"),
        experts_per_token=fields.uniform("moe_topk"),
        shared_ffn=config.ffn,
    )


EXPERTS = (
    Family(
        types=("olmoe",),
        about="experts in Llama's block; queries and keys are normed over all heads at once",
        fixed={"qk_norm": True, "qk_norm_form": "wide"},
        steps=(experts("num_experts"),),
    ),
    Family(
        types=("phimoe",),
        about="experts, layer norms, biases on attention and logits, a window",
        fixed={"norm": "layernorm"},
        given={"head_bias": flag("lm_head_bias", False)},
        steps=(experts(),),
    ),
    Family(
        types=("granitemoe",),
        about="Granite with experts",
        fixed=CONSTANTS,
        steps=(experts(),),
    ),
    Family(
        types=("gpt_oss",),
        about="attention sinks, a window in every second block; router and experts with biases",
        silent={"attention_bias": True, "head_dim": 64, "sliding_window": 128},
        fixed={"sinks": True, "router_bias": True, "expert_bias": True},
        steps=(experts(), kinds(every("", 2))),
    ),
    Family(
        types=("llama4_text",),
        about="sigmoid router, a shared expert, dense blocks in between "
        "(`interleave_moe_layer_step`); attention within chunks, and without positions in every "
        "fourth block",
        spelling={"sliding_window": ("attention_chunk_size",)},
        silent={"head_dim": 128, "sliding_window": 8192},
        fixed={"router": "sigmoid", "qk_norm_form": "plain"},
        given={"qk_norm": flag("use_qk_norm", True)},
        steps=(_llama4,),
    ),
    Family(
        types=("glm4_moe",),
        about="DeepSeek-V3's experts behind grouped queries; rotary on half of a head",
        silent={"first_k_dense_replace": 1},
        fixed={"output_bias": False, "router": "sigmoid"},
        given={"qk_norm": flag("use_qk_norm", False)},
        steps=(deepseek_experts, partial_rotary(0.5)),
    ),
    Family(
        types=("dots1",),
        about="DeepSeek-V3's experts behind attention with normed heads",
        silent={"sliding_window": 4096},
        fixed={"qk_norm": True, "router": "sigmoid"},
        steps=(deepseek_experts, kinds(last_windows)),
    ),
    Family(
        types=("ernie4_5_moe",),
        about="experts from `moe_layer_start_index` on, shared ones beside them; the router's "
        "correction counts as a parameter",
        spelling={
            "attention_bias": ("use_bias",),
            "mlp_bias": ("use_bias",),
            "num_experts": ("moe_num_experts", "num_local_experts"),
            "num_experts_per_tok": ("moe_k", "num_experts_per_tok"),
        },
        silent=TIED,
        fixed={"router_correction": True},
        steps=(_ernie,),
    ),
    Family(
        types=("hunyuan_v1_moe",),
        about="experts and a shared one, norms on the heads of queries and keys",
        spelling={"moe_topk": ("moe_topk", "num_experts_per_tok")},
        fixed={"qk_norm": True},
        steps=(_hunyuan,),
    ),
)
