"""torchtitan's TOML job file.

Sections and fields: torchtitan/config/job_config.py of torchtitan 0.2.2, the last release that
reads TOML (0.3 is configured by Python functions). Data parallelism is FSDP2, or plain
replicas if nothing else is sharded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from atoll.answers.layout import LaunchFile
from atoll.step.orders import groups
from atoll.tools.launch_plan import LaunchPlan, Settings, check, refuse
from atoll.tools.torchtitan.flavors import Flavor, find_flavor

TARGET = "torchtitan"
SCHEDULES = {"1f1b": "1F1B", "interleaved": "1F1B", "gpipe": "GPipe", "zb-v": "ZBVZeroBubble"}
"""With vpp > 1 the schedule is Interleaved1F1B."""

CONVERTERS = {
    "fp8": ("quantize.linear.float8", "rowwise"),
    "mxfp8": ("quantize.linear.mx", "mxfp8_cublas"),
}
"""Converters of linear layers, with their recipes, by precision."""


def torchtitan(plan: LaunchPlan) -> LaunchFile:
    flavor, note = find_flavor(plan.model)
    check(TARGET, _refusals(plan, flavor))
    notes = [
        "The file is for torchtitan 0.2: later releases read no TOML.",
        "Set model.hf_assets_path to the model's tokenizer, and the dataset; learning rate and "
        "number of steps are torchtitan's defaults.",
    ]
    if note:
        notes.append(note)
    sections: dict[str, Settings] = {
        "job": {"description": plan.title},
        "model": {
            "name": flavor.name,
            "flavor": flavor.flavor,
            "hf_assets_path": f"./assets/hf/{plan.model.name}",
        },
        "training": _training(plan),
        "parallelism": {
            **_data_parallel(plan, notes),
            "tensor_parallel_degree": plan.layout.tp,
            "context_parallel_degree": plan.layout.cp,
            **_experts(plan),
            **_pipeline(plan),
        },
        "activation_checkpoint": _recompute(plan),
    }
    if plan.layout.cp > 1:
        notes.append(
            "context_parallel_rotate_method is alltoall, which passes keys and values on in turns "
            "as Atoll's ring does; torchtitan's default gathers them."
        )
        sections["parallelism"]["context_parallel_rotate_method"] = "alltoall"
    if plan.precision in CONVERTERS:
        _add_converter(plan.precision, sections, notes)
    text = _header(plan) + "\n".join(_section(name, body) for name, body in sections.items())
    return LaunchFile(target=TARGET, file="train.toml", text=text, notes=tuple(notes))


def _header(plan: LaunchPlan) -> str:
    nodes = f"torchrun --nnodes {plan.nodes} --nproc-per-node {plan.per_node}"
    meeting = "--rdzv-backend c10d --rdzv-endpoint $MASTER_ADDR:29500"
    start = f"{nodes} {meeting} -m torchtitan.train --job.config_file train.toml"
    return f"# {start}\n# Under Slurm: {plan.slurm_job(start)}\n\n"


def _training(plan: LaunchPlan) -> Settings:
    layout = plan.layout
    # A pipeline takes all microbatches of a step as its local batch; without one, torchtitan
    # accumulates gradients over local batches.
    local = plan.global_batch // layout.dp if layout.pp > 1 else layout.microbatch
    return {
        "dataset": "c4",
        "seq_len": plan.sequence,
        "local_batch_size": local,
        "global_batch_size": plan.global_batch,
        "mixed_precision_param": "bfloat16",
        "mixed_precision_reduce": "float32",
    }


def _data_parallel(plan: LaunchPlan, notes: list[str]) -> Settings:
    layout = plan.layout
    if layout.zero == 0:
        return {"data_parallel_replicate_degree": layout.dp, "data_parallel_shard_degree": 1}
    if layout.zero < 3 and layout.dp * layout.cp > 1:
        period = "step" if layout.pp > 1 else "microbatch"
        notes.append(
            f"zero {layout.zero} is written as FSDP that keeps gathered weights from forward to "
            f"backward; it also divides weights at rest, and gathers them every {period}."
        )
    return {
        "data_parallel_replicate_degree": layout.hsdp,
        "data_parallel_shard_degree": layout.dp // layout.hsdp,
        "fsdp_reshard_after_forward": "always" if layout.zero == 3 else "never",
    }


def _experts(plan: LaunchPlan) -> Settings:
    if not plan.model.experts:
        return {}
    degrees: Settings = {"expert_parallel_degree": plan.layout.ep}
    if plan.layout.ep > 1:
        degrees["expert_tensor_parallel_degree"] = plan.layout.etp
    return degrees


def _pipeline(plan: LaunchPlan) -> Settings:
    layout = plan.layout
    settings: Settings = {"pipeline_parallel_degree": layout.pp}
    if layout.pp == 1:
        return settings
    settings["pipeline_parallel_schedule"] = (
        "Interleaved1F1B" if layout.vpp > 1 else SCHEDULES[layout.schedule]
    )
    settings["pipeline_parallel_microbatch_size"] = layout.microbatch
    if plan.even:
        return settings | {
            "pipeline_parallel_layers_per_stage": plan.stages[0],
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
        }
    return settings | {"module_fqns_per_model_part": _modules(plan.stages)}


def _modules(stages: tuple[int, ...]) -> list[list[str]]:
    """Return the names of the modules of each chunk."""
    parts, first = [], 0
    for blocks in stages:
        parts.append([f"layers.{i}" for i in range(first, first + blocks)])
        first += blocks
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def _recompute(plan: LaunchPlan) -> Settings:
    policy = plan.layout.recompute
    if policy in ("none", "full"):
        return {"mode": policy}
    if policy == "alternate":
        return {"mode": "selective", "selective_ac_option": "op"}
    raise refuse(
        TARGET,
        f"it cannot recompute what recompute {policy} asks; use none, alternate (its selective "
        "mode by operator) or full",
    )


def _add_converter(precision: str, sections: dict[str, Settings], notes: list[str]) -> None:
    converter, recipe = CONVERTERS[precision]
    sections["model"]["converters"] = [converter]
    sections[converter] = {"recipe_name": recipe, "filter_fqns": ["output"]}
    sections["compile"] = {"enable": True}
    notes.append(
        f"{precision} is written as {recipe} for all linear layers but the head, which needs "
        "torchao and torch.compile."
    )


def _refusals(plan: LaunchPlan, flavor: Flavor) -> Iterator[str]:
    layout = plan.layout
    sharded = layout.zero > 0 and layout.dp * layout.cp > 1
    if plan.precision not in ("bf16", *CONVERTERS):
        yield f"it trains in bf16, fp8 or mxfp8, not {plan.precision}"
    if layout.pp > 1 and not flavor.pipeline:
        yield f"it cannot cut {flavor.name} into pipeline stages; set pp 1"
    if layout.cp > 1 and not flavor.context:
        yield f"it cannot divide the sequences of {flavor.name} {flavor.flavor}; set cp 1"
    if layout.tp > 1 and not layout.sp:
        yield "its tensor parallelism always divides norms too; set sp on"
    if plan.model.kv_heads % layout.tp:
        yield (
            f"it gives every tensor rank whole key and value heads, but tp {layout.tp} does not "
            f"divide the {plan.model.kv_heads} of {plan.model.name}; lower tp"
        )
    if plan.sequence % (layout.tp * 2 * layout.cp):
        yield (
            f"sequence {plan.sequence} must be a multiple of tp x 2 cp = "
            f"{layout.tp * 2 * layout.cp}"
        )
    if layout.zero == 0 and (layout.dp > 1 or layout.cp > 1) and layout.dp != layout.devices:
        yield (
            "it replicates a model over data only when nothing else is divided; use zero 3, or 1 "
            "with a pipeline"
        )
    if layout.etp not in (1, layout.tp) or (layout.etp != layout.tp and layout.ep == 1):
        yield (
            f"its experts have the tensor width 1 or tp, the first only with ep above 1, not etp "
            f"{layout.etp}"
        )
    if layout.ep > 1 and layout.zero == 0:
        yield "it spreads experts over sharded data parallelism only; use zero 3"
    if layout.zero == 1 and layout.pp == 1 and sharded:
        yield ("without a pipeline it cannot divide optimizer states alone; use zero 2 or 3")
    if not sharded and (layout.tp > 1 or layout.pp > 1):
        yield (
            "it mixes precisions only with sharded data parallelism beside tp and pp; choose dp "
            "above 1"
        )
    if layout.hsdp > 1 and (layout.dp % layout.hsdp or layout.hsdp == layout.dp * layout.cp):
        yield (
            f"its replicas divide dp {layout.dp}, and leave ranks to shard over, unlike hsdp "
            f"{layout.hsdp}; lower hsdp"
        )
    if layout.pp > 1:
        yield from _pipeline_refusals(plan)


def _pipeline_refusals(plan: LaunchPlan) -> Iterator[str]:
    layout, m = plan.layout, plan.microbatches
    if layout.schedule == "dualpipe":
        yield (
            "its DualPipeV lays one copy of the model in a V, where dualpipe holds two; use zb-v"
        )
    if layout.schedule not in SCHEDULES:
        yield (
            f"its zero-bubble schedules take two chunks a stage, unlike {layout.schedule}; use "
            "1f1b, interleaved or zb-v"
        )
    if layout.vpp > 1 and layout.schedule == "gpipe":
        yield "gpipe has one chunk a stage; set vpp 1 or interleaved"
    if layout.schedule == "1f1b" and layout.vpp == 1 and m < layout.pp:
        yield (
            f"its 1F1B needs as many microbatches as stages, but {m} run on pp {layout.pp}; lower "
            "the microbatch or pp"
        )
    sizes = groups(layout.pp, m)
    if layout.vpp > 1 and len(set(sizes)) > 1:
        yield (
            f"it interleaves groups of one size, not {m} microbatches in groups of "
            f"{', '.join(map(str, sizes))}; change the microbatch or dp"
        )


def _section(name: str, body: Settings) -> str:
    lines = [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in body.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)
