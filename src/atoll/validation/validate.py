"""Predictions held against measured training runs: errors overall and by group, fits, regret."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from atoll.answers.validation import Errors, GroupErrors, Regret, RunsValidation, WorstRun
from atoll.errors import AtollError
from atoll.files.csvfile import write_csv
from atoll.step.layout import Layout
from atoll.training.estimate import Estimate, Estimator
from atoll.training.run import Run
from atoll.training.site import Site
from atoll.validation.errors import error_summary
from atoll.validation.rows import Reader, counted_of, peak_of, run_at, run_of, unread_of
from atoll.validation.run_table import RunRow, read_runs
from atoll.validation.step_rows import read_steps, step_run_of

WORST = 10


@dataclass(frozen=True)
class Priced:
    """What is predicted of a measured run, on whatever machine."""

    time_s: float
    peak_bytes: float
    """Of what the row's peak counts."""
    stage_bytes: tuple[float, ...]
    fits: bool
    layout: str
    kind: str
    """Of run, as intervals have it."""
    variant: str = ""
    """What tells layouts apart that were measured beside each other."""
    features: tuple[str, ...] = ()
    intervals: tuple[tuple[float, float], tuple[float, float]] | None = None
    """Of step time and memory, measured over predicted; none where none is known."""


@dataclass(frozen=True)
class Prediction:
    """One row with what was predicted for it, or why nothing was."""

    row: RunRow
    priced: Priced | None
    reason: str = ""
    estimate: Estimate | None = None
    """Where it is one of the training model."""

    @property
    def time_error(self) -> float | None:
        """Predicted over measured step time, less one."""
        if self.priced is None or self.row.time_s is None:
            return None
        return self.priced.time_s / self.row.time_s - 1

    @property
    def memory_error(self) -> float | None:
        if self.priced is None or self.row.peak_bytes is None:
            return None
        return self.priced.peak_bytes / self.row.peak_bytes - 1


def priced_run(row: RunRow, estimate: Estimate) -> Priced:
    """A run on devices that exist."""
    run, layout = estimate.run, estimate.layout
    return Priced(
        time_s=estimate.step.time_s,
        peak_bytes=peak_of(counted_of(row), estimate.memory),
        stage_bytes=tuple(memory.allocated for memory in estimate.memory),
        fits=estimate.fits,
        layout=str(layout),
        kind=estimate.expected_error.of,
        variant=f"{layout} {run.attention}",
        features=tuple(name for name, uses in FEATURES.items() if uses(run, layout)),
        intervals=(estimate.accuracy.step_time, estimate.accuracy.memory),
    )


def predict(
    rows: Iterable[RunRow], reader: Reader = run_of, site: Site | None = None
) -> tuple[Prediction, ...]:
    """Every row, priced, at a site if one is given; one that cannot be read or expressed keeps the
    reason.
    """
    found = []
    for row in rows:
        try:
            row.check()
            run, layout = run_at(row, site, reader) if site else reader(row)
            estimate = Estimator(run).estimate(layout)
            found.append(Prediction(row, priced_run(row, estimate), estimate=estimate))
        except AtollError as error:
            found.append(Prediction(row, None, str(error)))
    return tuple(found)


def validate_runs(
    path: str | Path,
    *,
    expect: str | None = None,
    out: str | Path | None = None,
    site: Site | None = None,
) -> RunsValidation:
    """Errors over a file of measured runs; with `expect="oom"`, how many were refused memory."""
    if expect not in (None, "oom"):
        raise AtollError(f"expect is {expect!r}, but must be oom")
    return report(predict(read_runs(path), site=site), expect, out)


def validate_steps(
    path: str | Path | Traversable,
    device: str = "h200",
    *,
    out: str | Path | None = None,
    site: Site | None = None,
) -> RunsValidation:
    """Errors over a file of measured steps on one device."""
    return report(predict(read_steps(path, device), step_run_of, site), None, out)


def report(
    predictions: Sequence[Prediction], expect: str | None = None, out: str | Path | None = None
) -> RunsValidation:
    """Errors of all predictions, which are written to `out`."""
    if out is not None:
        write_predictions(predictions, out)
    return summary(predictions, expect=expect)


