"""Why this chip: a stored result turned into reasons."""

from __future__ import annotations

from typing import Any

from atoll.explore.answer.explain import shares

_CHIP_FIELDS = (
    "tensor_cores", "width", "depth", "vector_cores", "vector_width", "glb_MiB", "hbm_GiB",
    "area_mm2",
)  # fmt: skip


def explain_result(result: dict[str, Any]) -> dict[str, Any]:
    """Where the time goes, what limits the operators, and what the runner-up lacks."""
    best = result["best"]
    models = []
    for plan in best["models"]:
        blocks = [entry for entry in plan["layers"] if entry["repeat"] > 1] or plan["layers"]
        models.append(
            {
                "model": plan["model"],
                "samples_per_s": plan["samples_per_s"],
                "mfu": plan["mfu"],
                "time_parts_s": plan["placement"]["time_parts_s"],
                "limits": shares(plan["layers"]),
                "schedules": [
                    {name: entry[name] for name in ("layer", "pass", "makespan_s", "gap", "bound")}
                    for entry in plan["layers"]
                ],
                "slowest_operators": _slowest(blocks),
            }
        )
    return {
        "best": best["accelerator"],
        "models": models,
        "certificate": result["certificate"],
        "baselines": result["baselines"],
        "score": result["score"],
        "runners_up": [_compare(best, other) for other in result["runners_up"]],
    }


def _slowest(entries: list[dict[str, Any]], count: int = 8) -> list[dict[str, Any]]:
    rows = [
        {"layer": entry["layer"], "pass": entry["pass"]}
        | {name: operator[name] for name in ("name", "core", "duration_s", "limit")}
        for entry in entries
        for operator in entry["operators"]
    ]
    return sorted(rows, key=lambda row: -row["duration_s"])[:count]


def _compare(best: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """How a runner-up differs, and which part of its step is longer."""
    changed = {
        name: [best["accelerator"][name], other["accelerator"][name]]
        for name in _CHIP_FIELDS
        if best["accelerator"][name] != other["accelerator"][name]
    }
    reasons = []
    for ours, theirs in zip(best["models"], other["models"], strict=True):
        a = ours["placement"]["time_parts_s"]
        b = theirs["placement"]["time_parts_s"]
        part = max(b, key=lambda name: b[name] - a.get(name, 0.0))
        reasons.append(
            {
                "model": ours["model"],
                "slower_by": ours["samples_per_s"] / theirs["samples_per_s"] - 1.0,
                "part": part,
                "part_s": [a.get(part, 0.0), b[part]],
                "layout": [_layout(ours), _layout(theirs)],
            }
        )
    return {"accelerator": other["accelerator"], "differs": changed, "reasons": reasons}


def _layout(plan: dict[str, Any]) -> str:
    where = plan["placement"]
    return f"{where['layout']}, microbatch {where['microbatch']}"
