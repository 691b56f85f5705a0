"""Page view of a search on a wafer."""

from __future__ import annotations

from atoll.answers.wafer import WaferAnswer
from atoll.base.units import format_bytes
from atoll.front import ScriptData
from atoll.report.search_view import model_view
from atoll.report.timeline_view import times_view


def wafer_view(answer: WaferAnswer) -> ScriptData:
    """Return the sections of a wafer's page, with the map of dies."""
    wafer, built, plan = answer.wafer, answer.best.wafer, answer.best.models[0]
    gains = [
        f"{w.resource}, {w.change}: {w.gain:+.1%} throughput for {w.area_mm2:+,.0f} mm2"
        for w in answer.explanation
    ]
    return {
        "kind": "wafer",
        "title": f"{plan.model} on a wafer",
        "summary": answer.summary,
        "details": [("Proof", answer.certificate.sentence), *(("Gain", words) for words in gains)],
        "facts": [
            ("Area", f"{built.area_mm2:,.0f} mm² in {built.dies} dies"),
            ("Peak", f"{built.peak_PFLOPs:,.1f} PFLOP/s"),
            ("Memory per die", format_bytes(wafer.memory_bytes_per_die)),
            ("Links", f"{wafer.link_Bps / 1e12:.2f} TB/s"),
        ],
        "baselines": [{"name": name, "score": score} for name, score in answer.baselines.items()],
        "score": answer.score,
        "unit": "samples/s",
        "times": [times_view(plan.model, [("best", "", plan.placement.time_parts_s)])],
        "models": [model_view(plan, answer.best.accelerator, wafer.memory_bytes_per_die)],
        "wafer": wafer,
    }
