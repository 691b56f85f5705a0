"""`atoll measure` and `atoll plan --measure`: ranks of layouts on the local device, compared with
their estimates.
"""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll.answers.answer import read_answer
from atoll.answers.plan import EstimateAnswer, MeasureAnswer, MeasuredRank, PlanAnswer
from atoll.answers.validation import CalibrationAnswer
from atoll.base.errors import AtollError
from atoll.calibration.site import calibrate_site
from atoll.measurement.device_profile import profile_device
from atoll.measurement.rows import append_row, rank_row
from atoll.measurement.runner import MEASURED, RankJob, Record, command, run_jobs
from atoll.questions import LayoutQuestion, PlanQuestion, Question
from atoll.questions.verbs import MeasureQuestion
from atoll.step.layout import FULL_BLOCKS, Layout
from atoll.tools.hugging_face import model_config_json
from atoll.training.estimate import Estimate, estimate
from atoll.training.mixed.plan import MixedPlan
from atoll.training.planner.plan import Plan
from atoll.training.request import layout_from_question, run_from_question
from atoll.validation.tables import RunRow, with_run
from atoll.validation.validate import predict

TOOLS = {
    "torchtitan": ("fp32", "bf16"),
    "transformers": ("fp32", "bf16"),
    "megatron-lm": ("mixed",),
}
"""Optimizer states that each tool can be measured with."""
RECOMPUTE = ("none", "full", "alternate")
Runner = Callable[[Sequence[RankJob], str, float], Iterator[Record]]
JOBS_FILE = "jobs.jsonl"
MODULES = {"megatron-lm": "megatron"}
"""Package of a tool, where it has another name."""
MOST_ROUNDS = 4
SITE = Path("measured-site.yaml")
"""Site that was fitted to the measured ranks."""
Show = Callable[[MeasureAnswer], None]


def measure(
    question: MeasureQuestion, runner: Runner = run_jobs
) -> MeasureAnswer | CalibrationAnswer:
    """Measure ranks of a layout, or the operators of the device with `device_profile`."""
    if question.device_profile is not None:
        _check_package("torch")
        _check_device("cuda")
        return profile_device(question.device_profile, question.device)
    run = run_from_question(question)
    return measure_layout(estimate(run, layout_from_question(run, question)), question, runner)


def measure_layout(
    priced: Estimate, settings: MeasureQuestion, runner: Runner = run_jobs
) -> MeasureAnswer:
    """Run the ranks of an estimated layout and append a row for each one that has a result."""
    jobs = rank_jobs(priced, settings.ranks)
    answer = MeasureAnswer(layout=str(priced.layout), ranks=(), rows=str(settings.append))
    if settings.dry_run:
        words = shlex.join(command(Path(JOBS_FILE), settings.backend))
        return replace(answer, commands=(words,), jobs=tuple(job.to_dict() for job in jobs))
    if runner is run_jobs:
        _check_package("torch")
        _check_device(settings.backend)
        _check_package(MODULES.get(priced.run.tool.name, priced.run.tool.name))
    records = runner(jobs, settings.backend, settings.limit)
    ranks = (_measured_rank(*pair, settings) for pair in zip(jobs, records, strict=False))
    return replace(answer, ranks=tuple(ranks))


def _check_package(name: str) -> None:
    """Refuse to measure without PyTorch or the tool."""
    if importlib.util.find_spec(name) is None:
        raise AtollError(f"measure needs {name}, which is not installed; --dry-run shows the jobs")


def _check_device(backend: str) -> None:
    """Refuse to measure on CUDA without a GPU."""
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    if backend == "cuda" and subprocess.run([sys.executable, "-c", code], check=False).returncode:
        raise AtollError(
            "measure needs a GPU that PyTorch sees, and this machine has none; --dry-run prints "
            "the commands and jobs for one that has"
        )


def _measured_rank(job: RankJob, record: Record, settings: MeasureQuestion) -> MeasuredRank:
    """Append the row of a result, and return it with the prediction of what was run."""
    rank = MeasuredRank(id=job.id, stage=job.stage, rank=job.rank, outcome=record["outcome"],
                        error=record.get("error", ""))  # fmt: skip
    if rank.outcome not in MEASURED:
        return rank
    row = rank_row(job, record)
    append_row(settings.append, row)
    cells = {name: str(value) for name, value in row.items()}
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


def plan_fields(question: type[Question], path: str | Path) -> dict[str, Any] | None:
    """Return the question of the layout that `plan` or `estimate` wrote to a folder; None for
    launch files.
    """
    if not Path(path).is_dir():
        return None
    answer = read_answer(Path(path) / "plan.json", PlanAnswer, EstimateAnswer)
    assert isinstance(answer, PlanAnswer | EstimateAnswer)
    fields = {n: v for n, v in answer.question.items() if n in question.model_fields}
    axes = {n: getattr(answer.layout, n, None) for n in LayoutQuestion.model_fields}
    fields |= {"tool": answer.tool, "order": answer.layout.schedule}
    return fields | {n: value for n, value in axes.items() if value not in (None, ())}


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
        ranked = (plan.best, *plan.runners_up)
        new = [layout for layout in ranked if str(layout.layout) not in measured]
        if str(plan.best.layout) in measured or not new:
            break
        _measure_all(new[: question.measure], settings, show, runner)
        measured |= {str(layout.layout) for layout in new[: question.measure]}
        calibrate_site(settings.append, device=str(question.device), out=SITE)
        plan = planner(once.model_copy(update={"site": str(SITE)}))
        assert isinstance(plan, Plan)
    return plan


def _measure_all(
    layouts: Sequence[Estimate], settings: MeasureQuestion, show: Show | None, runner: Runner
) -> None:
    """Measure layouts; refuse if none of them gives a result."""
    reasons: list[str] = []
    results = 0
    for priced in layouts:
        try:
            answer = measure_layout(priced, settings, runner)
        except AtollError as error:
            reasons.append(str(error))
            continue
        reasons += [rank.error for rank in answer.ranks if rank.error]
        results += sum(rank.outcome == "ok" for rank in answer.ranks)
        if show is not None:
            show(answer)
    if not results:
        why = reasons[0] if reasons else "no rank ran"
        raise AtollError(f"measure: none of the best {len(layouts)} layouts gave a result ({why})")


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
