"""LLaMA-Factory: a YAML file for `llamafactory-cli train`.

Arguments: llamafactory/hparams of 0.9.5 and transformers.TrainingArguments.
"""

from __future__ import annotations

import yaml

from atoll.answers.layout import LaunchFile
from atoll.tools.hugging_face import adapter_targets, hub_name, model_contents, trainer_values
from atoll.tools.launch_plan import LaunchPlan, Settings

TARGET = "llama-factory"
FILE = "llama_factory.yaml"
TEMPLATES = {"llama3": "llama3", "llama2": "llama2", "qwen3": "qwen3", "qwen2": "qwen",
             "mistral": "mistral", "mixtral": "mistral", "gemma": "gemma"}  # fmt: skip
"""Templates of chats by the beginning of a model's name."""


def llama_factory(plan: LaunchPlan) -> LaunchFile:
    layout, name = plan.layout, plan.model.name
    model_contents(plan, TARGET)  # refuse what is no causal language model
    values: Settings = {
        "model_name_or_path": hub_name(plan.model),
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full",
        "template": next((t for n, t in TEMPLATES.items() if name.startswith(n)), "default"),
        "dataset": "alpaca_en_demo",
        "cutoff_len": plan.sequence,
        "packing": True,
        "flash_attn": "sdpa",
        "output_dir": "output",
        **trainer_values(plan),
        "disable_gradient_checkpointing": layout.recompute == "none",
    }
    if plan.adapters is not None:
        rank = plan.adapters.rank
        values |= {"finetuning_type": "lora", "lora_rank": rank, "lora_alpha": 2 * rank}
        values["lora_target"] = ",".join(adapter_targets(plan, TARGET))
    if layout.zero:
        values["fsdp"] = f"{'full_shard' if layout.zero == 3 else 'shard_grad_op'} auto_wrap"
        values["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": layout.zero == 3,
        }
    one_node = f"env FORCE_TORCHRUN=1 NPROC_PER_NODE={plan.per_node} llamafactory-cli train"
    several = f"{plan.torchrun} -m llamafactory.launcher"
    header = plan.header(f"{one_node if plan.nodes == 1 else several} {FILE}")
    text = f"{header}\n{yaml.safe_dump(values, sort_keys=False)}"
    notes = (
        "Data, template and learning rate are yours: dataset names an entry of "
        "data/dataset_info.json.",
    )
    return LaunchFile(target=TARGET, file=FILE, text=text, notes=notes)
