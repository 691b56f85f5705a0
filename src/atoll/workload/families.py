"""The families of models that Atoll can build, by the model_type of their configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from atoll.workload import readers_encoder, readers_gpt, readers_llama, readers_moe, readers_t5
from atoll.workload.config_fields import Fields
from atoll.workload.model_config import ModelConfig

READERS: Mapping[str, Callable[[Fields], ModelConfig]] = {
    "bert": readers_encoder.bert,
    "bloom": readers_gpt.bloom,
    "deepseek_v2": readers_moe.deepseek,
    "deepseek_v3": readers_moe.deepseek,
    "gemma": readers_llama.gemma,
    "gemma2": readers_llama.gemma2,
    "gpt2": readers_gpt.gpt2,
    "gpt_bigcode": readers_gpt.gpt2,
    "gpt_neox": readers_gpt.neox,
    "gptj": readers_gpt.gptj,
    "llama": readers_llama.llama,
    "megatron-bert": readers_encoder.bert,
    "mistral": readers_llama.mistral,
    "mixtral": readers_moe.mixtral,
    "mt5": readers_t5.mt5,
    "opt": readers_gpt.opt,
    "phi": readers_gpt.phi,
    "phi3": readers_llama.phi3,
    "qwen2": readers_llama.qwen2,
    "qwen2_moe": readers_moe.qwen2_moe,
    "qwen3": readers_llama.qwen3,
    "qwen3_moe": readers_moe.qwen3_moe,
    "roberta": readers_encoder.roberta,
    "t5": readers_t5.t5,
    "vit": readers_encoder.vit,
    "xlm-roberta": readers_encoder.roberta,
}

_NO_BUILDER = (
    "an encoder-decoder model, but of these only t5 and mt5 have a builder; capture the module "
    "instead: atoll capture config.json --out model.json"
)
# Known, and known not to fit.
REFUSED: Mapping[str, str] = dict.fromkeys(
    ("umt5", "longt5", "bart", "mbart", "marian", "pegasus", "whisper"), _NO_BUILDER
)
