"""Predictions compared with measured training runs: errors by group, memory fits, regret."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from atoll.answers.validation import Errors, GroupErrors, Regret, RunsValidation, WorstRun
from atoll.base.errors import AtollError
from atoll.hardware.gpu import Gpu
from atoll.step.layout import Layout
from atoll.training.estimate import Estimate, Estimator, rank_compute_s, stage_classes_s
from atoll.training.operators.kernel_classes import KERNEL_CLASSES
from atoll.training.run import Run
from atoll.training.site import Site
from atoll.validation.errors import error_summary, relative_error
from atoll.validation.kineto import profiled_classes_s
from atoll.validation.row_runs import (
    peak_meaning,
    predicted_peak_bytes,
    run_at_site,
    run_from_row,
    unread_words,
)
from atoll.validation.tables import RunRow, read_runs, write_records
from atoll.workload.flops import block_flops, model_flops

WORST_COUNT = 10
TOTAL = "all kernels"
Interval = tuple[float, float]


@dataclass(frozen=True)
class PredictedRun:
    """Prediction of a measured run, on any kind of machine."""

    time_s: float
    peak_bytes: float
    """Bytes that the row's peak counts."""
    stage_bytes: tuple[float, ...]
    fits: bool
    layout: str
    kind: str
    """Kind of run that its error interval is for."""
    variant: str = ""
    """Name that distinguishes layouts of the same job."""
    features: tuple[str, ...] = ()
    time_interval: Interval | None = None
    memory_interval: Interval | None = None
    """Low and high of measured / predicted."""
    reserved_bytes: float = 0.0
    """Bytes that the allocator of a measured rank reserves."""


@dataclass(frozen=True)
class Prediction:
    """A row with its prediction, or the reason why there is none."""

    row: RunRow
    predicted: PredictedRun | None
    reason: str = ""
    estimate: Estimate | None = None
    """The estimate, if the training model predicted it."""

    @property
    def time_error(self) -> float | None:
        """Predicted / measured step time - 1."""
        predicted_s = None if self.predicted is None else self.predicted.time_s
        return relative_error(predicted_s, self.row.time_s)

    @cached_property
    def kernel_classes_s(self) -> dict[str, tuple[float, float]]:
        """Measured and predicted seconds of kernels by class, if the row has a profile."""
        measured_s = profiled_classes_s(self.row) if self.estimate else {}
        if not measured_s or self.estimate is None:
            return {}
        predicted_s = self.estimate.kernel_classes_s
        if self.row.is_rank:
            predicted_s = stage_classes_s(self.estimate, self.row.integer("pp_rank", 0))
        pairs = {n: (measured_s.get(n, 0.0), time_s) for n, time_s in predicted_s.items()}
        return pairs | {TOTAL: (sum(m for m, _ in pairs.values()), sum(predicted_s.values()))}

    @property
    def memory_error(self) -> float | None:
        predicted_bytes = None if self.predicted is None else self.predicted.peak_bytes
        return relative_error(predicted_bytes, self.row.peak_bytes)

    @property
    def reserved_error(self) -> float | None:
        """Predicted / measured peak of what a rank's allocator reserves - 1."""
        row = self.row
        if self.predicted is None or not row.is_rank or row.peak_bytes is None:
            return None
        return self.predicted.reserved_bytes / row.number("reserved_bytes") - 1


def predicted_run(row: RunRow, estimate: Estimate) -> PredictedRun:
    """Return the prediction of a run from its estimate."""
    run, layout = estimate.run, estimate.layout
    if row.is_rank:
        stage = row.integer("pp_rank", 0)
        memory = estimate.memory[stage]
        return PredictedRun(
            time_s=rank_compute_s(estimate, stage),
            peak_bytes=memory.allocated,
            stage_bytes=tuple(memory.allocated for memory in estimate.memory),
            fits=memory.needed <= run.capacity_bytes,
            layout=str(layout),
            kind=f"rank of {row.text('tool')}",
            features=tuple(name for name, uses in FEATURES.items() if uses(run, layout)),
            reserved_bytes=memory.reserved,
        )
    return PredictedRun(
        time_s=estimate.step.time_s,
        peak_bytes=predicted_peak_bytes(peak_meaning(row), estimate.memory),
        stage_bytes=tuple(memory.allocated for memory in estimate.memory),
        fits=estimate.fits,
        layout=str(layout),
        kind=estimate.expected_error.of,
        variant=f"{layout} {run.attention}",
        features=tuple(name for name, uses in FEATURES.items() if uses(run, layout)),
        time_interval=estimate.time_spread.ratios,
        memory_interval=estimate.memory_spread.ratios,
    )


