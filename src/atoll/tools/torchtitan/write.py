"""torchtitan's job: a Python file with a function that returns its configuration.

Classes and fields: torchtitan/trainer.py and config/configs.py of torchtitan 0.3.0. Data
parallelism is FSDP2, or plain replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from itertools import islice
from pathlib import Path

from atoll.answers.layout import LaunchFile
from atoll.step.orders import groups
from atoll.tools.hugging_face import model_contents
from atoll.tools.launch_plan import (
    GROWING,
    LaunchPlan,
    Settings,
    check,
    fill_script,
    literal,
    trial_note,
)
from atoll.tools.torchtitan.flavors import FLAVORS, find_flavor
from atoll.tools.torchtitan.read import BACKENDS, SCHEDULES

TARGET = "torchtitan"
FILE = "torchtitan_job.py"
REGISTER = (files("atoll.tools.torchtitan") / "register.py.txt").read_text(encoding="utf-8")
"""Code that registers a Llama-like shape."""
RECOMPUTE = {"none": "none", "alternate": "selective", "full": "full"}

CONVERTERS = {
    "fp8": 'Float8LinearConverter.Config(filter_fqns=["lm_head"], model_compile_enabled=True)',
    "mxfp8": 'MXFP8LinearConverter.Config(fqns=["layers"], model_compile_enabled=True)',
}
"""Converters of all linear layers but the head, by precision."""
SCHEDULE_NAMES = {order: name for name, order in SCHEDULES.items()}
BACKEND_NAMES = {kernel: name for name, kernel in BACKENDS.items()}
"""torchtitan's names of attention kernels; others run as FlexAttention."""


def torchtitan(plan: LaunchPlan) -> LaunchFile:
    flavor = find_flavor(plan.model)
    check(TARGET, _refusals(plan))
    notes = [trial_note("ASSETS", "DATASET", "LR", "SAVE")]
    imports, register, converter = "", "", CONVERTERS.get(plan.precision, "")
    settings: dict[str, Settings] = {
        "model": {
            "name": flavor.name,
            "flavor": flavor.flavor,
            "attn_backend": BACKEND_NAMES.get(plan.attention, "flex"),
        },
        "training": _training(plan),
        "parallelism": {
            **_data_parallel(plan, notes),
            "tensor_parallel_degree": plan.layout.tp,
            "enable_sequence_parallel": plan.layout.sp,
            "context_parallel_degree": plan.layout.cp,
            "expert_parallel_degree": plan.layout.ep,
            **_pipeline(plan),
        },
        "activation_checkpoint": {"mode": RECOMPUTE[plan.layout.recompute]},
        "compile": {"enable": bool(converter)},
        "loss": {"num_chunks": plan.loss_chunks},
    }
    if flavor not in FLAVORS:
        imports = "from torchtitan.models import llama3\n"
        register = f"MODEL = {literal(model_contents(plan, TARGET))}\n{REGISTER}"
    if plan.layout.cp > 1:
        notes.append(
            "torchtitan gathers keys and values over the context group, where Atoll's ring passes "
            "them on in turns: the same bytes, but not hidden behind attention."
        )
    if converter:
        settings["model"]["converters"] = [plan.precision.replace("fp8", "float8")]
        name = converter.partition(".")[0]
        imports += f"from torchtitan.components.quantization import {name}\n"
        notes.append(f"{plan.precision} needs torchao; all linear layers but the head have it.")
    module = f"-m torchtitan.train --module {Path(FILE).stem} --config train"
    start = f"env PYTORCH_{GROWING} {plan.torchrun} {module}"  # as its run_train.sh
    text = fill_script(
        "torchtitan",
        plan,
        plan.header(start),
        settings,
        module=flavor.name,
        imports=imports,
        register=register,
        converters=converter,
    )
    return LaunchFile(target=TARGET, file=FILE, text=text, notes=tuple(notes))


