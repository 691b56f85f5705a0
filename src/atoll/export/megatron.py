"""Megatron-LM: a shell script around pretrain_gpt.py.

Argument names and their checks: megatron/training/arguments.py of megatron-core 0.17.1 (the first
releases that carry it are 0.17); the tests give every script to that parser.
"""

from __future__ import annotations

import shlex

from atoll.export.megatron_core import (
    FSDP_WITH_PIPELINE,
    SHARDING,
    check_core,
    microbatch_group,
    pipeline_layout,
    recompute_values,
)
from atoll.export.megatron_model import model_arguments
from atoll.export.plan import Export, Plan

TARGET = "megatron"
Arguments = list[tuple[str, ...]]


def megatron(plan: Plan) -> Export:
    model, notes = model_arguments(plan)
    groups = {
        "MODEL": model,
        "PARALLEL": _parallel(plan, notes),
        "BATCH": _batch(plan),
        "MEMORY": _recompute(plan),
        "PRECISION": _precision(plan, notes),
    }
    notes = [
        "Data, tokenizer, learning rate and number of steps are yours: DATA, TOKENIZER, LR and "
        "TRAIN_ITERS in the environment; the defaults run a few steps on mock data.",
        *notes,
    ]
    return Export(TARGET, "megatron.sh", _script(plan, groups), tuple(notes))


def _parallel(plan: Plan, notes: list[str]) -> Arguments:
    layout = plan.layout
    check_core(plan, TARGET)
    found: Arguments = [
        ("--tensor-model-parallel-size", str(layout.tp)),
        ("--pipeline-model-parallel-size", str(layout.pp)),
        ("--context-parallel-size", str(layout.cp)),
    ]
    if layout.cp > 1:
        found.append(("--cp-comm-type", "p2p"))
    if layout.tp > 1 and layout.sp:
        found.append(("--sequence-parallel",))
    if plan.model.experts:
        found += [
            ("--expert-model-parallel-size", str(layout.ep)),
            ("--expert-tensor-parallel-size", str(layout.etp)),
        ]
    if not plan.even:
        found.append(("--pipeline-model-parallel-layout", pipeline_layout(plan)))
    elif layout.vpp > 1:
        found.append(("--num-virtual-stages-per-pipeline-rank", str(layout.vpp)))
    if (group := microbatch_group(plan, TARGET)) is not None:
        found.append(("--microbatch-group-size-per-virtual-pipeline-stage", str(group)))
    return found + _sharding(plan, notes)


def _sharding(plan: Plan, notes: list[str]) -> Arguments:
    """ZeRO stages: the distributed optimizer for 1, Megatron-FSDP for 2 and 3."""
    layout = plan.layout
    replicas = layout.dp * layout.cp
    if layout.zero == 0:
        return [("--overlap-grad-reduce",)] if replicas > 1 else []
    found: Arguments = [
        ("--use-distributed-optimizer",),
        ("--overlap-grad-reduce",),
        ("--overlap-param-gather",),
    ]
    if layout.hsdp > 1:
        found.append(("--num-distributed-optimizer-instances", str(layout.hsdp)))
    if layout.zero == 1:
        return found
    if layout.pp > 1:
        notes.append(FSDP_WITH_PIPELINE)
    return [
        *found,
        ("--use-megatron-fsdp",),
        ("--data-parallel-sharding-strategy", SHARDING[layout.zero]),
        ("--no-gradient-accumulation-fusion",),
        ("--ckpt-format", "fsdp_dtensor"),
    ]


def _recompute(plan: Plan) -> Arguments:
    found: Arguments = []
    for field, value in recompute_values(plan, TARGET).items():
        words = value if isinstance(value, list) else [str(value)]
        found.append(("--" + field.replace("_", "-"), *words))
    return found


def _batch(plan: Plan) -> Arguments:
    return [
        ("--micro-batch-size", str(plan.layout.microbatch)),
        ("--global-batch-size", str(plan.global_batch)),
        ("--seq-length", str(plan.sequence)),
    ]


def _precision(plan: Plan, notes: list[str]) -> Arguments:
    if plan.precision != "fp8":
        return [(f"--{plan.precision}",)]
    notes.append(
        "fp8 is written as the hybrid format with tensorwise scaling, which needs Transformer "
        "Engine; other recipes are --fp8-recipe delayed, blockwise or mxfp8."
    )
    return [("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")]


def _script(plan: Plan, groups: dict[str, Arguments]) -> str:
    # Megatron asks for one hardware queue with tensor or context parallelism before Blackwell,
    # and for more than one under FSDP.
    connections = 8 if plan.layout.zero >= 2 else 1
    lines = [
        "#!/usr/bin/env bash",
        f"# {plan.title}",
        "# Start on every node, with NODE_RANK from 0; MEGATRON is a checkout of Megatron-LM.",
        "# Arguments given to this script come last and win.",
        "set -euo pipefail",
        "MEGATRON=${MEGATRON:-.}",
        "NODE_RANK=${NODE_RANK:-0}",
        "MASTER_ADDR=${MASTER_ADDR:-localhost}",
        "MASTER_PORT=${MASTER_PORT:-29500}",
        "DATA=${DATA:---mock-data}",
        "TOKENIZER=${TOKENIZER:---tokenizer-type NullTokenizer --vocab-size "
        f"{plan.model.vocab - 1}}}",
        "LR=${LR:-1e-4}",
        "TRAIN_ITERS=${TRAIN_ITERS:-20}",
        f"export CUDA_DEVICE_MAX_CONNECTIONS={connections}",
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
