"""What the page shows of a plan or of one estimate."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.answers.answer import made_of
from atoll.answers.certificate import LayoutProof
from atoll.answers.layout import candidates_words
from atoll.answers.plan import DevicePass, EstimateAnswer, PlanAnswer
from atoll.report.timeline import plan_timeline
from atoll.report.timeline_view import timeline_view
from atoll.report.view import (
    MemoryView,
    ModelView,
    PassView,
    SensitivityView,
    StageView,
    TimeRow,
    TimesView,
    View,
)
from atoll.step.length import WholeRun
from atoll.step.parts import in_words
from atoll.units import format_bytes, format_count, format_mfu, format_seconds

AXES = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert", "dp": "data"}


def plan_view(found: PlanAnswer | EstimateAnswer) -> View:
    """The sections of a plan's page."""
    planned = found if isinstance(found, PlanAnswer) else None
    rows = [
        TimeRow(name="this layout", about=found.layout_words, parts=in_words(found.breakdown_s))
    ]
    for number, other in enumerate(planned.runners_up if planned else (), start=1):
        rows.append(
            TimeRow(
                name=f"runner-up {number}",
                about=f"{other.layout} ({other.slower:+.2%})",
                parts=in_words(other.breakdown_s),
            )
        )
    stages = tuple(
        StageView(name=f"stage {number}", layers=stage.layers, parts=in_words(stage.memory_bytes))
        for number, stage in enumerate(found.stages)
    )
    return View(
        kind=found.kind,
        title=f"{found.model} on {found.devices:,} {found.device}",
        sentence=_sentence(found),
        certificate=_proof(planned.certificate, planned.fastest.layout if planned.choice else "")
        if planned
        else "One layout, estimated: nothing is searched.",
        notes=tuple(f"{note[0].upper()}{note[1:]}." for note in _notes(found) if note),
        given=found.given,
        facts=_facts(found),
        times=(TimesView(title=found.model, rows=tuple(rows)),),
        models=(
            ModelView(
                model=found.model,
                layers=tuple(map(_pass, found.operators)),
                cores=None,
                pipeline=timeline_view(plan_timeline(found.pipeline)),
                memory=MemoryView(capacity_bytes=found.memory_bytes.capacity, stages=stages),
                energy_J={},
                replay_difference=found.replay.difference,
            ),
        ),
        sensitivity=SensitivityView(unit="throughput", per_mm2=False, rows=found.sensitivity),
        reasons=tuple(reason.why for reason in planned.reasons) if planned else (),
        cluster=found.cluster,
        launch=found.launch or None,
    )


def _notes(found: PlanAnswer | EstimateAnswer) -> Iterator[str]:
    yield from found.notes
    memory = found.memory_bytes
    if not found.fits:
        yield "this layout does not fit in the device's memory"
    elif memory.tight:
        most = format_bytes(memory.most_needed)
        yield f"memory is tight: some runs of this kind would need {most} where this one fits"
    if isinstance(found, PlanAnswer):
        yield found.choice
        yield candidates_words(found.alternatives, found.between_layouts)


def _pass(entry: DevicePass) -> PassView:
    return made_of(PassView, entry, operators=tuple((*row, 0, 0, "") for row in entry.operators))


def _sentence(found: PlanAnswer | EstimateAnswer) -> str:
    layout, memory = found.layout, found.memory_bytes
    axes = ", ".join(
        f"{words} {getattr(layout, axis)}"
        for axis, words in AXES.items()
        if getattr(layout, axis) > 1
    )
    return (
        f"{found.model} on {found.devices:,} {found.device}: a step of "
        f"{found.global_batch:,} sequences takes {format_seconds(found.step_time_s)} "
        f"({found.tokens_per_s_per_device:,.0f} tokens/s per device, MFU {found.mfu:.1%}) "
        f"with {axes or 'one device alone'}, microbatch {layout.microbatch}, schedule "
        f"{layout.schedule}, ZeRO {layout.zero}, recompute {layout.recompute}; it needs "
        f"{format_bytes(memory.needed)} of {format_bytes(memory.capacity)} per device."
        f" {found.interval.sentence(3)} ({found.expected_error.sentence()})."
    )


def _proof(proof: LayoutProof, fastest: str) -> str:
    usable = f", of those that {proof.target} can run" if proof.target else ""
    left_out = f" Not tried: {'; '.join(proof.excluded)}." if proof.excluded else ""
    subject = f"{fastest} is the " if fastest else ""
    best = "proven best" if proof.proven else "best known"
    return (
        f"{subject}{best if fastest else best.capitalize()} of {proof.layouts:,} layouts in "
        f"{proof.variants:,} variants{usable}: {proof.too_large:,} cannot fit, "
        f"{proof.too_slow:,} cannot be faster, {proof.estimated:,} were estimated.{left_out}"
    )


def _whole_run(found: WholeRun) -> Iterator[tuple[str, str]]:
    yield "Whole run", f"{found.days:,.1f} days for {format_count(found.tokens)} tokens"
    yield "Between", f"{found.days_low:,.1f} and {found.days_high:,.1f} days"
    yield "Device-hours", f"{found.device_hours:,.0f}"
    if found.dollars is not None:
        yield "Cost", f"{found.dollars:,.0f} dollars"
    if found.energy_J is not None:
        yield "Energy of the devices", f"{found.energy_J / 3.6e9:,.1f} MWh"
    yield "Goodput", f"{found.goodput:.1%} with {found.interruptions:,.1f} interruptions"
    yield "Checkpoints", f"every {found.interval_steps:,} steps, {format_seconds(found.interval_s)}"


def _power(found: PlanAnswer | EstimateAnswer) -> Iterator[tuple[str, str]]:
    if found.power_W is not None and found.energy_per_token_J is not None:
        held = "" if found.power_cap_W is None else f", held to {found.power_cap_W:g} W"
        joules = f"{1e3 * found.energy_per_token_J:.3g} mJ per token"
        yield "Power", f"{found.power_W:.0f} W per device{held}, {joules}"


def _facts(found: PlanAnswer | EstimateAnswer) -> tuple[tuple[str, str], ...]:
    return (
        ("Step", format_seconds(found.step_time_s)),
        ("Throughput", f"{found.tokens_per_s_per_device:,.0f} tokens/s per device"),
        ("MFU", format_mfu(found.mfu)),
        *_power(found),
        ("Memory", f"{format_bytes(found.memory_bytes.needed)} on the fullest device"),
        *(() if found.whole_run is None else _whole_run(found.whole_run)),
    )
