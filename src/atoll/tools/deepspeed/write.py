"""DeepSpeed's JSON configuration.

Keys: deepspeed/runtime/config.py of DeepSpeed 0.19.8. The JSON sets batch, precision, ZeRO, and
tensor and expert parallelism for Hugging Face models (AutoTP, AutoEP). Pipelines and recomputation
are set in the user's code; a note says how.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from atoll.answers.layout import LaunchFile
from atoll.tools.launch_plan import LaunchPlan, Settings, SettingValue, check

TARGET = "deepspeed"


def deepspeed(plan: LaunchPlan) -> LaunchFile:
    check(TARGET, _refusals(plan))
    layout = plan.layout
    notes = [
        f"Start with: deepspeed --num_nodes {plan.nodes} --num_gpus {plan.per_node} YOUR_SCRIPT "
        "--deepspeed --deepspeed_config ds_config.json; model, optimizer, data and a sequence of "
        f"{plan.sequence} come from your script.",
    ]
    values: dict[str, SettingValue | Settings] = {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": layout.microbatch,
        "gradient_accumulation_steps": plan.microbatches,
        plan.precision: {"enabled": True},
        "zero_optimization": _zero(layout.zero, layout.pp),
    }
    if layout.pp > 1 and layout.ranks > 1:
        notes.append(
            "DeepSpeed's pipelines sum gradients after the last backward pass, whatever "
            "overlap_comm says."
        )
    elif layout.zero == 0 and layout.ranks > 1:
        notes.append(
            "Without ZeRO DeepSpeed sums gradients after the backward pass, not beside it: stage 1 "
            "sums as many bytes and overlaps."
        )
    if layout.tp > 1:
        values["tensor_parallel"] = {"autotp_size": layout.tp}
        notes.append(
            "AutoTP divides a Hugging Face model's attention and feed-forward layers; embedding "
            "and head may stay whole on every device, unlike in Atoll's estimate."
        )
    if layout.ep > 1:
        values["expert_parallel"] = {"enabled": True, "autoep_size": layout.ep}
        notes.append("AutoEP spreads the experts of Hugging Face models that it knows.")
    if layout.cp > 1:
        values["sequence_parallel_size"] = layout.cp
        notes.append(
            f"DeepSpeed divides a sequence by Ulysses (all-to-all over heads), not by a ring: same "
            f"memory, other traffic; give deepspeed.initialize an mpu for groups of {layout.cp}, "
            "as UlyssesSPAttentionHF.register_with_transformers returns."
        )
    if layout.pp > 1:
        interval = int(layout.recompute == "full")
        values["pipeline"] = {"stages": layout.pp, "activation_checkpoint_interval": interval}
        notes.append(
            f"Build the model as PipelineModule(num_stages={layout.pp}) with "
            f"{', '.join(map(str, plan.stages))} blocks on its stages; the JSON cannot say it."
        )
    if layout.recompute == "full":
        if layout.pp == 1:
            values["activation_checkpointing"] = {"partition_activations": False}
        notes.append(_full_recompute(plan))
    text = json.dumps(values, indent=2) + "\n"
    return LaunchFile(target=TARGET, file="ds_config.json", text=text, notes=tuple(notes))


def _zero(zero: int, pp: int) -> Settings:
    if zero == 0:
        return {"stage": 0}
    return {"stage": zero, "overlap_comm": pp == 1, "contiguous_gradients": True}


def _full_recompute(plan: LaunchPlan) -> str:
    if plan.layout.pp > 1:
        return "Recompute each block: PipelineModule(activation_checkpoint_interval=1)."
    return (
        "Recompute each block in your script: model.gradient_checkpointing_enable(), or "
        "deepspeed.checkpointing.checkpoint around it."
    )


def _refusals(plan: LaunchPlan) -> Iterator[str]:
    layout = plan.layout
    if plan.precision not in ("bf16", "fp16"):
        yield f"its configuration has no {plan.precision} products; use bf16 or fp16"
    divided = [name for name in ("tp", "pp", "cp") if getattr(layout, name) > 1]
    if len(divided) > 1:
        yield (
            f"its configuration cannot join {' and '.join(divided)}; keep one of them above 1, or "
            "export to megatron"
        )
    if layout.tp > 1 and layout.sp:
        yield ("AutoTP has no sequence parallelism over the tensor group; set sp off")
    if plan.model.kv_heads % layout.tp:
        yield (
            f"AutoTP leaves ranks without attention when tp {layout.tp} does not divide the "
            f"{plan.model.kv_heads} key and value heads of {plan.model.name}; lower tp"
        )
    if plan.model.heads % layout.cp:
        yield (
            f"Ulysses divides heads, but cp {layout.cp} does not divide the {plan.model.heads} of "
            f"{plan.model.name}; lower cp"
        )
    if layout.vpp > 1 or (layout.pp > 1 and layout.schedule not in ("1f1b", "interleaved")):
        yield "its pipelines run 1f1b with one chunk a stage; set vpp 1 and 1f1b"
    if layout.hsdp > 1:
        yield (
            "it divides over all data-parallel ranks (MiCS was removed, hpZ keeps weights alone in "
            "smaller groups); set hsdp 1"
        )
    if layout.pp > 1 and layout.zero >= 2:
        yield f"its pipelines take zero 0 or 1, not {layout.zero}"
    if layout.etp != layout.tp:
        yield f"its experts have the tensor width tp, not etp {layout.etp}"
    if layout.ep > 1 and divided:
        yield (
            f"ep with {divided[0]} above 1 places experts otherwise than Atoll does; set "
            f"{divided[0]} 1, or export to megatron"
        )
    if layout.recompute not in ("none", "full"):
        yield (
            f"it cannot say which operators of a block to recompute, as recompute "
            f"{layout.recompute} asks; use none or full"
        )
