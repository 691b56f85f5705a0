"""A small configuration of every family that is described in data, with its parameters.

The numbers are ours; the spelling is that of transformers 4 for some and of transformers 5 for
others. `test_small_families.py` compares the counts to transformers' own modules.
"""

from __future__ import annotations

from atoll.workload import ModelConfig, config_from_hf

COMMON: dict[str, object] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
EXPERTS: dict[str, object] = {"num_local_experts": 8, "num_experts_per_tok": 2}
DEEPSEEK: dict[str, object] = {
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
MAMBA: dict[str, object] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 32,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 32,
}
SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"

SMALL: dict[str, dict[str, object]] = {
    "gemma3_text": {
        "head_dim": 24,
        "num_hidden_layers": 6,
        "sliding_window": 32,
        "sliding_window_pattern": 3,
        "tie_word_embeddings": True,
    },
    "olmo2": {},
    "olmo3": {"sliding_window": 32, "layer_types": [SLIDING, SLIDING, SLIDING, FULL]},
    "exaone4": {"head_dim": 16, "sliding_window": 32, "sliding_window_pattern": "LLLG",
                "layer_types": [SLIDING, SLIDING, SLIDING, FULL]},
    "granite": {"embedding_multiplier": 12.0, "residual_multiplier": 0.2, "logits_scaling": 8.0},
    "glm4": {"head_dim": 16, "attention_bias": True, "partial_rotary_factor": 0.5},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0], "use_sliding_window": False},
    "seed_oss": {"head_dim": 24, "attention_dropout": 0.0, "residual_dropout": 0.0},
    "starcoder2": {"hidden_act": "gelu_pytorch_tanh", "sliding_window": 32, "use_bias": True},
    "nemotron": {"head_dim": 24, "hidden_act": "relu2",
                 "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0,
                                     "rope_type": "default"}},
    "cohere": {"logit_scale": 0.25, "tie_word_embeddings": True, "use_qk_norm": True},
    "cohere2": {"sliding_window": 32, "sliding_window_pattern": 4, "logit_scale": 0.25,
                "tie_word_embeddings": True},
    "apertus": {"hidden_act": "xielu"},
    "hunyuan_v1_dense": {"head_dim": 16},
    "qwen2_5_vl_text": {"use_sliding_window": False, "sliding_window": None},
    "modernbert": {"num_hidden_layers": 7, "hidden_activation": "gelu", "local_attention": 32,
                   "global_attn_every_n_layers": 3, "tie_word_embeddings": True},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "phimoe": {**EXPERTS, "attention_bias": True, "lm_head_bias": True, "sliding_window": 64},
    "granitemoe": EXPERTS,
    "gpt_oss": {**EXPERTS, "head_dim": 16, "sliding_window": 32,
                "layer_types": [SLIDING, FULL, SLIDING, FULL],
                "quantization_config": {"quant_method": "mxfp4"}},
    "llama4_text": {**EXPERTS, "num_experts_per_tok": 1, "head_dim": 16, "attention_chunk_size": 32,
                    "interleave_moe_layer_step": 2, "intermediate_size_mlp": 128},
    "glm4_moe": {**DEEPSEEK, "head_dim": 16, "attention_bias": True, "use_qk_norm": True,
                 "partial_rotary_factor": 0.5},
    "dots1": {**DEEPSEEK, "sliding_window": None},
    "kimi_k2": {**DEEPSEEK, "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 48,
                "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16},
    "ernie4_5_moe": {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 32,
                     "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "use_bias": False},
    "hunyuan_v1_moe": {"num_experts": 8, "moe_topk": [2, 2, 2, 2], "head_dim": 16},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 32, "n_groups": 1, "chunk_size": 32},
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "falcon_h1": {**MAMBA, "head_dim": 16, "mamba_d_ssm": 96, "mamba_d_head": 12,
                  "mamba_rms_norm": False},
    "granitemoehybrid": {**MAMBA, **EXPERTS, "shared_intermediate_size": 48,
                         "layer_types": ["mamba", "attention", "mamba", "mamba"]},
    "nemotron_h": {**DEEPSEEK, "num_hidden_layers": 7, "hybrid_override_pattern": "ME*M-ME",
                   "moe_shared_expert_intermediate_size": 48, "mamba_num_heads": 6,
                   "mamba_head_dim": 16, "ssm_state_size": 32, "n_groups": 2, "chunk_size": 32,
                   "head_dim": 16},
    "jamba": {"num_hidden_layers": 8, "attn_layer_period": 4, "attn_layer_offset": 2,
              "num_experts": 4, "num_experts_per_tok": 2, "mamba_d_state": 8, "mamba_dt_rank": 4},
    "qwen3_next": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                   "shared_expert_intermediate_size": 48, "head_dim": 16,
                   "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                   "linear_key_head_dim": 16, "linear_value_head_dim": 24,
                   "partial_rotary_factor": 0.25, "full_attention_interval": 4},
    "minimax": {**EXPERTS, "head_dim": 16, "block_size": 32,
                "layer_types": [LINEAR, LINEAR, LINEAR, FULL]},
    "lfm2": {"layer_types": ["conv", "conv", FULL, "conv"], "block_ff_dim": 192,
             "block_multiple_of": 32, "tie_word_embeddings": True},
}  # fmt: skip
# Fields that a family does not have.
WITHOUT = {
    "mamba2": ("intermediate_size", "num_attention_heads", "num_key_value_heads"),
    "modernbert": ("num_key_value_heads",),
}

# All, and those that one token meets.
PARAMETERS = {
    "gemma3_text": (255_072, 255_072),
    "olmo2": (187_840, 187_840),
    "olmo3": (187_840, 187_840),
    "exaone4": (187_584, 187_584),
    "granite": (187_456, 187_456),
    "glm4": (188_480, 188_480),
    "smollm3": (187_456, 187_456),
    "seed_oss": (212_800, 212_800),
    "starcoder2": (164_864, 164_864),
    "nemotron": (188_032, 188_032),
    "cohere": (155_584, 155_584),
    "cohere2": (155_200, 155_200),
    "apertus": (163_016, 163_016),
    "hunyuan_v1_dense": (187_584, 187_584),
    "qwen2_5_vl_text": (187_968, 187_968),
    "modernbert": (281_332, 281_332),
    "olmoe": (705_984, 263_616),
    "phimoe": (707_444, 265_076),
    "granitemoe": (705_600, 263_232),
    "gpt_oss": (714_608, 266_096),
    "llama4_text": (495_680, 237_632),
    "glm4_moe": (318_656, 208_064),
    "dots1": (318_144, 207_552),
    "kimi_k2": (342_912, 232_320),
    "ernie4_5_moe": (318_040, 207_448),
    "hunyuan_v1_moe": (779_456, 337_088),
    "mamba2": (185_504, 185_504),
    "bamba": (241_480, 241_480),
    "falcon_h1": (282_912, 282_912),
    "granitemoehybrid": (796_488, 354_120),
    "nemotron_h": (252_662, 203_510),
    "jamba": (636_856, 489_400),
    "qwen3_next": (387_904, 240_448),
    "minimax": (730_368, 288_000),
    "lfm2": (192_928, 192_928),
}


def given(name: str, **changes: object) -> dict[str, object]:
    """The file of a small model."""
    own = {k: v for k, v in COMMON.items() if k not in WITHOUT.get(name, ())}
    return {**own, "model_type": name, **SMALL[name], **changes}


def small(name: str, **changes: object) -> ModelConfig:
    return config_from_hf(given(name, **changes), name)
