"""What the page shows of a plan or of one estimate."""

from __future__ import annotations

from atoll.answers.certificate import LayoutProof
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
from atoll.step.parts import in_words
from atoll.units import format_bytes, format_mfu, format_seconds

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
        certificate=_proof(planned.certificate)
        if planned
        else "One layout, estimated: nothing is searched.",
        notes=(
            *(f"{note[0].upper()}{note[1:]}." for note in found.notes if note),
            *(() if found.fits else ("This layout does not fit in the device's memory.",)),
        ),
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


def _pass(entry: DevicePass) -> PassView:
    return PassView(
        layer=entry.layer,
        repeat=entry.repeat,
        pass_=entry.pass_,
        makespan_s=entry.makespan_s,
        operators=tuple((*row, 0, 0, "") for row in entry.operators),
    )


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


def _proof(proof: LayoutProof) -> str:
    usable = f", of those that {proof.target} can run" if proof.target else ""
    left_out = f" Not tried: {'; '.join(proof.excluded)}." if proof.excluded else ""
    return (
        f"{'Proven best' if proof.proven else 'Best known'} of {proof.layouts:,} layouts in "
        f"{proof.variants:,} variants{usable}: {proof.too_large:,} cannot fit, "
        f"{proof.too_slow:,} cannot be faster, {proof.estimated:,} were estimated.{left_out}"
    )


def _facts(found: PlanAnswer | EstimateAnswer) -> tuple[tuple[str, str], ...]:
    return (
        ("Step", format_seconds(found.step_time_s)),
        ("Throughput", f"{found.tokens_per_s_per_device:,.0f} tokens/s per device"),
        ("MFU", format_mfu(found.mfu)),
        ("Memory", f"{format_bytes(found.memory_bytes.needed)} on the fullest device"),
        ("Sequence", f"{found.sequence:,} tokens"),
        ("Global batch", f"{found.global_batch:,} sequences"),
        ("Network", found.network),
        ("Software", found.stack),
        ("Replayed pass by pass", f"{found.replay.difference:+.2%} from the closed form"),
    )
