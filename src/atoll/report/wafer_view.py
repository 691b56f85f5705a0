"""Page view of a search on a wafer."""

from __future__ import annotations

from atoll.answers.wafer import WaferAnswer, WaferPicture
from atoll.base.units import format_bytes
from atoll.report.search_view import model_view
from atoll.report.view import BaselineView, PageView, StageLoad, TimeRow, TimesView, WaferMap
from atoll.step.parts import in_words


def wafer_view(answer: WaferAnswer) -> PageView:
    """Return the sections of a wafer's page, with the map of dies."""
    wafer, built, plan = answer.wafer, answer.best.wafer, answer.best.models[0]
    placed = plan.placement
    best = TimeRow(name="best", about="", parts=in_words(placed.time_parts_s))
    return PageView(
        kind="wafer",
        title=f"{plan.model} on a wafer",
        summary=answer.summary,
        details=(
            ("Proof", answer.certificate.sentence),
            *(
                (
                    "Gain",
                    f"{w.resource}, {w.change}: {w.gain:+.1%} throughput for "
                    f"{w.area_mm2:+,.0f} mm2",
                )
                for w in answer.explanation
            ),
        ),
        facts=(
            ("Area", f"{built.area_mm2:,.0f} mm² in {built.dies} dies"),
            ("Peak", f"{built.peak_PFLOPs:,.1f} PFLOP/s"),
            ("Memory per die", format_bytes(wafer.memory_bytes_per_die)),
            ("Links", f"{wafer.link_Bps / 1e12:.2f} TB/s"),
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
    """Return dies as short rows, and links with their bytes."""
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
