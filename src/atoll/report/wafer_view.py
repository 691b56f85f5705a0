"""What the page shows of a search on a wafer."""

from __future__ import annotations

from atoll.answers.wafer import WaferAnswer, WaferPicture
from atoll.report.search_view import model_view
from atoll.report.view import BaselineView, StageLoad, TimeRow, TimesView, View, WaferMap
from atoll.step.parts import in_words
from atoll.units import NOT_COUNTED, format_bytes, format_seconds


def wafer_view(answer: WaferAnswer) -> View:
    """The sections of a wafer's page: the map of dies beside what every page has."""
    wafer, best_wafer, plan = answer.wafer, answer.best.wafer, answer.best.models[0]
    placement = plan.placement
    best = TimeRow(name="best", about="", parts=in_words(placement.time_parts_s))
    return View(
        kind="wafer",
        title=f"{plan.model} on a wafer",
        sentence=(
            f"A wafer of {wafer.rows} × {wafer.columns} dies trains {plan.model} at "
            f"{plan.samples_per_s:,.2f} samples/s (MFU {plan.mfu:.1%}, {NOT_COUNTED}): "
            f"{placement.pipeline} stages, microbatch {placement.microbatch}, recompute {plan.recompute}."
        ),
        certificate=answer.certificate.sentence,
        notes=tuple(
            f"{worth.resource}, {worth.change}: {worth.gain:+.1%} throughput for {worth.area_mm2:+,.0f} mm2"
            for worth in answer.explanation
        ),
        facts=(
            ("Throughput", f"{plan.samples_per_s:,.2f} samples/s"),
            ("Step", format_seconds(placement.step_time_s)),
            ("Area", f"{best_wafer.area_mm2:,.0f} mm2 in {best_wafer.dies} dies"),
            ("Cost", f"{best_wafer.cost_dollars:,.0f} dollars"),
            ("Peak", f"{best_wafer.peak_PFLOPs:,.1f} PFLOP/s, {best_wafer.peak_power_W / 1e3:,.1f} kW"),
            ("Memory per die", format_bytes(wafer.memory_bytes_per_die)),
            ("Links", f"{wafer.link_Bps / 1e12:.2f} TB/s"),
            ("Power, running", f"{plan.power_W / 1e3:,.1f} kW"),
        ),
        baselines=tuple(
            BaselineView(name=name, score=score) for name, score in answer.baselines.items()
        ),
        score=answer.score,
        unit="samples/s",
        times=(TimesView(title=plan.model, rows=(best,)),),
        models=(model_view(plan, answer.best.accelerator, wafer.memory_bytes_per_die),),
        wafer=_map(wafer),
    )


def _map(wafer: WaferPicture) -> WaferMap:
    """Dies as short rows, and links with what they carry."""
    return WaferMap(
        rows=wafer.rows,
        columns=wafer.columns,
        capacity_bytes=wafer.memory_bytes_per_die,
        dies=tuple(
            (die.x, die.y, die.stage, die.dead, die.memory_total_bytes) for die in wafer.dies
        ),
        links=tuple((*link.from_, *link.to, link.bytes_per_microbatch) for link in wafer.links),
        dead_links=wafer.dead_links,
        stages=tuple(StageLoad(layers=s.layers, load_s=s.load_s) for s in wafer.stages),
    )
