"""What the page shows of a plan or of one estimate: its sections as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll.report.folder import Source
from atoll.report.timeline import plan_timeline
from atoll.report.timeline_view import timeline_view
from atoll.step.parts import in_words
from atoll.training.accuracy import Expected
from atoll.units import format_bytes, format_mfu, format_seconds


def plan_view(source: Source) -> dict[str, Any]:
    """The sections of a plan's page."""
    record = source.content
    planned = record["kind"] == "plan"
    rows = [{"name": "this layout", "about": record["layout_words"],
             "parts": in_words(record["breakdown_s"])}]  # fmt: skip
    for number, other in enumerate(record.get("runners_up", ()), start=1):
        rows.append(
            {
                "name": f"runner-up {number}",
                "about": f"{other['layout']} ({other['slower']:+.2%})",
                "parts": in_words(other["breakdown_s"]),
            }
        )
    timeline = plan_timeline(record["pipeline"])
    return {
        "kind": record["kind"],
        "title": f"{record['model']} on {record['devices']:,} {record['device']}",
        "sentence": _sentence(record),
        "certificate": _proof(record) if planned else "One layout, estimated: nothing is searched.",
        "notes": [
            *(f"{note[0].upper()}{note[1:]}." for note in record.get("notes", ())),
            *([] if record["fits"] else ["This layout does not fit in the device's memory."]),
        ],
        "facts": _facts(record),
        "times": [{"title": record["model"], "rows": rows}],
        "models": [
            {
                "model": record["model"],
                "layers": [_layer(entry) for entry in record["operators"]],
                "cores": None,
                "pipeline": timeline_view(timeline),
                "memory": {
                    "capacity_bytes": record["memory_bytes"]["capacity"],
                    "stages": [
                        {
                            "name": f"stage {number}",
                            "layers": stage["layers"],
                            "parts": in_words(stage["memory_bytes"]),
                        }
                        for number, stage in enumerate(record["stages"])
                    ],
                },
                "energy_J": {},
                "replay_difference": record["replay"]["difference"],
            }
        ],
        "sensitivity": {
            "unit": "throughput", "per_mm2": False, "rows": record["sensitivity"],
        },
        "reasons": [reason["why"] for reason in record.get("reasons", ())],
        "cluster": record["cluster"],
        "launch": record["launch"],
    }  # fmt: skip


def _layer(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {**entry, "operators": [[*row, 0, 0, ""] for row in entry["operators"]]}


def _sentence(record: Mapping[str, Any]) -> str:
    layout = record["layout"]
    axes = ", ".join(
        f"{words} {layout[axis]}"
        for axis, words in (
            ("tp", "tensor"), ("pp", "pipeline"), ("cp", "context"), ("ep", "expert"),
            ("dp", "data"),
        )
        if layout[axis] > 1
    )  # fmt: skip
    memory = record["memory_bytes"]
    return (
        f"{record['model']} on {record['devices']:,} {record['device']}: a step of "
        f"{record['global_batch']:,} sequences takes {format_seconds(record['step_time_s'])} "
        f"({record['tokens_per_s_per_device']:,.0f} tokens/s a device, MFU {record['mfu']:.1%}) "
        f"with {axes or 'one device alone'}, microbatch {layout['microbatch']}, schedule "
        f"{layout['schedule']}, ZeRO {layout['zero']}, recompute {layout['recompute']}; it needs "
        f"{format_bytes(memory['needed'])} of {format_bytes(memory['capacity'])} a device."
        f"{_expected(record)}"
    )


def _expected(record: Mapping[str, Any]) -> str:
    """How far such estimates were off, where the kind of run was not validated."""
    told = record.get("expected_error")
    return f" Note: {Expected(**told).sentence()}." if told else ""


def _proof(record: Mapping[str, Any]) -> str:
    proof = record["certificate"]
    target, excluded = proof.get("target", ""), proof.get("excluded", ())
    usable = f", of those that {target} can run" if target else ""
    left_out = f" Not tried: {'; '.join(excluded)}." if excluded else ""
    return (
        f"{'Proven best' if proof['proven'] else 'Best known'} of {proof['layouts']:,} layouts in "
        f"{proof['variants']:,} variants{usable}: {proof['too_large']:,} cannot fit, "
        f"{proof['too_slow']:,} cannot be faster, {proof['estimated']:,} were estimated.{left_out}"
    )


def _facts(record: Mapping[str, Any]) -> list[list[str]]:
    return [
        ["Step", format_seconds(record["step_time_s"])],
        ["Throughput", f"{record['tokens_per_s_per_device']:,.0f} tokens/s a device"],
        ["MFU", format_mfu(record["mfu"])],
        ["Memory", f"{format_bytes(record['memory_bytes']['needed'])} on the fullest device"],
        ["Sequence", f"{record['sequence']:,} tokens"],
        ["Global batch", f"{record['global_batch']:,} sequences"],
        ["Network", str(record["network"])],
        ["Software", str(record["stack"])],
        ["Replayed pass by pass", f"{record['replay']['difference']:+.2%} from the closed form"],
    ]
