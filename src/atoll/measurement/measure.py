"""`atoll measure` and `atoll plan --measure`: ranks of layouts on the local device, compared with
their estimates.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from atoll.answers.plan import MeasureAnswer, MeasuredRank
from atoll.answers.validation import CalibrationAnswer
from atoll.base.errors import AtollError
from atoll.calibration.device_profile import profile_device
from atoll.calibration.site import calibrate_site
from atoll.files.csvfile import append_csv
from atoll.measurement.runner import MEASURED, RankJob, Record, command, run_jobs
from atoll.questions import PlanQuestion
from atoll.questions.verbs import MeasureQuestion
from atoll.step.layout import FULL_BLOCKS
from atoll.tools.hugging_face import model_config_json
from atoll.training.estimate import Estimate, estimate
from atoll.training.mixed.plan import MixedPlan
from atoll.training.planner.plan import Plan
from atoll.training.request import layout_from_question, run_from_question
from atoll.validation.kineto import CLASS_COLUMNS, rank_kernel_cells
from atoll.validation.tables import OUT_OF_MEMORY, STEP_COLUMNS, RunRow, with_run
from atoll.validation.validate import predict
from atoll.workload.families.config import config_from_hf

TOOLS = {
    "torchtitan": ("fp32", "bf16"),
    "transformers": ("fp32", "bf16"),
    "megatron-lm": ("mixed",),
}
"""Optimizer states that each tool can be measured with."""
RECOMPUTE = ("none", "full", "alternate")
Runner = Callable[[Sequence[RankJob], str, float], Iterator[Record]]
MODULES = {"megatron-lm": "megatron"}
"""Package of a tool, where it has another name."""
MOST_ROUNDS = 4
COPIED = (
    "host_ms", "static_bytes", "peak_bytes", "reserved_bytes", "requested_peak_bytes",
    "device_used_bytes", "device_total_bytes", "other_bytes", "alloc_retries", "power_W",
    "clock_MHz", "loss", "params", "params_full", "trainable", "setup_s", "gpu", "error",
)  # fmt: skip
"""Fields of a record that become cells as they are."""
SOFTWARE = ("torch", "transformers", "torchtitan", "megatron-core", "driver")
MODEL_COLUMNS = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts")
COLUMNS = (
    "id", "half", "tool", "mode", "model", "family", "config", *MODEL_COLUMNS, "top_k", "world",
    "rank", "tp", "fsdp", "replicate", "pp", "pp_rank", "microbatches", "mbs", "seq", "weights",
    "compute", "reduce", "recompute", "reshard_after_forward", "compiled", "optimizer", "clip",
    "lora_rank", "lora_targets", "adapter_dtype", "attn", "backend", "experts_implementation",
    "expandable", "limit_bytes", "step_ms", "spread", "forward_ms", "backward_ms", "clip_ms",
    "optimizer_ms", "kernels", "kernel_ms", *CLASS_COLUMNS.values(), "stand_in_ms",
    "stand_in_copies", *COPIED, *SOFTWARE,
)  # fmt: skip
SITE = Path("measured-site.yaml")
"""Site that was fitted to the measured ranks."""
Show = Callable[[MeasureAnswer], None]


def measure(
    question: MeasureQuestion, runner: Runner = run_jobs
) -> MeasureAnswer | CalibrationAnswer:
    """Measure ranks of a layout, or the operators of the device with `device_profile`."""
    if question.device_profile is not None:
        _check_machine("cuda")
        return profile_device(question.device_profile, question.device)
    run = run_from_question(question)
    return measure_layout(estimate(run, layout_from_question(run, question)), question, runner)


def measure_layout(
    priced: Estimate, settings: MeasureQuestion, runner: Runner = run_jobs
) -> MeasureAnswer:
    """Run the ranks of an estimated layout and append a row for each one that has a result."""
    jobs, tool = rank_jobs(priced, settings.ranks), priced.run.tool.name
    answer = MeasureAnswer(layout=str(priced.layout), ranks=(), rows=str(settings.append))
    if settings.dry_run:
        words = shlex.join(command(Path("jobs.jsonl"), settings.backend))
        return replace(answer, commands=(words,), jobs=tuple(job.to_dict() for job in jobs))
    if runner is run_jobs:
        _check_machine(settings.backend, MODULES.get(tool, tool))
    records = runner(jobs, settings.backend, settings.limit)
    ranks = (_measured_rank(*pair, settings) for pair in zip(jobs, records, strict=False))
    return replace(answer, ranks=tuple(ranks))


def _check_machine(backend: str, package: str = "torch") -> None:
    """Refuse to measure without PyTorch, the tool's package, or a GPU for CUDA."""
    missing = [name for name in ("torch", package) if importlib.util.find_spec(name) is None]
    if backend == "cuda" and "torch" not in missing:
        code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
        if subprocess.run([sys.executable, "-c", code], check=False).returncode:
            raise AtollError(
                "measure needs a GPU that PyTorch sees, and this machine has none; --dry-run "
                "prints the commands and jobs for one that has"
            )
    for name in missing:
        raise AtollError(f"measure needs {name}, which is not installed; --dry-run shows the jobs")