MEASURED = (
    "id", "quality", "step_ms", "peak_bytes", "measured_iter_time_s", "measured_peak_mem_GB",
    "measured_tokens_per_s_per_device",
)  # fmt: skip
"""Columns without effect on a prediction."""


def predict(rows: Iterable[RunRow], site: Site | None = None) -> tuple[Prediction, ...]:
    """Predict every row, at a site if given; an unreadable row gets the reason.

    Rows that differ in their measurements alone are priced once.
    """
    predictions = []
    priced: dict[frozenset[tuple[str, str]], tuple[PredictedRun, Estimate]] = {}
    for row in rows:
        try:
            row.check()
            values = {**row.values, "model": row.text("model", row.id)}
            cells = frozenset(item for item in values.items() if item[0] not in MEASURED)
            if cells not in priced:
                run, layout = run_at_site(row, site) if site else run_from_row(row)
                estimate = Estimator(run).estimate(layout)
                priced[cells] = predicted_run(row, estimate), estimate
            predicted, estimate = priced[cells]
            _check_rate(row, estimate)
            prediction = Prediction(row, predicted, estimate=estimate)
            _ = prediction.kernel_classes_s  # a profile that cannot be read skips the row
            predictions.append(prediction)
        except AtollError as error:
            predictions.append(Prediction(row, None, str(error)))
    return tuple(predictions)


def _check_rate(row: RunRow, estimate: Estimate) -> None:
    """Refuse a measured step that needs more FLOP/s than any product on the stated device reaches:
    it ran on another device, or with another batch.
    """
    run = estimate.run
    if row.time_s is None or row.is_rank or row.is_step or not isinstance(run.gpu, Gpu):
        return
    sample_flops = model_flops(run.model, run.sequence, run.adapters)
    if estimate.layout.recompute == "full":
        sample_flops += block_flops(run.model, run.sequence)
    needed_flops = run.global_batch * sample_flops / run.devices / row.time_s
    is_half = run.precision == run.gpu.half_dtype
    best_flops = run.gpu.measured_flops if is_half else None
    limit_flops = best_flops or run.gpu.peak_flops(run.precision)
    if needed_flops > limit_flops:
        fastest = "the best product measured on it" if best_flops else "its peak"
        raise AtollError(
            f"measured_iter_time_s {row.time_s:g} needs {needed_flops / 1e12:.0f} TFLOP/s of a "
            f"{run.gpu.name}, more than {limit_flops / 1e12:.0f}, {fastest}: check device and "
            "global_batch"
        )


def validate_runs(
    path: str | Path | Traversable,
    device: str = "h200",
    *,
    expect: str | None = None,
    out: str | Path | None = None,
    site: Site | None = None,
) -> RunsValidation:
    """Validate a file of measured runs, or of steps of one device.

    With `expect="oom"`, count the runs that do not fit.
    """
    if expect not in (None, "oom"):
        raise AtollError(f"expect is {expect!r}, but must be oom")
    return report(predict(read_runs(path, device), site), expect, out)


