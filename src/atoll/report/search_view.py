"""Page views of a search and of a search on a wafer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from atoll.answers.answer import dumped
from atoll.answers.certificate import ArchitectureProof
from atoll.answers.design import LayerPass, PlacedModel, SearchedModel, SizedChip
from atoll.answers.search import NearAnswer, NextChip, SearchAnswer
from atoll.answers.wafer import WaferAnswer
from atoll.base.units import NOT_COUNTED, format_bytes, format_slower
from atoll.front import ScriptData
from atoll.hardware.catalog import load_accelerator_file
from atoll.hardware.silicon.chip import area_parts, chip_template
from atoll.report.space_view import space_points
from atoll.report.timeline import placement_timeline
from atoll.report.timeline_view import memory_view, timeline_view, times_view
from atoll.store import StatusAnswer

PARTS = {
    "tensor_arrays_mm2": "tensor arrays",
    "tensor_buffers_mm2": "tensor core buffers",
    "vector_lanes_mm2": "vector lanes",
    "vector_buffers_mm2": "vector core buffers",
    "glb_mm2": "shared buffer (GLB)",
    "hbm_mm2": "HBM interfaces",
    "cells_mm2": "tensor arrays",
    "lanes_mm2": "vector lanes",
}


def search_view(
    folder: Path | None, answer: SearchAnswer, status: StatusAnswer | None = None
) -> ScriptData:
    """Return the sections of a search's page."""
    best = answer.best
    unit = "score" if len(best.models) > 1 else "samples/s"
    points, chip, explanation = space_points(folder, answer), best.accelerator, answer.explain()
    notes = list(explanation.notes)
    if status is not None and status.state == "running":
        notes.insert(0, "Partial: a search is running in this folder; this is its last report.")
    gains = {"unit": unit, "per_mm2": True, "rows": explanation.steps}
    capacity_bytes = chip.hbm_GiB * 2**30
    return {
        "kind": "search",
        "title": f"A chip for {', '.join(plan.model for plan in best.models)}",
        "summary": answer.summary,
        "details": [
            *(("Note", note) for note in notes),
            ("Given", "; ".join(filter(None, (answer.given, f"MFU: {NOT_COUNTED}")))),
            ("Proof", certificate_words(answer.certificate)),
        ],
        "facts": _facts(answer),
        "unit": unit,
        "score": answer.score,
        "best": chip,
        "chip": chip_view(chip),
        "baselines": _baselines(answer),
        "pareto": {name: front.proven_within for name, front in answer.pareto.items()},
        "models": [model_view(plan, chip, capacity_bytes) for plan in best.models],
        "times": _times(answer),
        "space": None if points is None else points.packed(),
        "sensitivity": gains if explanation.steps else None,
        "comparison": explanation.comparison or None,
        "tables": [] if answer.ahead is None else [_price_table(answer.ahead)],
    }


def _price_table(ahead: NextChip) -> ScriptData:
    run, *_ = ahead.words()
    heads = ("", "now", "a unit less takes", "a unit more brings")
    rows = [price.cells() for price in ahead.prices]
    return {"title": f"The run that it follows: {run}", "heads": heads, "rows": rows}


def model_view(plan: PlacedModel, chip: SizedChip, capacity_bytes: float) -> ScriptData:
    """Return schedules, pipeline and memory of one model on the best chip."""
    timeline, stages = placement_timeline(plan.placement), plan.placement.stages
    searched = plan if isinstance(plan, SearchedModel) else None
    return {
        "model": plan.model,
        "layers": [*map(_layer, searched.layers)] if searched else [],
        "cores": {"tensor": chip.tensor_cores, "vector": chip.vector_cores},
        "pipeline": None if timeline is None else timeline_view(timeline),
        "memory": memory_view(capacity_bytes, [(s.layers, s.memory_parts_bytes) for s in stages]),
        "energy_J": searched.energy_parts_J if searched else {},
        "replay_difference": plan.replay_difference,
    }