def _measured_rank(job: RankJob, record: Record, settings: MeasureQuestion) -> MeasuredRank:
    """Append the row of a result, and return it with the prediction of what was run."""
    rank = MeasuredRank(id=job.id, stage=job.stage, rank=job.rank, outcome=record["outcome"],
                        error=record.get("error", ""))  # fmt: skip
    if rank.outcome not in MEASURED:
        return rank
    row = rank_row(job, record)
    cells = {name: str(value) for name, value in row.items()}
    append_csv(settings.append, COLUMNS, lambda _: cells, (*STEP_COLUMNS, "world"), "ranks")
    (prediction,) = predict([with_run(RunRow(1, cells), str(settings.append), settings.device)])
    predicted = prediction.predicted
    return replace(
        rank,
        step_time_s=row["step_ms"] / 1e3 if rank.outcome == "ok" else None,
        predicted_step_time_s=predicted.time_s if predicted else None,
        allocated_bytes=record.get("peak_bytes"),
        predicted_allocated_bytes=predicted.peak_bytes if predicted else None,
        reserved_bytes=record.get("reserved_bytes"),
        predicted_reserved_bytes=predicted.reserved_bytes if predicted else None,
        error=rank.error or prediction.reason,
    )


def rank_row(job: RankJob, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of a measured rank; one that ran out of memory says so as its time."""
    model, software = config_from_hf(job.config, job.id), record.get("software", {})
    modes = {"lora": job.lora_rank, "pipeline": job.pp > 1, "tensor": job.tp > 1,
             "hybrid": job.fsdp > 1 and job.replicate > 1, "sharded": job.fsdp > 1}  # fmt: skip
    cells = job.labels | {name: value for name, value in vars(job).items() if name in COLUMNS}
    cells |= {name: getattr(model, name) for name in ("family", *MODEL_COLUMNS)}
    cells |= {name: record.get(name, "") for name in COPIED}
    cells |= {name: software.get(name, "") for name in SOFTWARE}
    cells |= {f"{phase}_ms": ms for phase, ms in record.get("phases_ms", {}).items()}
    cells |= {
        "config": json.dumps(job.config),
        "top_k": model.experts_per_token,
        "world": job.world,
        "mode": next((name for name, applies in modes.items() if applies), "replicated"),
        "pp_rank": job.stage,
        "mbs": job.microbatch,
        "seq": job.sequence,
        "reshard_after_forward": "default" if job.reshard else "never",
        "compiled": int(job.compiled),
        "clip": int(job.clip),
        "optimizer": "" if job.tool == "megatron-lm" else "fused",
        "lora_targets": "+".join(job.lora_targets),
        "adapter_dtype": "bf16" if job.lora_rank else "",
        "attn": "sdpa",
        "experts_implementation": "grouped_mm" * ("num_experts_per_tok" in job.config),
        "expandable": int(job.expandable),
        "limit_bytes": job.memory_bytes or "",
        "error": str(cells["error"])[:120],
        "step_ms": OUT_OF_MEMORY if record["outcome"] == "oom" else "",
    }
    cells |= rank_kernel_cells(record.get("kernels", {}))
    if times_ms := record.get("step_ms"):
        middle_ms = statistics.median(times_ms)
        stand_in_ms = cells.get("stand_in_ms", 0.0) if record.get("in_line") else 0.0
        cells["step_ms"] = round(round(middle_ms, 3) - stand_in_ms, 3)
        cells["spread"] = round((max(times_ms) - min(times_ms)) / middle_ms, 3)
    return cells


def plan_measured(
    question: PlanQuestion,
    planner: Callable[[PlanQuestion], Plan | MixedPlan],
    show: Show | None = None,
    runner: Runner = run_jobs,
) -> Plan:
    """Plan, measure the best layouts that can run here, fit a site to all rows, and plan again at
    that site until the best layout is one that was measured.
    """
    settings = MeasureQuestion.model_construct(device=str(question.device))
    once = question.model_copy(update={"measure": None})
    measured: set[str] = set()
    plan = planner(once)
    assert isinstance(plan, Plan)
    for _ in range(MOST_ROUNDS):
        if str(plan.best.layout) in measured:
            break
        ranked = (plan.best, *plan.runners_up)
        new = [priced for priced in ranked if str(priced.layout) not in measured]
        _measure_all(new[: question.measure], settings, show, runner)
        measured |= {str(priced.layout) for priced in new[: question.measure]}
        calibrate_site(settings.append, device=str(question.device), out=SITE)
        plan = planner(once.model_copy(update={"site": str(SITE)}))
        assert isinstance(plan, Plan)
    return plan


def _measure_all(
    layouts: Sequence[Estimate], settings: MeasureQuestion, show: Show | None, runner: Runner
) -> None:
    """Measure layouts; refuse if none of them gives a result."""
    reasons: list[str] = []
    ranks: list[MeasuredRank] = []
    for priced in layouts:
        try:
            answer = measure_layout(priced, settings, runner)
        except AtollError as error:
            reasons.append(str(error))
            continue
        ranks += answer.ranks
        reasons += [rank.error for rank in answer.ranks if rank.error]
        if show is not None:
            show(answer)
    if all(rank.outcome != "ok" for rank in ranks):
        why = reasons[0] if reasons else "no rank ran"
        raise AtollError(f"measure: none of the best {len(layouts)} layouts gave a result ({why})")


def rank_jobs(estimate: Estimate, ranks: Sequence[str]) -> list[RankJob]:
    """Return a job per stage that is asked for: the first, the last, the fullest in memory."""
    layout, run = estimate.layout, estimate.run
    _refuse(estimate)
    stage_by_name = {"first": 0, "last": layout.pp - 1, "fullest": estimate.worst.stage}
    replicas = layout.hsdp if layout.zero else layout.dp
    weights = "fp32" if run.states.name == "fp32" else "bf16"
    config = model_config_json(run.model, run.sequence)
    if config is None:
        raise AtollError(f"model: {run.model.name} has no equal among Hugging Face models")
    job = RankJob(
        id=f"{run.model.name}-{run.devices}x{run.gpu.name}-{str(layout).replace(' ', '-')}-stage",
        tool=run.tool.name,
        config=config,
        tp=layout.tp,
        fsdp=layout.dp // replicas,
        replicate=replicas,
        pp=layout.pp,
        microbatch=layout.microbatch,
        sequence=run.sequence,
        microbatches=layout.microbatches(run.global_batch),
        recompute=layout.recompute if layout.recompute in RECOMPUTE else "every-second-block",
        weights=weights,
        reduce=weights,
        reshard=layout.zero == 3 or layout.pp > 1,
        compiled=run.stack.name == "compiled",
        lora_rank=run.adapters.rank if run.adapters else 0,
        lora_targets=tuple(f"{n}_proj" for n in run.adapters.targets) if run.adapters else (),
        labels={"model": run.model.name},
    )
    layers, sizes = run.model.layers, layout.blocks
    if not sizes and layers % layout.pp:
        raise AtollError(f"blocks: {layers} do not divide into {layout.pp} stages; add --blocks")
    bounds = [*pairwise((0, *accumulate(sizes or (layers // layout.pp,) * layout.pp)))]
    return [
        replace(
            job,
            id=f"{job.id}{stage}",
            rank=stage * (layout.devices // layout.pp),
            stage=stage,
            blocks=bounds[stage] if layout.pp > 1 else None,
        )
        for stage in sorted({stage_by_name[name] for name in ranks})
    ]


def _refuse(estimate: Estimate) -> None:
    """Refuse what the child cannot run."""
    layout, run, tool = estimate.layout, estimate.run, estimate.run.tool.name
    megatron, only_llama = tool == "megatron-lm", tool in ("megatron-lm", "torchtitan")
    partial = f"{FULL_BLOCKS}{max(1, -(-run.model.layers // layout.pp) // 2)}"
    policies = RECOMPUTE[:2] if megatron else (*RECOMPUTE, partial)
    # Megatron-LM has a distributed optimizer; torchtitan keeps gathered weights in a pipeline.
    divides = layout.zero != 1 or (layout.pp > 1 and tool == "torchtitan")
    if megatron:
        divides = layout.zero <= 1 and layout.hsdp == 1
    reasons = {
        f"tool {tool} (use --tool {' or '.join(TOOLS)})": tool not in TOOLS,
        f"context parallelism (cp {layout.cp})": layout.cp > 1,
        f"expert parallelism (ep {layout.ep})": layout.ep > 1,
        f"interleaved stages or order {layout.schedule}": layout.schedule != "1f1b",
        f"precision {run.precision}": run.precision not in ("bf16", "fp16"),
        f"optimizer states {run.states.name}": run.states.name not in TOOLS.get(tool, ()),
        f"ZeRO {layout.zero} of this layout": not divides,
        f"recomputation {layout.recompute}": layout.recompute not in policies,
        "tensor parallelism without sequence parallelism": (
            layout.tp > 1 and not layout.sp and megatron
        ),
        f"{run.model.name} under {tool}, only Llama": only_llama and run.model.family != "llama",
        f"adapters under {tool}": only_llama and run.adapters is not None,
        "pipelines under transformers": tool == "transformers" and layout.pp > 1,
        "unequal stages under megatron-lm": megatron and len(set(layout.blocks)) > 1,
        "captured models": run.stored is not None,
    }
    for reason, applies in reasons.items():
        if applies:
            raise AtollError(f"measure does not run {reason}; estimate prices it")