def report(
    predictions: Sequence[Prediction], expect: str | None = None, out: str | Path | None = None
) -> RunsValidation:
    """Summarise all predictions and write them to `out`."""
    if out is not None:
        write_predictions(predictions, out)
    predicted = [p for p in predictions if p.predicted is not None]
    skipped = Counter(p.reason for p in predictions if p.predicted is None)
    unread = Counter(w for p in predicted if p.estimate for w in unread_words(p.row))
    step_time, expects_oom = _errors_of(predicted, "time"), expect == "oom"
    failed = [p for p in predicted if expects_oom or p.row.ran_out_of_memory]
    judged = [p for p in predicted if not (expects_oom or p.row.ran_out_of_memory)]
    rejected = len(failed) - sum(map(_fits, failed)) if failed or expects_oom else None
    accepted = None if expects_oom else sum(map(_fits, judged))
    return RunsValidation(
        rows=len(predictions),
        predicted=len(predicted),
        skipped=dict(skipped.most_common()),
        step_time=step_time,
        memory=_errors_of(predicted, "memory"),
        reserved_memory=errors((p.reserved_error, None) for p in predicted),
        kernel_classes=class_errors(predicted),
        coverage=step_time.coverage,
        rejected=rejected,
        rejected_share=rejected / len(failed) if failed and rejected is not None else None,
        accepted=accepted,
        accepted_share=accepted / len(judged) if judged and accepted is not None else None,
        groups={kind: grouped(predicted, key) for kind, key in GROUPS.items()},
        unread=dict(unread.most_common()),
        regret=regret(filter(None, map(_ranked, judged))),
        by_source=grouped(judged, lambda p: p.row.id.split("-")[0]),
        by_device=grouped(judged, lambda p: p.row.device),
        by_grade=grouped(judged, lambda p: p.row.quality or "none"),
        by_feature=_features(judged),
        worst=_worst(judged),
    )


def class_errors(predictions: Sequence[Prediction]) -> dict[str, Errors]:
    """Return the errors of profiled kernels by class, and of their total."""
    errors = defaultdict[str, list[float]](list)
    for p in predictions:
        for name, (measured_s, predicted_s) in p.kernel_classes_s.items():
            if measured_s > 0:
                errors[name].append(predicted_s / measured_s - 1)
    return {name: error_summary(errors[name]) for name in (*KERNEL_CLASSES, TOTAL) if errors[name]}


GROUPS: dict[str, Callable[[Prediction], str]] = {
    "device": lambda p: p.row.device,
    "method": lambda p: p.row.text("method", "pretrain"),
    "precision": lambda p: p.row.text("precision", "bf16"),
    "kind": lambda p: p.predicted.kind if p.predicted else "",
}


def _errors_of(members: Sequence[Prediction], what: str) -> Errors:
    """Summarise the errors of time or memory."""
    return errors(
        (getattr(p, f"{what}_error"), getattr(p.predicted, f"{what}_interval", None))
        for p in members
    )


def errors(values: Iterable[tuple[float | None, Interval | None]]) -> Errors:
    """Summarise relative errors, and the share of measured / predicted within its interval."""
    with_intervals = [(error, interval) for error, interval in values if error is not None]
    if not with_intervals:
        return Errors()
    bounded = [(error, *interval) for error, interval in with_intervals if interval is not None]
    inside = [(low <= 1 / (1 + error) <= high, high - low) for error, low, high in bounded]
    return replace(
        error_summary([error for error, _ in with_intervals]),
        bias=None,
        coverage=float(np.mean([hit for hit, _ in inside])) if inside else None,
        half_width=float(np.mean([width for _, width in inside]) / 2) if inside else None,
    )


class RankedLayout(NamedTuple):
    """A measured layout and its rank by a predictor."""

    group: tuple[Any, ...]
    variant: str
    measured_s: float
    place: tuple[float, ...]


def _ranked(p: Prediction) -> RankedLayout | None:
    if p.predicted is None or not p.predicted.variant or p.row.time_s is None:
        return None
    place = (p.predicted.time_s,)
    return RankedLayout(layout_group(p.row), p.predicted.variant, p.row.time_s, place)


def regret(layouts: Iterable[RankedLayout]) -> Regret:
    """Return how much slower the layout ranked first is than the fastest measured one.

    A group is a model on one kind and number of devices with one batch, with at least two measured
    layouts. A layout measured several times counts with its best time. Ties for the first rank
    count with their mean.
    """
    groups: dict[tuple[Any, ...], list[RankedLayout]] = defaultdict(list)
    for layout in layouts:
        groups[layout.group].append(layout)
    losses = []
    for members in groups.values():
        measured: dict[str, float] = {}
        places: dict[str, tuple[float, ...]] = {}
        for layout in members:
            name = layout.variant
            measured[name] = min(layout.measured_s, measured.get(name, layout.measured_s))
            places[name] = min(layout.place, places.get(name, layout.place))
        if len(measured) > 1:
            best = min(places.values())
            chosen = [measured[name] for name, place in places.items() if place == best]
            losses.append(float(np.mean(chosen)) / min(measured.values()) - 1)
    if not losses:
        return Regret()
    return Regret(groups=len(losses), mean=float(np.mean(losses)), median=float(np.median(losses)))


