"""Predictors on the same measured runs: each is asked of every row, and scored alike."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atoll.answers.validation import BenchAnswer, BenchFile, BenchScore, Errors, PredictorBench
from atoll.errors import AtollError
from atoll.files.csvfile import read_csv, write_csv
from atoll.predictors.known import PREDICTORS
from atoll.predictors.predictor import Asked, Predicted, Predictor
from atoll.predictors.rules import sizes_of
from atoll.questions.verbs import BenchQuestion
from atoll.validation.errors import error_summary
from atoll.validation.rows import peak_meaning, run_of
from atoll.validation.run_table import RunRow, read_runs
from atoll.validation.step_rows import is_step_file, read_steps, run_from_step
from atoll.validation.validate import RankedLayout, layout_group, regret

SIZES = ((3e9, "below 3B"), (20e9, "3B to 20B"), (65e9, "20B to 65B"), (float("inf"), "65B and up"))
"""Classes of models by all their parameters."""


@dataclass(frozen=True, slots=True)
class Row:
    """A measured run, and what each predictor says of it or why it says nothing."""

    row: RunRow
    ran: bool
    asked: Asked
    parameters: float
    said: Mapping[str, Predicted | str]

    def of(self, name: str) -> Predicted | None:
        found = self.said[name]
        return None if isinstance(found, str) else found

    def time_error(self, name: str) -> float | None:
        found = self.of(name)
        if found is None or found.time_s is None or self.row.time_s is None:
            return None
        return found.time_s / self.row.time_s - 1

    def memory_error(self, name: str) -> float | None:
        found = self.of(name)
        if found is None or found.peak_bytes is None or self.row.peak_bytes is None:
            return None
        return found.peak_bytes / self.row.peak_bytes - 1


def _kind(row: Row) -> str:
    if row.asked.run.fine_tuned:
        return "fine-tuning"
    return "experts" if row.asked.run.model.experts else "dense"


def _size(row: Row) -> str:
    return next(name for most, name in SIZES if row.parameters < most)


GROUPS: dict[str, Callable[[Row], str]] = {
    "kind": _kind,
    "size": _size,
    "precision": lambda row: row.asked.run.precision,
    "device": lambda row: row.asked.run.gpu.name,
    "source": lambda row: row.row.id.split("-")[0],
}


def judge(question: BenchQuestion) -> BenchAnswer:
    """All predictors that can be asked, or those that are named, on all files."""
    names = question.predictors or tuple(PREDICTORS)
    chosen = [PREDICTORS[name] for name in dict.fromkeys(names)]
    missing = {one.name: why for one in chosen if (why := one.missing())}
    usable = [one for one in chosen if one.name not in missing]
    if question.predictors and missing:
        raise AtollError("; ".join(f"predictor {name}: {why}" for name, why in missing.items()))
    seconds: dict[str, float] = defaultdict(float)
    rows, files, unread = _rows(question, usable, seconds)
    if not rows:
        raise AtollError("files: no row describes a run that can be asked about")
    if question.out is not None:
        _write(rows, question.out)
    common = [row for row in rows if all(row.of(one.name) for one in usable)]
    first = usable[0].name
    return BenchAnswer(
        files=files,
        rows=len(rows) + sum(unread.values()),
        unread=dict(unread.most_common()),
        common=len(common),
        shared=sum(sum(row.of(one.name) is not None for one in usable) > 1 for row in rows),
        missing=missing,
        predictors=tuple(_bench(one, first, rows, common, seconds[one.name]) for one in usable),
    )


def _rows(
    question: BenchQuestion, usable: Sequence[Predictor], seconds: dict[str, float]
) -> tuple[list[Row], tuple[BenchFile, ...], Counter[str]]:
    """Every row that describes a run, with all answers; rows that do not, by the reason."""
    rows: list[Row] = []
    unread: Counter[str] = Counter()
    files = []
    for path, ran in [*((p, True) for p in question.files), *((p, False) for p in question.oom)]:
        steps = is_step_file(read_csv(path)[0])
        reader = run_from_step if steps else run_of
        found = read_steps(path, question.device) if steps else read_runs(path)
        files.append(BenchFile(file=str(path), rows=len(found), ran=ran))
        for row in found:
            try:
                row.check()
                asked = Asked(*reader(row), peak_meaning(row))
                size = sizes_of(asked.run.model).all
            except AtollError as error:
                unread[str(error)] += 1
                continue
            said = {p.name: _said(p, asked, seconds) for p in usable}
            rows.append(Row(row, ran, asked, size, said))
    return rows, tuple(files), unread


def _said(predictor: Predictor, asked: Asked, seconds: dict[str, float]) -> Predicted | str:
    began = time.process_time()
    try:
        return predictor.predict(asked)
    except AtollError as error:
        return str(error)
    finally:
        seconds[predictor.name] += time.process_time() - began


def _bench(
    predictor: Predictor, first: str, rows: Sequence[Row], common: Sequence[Row], seconds: float
) -> PredictorBench:
    name = predictor.name
    refused = Counter(said for row in rows if isinstance(said := row.said[name], str))
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
    name: str, first: str, rows: Sequence[Row], key: Callable[[Row], str]
) -> dict[str, BenchScore]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    sizes = [size for _, size in SIZES]
    names = sorted(groups, key=lambda group: (sizes.index(group) if group in sizes else 0, group))
    return {group: _score(name, first, groups[group]) for group in names}


def _score(name: str, first: str, rows: Sequence[Row]) -> BenchScore:
    told = [row for row in rows if row.of(name) is not None]
    timed = [row for row in told if row.time_error(name) is not None]
    judged = [(row.ran, found.fits) for row in told if (found := row.of(name)) is not None]
    ran = [fits for was, fits in judged if was and fits is not None]
    failed = [not fits for was, fits in judged if not was and fits is not None]
    return BenchScore(
        rows=len(told),
        step_time=_errors(row.time_error(name) for row in timed),
        first=_errors(row.time_error(first) for row in timed),
        memory=_errors(row.memory_error(name) for row in told),
        ran=len(ran),
        accepted_share=sum(ran) / len(ran) if ran else None,
        failed=len(failed),
        rejected_share=sum(failed) / len(failed) if failed else None,
        regret=regret(_ranked(name, row) for row in timed if row.ran),
    )


def _errors(values: Iterable[float | None]) -> Errors:
    return error_summary([value for value in values if value is not None])


def _ranked(name: str, row: Row) -> RankedLayout:
    found, asked = row.of(name), row.asked
    assert found is not None and found.time_s is not None and row.row.time_s is not None
    variant = f"{asked.layout} {asked.run.attention}"
    return RankedLayout(
        layout_group(row.row), variant, row.row.time_s, (found.time_s, *found.order)
    )


FIELDS = (
    "id", "predictor", "measured_s", "predicted_s", "time_error", "measured_peak_bytes",
    "predicted_peak_bytes", "memory_error", "fits", "ran", "reason",
)  # fmt: skip


def _write(rows: Sequence[Row], path: Path) -> None:
    """One line for each row and predictor."""
    lines = []
    for row in rows:
        for name, said in row.said.items():
            found = Predicted() if isinstance(said, str) else said
            values = (
                row.row.id, name, row.row.time_s, found.time_s, row.time_error(name),
                row.row.peak_bytes, found.peak_bytes, row.memory_error(name), found.fits, row.ran,
                said if isinstance(said, str) else None,
            )  # fmt: skip
            lines.append(["" if value is None else _text(value) for value in values])
    write_csv(path, FIELDS, lines)


def _text(value: float | bool | str) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