def summary(predictions: Sequence[Prediction], *, expect: str | None = None) -> RunsValidation:
    known = [p for p in predictions if p.priced is not None]
    skipped = Counter(p.reason for p in predictions if p.priced is None)
    step_time, peaks = _time_errors(known), _memory_errors(known)
    fitting = sum(map(_fits, known))
    memory = expect == "oom"
    judged = () if memory else known
    count = len(known) - fitting if memory else fitting
    share = count / len(known) if known else None
    return RunsValidation(
        rows=len(predictions),
        predicted=len(known),
        skipped=dict(skipped.most_common()),
        step_time=step_time,
        memory=peaks,
        coverage=step_time.coverage,
        rejected=count if memory else None,
        rejected_share=share if memory else None,
        accepted=None if memory else count,
        accepted_share=None if memory else share,
        groups={kind: grouped(known, key) for kind, key in GROUPS.items()},
        unread=dict(
            Counter(w for p in known if p.estimate for w in unread_of(p.row)).most_common()
        ),
        regret=regret(filter(None, map(_ranked, judged))),
        by_source=grouped(judged, lambda p: p.row.id.split("-")[0]),
        by_device=grouped(judged, lambda p: p.row.device),
        by_grade=grouped(judged, lambda p: p.row.quality or "none"),
        by_feature=_features(judged),
        worst=tuple(map(_worst, _largest(judged))),
    )


GROUPS: dict[str, Callable[[Prediction], str]] = {
    "device": lambda p: p.row.device,
    "method": lambda p: p.row.text("method", "pretrain"),
    "precision": lambda p: p.row.text("precision", "bf16"),
    "kind": lambda p: p.priced.kind if p.priced else "",
}


def _time_errors(members: Sequence[Prediction]) -> Errors:
    return errors((p.time_error, _interval(p, 0)) for p in members)


def _memory_errors(members: Sequence[Prediction]) -> Errors:
    return errors((p.memory_error, _interval(p, 1)) for p in members)


def _interval(p: Prediction, which: int) -> tuple[float, float] | None:
    return p.priced.intervals[which] if p.priced and p.priced.intervals else None


def errors(values: Iterable[tuple[float | None, tuple[float, float] | None]]) -> Errors:
    """Absolute percentage errors, as shares, and how many lie inside of their intervals: what is
    measured over what is predicted, from low to high.
    """
    known = [(error, ratios) for error, ratios in values if error is not None]
    if not known:
        return Errors()
    inside = [
        (ratios[0] <= 1 / (1 + error) <= ratios[1], ratios[1] - ratios[0])
        for error, ratios in known
        if ratios is not None
    ]
    return replace(
        error_summary([error for error, _ in known]),
        bias=None,
        coverage=float(np.mean([hit for hit, _ in inside])) if inside else None,
        half_width=float(np.mean([width for _, width in inside]) / 2) if inside else None,
    )


class Ranked(NamedTuple):
    """A measured layout and its place in a predictor's order."""

    group: tuple[Any, ...]
    variant: str
    measured_s: float
    place: tuple[float, ...]


def _ranked(p: Prediction) -> Ranked | None:
    if p.priced is None or not p.priced.variant or p.row.time_s is None:
        return None
    return Ranked(group_of(p.row), p.priced.variant, p.row.time_s, (p.priced.time_s,))


def regret(layouts: Iterable[Ranked]) -> Regret:
    """How much slower the layout that is ranked first was than the fastest measured one.

    A group is one model on one kind and number of devices with one batch, in which at least two
    layouts were measured. A layout that was measured several times counts with its best time: what
    differed between them is not in the table. Of several first ones each is as likely.
    """
    groups: dict[tuple[Any, ...], list[Ranked]] = defaultdict(list)
    for one in layouts:
        groups[one.group].append(one)
    found = []
    for members in groups.values():
        measured: dict[str, float] = {}
        places: dict[str, tuple[float, ...]] = {}
        for one in members:
            name = one.variant
            measured[name] = min(one.measured_s, measured.get(name, one.measured_s))
            places[name] = min(one.place, places.get(name, one.place))
        if len(measured) > 1:
            best = min(places.values())
            chosen = [measured[name] for name, place in places.items() if place == best]
            found.append(float(np.mean(chosen)) / min(measured.values()) - 1)
    if not found:
        return Regret()
    return Regret(groups=len(found), mean=float(np.mean(found)), median=float(np.median(found)))


