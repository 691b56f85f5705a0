"""What the page shows of a search on a wafer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll.report.folder import Source
from atoll.report.search_view import model_view
from atoll.step.certificate import stored_sentence
from atoll.step.parts import in_words
from atoll.units import NOT_COUNTED, format_bytes, format_seconds


def wafer_view(source: Source) -> dict[str, Any]:
    """The sections of a wafer's page: the map of dies beside what every page has."""
    content = source.content
    wafer, best = content["wafer"], content["best"]
    plan = best["models"][0]
    where = plan["placement"]
    chip = best["accelerator"] | {"hbm_GiB": wafer["memory_bytes_per_die"] / 2**30}
    return {
        "kind": "wafer",
        "title": f"{plan['model']} on a wafer",
        "sentence": (
            f"A wafer of {wafer['rows']} × {wafer['columns']} dies trains {plan['model']} at "
            f"{plan['samples_per_s']:,.2f} samples/s (MFU {plan['mfu']:.1%}, {NOT_COUNTED}): "
            f"{where['pipeline']} stages, microbatch {where['microbatch']}, recompute "
            f"{plan['recompute']}."
        ),
        "certificate": stored_sentence(content["certificate"]),
        "notes": [],
        "facts": [
            ["Step", format_seconds(where["step_time_s"])],
            ["Memory a die", format_bytes(wafer["memory_bytes_per_die"])],
            ["Links", f"{wafer['link_Bps'] / 1e12:.2f} TB/s"],
            ["Power, running", f"{plan['power_W'] / 1e3:,.1f} kW"],
        ],
        "baselines": [
            {"name": name, "score": score} for name, score in content["baselines"].items()
        ],
        "score": content["score"],
        "unit": "samples/s",
        "times": [
            {
                "title": plan["model"],
                "rows": [{"name": "best", "about": "", "parts": in_words(where["time_parts_s"])}],
            }
        ],
        "models": [model_view(plan, chip)],
        "wafer": _map(wafer),
    }


def _map(wafer: Mapping[str, Any]) -> dict[str, Any]:
    """Dies as short rows, and links with their share of the busiest."""
    return {
        "rows": wafer["rows"],
        "columns": wafer["columns"],
        "capacity_bytes": wafer["memory_bytes_per_die"],
        "dies": [
            [die["x"], die["y"], die["stage"], bool(die["dead"]), die["memory_total_bytes"]]
            for die in wafer["dies"]
        ],
        "links": [
            [*link["from"], *link["to"], link["bytes_per_microbatch"]] for link in wafer["links"]
        ],
        "dead_links": wafer["dead_links"],
        "stages": [
            {"layers": stage["layers"], "load_s": stage["load_s"]} for stage in wafer["stages"]
        ],
    }
