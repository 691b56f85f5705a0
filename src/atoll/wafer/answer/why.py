"""Why this mapping: a stored wafer result turned into reasons.

What more of a resource would be worth is on record where the job asked for it; elsewhere the stored
mapping is priced again, on the wafer that the job names, and the same question asked now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll.errors import AtollError
from atoll.hardware.wafer_files import load_wafers
from atoll.questions import WaferQuestion
from atoll.wafer.answer.explain import explain
from atoll.wafer.encoding.mapping import from_dict
from atoll.wafer.evaluate import evaluate
from atoll.wafer.faults import Faults
from atoll.wafer.run import make_search

SAME = 1e-9
"""Relative difference of a step's time up to which a mapping is as it was recorded."""


def explain_wafer_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Where the time goes, which stage sets the pace, what the runners-up lack, what more of each
    resource would be worth.
    """
    best, picture = result["best"], result["wafer"]
    model = best["models"][0]
    stages = picture["stages"]
    slowest = max(stages, key=lambda stage: float(stage["load_s"]))
    fullest = max(picture["dies"], key=lambda die: float(die["memory_total_bytes"]))
    # Around faults nothing else was mapped: the runners-up are those of the whole wafer.
    faulty = picture["dead_dies"] or picture["dead_links"]
    runners_up = [] if faulty else result["runners_up"]
    worth, note = list(result["explanation"]), ""
    if not worth:
        try:
            worth = _worth(result)
        except AtollError as error:
            note = f"What more of a resource would be worth cannot be said: {error}"
    return {
        "wafer": best["wafer"],
        "model": model["model"],
        "samples_per_s": model["samples_per_s"],
        "mfu": model["mfu"],
        "step_time_s": best["placement"]["step_time_s"],
        "time_parts_s": best["placement"]["time_parts_s"],
        "stages": len(stages),
        "slowest_stage": {
            name: slowest[name] for name in ("stage", "rectangle", "layers", "load_s")
        },
        "memory_bytes": fullest["memory_bytes"],
        "memory_bytes_per_die": picture["memory_bytes_per_die"],
        "explanation": worth,
        "note": note,
        "runners_up": [
            other | {"slower_by": 1.0 - other["samples_per_s"] / model["samples_per_s"]}
            for other in runners_up
        ],
        "baselines": result["baselines"],
        "certificate": result["certificate"],
    }


def _worth(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What `explain` in the job would have said."""
    job = WaferQuestion.from_dict(result["job"])
    name = result["best"]["wafer"]["name"]
    wafer = next((wafer for wafer in load_wafers(job.wafer) if wafer.name == name), None)
    if wafer is None:
        raise AtollError(f"{job.wafer} no longer holds the wafer {name}; run the search again.")
    broken = tuple(Faults(job.dead_dies, job.dead_links).all_links(wafer))
    found = evaluate(wafer, from_dict(result["best"]["mapping"]), broken)
    recorded_s = float(result["best"]["placement"]["step_time_s"])
    if abs(found.step_s / recorded_s - 1.0) > SAME:
        raise AtollError(
            f"the mapping takes {found.step_s:.6g} s here, {recorded_s:.6g} s are on record: the "
            "wafer's file, the model or atoll has changed; run the search again."
        )
    options = make_search(job, wafer).planner.options
    return [row.to_dict() for row in explain(wafer, found, options, broken)]
