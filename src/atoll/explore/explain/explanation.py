"""Explains a stored result: why this chip is the answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atoll.answers.answer import build_from
from atoll.answers.design import LayerPass, SearchedModel
from atoll.answers.plan import Sensitivity
from atoll.answers.search import (
    Comparison,
    DesignAnswer,
    ExplainedModel,
    ScheduleSummary,
    SearchAnswer,
    SearchExplanation,
    SlowerModel,
    SlowOperator,
)
from atoll.base.errors import AtollError
from atoll.explore.answer.operator_limits import shares
from atoll.explore.explain.device_comparison import DeviceComparer
from atoll.explore.explain.neighbours import Neighbours
from atoll.questions import SearchQuestion

_CHIP_FIELDS = (
    "tensor_cores", "width", "depth", "vector_cores", "vector_width", "glb_MiB", "clock_GHz",
    "hbm_GiB", "area_mm2",
)  # fmt: skip


def explain_result(result: SearchAnswer, devices: Sequence[str] = ()) -> SearchExplanation:
    """Explain where the time goes, what limits operators, and why neighbours of the chip,
    runners-up and existing devices are not the answer.
    """
    best = result.best
    steps: tuple[Sensitivity, ...] = ()
    comparer: DeviceComparer | None = None
    notes: tuple[str, ...] = ()
    try:
        neighbours = Neighbours.of(best.accelerator, SearchQuestion.from_dict(result.job))
        steps, comparer = neighbours.steps(), DeviceComparer.of(result, neighbours)
    except AtollError as error:
        notes = (f"Chips were not evaluated again: {error}",)
    return build_from(
        SearchExplanation,
        result,
        kind="search-explanation",
        best=best.accelerator,
        models=tuple(map(_explained, best.models)),
        runners_up=tuple(_compare(best, runner_up) for runner_up in result.runners_up),
        steps=steps,
        comparison=comparer.compare(devices) if comparer else {},
        notes=notes,
    )


def _explained(plan: SearchedModel) -> ExplainedModel:
    blocks = [entry for entry in plan.layers if entry.repeat > 1] or plan.layers
    return build_from(
        ExplainedModel,
        plan,
        time_parts_s=plan.placement.time_parts_s,
        limits=shares(plan.layers),
        schedules=tuple(build_from(ScheduleSummary, entry) for entry in plan.layers),
        slowest_operators=_slowest(blocks),
    )


def _slowest(entries: Iterable[LayerPass], count: int = 8) -> tuple[SlowOperator, ...]:
    rows = [
        build_from(SlowOperator, operator, layer=entry.layer, pass_=entry.pass_)
        for entry in entries
        for operator in entry.operators
    ]
    return tuple(sorted(rows, key=lambda row: -row.duration_s)[:count])


def _compare(best: DesignAnswer, runner_up: DesignAnswer) -> Comparison:
    """Compare a runner-up: chip parameters, and the part of the step that explains it most."""
    values = [
        (name, (getattr(best.accelerator, name), getattr(runner_up.accelerator, name)))
        for name in _CHIP_FIELDS
    ]
    added, theirs = best.accelerator.own or {}, runner_up.accelerator.own or {}
    values += [(name, (value, theirs[name])) for name, value in added.items() if name in theirs]
    reasons = []
    for ours, slower in zip(best.models, runner_up.models, strict=False):
        a, b = ours.placement.time_parts_s, slower.placement.time_parts_s
        slower_by = ours.samples_per_s / slower.samples_per_s - 1.0
        longer_s = {name: b.get(name, 0.0) - a.get(name, 0.0) for name in {**b, **a}}
        part = (max if slower_by >= 0.0 else min)(longer_s, key=lambda name: longer_s[name])
        reasons.append(
            SlowerModel(
                model=ours.model,
                slower_by=slower_by,
                part=part,
                part_s=(a.get(part, 0.0), b.get(part, 0.0)),
                layout=(_layout(ours), _layout(slower)),
            )
        )
    return Comparison(
        accelerator=runner_up.accelerator,
        differs={name: pair for name, pair in values if pair[0] != pair[1]},
        reasons=tuple(reasons),
    )


def _layout(plan: SearchedModel) -> str:
    return f"{plan.placement.layout}, microbatch {plan.placement.microbatch}"
