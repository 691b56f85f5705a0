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
from atoll.measurement.jobs import rank_jobs
from atoll.measurement.rows import append_row, rank_row
from atoll.measurement.runner import MEASURED, RankJob, Record, command, run_jobs
from atoll.questions import LayoutQuestion, PlanQuestion, Question
from atoll.questions.verbs import MeasureQuestion
from atoll.training.estimate import Estimate, estimate
from atoll.training.mixed.plan import MixedPlan
from atoll.training.planner.plan import Plan
from atoll.training.request import layout_from_question, run_from_question
from atoll.validation.tables import RunRow, with_run
from atoll.validation.validate import predict

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
