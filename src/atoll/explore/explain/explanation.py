"""Explains a stored result: why this chip is the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import JsonValue

from atoll.answers import search as answers
from atoll.answers.answer import build_from
from atoll.answers.design import ChipFigures, LayerPass, SearchedModel
from atoll.answers.plan import Sensitivity
from atoll.base.errors import AtollError
from atoll.base.stopping import Stop
from atoll.explore.answer.operator_limits import shares
from atoll.explore.explain.device_comparison import DeviceComparer
from atoll.explore.explain.neighbours import Neighbours
from atoll.hardware.device import CELL_PRODUCTS
from atoll.questions import SearchQuestion

_CHIP_FIELDS = (
    "tensor_cores", "width", "depth", "vector_cores", "vector_width", "glb_MiB", "clock_GHz",
    "hbm_GiB", "area_mm2",
)  # fmt: skip
STEPS_S = 60.0  # time limit for the neighbours of a chip


def explain_result(
    result: answers.SearchAnswer, devices: Sequence[str] = ()
) -> answers.SearchExplanation:
    """Explain where the time goes, what limits operators, and why neighbours of the chip,
    runners-up and existing devices (those of the search unless given) are not the answer."""
    best, stop = result.best, Stop(STEPS_S)
    steps: tuple[Sensitivity, ...] = ()
    comparison: dict[str, answers.DeviceComparison] = {}
    notes: tuple[str, ...] = ()
    try:
        neighbours = Neighbours.of(best.accelerator, SearchQuestion.from_dict(result.job), stop)
        steps = neighbours.steps()
        if stop():
            notes = (f"Neighbours of the chip were evaluated for {STEPS_S:g} s: some are missing.",)
        comparison = DeviceComparer.of(result, neighbours).compare(devices or tuple(result.beside))
    except AtollError as error:
        if devices:
            raise
        notes += (f"Chips were not evaluated again: {error}",)
    return build_from(
        answers.SearchExplanation,
        result,
        kind="search-explanation",
        best=best.accelerator,
        models=tuple(_explained(plan, best.accelerator, result.job) for plan in best.models),
        runners_up=tuple(_compare(best, runner_up) for runner_up in result.runners_up),
        steps=steps,
        comparison=comparison,
        notes=notes,
    )


def _explained(
    plan: SearchedModel, chip: ChipFigures, job: Mapping[str, JsonValue]
) -> answers.ExplainedModel:
    blocks = [entry for entry in plan.layers if entry.repeat > 1] or plan.layers
    peak_flops = chip.peak_TFLOPs * 1e12 * CELL_PRODUCTS[str(job.get("precision", "bf16"))]
    points = [*_roofline(plan.layers, peak_flops, chip.hbm_bandwidth_GBps * 1e9)]
    done = sum(seconds * point.flop_per_s for seconds, point in points)
    allowed = sum(seconds * point.roof_flop_per_s for seconds, point in points)
    return build_from(
        answers.ExplainedModel,
        plan,
        roofline=tuple(point for _, point in points),
        roof_share=done / allowed if allowed else 0.0,
        time_parts_s=plan.placement.time_parts_s,
        limits=shares(plan.layers),
        schedules=tuple(build_from(answers.ScheduleSummary, entry) for entry in plan.layers),
        slowest_operators=_slowest(blocks),
    )


def _roofline(
    entries: Iterable[LayerPass], peak_flops: float, hbm_Bps: float
) -> Iterator[tuple[float, answers.RooflinePoint]]:
    """Yield the operators with matrix products, each with its seconds in one pass of all layers."""
    for entry in entries:
        for operator in entry.operators:
            product_bytes = sum(product.hbm_bytes for product in operator.products)
            moved_bytes = max(operator.moved_bytes, product_bytes)
            if not operator.flops or not moved_bytes or not operator.duration_s:
                continue
            intensity = operator.flops / moved_bytes
            point = build_from(
                answers.RooflinePoint,
                operator,
                layer=entry.layer,
                pass_=entry.pass_,
                flop_per_byte=intensity,
                flop_per_s=operator.flops / operator.duration_s,
                roof_flop_per_s=min(peak_flops, intensity * hbm_Bps),
            )
            yield entry.repeat * operator.duration_s, point


def _slowest(entries: Iterable[LayerPass], count: int = 8) -> tuple[answers.SlowOperator, ...]:
    rows = [
        build_from(answers.SlowOperator, operator, layer=entry.layer, pass_=entry.pass_)
        for entry in entries
        for operator in entry.operators
    ]
    return tuple(sorted(rows, key=lambda row: -row.duration_s)[:count])


def _compare(best: answers.DesignAnswer, runner_up: answers.DesignAnswer) -> answers.Comparison:
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
            answers.SlowerModel(
                model=ours.model,
                slower_by=slower_by,
                part=part,
                part_s=(a.get(part, 0.0), b.get(part, 0.0)),
                layout=(ours.placement.layout, slower.placement.layout),
            )
        )
    return answers.Comparison(
        accelerator=runner_up.accelerator,
        differs={name: pair for name, pair in values if pair[0] != pair[1]},
        reasons=tuple(reasons),
    )
