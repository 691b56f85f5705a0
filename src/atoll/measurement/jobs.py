"""Jobs of the ranks of a layout: what a child process runs, or why it cannot."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.base.errors import AtollError
from atoll.measurement.runner import RankJob
from atoll.step.layout import FULL_BLOCKS, Layout
from atoll.tools.hugging_face import model_config_json
from atoll.training.estimate import Estimate

TOOLS = {
    "torchtitan": ("fp32", "bf16"),
    "transformers": ("fp32", "bf16"),
    "megatron-lm": ("mixed",),
}
"""Optimizer states that each tool can be measured with."""
RECOMPUTE = ("none", "full", "alternate")


def rank_jobs(estimate: Estimate, ranks: Sequence[str]) -> list[RankJob]:
    """Return a job per stage that is asked for: the first, the last, the fullest in memory."""
    layout, run = estimate.layout, estimate.run
    _refuse(estimate)
    stage_by_name = {"first": 0, "last": layout.pp - 1, "fullest": estimate.worst.stage}
    stages = sorted({stage_by_name[name] for name in ranks})
    replicas = layout.hsdp if layout.zero else layout.dp
    weights = "fp32" if run.states.name == "fp32" else "bf16"
    adapted = [f"{name}_proj" for name in run.adapters.targets] if run.adapters else []
    words = str(layout).replace(" ", "-")
    config = model_config_json(run.model, run.sequence)
    if config is None:
        raise AtollError(f"model: {run.model.name} has no equal among Hugging Face models")
    return [
        RankJob(
            id=f"{run.model.name}-{run.devices}x{run.gpu.name}-{words}-stage{stage}",
            tool=run.tool.name,
            config=config,
            rank=stage * (layout.devices // layout.pp),
            tp=layout.tp,
            fsdp=layout.dp // replicas,
            replicate=replicas,
            pp=layout.pp,
            stage=stage,
            blocks=_blocks(estimate, stage),
            microbatch=layout.microbatch,
            sequence=run.sequence,
            microbatches=layout.microbatches(run.global_batch),
            recompute=layout.recompute if layout.recompute in RECOMPUTE else "every-second-block",
            weights=weights,
            reduce=weights,
            reshard=layout.zero == 3 or layout.pp > 1,
            compiled=run.stack.name == "compiled",
            lora_rank=run.adapters.rank if run.adapters else 0,
            lora_targets=tuple(adapted),
            labels={"model": run.model.name},
        )
        for stage in stages
    ]


def _refuse(estimate: Estimate) -> None:
    """Refuse what the child cannot run."""
    layout, run = estimate.layout, estimate.run
    half = -(-run.model.layers // layout.pp) // 2
    partial = f"{FULL_BLOCKS}{max(1, half)}"
    titan, megatron = run.tool.name == "torchtitan", run.tool.name == "megatron-lm"
    tools = " or ".join(TOOLS)
    reasons = {
        f"tool {run.tool.name} (use --tool {tools})": run.tool.name not in TOOLS,
        f"context parallelism (cp {layout.cp})": layout.cp > 1,
        f"expert parallelism (ep {layout.ep})": layout.ep > 1,
        f"interleaved stages or order {layout.schedule}": layout.schedule != "1f1b",
        f"precision {run.precision}": run.precision not in ("bf16", "fp16"),
        f"optimizer states {run.states.name}": run.states.name not in TOOLS.get(run.tool.name, ()),
        f"ZeRO {layout.zero} of this layout": not _divides(layout, run.tool.name),
        f"recomputation {layout.recompute}": layout.recompute
        not in (RECOMPUTE[:2] if megatron else (*RECOMPUTE, partial)),
        "tensor parallelism without sequence parallelism": layout.tp > 1
        and not layout.sp
        and megatron,
        f"{run.model.name} under {run.tool.name}, only Llama": (
            (titan or megatron) and run.model.family != "llama"
        ),
        f"adapters under {run.tool.name}": (titan or megatron) and run.adapters is not None,
        "pipelines under transformers": run.tool.name == "transformers" and layout.pp > 1,
        "unequal stages under megatron-lm": megatron and len(set(layout.blocks)) > 1,
        "captured models": run.stored is not None,
    }
    if reason := next((words for words, applies in reasons.items() if applies), ""):
        raise AtollError(f"measure does not run {reason}; estimate prices it")


def _divides(layout: Layout, tool: str) -> bool:
    """Return whether the tool divides states over ranks so: Megatron-LM has a distributed
    optimizer, torchtitan keeps gathered weights in a pipeline.
    """
    if tool == "megatron-lm":
        return layout.zero <= 1 and layout.hsdp == 1
    return layout.zero != 1 or (layout.pp > 1 and tool == "torchtitan")


def _blocks(estimate: Estimate, stage: int) -> tuple[int, int] | None:
    """Return the first block of a stage and the one after its last; None without a pipeline."""
    layout, layers = estimate.layout, estimate.run.model.layers
    if layout.pp == 1:
        return None
    sizes = layout.blocks
    if not sizes and layers % layout.pp:
        raise AtollError(f"blocks: {layers} do not divide into {layout.pp} stages; add --blocks")
    sizes = sizes or (layers // layout.pp,) * layout.pp
    return sum(sizes[:stage]), sum(sizes[: stage + 1])
