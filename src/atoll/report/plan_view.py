"""Page view of a plan or of one estimate."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.answers.answer import build_from
from atoll.answers.certificate import LayoutProof
from atoll.answers.layout import candidates_words
from atoll.answers.plan import DevicePass, EstimateAnswer, PlanAnswer
from atoll.base.units import (
    NOT_COUNTED,
    format_bytes,
    format_count,
    format_mfu,
    format_seconds,
)
from atoll.report.timeline import plan_timeline
from atoll.report.timeline_view import timeline_view
from atoll.report.view import (
    MemoryView,
    ModelView,
    PageView,
    PassView,
    SensitivityView,
    StageView,
    TimeRow,
    TimesView,
)
from atoll.step.length import WholeRun
from atoll.step.parts import in_words

AXES = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert", "dp": "data"}


def plan_view(answer: PlanAnswer | EstimateAnswer) -> PageView:
    """Return the sections of a plan's page."""
    plan = answer if isinstance(answer, PlanAnswer) else None
    rows = [
        TimeRow(name="this layout", about=answer.layout_words, parts=in_words(answer.breakdown_s))
    ]
    for number, runner_up in enumerate(plan.runners_up if plan else (), start=1):
        rows.append(
            TimeRow(
                name=f"runner-up {number}",
                about=f"{runner_up.layout} ({runner_up.slower:+.2%})",
                parts=in_words(runner_up.breakdown_s),
            )
        )
    stages = tuple(
        StageView(name=f"stage {number}", layers=stage.layers, parts=in_words(stage.memory_bytes))
        for number, stage in enumerate(answer.stages)
    )
    return PageView(
        kind=answer.kind,
        title=f"{answer.model} on {answer.devices:,} {answer.device}",
        sentence=_sentence(answer),
        certificate=_proof(plan.certificate, plan.fastest.layout if plan.choice else "")
        if plan
        else "One layout, estimated: nothing is searched.",
        notes=tuple(f"{note[0].upper()}{note[1:]}." for note in _notes(answer) if note),
        given=answer.given,
        facts=_facts(answer),
        times=(TimesView(title=answer.model, rows=tuple(rows)),),
        models=(
            ModelView(
                model=answer.model,
                layers=tuple(map(_pass, answer.operators)),
                cores=None,
                pipeline=timeline_view(plan_timeline(answer.pipeline)),
                memory=MemoryView(capacity_bytes=answer.memory_bytes.capacity, stages=stages),
                energy_J={},
                replay_difference=answer.replay.difference,
            ),
        ),
        sensitivity=SensitivityView(unit="throughput", per_mm2=False, rows=answer.sensitivity),
        reasons=tuple(reason.why for reason in plan.reasons) if plan else (),
        cluster=answer.cluster,
        launch=answer.launch or None,
    )


def _notes(answer: PlanAnswer | EstimateAnswer) -> Iterator[str]:
    yield from answer.notes
    memory = answer.memory_bytes
    if not answer.fits:
        yield "this layout does not fit in the device's memory"
    elif memory.tight:
        most = format_bytes(memory.most_needed)
        yield f"memory is tight: some runs of this kind would need {most} where this one fits"
    if isinstance(answer, PlanAnswer):
        yield answer.choice
        if near := candidates_words(answer.alternatives, answer.between_layouts):
            yield f"also try: {near}"


def _pass(entry: DevicePass) -> PassView:
    return build_from(PassView, entry, operators=tuple((*row, 0, 0, "") for row in entry.operators))


def _sentence(answer: PlanAnswer | EstimateAnswer) -> str:
    layout, memory = answer.layout, answer.memory_bytes
    axes = ", ".join(
        f"{axis_name} {getattr(layout, axis)}"
        for axis, axis_name in AXES.items()
        if getattr(layout, axis) > 1
    )
    return (
        f"{answer.model} on {answer.devices:,} {answer.device}: a step of "
        f"{answer.global_batch:,} sequences takes {format_seconds(answer.step_time_s)} "
        f"({answer.tokens_per_s_per_device:,.0f} tokens/s per device, MFU {answer.mfu:.1%}) "
        f"with {axes or 'one device alone'}, microbatch {layout.microbatch}, schedule "
        f"{layout.schedule}, ZeRO {layout.zero}, recompute {layout.recompute}; it needs "
        f"{format_bytes(memory.needed)} of {format_bytes(memory.capacity)} per device."
        f" Step time: {answer.interval.sentence(3)}; {answer.expected_error.sentence()}."
    )


def _proof(proof: LayoutProof, fastest: str) -> str:
    runnable_words = f", of those that {proof.target} can run" if proof.target else ""
    excluded_words = f" Not tried: {'; '.join(proof.excluded)}." if proof.excluded else ""
    subject = f"{fastest} is the " if fastest else ""
    best = "proven best" if proof.proven else "best known"
    return (
        f"{subject}{best if fastest else best.capitalize()} of {proof.layouts:,} layouts in "
        f"{proof.variants:,} variants{runnable_words}: {proof.too_large:,} cannot fit, "
        f"{proof.too_slow:,} cannot be faster, {proof.estimated:,} were estimated.{excluded_words}"
    )


def _run_length_facts(run: WholeRun) -> Iterator[tuple[str, str]]:
    yield "Whole run", f"{run.days:,.1f} days for {format_count(run.tokens)} tokens"
    yield "Between", f"{run.days_low:,.1f} and {run.days_high:,.1f} days"
    yield "Device-hours", f"{run.device_hours:,.0f}"
    if run.dollars is not None:
        yield "Cost", f"{run.dollars:,.0f} dollars"
    if run.energy_J is not None:
        yield "Energy of the devices", f"{run.energy_J / 3.6e9:,.1f} MWh"
    yield "Goodput", f"{run.goodput:.1%} with {run.interruptions:,.1f} interruptions"
    yield "Checkpoints", f"every {run.interval_steps:,} steps, {format_seconds(run.interval_s)}"


def _power(answer: PlanAnswer | EstimateAnswer) -> Iterator[tuple[str, str]]:
    if answer.power_W is not None and answer.energy_per_token_J is not None:
        cap_words = "" if answer.power_cap_W is None else f", held to {answer.power_cap_W:g} W"
        joules = f"{1e3 * answer.energy_per_token_J:.3g} mJ per token"
        yield "Power", f"{answer.power_W:.0f} W per device{cap_words}, {joules}"


def _facts(answer: PlanAnswer | EstimateAnswer) -> tuple[tuple[str, str], ...]:
    return (
        ("Step", format_seconds(answer.step_time_s)),
        ("Throughput", f"{answer.tokens_per_s_per_device:,.0f} tokens/s per device"),
        ("MFU", f"{format_mfu(answer.mfu)} ({NOT_COUNTED})"),
        *_power(answer),
        ("Memory", f"{format_bytes(answer.memory_bytes.needed)} on the fullest device"),
        *(() if answer.whole_run is None else _run_length_facts(answer.whole_run)),
    )
