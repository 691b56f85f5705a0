"""A model as a Hugging Face configuration, for scripts that build it without a download."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from atoll.base.errors import AtollError
from atoll.files.yamlfile import shipped_table
from atoll.tools.launch_plan import LaunchPlan, Settings, refuse_model
from atoll.workload import config_from_hf
from atoll.workload.adapters import MLP
from atoll.workload.families.family import FAMILIES
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.load import zoo_entry, zoo_names

FIELDS: Mapping[str, str] = shipped_table("atoll.tools", "hugging_face.yaml")
NAME = "name_or_path"
MODEL_TYPES = ("mistral", "qwen3", "qwen3_moe", "mixtral", "qwen2", "gpt2")
"""Types tried for a model that was not read from a configuration; Llama is a Mistral that has no
window."""


def model_contents(plan: LaunchPlan, target: str) -> dict[str, Any]:
    """Return a config.json of the plan's model; its name alone if no type of model is its equal."""
    model = plan.model
    if model.patch_inputs or model.encoder_layers or not model.causal:
        raise refuse_model(
            target, f"{model.name} is not a causal language model; choose another tool"
        )
    contents = model_config_json(model, plan.sequence)
    return {NAME: hub_name(model)} if contents is None else {**contents, NAME: model.name}


def model_config_json(model: ModelConfig, sequence: int) -> dict[str, Any] | None:
    """Return a config.json with positions for a sequence; None if no type of model is equal."""
    for contents in _candidates(model):
        try:
            described = config_from_hf(contents, model.name)
        except AtollError:
            continue
        if _shape(described) == _shape(model):
            length = "max_position_embeddings"
            if length in contents:
                contents[length] = max(contents[length], sequence)
            return contents
    return None


def _candidates(model: ModelConfig) -> Iterator[dict[str, Any]]:
    if model.name in zoo_names():
        yield {name: value for name, value in zoo_entry(model.name).items() if name != "atoll"}
    values = {name: getattr(model, field) for name, field in FIELDS.items()}
    stated = {name: value for name, value in values.items() if value not in (0, None)}
    for model_type in dict.fromkeys((model.family, *MODEL_TYPES)):
        if model_type in FAMILIES:
            spelling = FAMILIES[model_type].spelling
            spelled = {spelling.get(name, (name,))[0]: value for name, value in stated.items()}
            yield {"model_type": model_type, "sliding_window": None, **spelled}


def _shape(model: ModelConfig) -> ModelConfig:
    """Return the model without names, sources and numbers on which no operator depends."""
    return replace(
        model, name="", family="", max_sequence=0, default_sequence=0, position_rows=0,
        published_parameters=0, approximate=False, source="", part="", not_modelled=(),
        rotary_base=None, norm_epsilon=None, rotary_scaling="", rotary_dim=model.rotated,
        dropout=0.0, attention_dropout=0.0, embedding_dropout=0.0, context=1,
    )  # fmt: skip


def hub_name(model: ModelConfig) -> str:
    """Return the model's name on the Hub, where its source ends with it; else a folder's."""
    name = re.search(r"[\w.-]+/[\w.-]+$", model.source)
    return name[0] if name else f"./{model.name}"


def trainer_values(plan: LaunchPlan) -> Settings:
    """Return arguments of Hugging Face's Trainer: batch, length, precision, no checkpoints."""
    return {
        "per_device_train_batch_size": plan.layout.microbatch,
        "gradient_accumulation_steps": plan.microbatches,
        "max_steps": plan.steps,
        "learning_rate": 1e-4 if plan.adapters else 1e-5,
        plan.precision: True,
        "optim": "adamw_torch_fused",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
    }


def adapter_targets(plan: LaunchPlan, target: str) -> list[str]:
    """Return PEFT's names of the projections with adapters."""
    targets = plan.adapters.targets if plan.adapters else ()
    if plan.model.experts and set(targets) & set(MLP):
        reason = "PEFT has no adapters for fused experts; use --lora-targets attention"
        raise refuse_model(target, reason)
    return [f"{name}_proj" for name in targets]
