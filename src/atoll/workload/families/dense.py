"""Families of dense models that are Llama, Gemma or Qwen with differences."""

from __future__ import annotations

from atoll.workload.families.config_fields import Fields
from atoll.workload.families.family import Family, flag, partial_rotary, present, probability
from atoll.workload.families.layer_kinds import (
    FULL,
    SLIDING,
    every,
    kinds,
    rotary_in_windows,
    rotary_list,
)
from atoll.workload.families.llama import windows_if_used
from atoll.workload.families.model_config import ModelConfig

TIED = {"tie_word_embeddings": True}
CONSTANTS = {"embedding_scale": True, "branch_scale": True, "logit_scale": True}
CLOSING_NORMS = {"opening_norms": False, "branch_norms": True, "qk_norm": True}
PLAIN = {"gated": False, "norm": "layernorm"}


def _unrotated_windows(fields: Fields, config: ModelConfig) -> ModelConfig:
    """SmolLM3: blocks without rotary positions may have a window."""
    usual = tuple(SLIDING if i in config.unrotated else FULL for i in range(config.layers))
    return kinds(lambda *_: usual)(fields, config)


DENSE = (
    Family(
        types=("gemma3_text",),
        about="Gemma 2 without caps, with norms on the heads of queries and keys; every sixth "
        "block sees everything, the others a window",
        base="gemma",
        # The file of the whole model leaves out even sizes.
        silent={
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131_072,
            "sliding_window": 4096,
        },
        fixed={"branch_norms": True, "qk_norm": True},
        given={
            "score_cap": present("attn_logit_softcapping", False),
            "logit_cap": present("final_logit_softcapping", False),
        },
        steps=(kinds(every("sliding_window_pattern", 6)),),
    ),
    Family(
        types=("olmo2",),
        about="norms close the branches instead of opening them; queries and keys are normed over "
        "all heads at once",
        fixed={**CLOSING_NORMS, "qk_norm_form": "wide"},
    ),
    Family(
        types=("olmo3",),
        about="OLMo 2 with a window in three of four blocks",
        silent={"sliding_window": 4096},
        fixed={**CLOSING_NORMS, "qk_norm_form": "wide"},
        steps=(kinds(every("", 4)),),
    ),
    Family(
        types=("exaone4",),
        about="norms close the branches, heads of queries and keys are normed; a window and "
        "rotary positions in three of four blocks",
        silent={"sliding_window": 4096},
        fixed=CLOSING_NORMS,
        steps=(kinds(every("sliding_window_pattern", 4)), rotary_in_windows),
    ),
    Family(
        types=("granite",),
        about="Llama with constants on embeddings, branches and logits",
        fixed=CONSTANTS,
    ),
    Family(
        types=("glm4",),
        about="four norms a block, biases on queries, keys and values, rotary on half of a head",
        silent={"attention_bias": True, "head_dim": 128},
        fixed={"output_bias": False, "branch_norms": True},
        steps=(partial_rotary(0.5),),
    ),
    Family(
        types=("smollm3",),
        about="Llama without rotary positions in every fourth block",
        silent=TIED,
        steps=(rotary_list, windows_if_used, _unrotated_windows),
    ),
    Family(
        types=("seed_oss",),
        about="Llama with biases on queries, keys and values, and dropout",
        silent={"attention_bias": True, "attention_dropout": 0.1, "head_dim": 128},
        given={
            "output_bias": flag("attention_out_bias", False),
            "dropout": probability("residual_dropout", 0.1),
        },
    ),
    Family(
        types=("starcoder2",),
        about="layer norms, a plain feed-forward layer, biases everywhere, a window",
        spelling={"attention_bias": ("use_bias",), "mlp_bias": ("use_bias",)},
        silent={**TIED, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"},
        fixed=PLAIN,
        given={
            "dropout": probability("residual_dropout", 0.0),
            "embedding_dropout": probability("embedding_dropout", 0.0),
        },
    ),
    Family(
        types=("nemotron",),
        about="layer norms, squared ReLU in a plain feed-forward layer, rotary on half of a head",
        silent={"hidden_act": "relu2"},
        fixed=PLAIN,
        steps=(partial_rotary(0.5),),
    ),
    Family(
        types=("cohere2",),
        about="parallel branches from one norm without a shift; a window and rotary positions in "
        "three of four blocks; scaled logits",
        silent={**TIED, "sliding_window": 4096},
        fixed={
            "norm": "layernorm",
            "norm_bias": False,
            "parallel": True,
            "one_norm": True,
            "logit_scale": True,
        },
        steps=(kinds(every("sliding_window_pattern", 4)), rotary_in_windows),
    ),
    Family(
        types=("apertus",),
        about="norms on the heads of queries and keys; xIELU in a plain feed-forward layer",
        silent={"hidden_act": "xielu"},
        fixed={"gated": False, "qk_norm": True},
    ),
    Family(
        types=("hunyuan_v1_dense",),
        about="Llama with norms on the heads of queries and keys",
        fixed={"qk_norm": True},
    ),
    Family(
        types=("qwen2_5_vl_text",),
        about="the language part of Qwen2.5-VL: Qwen2",
        base="qwen2",
    ),
    Family(
        types=("qwen2_5_vl",),
        about="as transformers 4 writes the whole model: its language part",
        base="qwen2",
        fixed={"part": "language part"},
    ),
    Family(
        types=("modernbert",),
        about="bidirectional, rotary, gated; a window in two of three blocks, norms without a "
        "shift, the first block without one",
        spelling={"hidden_act": ("hidden_activation",), "sliding_window": ("local_attention",)},
        silent={**TIED, "hidden_act": "gelu", "sliding_window": 128},
        fixed={
            "norm": "layernorm",
            "causal": False,
            "embedding_norm": True,
            "bare_first": True,
            "mlm_head": True,
        },
        given={
            "norm_bias": flag("norm_bias", False),
            "mlm_bias": flag("classifier_bias", False),
            "inner_dropout": probability("mlp_dropout", 0.0),
            "embedding_dropout": probability("embedding_dropout", 0.0),
        },
        steps=(kinds(every("global_attn_every_n_layers", 3, first=True)),),
    ),
)
