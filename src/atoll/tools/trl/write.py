"""TRL: a script around SFTTrainer.

Arguments: transformers/training_args.py of 5.22 and trl/trainer/sft_config.py of 1.16.
"""

from __future__ import annotations

from atoll.answers.layout import LaunchFile
from atoll.tools.hugging_face import adapter_targets, model_contents, trainer_values
from atoll.tools.launch_plan import LaunchPlan, Settings, fill_script, literal, trial_note

TARGET = "trl"
FILE = "sft.py"


def trl(plan: LaunchPlan) -> LaunchFile:
    layout, sharded = plan.layout, plan.layout.zero > 0
    recomputes = layout.recompute == "full"
    values: Settings = {
        **trainer_values(plan),
        "max_length": plan.sequence,
        "gradient_checkpointing": recomputes and not sharded,
    }
    if sharded:
        values["fsdp"] = True
        values["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": layout.zero == 3,
            "fsdp_activation_checkpointing": recomputes,
        }
    if plan.adapters is not None:
        rank = plan.adapters.rank
        values |= {"lora_r": rank, "lora_alpha": 2 * rank}
        values["lora_target_modules"] = adapter_targets(plan, TARGET)
    text = fill_script(
        "trl",
        plan,
        plan.header(f"{plan.torchrun} {FILE}"),
        values,
        run=literal({"batch": plan.global_batch, "devices": layout.devices}),
        model=literal(model_contents(plan, TARGET)),
    )
    notes = (trial_note("WEIGHTS", "DATA", "LR", "SAVE"),)
    return LaunchFile(target=TARGET, file=FILE, text=text, notes=notes)
