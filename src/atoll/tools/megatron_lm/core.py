"""Settings of megatron-core, which Megatron-LM and Megatron-Bridge share."""

from __future__ import annotations

from atoll.step.orders import groups
from atoll.tools.arguments import load_names
from atoll.tools.launch_plan import LaunchPlan, Settings, refuse

NAMES = load_names("megatron_lm")
FUSED_LOSS: Settings = {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}
"""Transformer Engine's loss (`--flags te_loss`)."""
SHARDING = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""Megatron-FSDP's names of ZeRO stages; stage 1 is the distributed optimizer."""
_RECOMPUTE: dict[str, Settings] = {
    "selective": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
    "full": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
}
"""Fields of TransformerConfig by recomputation policy."""


def fsdp_warning(zero: int, width: int) -> str:
    """Return megatron-core's warning against FSDP with tensor or context parallelism, if any.

    megatron/training/arguments.py of 0.17.1, line 1224: "Try not to using them together since they
    require different CUDA_MAX_CONNECTIONS settings for best performance."
    """
    if zero < 2 or width == 1:
        return ""
    return (
        f"it warns against Megatron-FSDP (zero {zero}) with tensor or context parallelism; set "
        "zero 1, or tp and cp 1"
    )


def parallel_values(plan: LaunchPlan, target: str) -> Settings:
    """Return fields of ModelParallelConfig; refuse what megatron-core cannot run or warns of."""
    layout = plan.layout
    if plan.model.experts and layout.tp > 1 and not layout.sp:
        raise refuse(target, "experts with tp above 1 need sequence parallelism; set sp on")
    if warning := fsdp_warning(layout.zero, layout.tp * layout.cp):
        raise refuse(target, warning)
    values: Settings = NAMES.write(layout, "layout")
    values["sequence_parallel"] = layout.tp > 1 and layout.sp
    if plan.hides_tensor and values["sequence_parallel"]:
        values["tp_comm_overlap"] = True
    if layout.cp > 1:
        values["cp_comm_type"] = "a2a" if plan.exchanges_heads else "p2p"
    if plan.model.experts:
        values |= NAMES.write(layout, "expert_layout")
    return values | {"pipeline_model_parallel_layout": None if plan.even else _stages(plan)}


def sharding_values(plan: LaunchPlan) -> Settings:
    """Return fields of DistributedDataParallelConfig; Megatron-FSDP is ZeRO 2 and 3."""
    layout = plan.layout
    reduced = layout.zero > 0 or max(layout.ranks, layout.expert_ranks) > 1
    overlaps = layout.zero >= 2 or "no_grad_reduce" not in plan.software
    values: Settings = {
        "use_distributed_optimizer": layout.zero > 0,
        "overlap_grad_reduce": reduced and overlaps,
        "overlap_param_gather": layout.zero > 0 and overlaps,  # only with the former
    }
    if layout.hsdp > 1:
        values |= NAMES.write(layout, "replicas")
    if layout.zero >= 2:
        values["use_megatron_fsdp"] = True
        values["data_parallel_sharding_strategy"] = SHARDING[layout.zero]
    return values


def connections(plan: LaunchPlan) -> int:
    """Return CUDA_DEVICE_MAX_CONNECTIONS: Megatron asks for one hardware queue with tensor or
    context parallelism before Blackwell, and for more than one under FSDP.
    """
    return 8 if plan.layout.zero >= 2 else 1


def sharding_notes(plan: LaunchPlan) -> list[str]:
    if plan.layout.zero < 2 or plan.layout.pp == 1:
        return []
    return [
        "Megatron's checks accept Megatron-FSDP with a pipeline, but Atoll has not seen it run: "
        "try it on few devices first."
    ]


def microbatch_group(plan: LaunchPlan, target: str) -> int | None:
    """Return the microbatches per group of an interleaved schedule, None for the default pp."""
    pp, m = plan.layout.pp, plan.microbatches
    if plan.layout.vpp == 1:
        return None
    sizes = groups(pp, m)
    if m < pp or len(set(sizes[:-1])) > 1:
        words = f"in groups of {', '.join(map(str, sizes))}"
        raise refuse(
            target,
            f"it interleaves groups of one size, of at least pp {pp} microbatches, but for a last "
            f"that may be smaller, not {m} {words}; change the microbatch or dp",
        )
    return sizes[0] if sizes[0] != pp else None


def _stages(plan: LaunchPlan) -> str:
    """Return stages in Megatron's notation: E embedding, t block, L loss, | between chunks."""
    return f"E{'|'.join(f't*{blocks}' for blocks in plan.stages)}L"


def recompute_values(plan: LaunchPlan) -> Settings:
    """Return fields of TransformerConfig."""
    return _RECOMPUTE.get(plan.layout.recompute, {})
