"""NeMo (Megatron-Bridge): values that override a recipe, as a YAML file.

Field names: ConfigContainer of megatron-bridge 0.3.1 and the megatron-core classes under it. A
recipe supplies the model, the file its layout. The Bridge's scripts take it as --config-file.
"""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from atoll.answers.layout import LaunchFile
from atoll.files.yamlfile import shipped_table
from atoll.tools.launch_plan import LaunchPlan, Settings
from atoll.tools.megatron_lm.core import (
    microbatch_group,
    parallel_values,
    recompute_values,
    sharding_notes,
    sharding_values,
)

TARGET = "nemo"
RECIPES: Mapping[str, str] = shipped_table("atoll.tools.nemo", "recipes.yaml")
"""Recipes of megatron.bridge.recipes for models of the zoo."""

PRECISION = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}


def nemo(plan: LaunchPlan) -> LaunchFile:
    recipe = RECIPES.get(plan.model.name)
    values = _values(plan)
    header = [f"# {plan.title}"]
    notes = [
        "The file overrides a recipe; the recipe supplies model, data, tokenizer, optimizer and "
        "number of steps."
    ]
    if recipe is None:
        notes.append(
            f"megatron-bridge 0.3.1 has no recipe of the name {plan.model.name}: start from one "
            "of the same shape."
        )
    else:
        header.append(f"# overrides megatron.bridge.recipes.{recipe}")
    if plan.model.name == "deepseek-v3":
        notes.append("The recipe's multi-token prediction is turned off: Atoll does not model it.")
    if plan.precision == "fp8":
        notes.append("fp8 is written as current (tensorwise) scaling; the Bridge has more recipes.")
    if "tp_comm_overlap" in parallel_values(plan, TARGET):
        notes.append(
            "Tensor collectives overlap with products; where the recipe has a comm_overlap of its "
            "own, set its tp_comm_overlap too, as it wins over the model's."
        )
    notes += sharding_notes(plan)
    text = "\n".join(header) + "\n" + yaml.safe_dump(values, sort_keys=False)
    return LaunchFile(target=TARGET, file="recipe.yaml", text=text, notes=tuple(notes))


def _values(plan: LaunchPlan) -> dict[str, Settings | str]:
    layout, sharded = plan.layout, plan.layout.zero >= 2
    model: Settings = {
        "seq_length": plan.sequence,
        **parallel_values(plan, TARGET),
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
        "account_for_embedding_in_pipeline_split": False,
        "account_for_loss_in_pipeline_split": False,
        "mtp_num_layers": None,
    }
    if (group := microbatch_group(plan, TARGET)) is not None:
        model["microbatch_group_size_per_vp_stage"] = group
    fields = ("granularity", "method", "num_layers", "modules")
    recompute = dict.fromkeys(f"recompute_{field}" for field in fields)
    values: dict[str, Settings | str] = {
        "model": model | recompute | recompute_values(plan, TARGET),
        "train": {
            "micro_batch_size": layout.microbatch,
            "global_batch_size": plan.global_batch,
        },
        "dataset": {"sequence_length": plan.sequence},
        "ddp": sharding_values(plan) | ({"average_in_collective": False} if sharded else {}),
        "optimizer": {"use_distributed_optimizer": layout.zero > 0},
    }
    if sharded:
        values["dist"] = {"use_megatron_fsdp": True}
        values["checkpoint"] = {"ckpt_format": "fsdp_dtensor"}
    return values | {"mixed_precision": PRECISION[plan.precision]}
