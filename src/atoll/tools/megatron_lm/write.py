"""Megatron-LM: a shell script around pretrain_gpt.py.

Argument names and their checks: megatron/training/arguments.py of megatron-core 0.17.1 (the first
releases that carry it are 0.17); the tests give every script to that parser.
"""

from __future__ import annotations

import shlex

from atoll.answers.layout import LaunchFile
from atoll.tools.launch_plan import LaunchPlan, Settings
from atoll.tools.megatron_lm.core import (
    connections,
    microbatch_group,
    parallel_values,
    recompute_values,
    sharding_notes,
    sharding_values,
)
from atoll.tools.megatron_lm.write_model import model_values

TARGET = "megatron-lm"
FILE = "megatron.sh"
ArgumentWords = list[tuple[str, ...]]

NARROW_RECIPES: dict[str, Settings] = {
    "fp8": {"fp8_format": "hybrid", "fp8_recipe": "tensorwise"},
    "mxfp8": {"fp8_format": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"fp4_format": "e2m1", "fp4_recipe": "nvfp4"},
}
"""Formats and scaling of products in fewer bits than the weights."""


def megatron(plan: LaunchPlan) -> LaunchFile:
    model, notes = model_values(plan)
    batch: Settings = {
        "micro_batch_size": plan.layout.microbatch,
        "global_batch_size": plan.global_batch,
        "seq_length": plan.sequence,
    }
    groups: dict[str, Settings] = {
        "MODEL": model,
        "PARALLEL": _parallel(plan, notes),
        "BATCH": batch,
        "MEMORY": recompute_values(plan),
        "PRECISION": _precision(plan, notes),
    }
    notes = [
        "Data, tokenizer and learning rate are yours: DATA, TOKENIZER and LR in the environment; "
        f"without them {plan.steps:,} steps run on mock data.",
        *(
            ["Weights are random unless the script is given --load FOLDER --finetune."]
            if plan.method == "sft"
            else []
        ),
        *notes,
    ]
    arguments = {name: _arguments(values) for name, values in groups.items()}
    return LaunchFile(target=TARGET, file=FILE, text=_script(plan, arguments), notes=tuple(notes))


def _parallel(plan: LaunchPlan, notes: list[str]) -> Settings:
    layout = plan.layout
    notes += sharding_notes(plan)
    values = parallel_values(plan, TARGET) | {
        "num_virtual_stages_per_pipeline_rank": layout.vpp
        if plan.even and layout.vpp > 1
        else None,
        "microbatch_group_size_per_virtual_pipeline_stage": microbatch_group(plan, TARGET),
        **sharding_values(plan),
    }
    if layout.zero >= 2:
        values |= {"no_gradient_accumulation_fusion": True, "ckpt_format": "fsdp_dtensor"}
    return values


def _arguments(values: Settings) -> ArgumentWords:
    """Return fields as arguments: switches that are on, and fields with a value."""
    arguments: ArgumentWords = []
    for field, value in values.items():
        if value is not None and value is not False:
            words = value if isinstance(value, list) else [] if value is True else [str(value)]
            arguments.append(("--" + field.replace("_", "-"), *words))
    return arguments


def _precision(plan: LaunchPlan, notes: list[str]) -> Settings:
    recipe = NARROW_RECIPES.get(plan.precision)
    if recipe is None:
        return {plan.precision: True}
    notes.append(f"{plan.precision} products need Transformer Engine.")
    if plan.precision == "fp8":
        notes.append(
            "fp8 is written as the hybrid format with tensorwise scaling; other recipes are "
            "--fp8-recipe delayed and blockwise."
        )
    return {"bf16": True, **recipe}


def _script(plan: LaunchPlan, groups: dict[str, ArgumentWords]) -> str:
    lines = [
        "#!/usr/bin/env bash",
        plan.header(
            f"bash {FILE}",
            "MEGATRON is a checkout of Megatron-LM; NODE_RANK counts nodes from 0, MASTER_ADDR is "
            "the first.",
            "Arguments given to this script come last and win.",
        ),
        "set -euo pipefail",
        "MEGATRON=${MEGATRON:-.}",
        "NODE_RANK=${NODE_RANK:-${SLURM_NODEID:-0}}",
        "MASTER_ADDR=${MASTER_ADDR:-localhost}",
        "MASTER_PORT=${MASTER_PORT:-29500}",
        "DATA=${DATA:---mock-data}",
        "TOKENIZER=${TOKENIZER:---tokenizer-type NullTokenizer --vocab-size "
        f"{plan.model.vocab - 1}}}",
        "LR=${LR:-1e-4}",
        f"TRAIN_ITERS=${{TRAIN_ITERS:-{plan.steps}}}",
        f"export CUDA_DEVICE_MAX_CONNECTIONS={connections(plan)}",
        "",
    ]
    groups = {name: arguments for name, arguments in groups.items() if arguments}
    for name, arguments in groups.items():
        lines.append(f"{name}=(")
        lines += ["  " + shlex.join(argument) for argument in arguments]
        lines.append(")")
    launch = (
        f"exec torchrun --nnodes {plan.nodes} --nproc-per-node {plan.per_node} "
        '--node-rank "$NODE_RANK"'
    )
    used = " ".join(f'"${{{name}[@]}}"' for name in groups)
    lines += [
        "",
        launch + " \\",
        '  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\',
        '  "$MEGATRON/pretrain_gpt.py" \\',
        f"  {used} \\",
        '  --lr "$LR" --train-iters "$TRAIN_ITERS" $DATA $TOKENIZER "$@"',
        "",
    ]
    return "\n".join(lines)