def group_of(row: RunRow) -> tuple[Any, ...]:
    """Of rows that differ in their layouts: the same model, devices and batch."""
    names = ("model", "precision", "device_mem_GB")
    sizes = ("layers", "hidden", "heads", "devices", "global_batch", "seq")
    texts = tuple(row.text(name) for name in names)
    return (row.device, *texts, *(row.whole(name, 0) for name in sizes))


def grouped(
    predictions: Sequence[Prediction], key: Callable[[Prediction], str]
) -> dict[str, GroupErrors]:
    groups: dict[str, list[Prediction]] = defaultdict(list)
    for p in predictions:
        groups[key(p)].append(p)
    return {name: _errors(members) for name, members in sorted(groups.items())}


def _errors(members: Sequence[Prediction]) -> GroupErrors:
    return GroupErrors(
        step_time=_time_errors(members),
        memory=_memory_errors(members),
        rows=len(members),
        accepted_share=sum(map(_fits, members)) / len(members),
    )


FEATURES: dict[str, Callable[[Run, Layout], bool]] = {
    "tensor parallel": lambda _, layout: layout.tp > 1,
    "pipeline": lambda _, layout: layout.pp > 1,
    "interleaved": lambda _, layout: layout.vpp > 1,
    "context parallel": lambda _, layout: layout.cp > 1,
    "experts": lambda run, _: run.model.experts > 0,
    "fully sharded": lambda _, layout: layout.zero == 3,
    "full recompute": lambda _, layout: layout.recompute == "full",
    "no recompute": lambda _, layout: layout.recompute == "none",
    "unfused attention": lambda run, _: run.attention == "unfused",
    "fp8": lambda run, _: run.precision == "fp8",
}


def _features(predictions: Sequence[Prediction]) -> dict[str, GroupErrors]:
    """Errors where a feature is in use."""
    found = {}
    for name in FEATURES:
        users = [p for p in predictions if p.priced and name in p.priced.features]
        if users:
            found[name] = _errors(users)
    return found


def _largest(predictions: Sequence[Prediction]) -> list[Prediction]:
    timed = [p for p in predictions if p.time_error is not None]
    return sorted(timed, key=lambda p: -abs(p.time_error or 0.0))[:WORST]


def _worst(p: Prediction) -> WorstRun:
    assert p.priced is not None
    return WorstRun(
        id=p.row.id,
        device=p.row.device,
        layout=p.priced.layout,
        measured_s=p.row.time_s,
        predicted_s=p.priced.time_s,
        error=p.time_error,
    )


def _fits(p: Prediction) -> bool:
    return p.priced is not None and p.priced.fits


FIELDS = (
    "id", "device", "devices", "layout", "measured_s", "predicted_s", "time_error",
    "measured_peak_bytes", "predicted_peak_bytes", "memory_error", "stage_bytes", "fits", "reason",
    "low_s", "high_s", "low_peak_bytes", "high_peak_bytes",
)  # fmt: skip


def write_predictions(predictions: Sequence[Prediction], path: str | Path) -> None:
    """One line a row, with prediction and error, or the reason why there is none."""
    write_csv(path, FIELDS, [_line(p) for p in predictions])


def _line(p: Prediction) -> list[Any]:
    found = p.priced
    if found is None:
        measured_s, peak = _readable(p.row, "time_s"), _readable(p.row, "peak_bytes")
        devices = p.row.text("devices")
        return [
            p.row.id, p.row.device, devices, "", measured_s, "", "", peak, "", "", "", "", p.reason,
            "", "", "", "",
        ]  # fmt: skip
    times, peaks = found.intervals or ((), ())
    return [
        p.row.id,
        p.row.device,
        p.row.whole("devices"),
        found.layout,
        p.row.time_s or "",
        f"{found.time_s:.6g}",
        "" if p.time_error is None else f"{p.time_error:.4f}",
        p.row.peak_bytes or "",
        f"{found.peak_bytes:.6g}",
        "" if p.memory_error is None else f"{p.memory_error:.4f}",
        " ".join(f"{held:.4g}" for held in found.stage_bytes),
        int(found.fits),
        p.reason,
        *([f"{found.time_s * ratio:.6g}" for ratio in times] or ["", ""]),
        *([f"{found.peak_bytes * ratio:.6g}" for ratio in peaks] or ["", ""]),
    ]


def _readable(row: RunRow, name: str) -> Any:
    """A measurement of a row that was skipped, if it can be read."""
    try:
        return getattr(row, name) or ""
    except AtollError:
        return ""