def layout_group(row: RunRow) -> tuple[Any, ...]:
    """Return the key of rows that differ only in layout: model, devices and batch."""
    names = ("model", "precision", "device_mem_GB")
    sizes = ("layers", "hidden", "heads", "devices", "global_batch", "seq")
    texts = tuple(row.text(name) for name in names)
    return (row.device, *texts, *(row.integer(name, 0) for name in sizes))


def grouped(
    predictions: Sequence[Prediction], key: Callable[[Prediction], str]
) -> dict[str, GroupErrors]:
    groups: dict[str, list[Prediction]] = defaultdict(list)
    for p in predictions:
        groups[key(p)].append(p)
    return {name: _errors(members) for name, members in sorted(groups.items())}


def _errors(members: Sequence[Prediction]) -> GroupErrors:
    return GroupErrors(
        step_time=_errors_of(members, "time"),
        memory=_errors_of(members, "memory"),
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
    """Return the errors of runs that use a feature, by feature."""
    users = {
        name: [p for p in predictions if p.predicted and name in p.predicted.features]
        for name in FEATURES
    }
    return {name: _errors(members) for name, members in users.items() if members}


def _worst(predictions: Sequence[Prediction]) -> tuple[WorstRun, ...]:
    """Return the runs with the largest errors of their step time."""
    timed = [(p, p.predicted, error) for p in predictions if (error := p.time_error) is not None]
    return tuple(
        WorstRun(
            id=p.row.id,
            device=p.row.device,
            layout=predicted.layout,
            measured_s=p.row.time_s,
            predicted_s=predicted.time_s,
            error=error,
        )
        for p, predicted, error in sorted(timed, key=lambda item: -abs(item[2]))[:WORST_COUNT]
        if predicted is not None
    )


def _fits(p: Prediction) -> bool:
    return p.predicted is not None and p.predicted.fits


FIELDS = (
    "id", "device", "devices", "layout", "measured_s", "predicted_s", "time_error",
    "measured_peak_bytes", "predicted_peak_bytes", "memory_error", "stage_bytes", "fits", "reason",
    "low_s", "high_s", "low_peak_bytes", "high_peak_bytes",
)  # fmt: skip


def write_predictions(predictions: Sequence[Prediction], path: str | Path) -> None:
    """Write a line per row with prediction and error, or the reason why there is none."""
    write_records(path, FIELDS, list(map(_line, predictions)))


def _line(p: Prediction) -> dict[str, Any]:
    measured = {
        "id": p.row.id,
        "device": p.row.device,
        "devices": p.row.text("devices"),
        "measured_s": _readable(p.row, "time_s"),
        "measured_peak_bytes": _readable(p.row, "peak_bytes"),
        "reason": p.reason,
    }
    predicted = p.predicted
    if predicted is None:
        return measured
    low_s, high_s = predicted.time_interval or (math.nan, math.nan)
    low, high = predicted.memory_interval or (math.nan, math.nan)
    return measured | {
        "layout": predicted.layout,
        "predicted_s": predicted.time_s,
        "time_error": p.time_error,
        "predicted_peak_bytes": predicted.peak_bytes,
        "memory_error": p.memory_error,
        "stage_bytes": " ".join(f"{bytes_:.4g}" for bytes_ in predicted.stage_bytes),
        "fits": predicted.fits,
        "low_s": predicted.time_s * low_s,
        "high_s": predicted.time_s * high_s,
        "low_peak_bytes": predicted.peak_bytes * low,
        "high_peak_bytes": predicted.peak_bytes * high,
    }


def _readable(row: RunRow, name: str) -> Any:
    """Return a measurement, None if it cannot be read."""
    try:
        return getattr(row, name)
    except AtollError:
        return None
