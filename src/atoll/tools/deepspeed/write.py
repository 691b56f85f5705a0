"""DeepSpeed: a training script with its configuration.

Keys: deepspeed/runtime/config.py of DeepSpeed 0.19.8. The configuration sets batch, precision,
ZeRO, and tensor and expert parallelism of Hugging Face models (AutoTP, AutoEP).
"""

from __future__ import annotations

from collections.abc import Iterator

from atoll.answers.layout import LaunchFile
from atoll.tools import launch_plan
from atoll.tools.hugging_face import model_contents
from atoll.tools.launch_plan import LaunchPlan, Settings, check, fill_script, literal, trial_note

TARGET = "deepspeed"
FILE = "train.py"
ADAMW: Settings = {
    "lr": float(launch_plan.LEARNING_RATE),
    "betas": [0.9, 0.95],
    "weight_decay": 0.1,
    "torch_adam": True,
    "fused": True,  # torch's own would loop over lists of tensors
}


def deepspeed(plan: LaunchPlan) -> LaunchFile:
    check(TARGET, _refusals(plan))
    layout = plan.layout
    notes = [trial_note("WEIGHTS", "DATA", "LR", "SAVE")]
    zero: Settings = {"stage": layout.zero}
    if layout.zero:
        zero |= {"overlap_comm": True, "contiguous_gradients": True}
    values: Settings = {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": layout.microbatch,
        "gradient_accumulation_steps": plan.microbatches,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": ADAMW},
        plan.precision: {"enabled": True},
        "zero_optimization": zero,
    }
    if layout.zero == 0 and layout.ranks > 1:
        notes.append(
            "Without ZeRO DeepSpeed sums gradients after the backward pass: stage 1 sums as many "
            "bytes and overlaps."
        )
    if layout.tp > 1:
        values["tensor_parallel"] = {"autotp_size": layout.tp}
        del values["train_batch_size"]  # which DeepSpeed compares with all ranks' microbatches
        notes.append(
            "AutoTP divides a Hugging Face model's attention and feed-forward layers; embedding "
            "and head may stay undivided on every device, unlike in Atoll's estimate."
        )
    if layout.ep > 1:
        values["expert_parallel"] = {"enabled": True, "autoep_size": layout.ep}
        notes.append("AutoEP spreads the experts of Hugging Face models that it supports.")
    if layout.cp > 1:
        values["sequence_parallel_size"] = layout.cp
        notes.append(
            "DeepSpeed divides a sequence by Ulysses (all-to-all over heads), not by a ring: same "
            "memory, other traffic."
        )
    if layout.recompute == "full":
        values["activation_checkpointing"] = {"partition_activations": False}
    run = {
        "sequence": plan.sequence,
        "batch": plan.global_batch,
        "steps": plan.steps,
        "devices": layout.devices,
    }
    one_node = f"deepspeed --num_gpus {plan.per_node}"
    start = f"{one_node if plan.nodes == 1 else plan.torchrun} {FILE}"
    text = fill_script(
        "deepspeed",
        plan,
        plan.header(start),
        values,
        run=literal(run),
        model=literal(model_contents(plan, TARGET)),
    )
    return LaunchFile(target=TARGET, file=FILE, text=text, notes=tuple(notes))


def _refusals(plan: LaunchPlan) -> Iterator[str]:
    layout = plan.layout
    divided = [name for name in ("tp", "cp") if getattr(layout, name) > 1]
    if len(divided) > 1:
        yield (
            f"its configuration cannot join {' and '.join(divided)}; keep one of them above 1, or "
            "export to megatron"
        )
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
    if layout.etp != layout.tp:
        yield f"its experts have the tensor width tp, not etp {layout.etp}"
    if layout.ep > 1 and divided:
        yield (
            f"ep with {divided[0]} above 1 places experts otherwise than Atoll does; set "
            f"{divided[0]} 1, or export to megatron"
        )
