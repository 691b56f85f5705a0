"""LLaMA-Factory: a YAML file for `llamafactory-cli train`.

Arguments: llamafactory/hparams of 0.9.5 and transformers.TrainingArguments.
"""

from __future__ import annotations

import yaml

from atoll.answers.layout import LaunchFile
from atoll.tools.hugging_face import adapter_targets, hub_name, model_contents, trainer_values
from atoll.tools.launch_plan import TRIAL_STEPS, LaunchPlan, Settings

TARGET = "llama-factory"
FILE = "llama_factory.yaml"
TEMPLATES = {"llama3": "llama3", "llama2": "llama2", "qwen3": "qwen3", "qwen2": "qwen",
             "mistral": "mistral", "mixtral": "mistral", "gemma": "gemma"}  # fmt: skip
"""Templates of chats by the beginning of a model's name."""
DEFAULTS = ("learning_rate", "optim", "logging_steps", "save_strategy", "report_to")
"""Arguments of the Trainer that no layout changes."""
ADVICE = (
    "Set the first lines: dataset is an entry of data/dataset_info.json; with save_strategy steps, "
    "output_dir gets a checkpoint every save_steps steps."
)


def llama_factory(plan: LaunchPlan) -> LaunchFile:
    layout, name = plan.layout, plan.model.name
    model_contents(plan, TARGET)  # refuse what is no causal language model
    trainer = trainer_values(plan)
    chosen: Settings = {
        "model_name_or_path": hub_name(plan.model),
        "template": next((t for n, t in TEMPLATES.items() if name.startswith(n)), "default"),
        "dataset": "alpaca_en_demo",
        "packing": True,
        "flash_attn": "sdpa",
        "output_dir": "output",
        **{name: trainer.pop(name) for name in DEFAULTS},
    }
    values: Settings = {
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full",
        "cutoff_len": plan.sequence,
        **trainer,
        "disable_gradient_checkpointing": layout.recompute == "none",
    }
    if plan.adapters is not None:
        rank = plan.adapters.rank
        values |= {"finetuning_type": "lora", "lora_rank": rank, "lora_alpha": 2 * rank}
        values["lora_target"] = ",".join(adapter_targets(plan, TARGET))
    if layout.zero:
        values["fsdp"] = f"{'full_shard' if layout.zero == 3 else 'shard_grad_op'} auto_wrap"
        values["fsdp_config"] = {"fsdp_version": 2, "fsdp_reshard_after_forward": layout.zero == 3}
    start = f"{plan.torchrun} -m llamafactory.launcher"
    if plan.nodes == 1:
        start = f"env FORCE_TORCHRUN=1 NPROC_PER_NODE={plan.per_node} llamafactory-cli train"
    if "num_train_epochs" in plan.carried and plan.steps == TRIAL_STEPS:
        del values["max_steps"]
    chosen = dict(plan.carried) or chosen
    values = {name: value for name, value in values.items() if name not in chosen}
    first, then = (yaml.safe_dump(part, sort_keys=False) for part in (chosen, values))
    text = f"{plan.header(f'{start} {FILE}')}\n# {ADVICE}\n{first}# Run and layout:\n{then}"
    return LaunchFile(target=TARGET, file=FILE, text=text, notes=() if plan.carried else (ADVICE,))