def certificate_words(proof: ArchitectureProof) -> str:
    """Return what was proven and over what, in words."""
    ruled_out = ", ".join(f"{count:,} by {name}" for name, count in proof.pruned_by.items())
    return f"{proof.sentence} {proof.evaluated:,} were evaluated; ruled out: {ruled_out or 'none'}."


def chip_view(chip: SizedChip) -> ScriptData:
    """Return the counts and areas of a chip's parts."""
    parts = area_parts(chip.device())
    parts["hbm_mm2"] = max(0.0, chip.area_mm2 - sum(parts.values()))
    shown = {
        # Without a label: a part that only the chip's template has.
        PARTS.get(name, name.removesuffix("_mm2").replace("_", " ")): value
        for name, value in parts.items()
        if value > 1e-9
    }
    fields: ScriptData = dumped(chip)
    return fields | {"parts": shown}


def _facts(answer: SearchAnswer) -> tuple[tuple[str, str], ...]:
    chip, plans = answer.best.accelerator, answer.best.models
    facts = [("HBM", f"{chip.hbm_GiB:g} GiB at {chip.hbm_bandwidth_GBps:,.0f} GB/s")]
    for near in answer.plateau:
        facts.append((f"Others within {100 * near.share:g} %", _near_words(near, chip)))
    for plan in plans:
        name = f", {plan.model}" if len(plans) > 1 else ""
        facts += [
            (f"Power{name}", f"{plan.power_W:,.0f} W per device, running"),
            (f"Energy{name}", f"{plan.energy_per_token_J * 1e3:.2f} mJ per token"),
            (f"Recomputed{name}", plan.recompute),
        ]
    return tuple(facts)


def _near_words(near: NearAnswer, chip: SizedChip) -> str:
    """Return the number of near designs, and the cost and saving of the one with least power."""
    count, least = f"{'' if near.complete else 'at least '}{near.others:,}", near.least_power
    if least is None:
        return count
    return (
        f"{count}; with the least power {least.tensor_cores} TC "
        f"{least.width}×{least.depth}: {least.peak_power_W:,.0f} W "
        f"({least.peak_power_W / chip.peak_power_W - 1.0:+.0%}), "
        f"{least.area_mm2:.1f} mm², {format_slower(least.slower_by)}"
    )


def _baselines(answer: SearchAnswer) -> list[ScriptData]:
    """Return the scores of baselines, with the area of known chips."""
    template = chip_template(answer.best.accelerator.device())
    area_mm2, _ = load_accelerator_file(template.reference).area_and_power()
    return [
        {
            "name": name,
            "score": score,
            "remark": answer.baseline_remarks.get(name, ""),
            "area_mm2": area_mm2 if name.startswith("tpuv4") and score is not None else None,
        }
        for name, score in answer.baselines.items()
    ]


def _times(answer: SearchAnswer) -> list[ScriptData]:
    """Return the step by cause of the best design and the runners-up, per model."""
    runners_up = ((f"runner-up {n}", design) for n, design in enumerate(answer.runners_up, start=1))
    designs = [("best", answer.best), *runners_up]
    views = []
    for index, plan in enumerate(answer.best.models):
        rows = (
            (name, _chip_words(d.accelerator), d.models[index].placement.time_parts_s)
            for name, d in designs
            if index < len(d.models)
        )
        views.append(times_view(plan.model, rows))
    return views


def _chip_words(chip: SizedChip) -> str:
    return (
        f"{chip.tensor_cores} TC {chip.width}×{chip.depth}, {chip.vector_cores} VC "
        f"×{chip.vector_width}, {chip.glb_MiB:g} MiB, {chip.hbm_GiB:g} GiB HBM, "
        f"{chip.clock_GHz:.4g} GHz, {chip.area_mm2:.1f} mm²"
    )


def _layer(entry: LayerPass) -> ScriptData:
    rows = tuple(
        (op.name, op.core, op.start_s, op.duration_s, op.tensor_cores, op.vector_cores, op.limit)
        for op in entry.operators
    )
    fields: ScriptData = dumped(replace(entry, operators=()))
    return fields | {"operators": rows}


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