def _training(plan: LaunchPlan) -> Settings:
    layout = plan.layout
    # A pipeline takes all microbatches of a step as its local batch; without one, torchtitan
    # accumulates gradients over local batches.
    local = plan.global_batch // layout.dp if layout.pp > 1 else layout.microbatch
    return {
        "seq_len": plan.sequence,
        "local_batch_size": local,
        "global_batch_size": plan.global_batch,
        "steps": plan.steps,
        "mixed_precision_param": "bfloat16",
        "disable_cuda_graphs": True,  # as the step is estimated
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
    resharded = "default" if layout.pp == 1 else "always"  # the head stays gathered, or not
    return {
        "data_parallel_replicate_degree": layout.hsdp,
        "data_parallel_shard_degree": layout.dp // layout.hsdp,
        "fsdp_reshard_after_forward": resharded if layout.zero == 3 else "never",
    }


def _pipeline(plan: LaunchPlan) -> Settings:
    layout = plan.layout
    settings: Settings = {"pipeline_parallel_degree": layout.pp}
    if layout.pp == 1:
        return settings
    order = "interleaved" if layout.vpp > 1 else layout.schedule
    settings |= {
        "pipeline_parallel_schedule": SCHEDULE_NAMES[order],
        "pipeline_parallel_microbatch_size": layout.microbatch,
    }
    if plan.even:
        return settings | {
            "pipeline_parallel_layers_per_stage": plan.stages[0],
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
        }
    names = (f"layers.{i}" for i in range(sum(plan.stages)))
    modules = [[*islice(names, blocks)] for blocks in plan.stages]
    modules[0].insert(0, "tok_embeddings")
    modules[-1] += ["norm", "lm_head"]
    return settings | {"module_fqns_per_model_part": modules}


def _refusals(plan: LaunchPlan) -> Iterator[str]:
    layout = plan.layout
    sharded = layout.zero > 0 and layout.dp * layout.cp > 1
    if layout.pp > 1 and plan.model.tied_embeddings:
        yield f"it cannot divide {plan.model.name} into stages: its embeddings are tied; set pp 1"
    if plan.model.kv_heads % layout.tp:
        yield (
            f"it gives every tensor rank whole key and value heads, but tp {layout.tp} does not "
            f"divide the {plan.model.kv_heads} of {plan.model.name}; lower tp"
        )
    if plan.sequence % (unit := layout.tp * (2 * layout.cp if layout.cp > 1 else 1)):
        yield f"sequence {plan.sequence} must be a multiple of tp x 2 cp = {unit}"
    if (plan.sequence // layout.cp) % plan.loss_chunks:
        yield (
            f"it computes the loss in {plan.loss_chunks} equal parts of a sequence; use a multiple "
            f"of {plan.loss_chunks * layout.cp} tokens, or --flags loss_chunks=1"
        )
    if layout.zero == 0 and layout.cp > 1:
        yield "it shards weights over context-parallel ranks; use zero 3, or 1 with a pipeline"
    if layout.etp != (1 if layout.ep > 1 else layout.tp):
        yield f"its experts have etp 1 with ep above 1, else tp, not etp {layout.etp}"
    if layout.ep > 1 and layout.zero == 0:
        yield "it spreads experts over sharded data parallelism only; use zero 3"
    if not sharded and layout.model_ranks * layout.dp > 1 and layout.cp == 1:
        yield (
            "without FSDP it trains several devices in fp32, or replicas under autocast, which is "
            "not priced; use zero 2 or 3 (1 with a pipeline) and dp of at least 2"
        )
    if layout.zero == 1 and layout.pp == 1 and sharded:
        yield "without a pipeline it cannot divide optimizer states alone; use zero 2 or 3"
    if layout.hsdp > 1 and (layout.dp % layout.hsdp or layout.hsdp == layout.dp * layout.cp):
        yield (
            f"its replicas divide dp {layout.dp}, and leave ranks to shard over, unlike hsdp "
            f"{layout.hsdp}; lower hsdp"
        )
    if layout.ep > 1 and (layout.dp // layout.hsdp * layout.cp * layout.tp) % layout.ep:
        yield f"ep {layout.ep} does not divide the ranks of one replica; lower ep or hsdp"
    if layout.pp > 1:
        yield from _pipeline_refusals(plan)


def _pipeline_refusals(plan: LaunchPlan) -> Iterator[str]:
    layout, m = plan.layout, plan.microbatches
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
