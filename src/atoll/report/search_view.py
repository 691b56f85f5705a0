"""What the page shows of a search: its sections as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from atoll.errors import AtollError
from atoll.hardware import accelerator_area_mm2, area_parts, load_accelerator
from atoll.hardware.accelerator import accelerator_of
from atoll.report.folder import Source
from atoll.report.sensitivity import sensitivity
from atoll.report.space_view import job_of, space_points
from atoll.report.timeline import placement_timeline
from atoll.report.timeline_view import timeline_view
from atoll.step.certificate import stored_sentence
from atoll.step.parts import in_words
from atoll.units import NOT_COUNTED, counted, format_seconds

PARTS = {
    "tensor_arrays_mm2": "tensor arrays",
    "tensor_buffers_mm2": "tensor core buffers",
    "vector_lanes_mm2": "vector lanes",
    "vector_buffers_mm2": "vector core buffers",
    "glb_mm2": "shared buffer (GLB)",
    "hbm_mm2": "HBM interfaces",
}
REFERENCE = "phaze-tpuv4"


def search_view(source: Source) -> dict[str, Any]:
    """The sections of a search's page."""
    content = source.content
    best = content["best"]
    several = len(best["models"]) > 1
    notes = [f"Warning: {words}." for words in content.get("warnings", ())]
    if content.get("stopped"):
        notes.append(f"The search was stopped ({content['stopped']}): this is its best so far.")
    if content.get("left_out"):
        named = (f"{name} ({why})" for name, why in content["left_out"].items())
        notes.append(f"Left out or not complete: {', '.join(named)}.")
    if source.status is not None and source.status.state == "running":
        notes.append("Partial: a search is running in this folder; this is its last report.")
    view: dict[str, Any] = {
        "kind": "search",
        "title": f"A chip for {_models(content)}",
        "sentence": _sentence(content),
        "certificate": certificate_words(content["certificate"]),
        "notes": notes,
        "facts": _facts(content),
        "unit": "score" if several else "samples/s",
        "score": content["score"],
        "best": best["accelerator"],
        "chip": chip_view(best["accelerator"]),
        "baselines": _baselines(content),
        "pareto": {
            name: front["proven_within"] for name, front in content.get("pareto", {}).items()
        },
        "models": [model_view(plan, best["accelerator"]) for plan in best["models"]],
        "times": _times(content),
    }
    points = space_points(source.folder, content)
    if points is not None:
        view["space"] = points.packed()
    try:
        found = sensitivity(content, job_of(content))
        view["sensitivity"] = {"unit": view["unit"], "per_mm2": True, **found}
    except AtollError as error:
        notes.append(f"No sensitivities: {error}")
    return view


def model_view(plan: Mapping[str, Any], chip: Mapping[str, Any]) -> dict[str, Any]:
    """One model on the best chip: schedules, pipeline, memory."""
    placement = plan["placement"]
    timeline = placement_timeline(placement)
    return {
        "model": plan["model"],
        "layers": [_layer(entry) for entry in plan.get("layers", ())],
        "cores": {"tensor": chip["tensor_cores"], "vector": chip["vector_cores"]},
        "pipeline": None if timeline is None else timeline_view(timeline),
        "memory": {
            "capacity_bytes": chip["hbm_GiB"] * 2**30,
            "stages": [
                {
                    "name": f"stage {number}",
                    "layers": stage["layers"],
                    "parts": {k: v for k, v in stage["memory_bytes"].items() if k != "total"},
                }
                for number, stage in enumerate(placement["stages"])
            ],
        },
        "energy_J": plan.get("energy_parts_J", {}),
        "replay_difference": plan.get("replay_difference"),
    }


def certificate_words(proof: Mapping[str, Any]) -> str:
    """What was proven, and over what."""
    said = stored_sentence(proof)
    by = ", ".join(f"{count:,} by {name}" for name, count in proof["pruned_by"].items())
    return f"{said} {proof['evaluated']:,} were evaluated; ruled out: {by or 'none'}."


def chip_view(chip: Mapping[str, Any]) -> dict[str, Any]:
    """Counts and square millimetres of a chip's parts."""
    parts = asdict(area_parts(accelerator_of(chip)))
    parts["hbm_mm2"] = max(0.0, chip["area_mm2"] - sum(parts.values()))
    return {
        **chip,
        "parts": {PARTS[name]: value for name, value in parts.items() if value > 1e-9},
    }


def _models(content: Mapping[str, Any]) -> str:
    return ", ".join(plan["model"] for plan in content["best"]["models"])


