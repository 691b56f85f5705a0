"""NeMo (Megatron-Bridge): a script that applies a layout to a recipe and runs it.

Field names: ConfigContainer of megatron-bridge 0.3.1 and the megatron-core classes under it. A
recipe supplies model, data, tokenizer and optimizer.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from atoll.answers.layout import LaunchFile
from atoll.files.yamlfile import shipped_table
from atoll.tools.hugging_face import model_contents
from atoll.tools.launch_plan import LaunchPlan, Settings, fill_script, literal, refuse
from atoll.tools.megatron_lm import core

TARGET = "nemo"
FILE = "nemo_recipe.py"
TABLE = shipped_table("atoll.tools.nemo", "recipes.yaml")
SUFFIX = {"pretrain": "_pretrain_config", "sft": "_sft_config", "lora": "_peft_config"}
BRIDGED = (files("atoll.tools.nemo") / "bridged.py.txt").read_text(encoding="utf-8")
"""Code of a recipe for a model that has none."""
ADAPTED = {"linear_qkv": ("q", "k", "v"), "linear_proj": ("o",), "linear_fc1": ("gate", "up"),
           "linear_fc2": ("down",)}  # fmt: skip
"""Projections of each product that can have an adapter."""

PRECISION = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}


def nemo(plan: LaunchPlan) -> LaunchFile:
    notes: list[str] = []
    imports, recipe = _recipe(plan, notes)
    settings = _values(plan)
    more = []
    if plan.method != "pretrain":
        more.append("CHECKPOINT is a folder with the model's weights (AutoBridge.import_ckpt).")
        notes.append(more[0])
    if plan.model.name == "deepseek-v3":
        notes.append("The recipe's multi-token prediction is turned off: Atoll does not model it.")
    if plan.precision == "fp8":
        notes.append("fp8 is written as current (tensorwise) scaling; the Bridge has more recipes.")
    notes += core.sharding_notes(plan)
    text = fill_script(
        "nemo",
        plan,
        plan.header(f"{plan.torchrun} {FILE}", *more),
        settings,
        connections=str(core.connections(plan)),
        save_interval=str(plan.save_interval or ""),
        imports=imports,
        recipe=recipe,
    )
    return LaunchFile(target=TARGET, file=FILE, text=text, notes=tuple(notes))


def _recipe(plan: LaunchPlan, notes: list[str]) -> tuple[str, str]:
    """Return the imports and the code that define `recipe`."""
    stem = TABLE["recipes"].get(plan.model.name, "")
    if stem and (plan.method == "pretrain" or stem not in TABLE["pretrain_only"]):
        notes.append("Tokenizer, data and optimizer are the recipe's.")
        name = stem + SUFFIX[plan.method]
        return f"from megatron.bridge.recipes import {name} as recipe\n", ""
    contents = model_contents(plan, TARGET) if plan.method == "pretrain" else {}
    architecture = TABLE["architectures"].get(contents.get("model_type"))
    if architecture:
        notes.append("megatron-bridge has no recipe of this model; its data are mock data.")
        contents["architectures"] = [architecture]
        imports = (
            "from megatron.bridge import AutoBridge\n"
            "from megatron.bridge.recipes.common import _pretrain_common\n"
            "from transformers import AutoConfig\n"
        )
        return imports, f"MODEL = {literal(contents)}\n{BRIDGED}"
    notes.append(
        f"megatron-bridge 0.3 has no recipe of {plan.model.name}: set RECIPE to the name of one of "
        "megatron.bridge.recipes that builds it."
    )
    recipe = 'recipe = getattr(recipes, os.environ["RECIPE"])\n'
    return "from megatron.bridge import recipes\n", recipe


def _values(plan: LaunchPlan) -> dict[str, Any]:
    layout, sharded = plan.layout, plan.layout.zero >= 2
    model: Settings = {
        "seq_length": plan.sequence,
        **core.parallel_values(plan, TARGET),
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
        "account_for_embedding_in_pipeline_split": False,
        "account_for_loss_in_pipeline_split": False,
        "mtp_num_layers": None,
    }
    if "te_loss" in plan.software:
        model |= core.FUSED_LOSS
    if (group := core.microbatch_group(plan, TARGET)) is not None:
        model["microbatch_group_size_per_vp_stage"] = group
    fields = ("granularity", "method", "num_layers", "modules")
    recompute = dict.fromkeys(f"recompute_{field}" for field in fields)
    values: dict[str, Any] = {
        "model": model | recompute | core.recompute_values(plan),
        "train": {
            "micro_batch_size": layout.microbatch,
            "global_batch_size": plan.global_batch,
            "train_iters": plan.steps,
        },
        "scheduler": {"lr_warmup_iters": plan.steps // 10, "lr_decay_iters": plan.steps},
        "dataset": {"seq_length": plan.sequence},
        "ddp": core.sharding_values(plan) | ({"average_in_collective": False} if sharded else {}),
        "optimizer": {"use_distributed_optimizer": layout.zero > 0},
        "comm_overlap": {"tp_comm_overlap": model.get("tp_comm_overlap", False)},
    }
    if sharded:
        values["dist"] = {"use_megatron_fsdp": True}
        values["checkpoint"] = {"ckpt_format": "fsdp_dtensor"}
    if plan.adapters is not None:
        rank = plan.adapters.rank
        values["peft"] = {"target_modules": _targets(plan), "dim": rank, "alpha": 2 * rank}
    return values | {"mixed_precision": PRECISION[plan.precision]}


def _targets(plan: LaunchPlan) -> list[str]:
    """Return the products with adapters, which have one for all projections side by side."""
    targets = set(plan.adapters.targets if plan.adapters else ())
    modules = [name for name, parts in ADAPTED.items() if targets & set(parts)]
    if targets != {part for name in modules for part in ADAPTED[name]}:
        raise refuse(
            TARGET,
            "its adapters are for queries, keys and values together, and for gate and up together; "
            "choose --lora-targets attention, mlp or all",
        )
    return modules
