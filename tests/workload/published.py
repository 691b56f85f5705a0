"""Published configurations (tests/workload/configs: facts of the architectures) and their counts.

The counts are those of the checkpoints, as Hugging Face's `num_parameters` gives them: weights
tied to one another once, buffers not at all.
"""

from __future__ import annotations

from pathlib import Path

from atoll.workload import ModelConfig, load_config

FOLDER = Path(__file__).parent / "configs"

PARAMETERS = {
    "bert-base-uncased": 109_514_298,  # BertForMaskedLM: with its head, without pooler
    "bloom-560m": 559_214_592,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_404_352,  # without the module that predicts a second token
    "gemma-2-2b": 2_614_341_888,
    "gemma-2b": 2_506_172_416,
    "gpt-j-6b": 6_050_882_784,
    "gpt2": 124_439_808,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b-v0.1": 7_241_732_096,
    "mixtral-8x22b": 140_620_634_112,
    "mt5-small": 300_176_768,
    "opt-1.3b": 1_315_758_080,
    "phi-1.5": 1_418_270_720,
    "phi-3-mini-4k": 3_821_079_552,
    "pythia-6.9b": 6_857_302_016,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "qwen3-235b-a22b": 235_093_634_560,
    "roberta-base": 124_697_433,  # RobertaForMaskedLM: with its head, without pooler
    "starcoder": 15_517_456_384,
    "t5-small": 60_506_624,
    "t5-v1.1-base": 247_577_856,
    "vit-large-patch16-384": 304_715_752,  # with the classifier over 1,000 classes
}


def published(name: str) -> ModelConfig:
    return load_config(FOLDER / f"{name}.json")
