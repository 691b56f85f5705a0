"""Benchmark of predictors: each predicts every measured run, with the same scores."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.answers.validation import BenchAnswer, BenchFile, BenchScore, Errors, PredictorBench
from atoll.base.errors import AtollError
from atoll.predictors.predictor import Asked, Predicted, Predictor
from atoll.predictors.registry import PREDICTORS
from atoll.predictors.rules import parameter_counts
from atoll.questions.verbs import BenchQuestion
from atoll.validation.errors import error_summary, relative_error
from atoll.validation.row_runs import peak_meaning, run_from_row
from atoll.validation.tables import RunRow, read_runs, write_records
from atoll.validation.validate import RankedLayout, layout_group, regret

SIZES = ((3e9, "below 3B"), (20e9, "3B to 20B"), (65e9, "20B to 65B"), (float("inf"), "65B and up"))
"""Classes of models by total parameters."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """A measured run, and each predictor's prediction or reason for refusal."""

    row: RunRow
    ran: bool
    job: Asked
    parameters: float
    answers: Mapping[str, Predicted | str]

    def prediction(self, name: str) -> Predicted | None:
        prediction = self.answers[name]
        return None if isinstance(prediction, str) else prediction

    def time_error(self, name: str) -> float | None:
        prediction = self.prediction(name) or Predicted()
        return relative_error(prediction.time_s, self.row.time_s)

    def memory_error(self, name: str) -> float | None:
        prediction = self.prediction(name) or Predicted()
        return relative_error(prediction.peak_bytes, self.row.peak_bytes)


BenchRows = Sequence[BenchRow]


def _kind(row: BenchRow) -> str:
    if row.job.run.fine_tuned:
        return "fine-tuning"
    return "experts" if row.job.run.model.experts else "dense"


GROUPS: dict[str, Callable[[BenchRow], str]] = {
    "kind": _kind,
    "size": lambda row: next(name for most, name in SIZES if row.parameters < most),
    "precision": lambda row: row.job.run.precision,
    "device": lambda row: row.job.run.gpu.name,
    "source": lambda row: row.row.id.split("-")[0],
}


def bench_files(question: BenchQuestion) -> BenchAnswer:
    """Benchmark the named predictors, or all available ones, on all files."""
    names = question.predictors or tuple(PREDICTORS)
    chosen = [PREDICTORS[name] for name in dict.fromkeys(names)]
    missing = {predictor.name: why for predictor in chosen if (why := predictor.missing())}
    usable = [predictor for predictor in chosen if predictor.name not in missing]
    if question.predictors and missing:
        raise AtollError("; ".join(f"predictor {name}: {why}" for name, why in missing.items()))
    seconds: dict[str, float] = defaultdict(float)
    rows, files, unread = _rows(question, usable, seconds)
    if not rows:
        raise AtollError("files: no row describes a run that can be asked about")
    records = list(_records(rows))
    write_records(question.out, tuple(records[0]), records)
    common = [row for row in rows if all(row.prediction(predictor.name) for predictor in usable)]
    first = usable[0].name
    return BenchAnswer(
        files=files,
        rows=len(rows) + sum(unread.values()),
        unread=dict(unread.most_common()),
        common=len(common),
        shared=sum(sum(row.prediction(p.name) is not None for p in usable) > 1 for row in rows),
        missing=missing,
        predictors=tuple(_bench(p, first, rows, common, seconds[p.name]) for p in usable),
    )


