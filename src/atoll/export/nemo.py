"""NeMo (Megatron-Bridge): values that override a recipe, as a YAML file.

Field names: ConfigContainer of megatron-bridge 0.3.1 and the megatron-core classes under it. A
recipe supplies the model; the file says how to spread it. The Bridge's own scripts take such a
file as --config-file.
"""

from __future__ import annotations

from typing import Any

import yaml

from atoll.export.megatron_core import (
    FSDP_WITH_PIPELINE,
    SHARDING,
    check_core,
    microbatch_group,
    pipeline_layout,
    recompute_values,
)
from atoll.export.plan import Export, Plan

TARGET = "nemo"

RECIPES = {
    "llama2-7b": "llama2_7b_pretrain_config",
    "llama3-8b": "llama3_8b_pretrain_config",
    "llama3-70b": "llama3_70b_pretrain_config",
    "llama3-405b": "llama31_405b_pretrain_config",
    "qwen2-7b": "qwen2_7b_pretrain_config",
    "qwen3-8b": "qwen3_8b_pretrain_config",
    "qwen3-30b-a3b": "qwen3_30b_a3b_pretrain_config",
    "gpt3-175b": "gpt3_175b_pretrain_config",
    "gemma2-9b": "gemma2_9b_pretrain_config",
    "deepseek-v2-lite": "deepseek_v2_lite_pretrain_config",
    "deepseek-v2": "deepseek_v2_pretrain_config",
    "deepseek-v3": "deepseek_v3_pretrain_config",
}
"""Recipes of megatron.bridge.recipes for models of the zoo."""

PRECISION = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
}


def nemo(plan: Plan) -> Export:
    check_core(plan, TARGET)
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
    if plan.layout.zero >= 2 and plan.layout.pp > 1:
        notes.append(FSDP_WITH_PIPELINE)
    text = "\n".join(header) + "\n" + yaml.safe_dump(values, sort_keys=False)
    return Export(TARGET, "recipe.yaml", text, tuple(notes))


def _values(plan: Plan) -> dict[str, Any]:
    layout = plan.layout
    model: dict[str, Any] = {
        "seq_length": plan.sequence,
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
        "pipeline_model_parallel_layout": None if plan.even else pipeline_layout(plan),
        "account_for_embedding_in_pipeline_split": False,
        "account_for_loss_in_pipeline_split": False,
        "context_parallel_size": layout.cp,
        "sequence_parallel": layout.sp and layout.tp > 1,
        "mtp_num_layers": None,
    }
    if (group := microbatch_group(plan, TARGET)) is not None:
        model["microbatch_group_size_per_vp_stage"] = group
    if plan.model.experts:
        model["expert_model_parallel_size"] = layout.ep
        model["expert_tensor_parallel_size"] = layout.etp
    recompute: dict[str, Any] = {
        "recompute_granularity": None,
        "recompute_method": None,
        "recompute_num_layers": None,
        "recompute_modules": None,
    }
    recompute.update(recompute_values(plan, TARGET))
    return {
        "model": model | recompute,
        "train": {
            "micro_batch_size": layout.microbatch,
            "global_batch_size": plan.global_batch,
        },
        "dataset": {"sequence_length": plan.sequence},
        **_sharding(plan),
        "mixed_precision": PRECISION[plan.precision],
    }


def _sharding(plan: Plan) -> dict[str, Any]:
    zero = plan.layout.zero
    overlap = zero > 0 or plan.layout.dp * plan.layout.cp > 1
    ddp: dict[str, Any] = {
        "use_distributed_optimizer": zero > 0,
        "overlap_grad_reduce": overlap,
        "overlap_param_gather": zero > 0,
    }
    if plan.layout.hsdp > 1:
        ddp["num_distributed_optimizer_instances"] = plan.layout.hsdp
    values: dict[str, Any] = {"ddp": ddp, "optimizer": {"use_distributed_optimizer": zero > 0}}
    if zero >= 2:
        ddp["use_megatron_fsdp"] = True
        ddp["data_parallel_sharding_strategy"] = SHARDING[zero]
        ddp["average_in_collective"] = False
        values["dist"] = {"use_megatron_fsdp": True}
        values["checkpoint"] = {"ckpt_format": "fsdp_dtensor"}
    return values