def _sentence(content: Mapping[str, Any]) -> str:
    best = content["best"]
    chip, plan = best["accelerator"], best["models"][0]
    where = plan["placement"]
    several = len(best["models"]) > 1
    speed = (
        f"scores {content['score']:,.4g} over {len(best['models'])} models"
        if several
        else f"trains {plan['model']} at {plan['samples_per_s']:,.1f} samples/s "
        f"({plan['tokens_per_s_per_device']:,.0f} tokens/s a device, MFU {plan['mfu']:.1%}, "
        f"{NOT_COUNTED})"
    )
    return (
        f"A chip of {chip['area_mm2']:.1f} mm² with {chip['tensor_cores']} tensor cores of "
        f"{chip['width']}×{chip['depth']}, {chip['vector_cores']} vector cores of "
        f"{chip['vector_width']}, {chip['glb_MiB']:g} MiB of shared buffer and "
        f"{chip['hbm_GiB']:g} GiB of HBM {speed} on {counted(where['devices'], 'device')}: "
        f"{where['layout'].replace(' x ', ' × ')}, microbatch {where['microbatch']}."
    )


def _facts(content: Mapping[str, Any]) -> list[list[str]]:
    best = content["best"]
    chip = best["accelerator"]
    facts = [
        ["Area", f"{chip['area_mm2']:.1f} mm²"],
        ["Peak", f"{chip['peak_TFLOPs']:,.0f} TFLOP/s"],
        ["Power at peak", f"{chip['peak_power_W']:,.0f} W"],
        ["HBM", f"{chip['hbm_GiB']:g} GiB at {chip['hbm_bandwidth_GBps']:,.0f} GB/s"],
    ]
    for near in content.get("plateau", ()):
        facts.append([f"Others within {100 * near['share']:g} %", _near(near, chip)])
    for plan in best["models"]:
        where = plan["placement"]
        name = f", {plan['model']}" if len(best["models"]) > 1 else ""
        facts += [
            [f"Throughput{name}", f"{plan['samples_per_s']:,.1f} samples/s"],
            [f"Step{name}", format_seconds(where["step_time_s"])],
            [f"Power, running{name}", f"{plan['power_W']:,.0f} W a device"],
            [f"Energy{name}", f"{plan['energy_per_token_J'] * 1e3:.2f} mJ a token"],
            [f"Recomputed{name}", str(plan["recompute"])],
        ]
    return facts


def _near(near: Mapping[str, Any], chip: Mapping[str, Any]) -> str:
    """How many designs come close, and what the most frugal of them costs and saves."""
    count = f"{near['others']:,}" if near["complete"] else f"at least {near['others']:,}"
    least = near["least_power"]
    if least is None:
        return count
    return (
        f"{count}; with the least power {least['tensor_cores']} TC "
        f"{least['width']}×{least['depth']}: {least['peak_power_W']:,.0f} W "
        f"({least['peak_power_W'] / chip['peak_power_W'] - 1.0:+.0%}), "
        f"{least['slower_by']:.2%} slower"
    )


def _baselines(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Scores to lay beside; where the chip is known, also its area and power."""
    reference = load_accelerator(REFERENCE)
    found = []
    for name, score in content["baselines"].items():
        row: dict[str, Any] = {"name": name, "score": score}
        remark = content.get("baseline_remarks", {}).get(name)
        if remark:
            row["remark"] = remark
        if name.startswith("tpuv4") and score is not None:
            row["area_mm2"] = accelerator_area_mm2(reference)
        found.append(row)
    return found


def _times(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The step by cause of the best design and the runners-up, model by model."""
    rows = []
    best = content["best"]
    for index, plan in enumerate(best["models"]):
        designs = [("best", best), *((f"runner-up {n}", d) for n, d in _others(content))]
        rows.append(
            {
                "title": plan["model"],
                "rows": [
                    {
                        "name": name,
                        "about": _chip_words(design["accelerator"]),
                        "parts": in_words(design["models"][index]["placement"]["time_parts_s"]),
                    }
                    for name, design in designs
                ],
            }
        )
    return rows


def _others(content: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    full = [design for design in content.get("runners_up", ()) if "models" in design]
    return list(enumerate(full, start=1))


def _chip_words(chip: Mapping[str, Any]) -> str:
    return (
        f"{chip['tensor_cores']} TC {chip['width']}×{chip['depth']}, {chip['vector_cores']} VC "
        f"×{chip['vector_width']}, {chip['glb_MiB']:g} MiB, {chip['hbm_GiB']:g} GiB HBM, "
        f"{chip['area_mm2']:.1f} mm²"
    )


def _layer(entry: Mapping[str, Any]) -> dict[str, Any]:
    shown = ("layer", "repeat", "pass", "makespan_s", "lower_bound_s", "gap", "bound")
    of_each = ("name", "core", "start_s", "duration_s", "tensor_cores", "vector_cores", "limit")
    operators = [[op[name] for name in of_each] for op in entry["operators"]]
    return {name: entry[name] for name in shown} | {"operators": operators}