def _rows(
    question: BenchQuestion, usable: Sequence[Predictor], seconds: dict[str, float]
) -> tuple[list[BenchRow], tuple[BenchFile, ...], Counter[str]]:
    """Return rows with all predictions, files, and the number of unreadable rows by reason."""
    rows: list[BenchRow] = []
    unread: Counter[str] = Counter()
    files = []
    for path, ran in [*((f, True) for f in question.files), *((f, False) for f in question.oom)]:
        run_rows = read_runs(path, question.device)
        files.append(BenchFile(file=str(path), rows=len(run_rows), ran=ran))
        for row in run_rows:
            try:
                row.check()
                job = Asked(*run_from_row(row), peak_meaning(row))
                size = parameter_counts(job.run.model).all
            except AtollError as error:
                unread[str(error)] += 1
                continue
            predictions = {predictor.name: _ask(predictor, job, seconds) for predictor in usable}
            rows.append(BenchRow(row, ran, job, size, predictions))
    return rows, tuple(files), unread


def _ask(predictor: Predictor, job: Asked, seconds: dict[str, float]) -> Predicted | str:
    began = time.process_time()
    try:
        return predictor.predict(job)
    except AtollError as error:
        return str(error)
    finally:
        seconds[predictor.name] += time.process_time() - began


def _bench(
    predictor: Predictor, first: str, rows: BenchRows, common: BenchRows, seconds: float
) -> PredictorBench:
    name = predictor.name
    refused = Counter(reason for row in rows if isinstance(reason := row.answers[name], str))
    return PredictorBench(
        name=name,
        about=predictor.about,
        refused=dict(refused.most_common()),
        per_second=len(rows) / max(seconds, 1e-9),
        all=_score(name, first, rows),
        common=_score(name, first, common),
        groups={kind: _grouped(name, first, rows, key) for kind, key in GROUPS.items()},
    )


def _grouped(
    name: str, first: str, rows: BenchRows, key: Callable[[BenchRow], str]
) -> dict[str, BenchScore]:
    groups: dict[str, list[BenchRow]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    sizes = [size for _, size in SIZES]
    names = sorted(groups, key=lambda group: (sizes.index(group) if group in sizes else 0, group))
    return {group: _score(name, first, groups[group]) for group in names}


def _score(name: str, first: str, rows: BenchRows) -> BenchScore:
    answered = [row for row in rows if row.prediction(name) is not None]
    timed = [row for row in answered if row.time_error(name) is not None]
    judged = [(row.ran, p.fits) for row in answered if (p := row.prediction(name)) is not None]
    ran = [fits for did_run, fits in judged if did_run and fits is not None]
    failed = [not fits for did_run, fits in judged if not did_run and fits is not None]
    return BenchScore(
        rows=len(answered),
        step_time=_errors(row.time_error(name) for row in timed),
        first=_errors(row.time_error(first) for row in timed),
        memory=_errors(row.memory_error(name) for row in answered),
        ran=len(ran),
        accepted_share=sum(ran) / len(ran) if ran else None,
        failed=len(failed),
        rejected_share=sum(failed) / len(failed) if failed else None,
        regret=regret(_ranked(name, row) for row in timed if row.ran),
    )


def _errors(values: Iterable[float | None]) -> Errors:
    return error_summary([value for value in values if value is not None])


def _ranked(name: str, row: BenchRow) -> RankedLayout:
    prediction, job = row.prediction(name), row.job
    assert prediction is not None and prediction.time_s is not None and row.row.time_s is not None
    variant, order = f"{job.layout} {job.run.attention}", (prediction.time_s, *prediction.order)
    return RankedLayout(layout_group(row.row), variant, row.row.time_s, order)


def _records(rows: BenchRows) -> Iterator[dict[str, Any]]:
    """Yield a line per row and predictor."""
    for row in rows:
        for name, answer in row.answers.items():
            prediction = row.prediction(name) or Predicted()
            yield {
                "id": row.row.id,
                "predictor": name,
                "measured_s": row.row.time_s,
                "predicted_s": prediction.time_s,
                "time_error": row.time_error(name),
                "measured_peak_bytes": row.row.peak_bytes,
                "predicted_peak_bytes": prediction.peak_bytes,
                "memory_error": row.memory_error(name),
                "fits": prediction.fits,
                "ran": row.ran,
                "reason": answer if isinstance(answer, str) else None,
            }
