"""Llama and the families that other descriptions start from: Qwen, Gemma, mixtures of experts."""

from __future__ import annotations

from dataclasses import replace

from atoll.errors import AtollError
from atoll.workload.families.config_fields import Fields
from atoll.workload.families.family import (
    Family,
    Step,
    flag,
    partial_rotary,
    present,
    probability,
    size,
)
from atoll.workload.families.layer_kinds import FULL, SLIDING, every, kinds
from atoll.workload.families.model_config import ModelConfig


def windows_if_used(fields: Fields, config: ModelConfig) -> ModelConfig:
    """No window unless `use_sliding_window` says so."""
    return config if fields.flag("use_sliding_window", False) else replace(config, window=0)


def last_windows(fields: Fields, layers: int) -> tuple[str, ...]:
    """The blocks from `max_window_layers` on have a window."""
    first = fields.count("max_window_layers", layers)
    return tuple(FULL if i < first else SLIDING for i in range(layers))


# --- experts --------------------------------------------------------------------------------------


def experts(
    name: str = "num_local_experts", width: str = "intermediate_size", shared: str = ""
) -> Step:
    """Experts in every block; `shared` names the columns of those that see every token."""

    def step(fields: Fields, config: ModelConfig) -> ModelConfig:
        config = with_experts(fields, config, name, (), width)
        return replace(config, shared_ffn=fields.count(shared, 0)) if shared else config

    return step


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


def _qwen_moe(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Experts in every `decoder_sparse_step`-th block except those in `mlp_only_layers`."""
    step = fields.size("decoder_sparse_step", 1)
    listed = fields.indices("mlp_only_layers", config.layers)
    dense = (i for i in range(config.layers) if i in listed or (i + 1) % step)
    return with_experts(fields, config, "num_experts", tuple(dense), "moe_intermediate_size")


def qwen_experts(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Those of Qwen2-MoE: with one for every token behind a gate."""
    shared = fields.size("shared_expert_intermediate_size")
    return replace(_qwen_moe(fields, config), shared_ffn=shared, shared_gate=True)


def deepseek_experts(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Shared experts, and blocks without experts: the first ones, and all but every
    `moe_layer_freq`-th.
    """
    first = min(fields.count("first_k_dense_replace", 0), config.layers)
    step = fields.size("moe_layer_freq", 1)
    dense = tuple(i for i in range(config.layers) if i < first or i % step)
    config = with_experts(fields, config, "n_routed_experts", dense, "moe_intermediate_size")
    return replace(config, shared_ffn=fields.count("n_shared_experts", 0) * config.ffn)


def _latent(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Latent attention (arXiv:2405.04434, 2412.19437).

    The modules that predict further tokens (num_nextn_predict_layers) are left out, as in the
    published counts of the main model.
    """
    rotary, rest = fields.size("qk_rope_head_dim"), fields.size("qk_nope_head_dim")
    third = fields.text("model_type") in ("deepseek_v3", "kimi_k2")
    return replace(
        config,
        # Keys and values are made for every head, whatever num_key_value_heads says.
        kv_heads=config.heads,
        head_dim=rotary + rest,
        rotary_dim=rotary,
        value_dim=fields.size("v_head_dim"),
        latent_kv=fields.size("kv_lora_rank"),
        latent_q=fields.size("q_lora_rank", 0),
        expert_groups=(fields.count("n_group", 0), fields.count("topk_group", 0)),
        router=fields.choice(
            "scoring_func", ("softmax", "sigmoid"), "sigmoid" if third else "softmax"
        ),
    )


LLAMA = (
    Family(
        types=("llama",),
        about="RMS norms, gated feed-forward layer, grouped queries",
        base="",
        silent={
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
        },
        fixed={"gated": True, "norm": "rmsnorm", "positions": "rotary"},
        given={"window": size("sliding_window", 0)},
    ),
    Family(
        types=("mistral",),
        about="Llama with a sliding window",
        silent={"sliding_window": 4096},
    ),
    Family(
        types=("qwen2",),
        about="biases on queries, keys and values only",
        silent={"sliding_window": 4096},
        fixed={"attention_bias": True, "output_bias": False},
        steps=(windows_if_used, kinds(last_windows)),
    ),
    Family(  # Yang et al., arXiv:2505.09388
        types=("qwen3",),
        about="norms on the heads of queries and keys",
        silent={"head_dim": 128, "sliding_window": 4096},
        fixed={"qk_norm": True},
        steps=(windows_if_used, kinds(last_windows)),
    ),
    Family(  # arXiv:2403.08295
        types=("gemma",),
        about="heads wider than hidden / heads, tied and scaled embeddings",
        # `hidden_activation` came later and wins; the exact and the tanh form cost the same here.
        spelling={"hidden_act": ("hidden_activation", "hidden_act")},
        silent={"head_dim": 256, "tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"},
        fixed={"embedding_scale": True},
    ),
    Family(  # arXiv:2408.00118
        types=("gemma2",),
        about="Gemma with a window in every second block, four norms, capped scores and logits",
        base="gemma",
        silent={"sliding_window": 4096},
        fixed={"branch_norms": True},
        given={
            "score_cap": present("attn_logit_softcapping", True),
            "logit_cap": present("final_logit_softcapping", True),
        },
        steps=(kinds(every("", 2)),),
    ),
    Family(  # arXiv:2404.14219
        types=("phi3",),
        about="Llama's block with a window (Phi-3, Phi-4)",
        given={
            "dropout": probability("resid_pdrop", 0.0),
            "embedding_dropout": probability("embd_pdrop", 0.0),
        },
        steps=(partial_rotary(1.0),),
    ),
    Family(types=("mixtral",), about="routed experts", steps=(experts(),)),
    Family(
        types=("qwen2_moe",),
        about="routed experts and a gated shared one, dense blocks by `mlp_only_layers` and "
        "`decoder_sparse_step`",
        base="qwen2",
        given={"attention_bias": flag("qkv_bias", True)},
        steps=(qwen_experts,),
    ),
    Family(
        types=("qwen3_moe",),
        about="Qwen3 with routed experts",
        base="qwen3",
        steps=(_qwen_moe,),
    ),
    Family(
        types=("deepseek_v2", "deepseek_v3", "kimi_k2"),
        about="latent attention (MLA), shared experts, dense blocks first; V3 and Kimi: sigmoid "
        "router",
        steps=(_latent, deepseek_experts),
    ),
)
