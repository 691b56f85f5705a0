"""plan.json: a plan (or one estimate) with everything that its report and its trace draw."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from atoll.errors import AtollError
from atoll.export import EXPORTERS, export_run
from atoll.fabric.nested import collective_s
from atoll.files.jsonfile import read_object
from atoll.files.wholefile import check_folder, write_folder
from atoll.step.stages import stage_shares
from atoll.training.estimate import Estimate, Estimator
from atoll.training.operators.layers import operator_costs
from atoll.training.planner.plan import Plan
from atoll.training.replay import replay_estimate, step_passes
from atoll.training.run import Run
from atoll.training.step import Pass

PLAN = "plan.json"
FORMAT = 2
_LEVEL = ("name", "devices", "bandwidth_Bps", "latency_s")


def plan_record(result: Plan | Estimate) -> dict[str, Any]:
    """The content of plan.json."""
    best = result.best if isinstance(result, Plan) else result
    record: dict[str, Any] = {
        "format": FORMAT,
        "kind": "plan" if isinstance(result, Plan) else "estimate",
        **result.to_dict(),
        "layout_words": str(best.layout),
        "stages": _stages(best),
        "pipeline": pipeline_record(best),
        "operators": _operators(best),
        "cluster": _cluster(best),
        "launch": launch_files(best),
        "sensitivity": _sensitivity(best),
    }
    if "replay" not in record:
        record["replay"] = replay_estimate(best).to_dict()
    if isinstance(result, Plan):
        for row, other in zip(record["runners_up"], result.runners_up, strict=True):
            row["axes"] = asdict(other.layout)
            row["breakdown_s"] = other.step.breakdown()
            row["tokens_per_s_per_device"] = other.tokens_per_s_per_device
            row["memory_bytes"] = other.worst.needed
    return record


def write_plan(result: Plan | Estimate, folder: Path) -> Path:
    """Write plan.json into a folder, whole or not at all."""
    check_folder(folder)
    write_folder(folder, plan_files(result))
    return folder / PLAN


def plan_files(result: Plan | Estimate) -> dict[str, str]:
    """The folder's contents by file name."""
    return {PLAN: json.dumps(plan_record(result), allow_nan=False) + "\n"}


def explain_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Why this layout, from a plan.json: where its time goes, and what the others lack."""
    same = ("model", "device", "devices", "step_time_s", "mfu", "breakdown_s", "reasons",
            "left_out", "certificate")  # fmt: skip
    mine = plan["breakdown_s"]
    others = []
    for other in plan["runners_up"]:
        theirs = other["breakdown_s"]
        part = max(mine, key=lambda name: theirs[name] - mine[name])
        told = {name: other[name] for name in ("layout", "step_time_s", "slower")}
        others.append(told | {"part": part, "part_s": [mine[part], theirs[part]]})
    return {
        "layout": plan["layout_words"],
        **{name: plan[name] for name in same},
        "runners_up": others,
    }


def read_plan(path: Path) -> dict[str, Any]:
    """The content of a plan.json; a sentence where it cannot be read."""
    content = read_object(path)
    if content.get("kind") not in ("plan", "estimate"):
        raise AtollError(f"{path}: not a plan of atoll: its kind is neither plan nor estimate.")
    if content.get("format") != FORMAT:
        raise AtollError(
            f"{path}: written by another version of atoll (format {content.get('format')!r}, this "
            f"one reads {FORMAT}); run atoll plan again."
        )
    return content


def pipeline_record(best: Estimate) -> dict[str, Any]:
    """What a replay of the step needs (`training.replay`), and what its passes are made of."""
    return {
        **step_passes(best).to_dict(),
        "parts": [
            {
                "forward": _parts(stage.forward),
                "backward": _parts(stage.backward + stage.recompute),
                "host": stage.host_s,
            }
            for stage in best.stages
        ],
    }


def _parts(spent: Pass) -> dict[str, float]:
    named = {
        "compute": spent.compute_s,
        "tensor parallel": spent.tensor_s,
        "context parallel": spent.context_s,
        "expert parallel": spent.expert_s,
        "sharded weights": spent.sharded_s,
    }
    return {name: seconds for name, seconds in named.items() if seconds > 0.0}


def _stages(best: Estimate) -> list[dict[str, Any]]:
    """Each stage's layers and memory by part."""
    layout = best.layout
    costs = Estimator(best.run).costs(layout)
    shares = stage_shares(costs, layout.schedule, layout.pp, layout.vpp, layout.blocks)
    found = []
    for chunks, memory in zip(shares, best.memory, strict=True):
        layers: dict[str, int] = {}
        for chunk in chunks:
            for cost, count in chunk:
                layers[cost.name] = layers.get(cost.name, 0) + count
        words = [name if n == 1 else f"{name} x{n}" for name, n in layers.items()]
        beside = {"fragments and driver": memory.needed - memory.allocated}
        found.append({"layers": words, "memory_bytes": memory.parts() | beside})
    return found


def _operators(best: Estimate) -> list[dict[str, Any]]:
    """Every kind of layer, operator by operator, in the order in which a device runs them."""
    run, layout = best.run, best.layout
    estimator = Estimator(run)
    model = estimator.model(layout)
    found = []
    for layer, repeat in model.layers:
        costs = operator_costs(layer, estimator.pricer, layout)
        for name, operators in (("forward", layer.forward), ("backward", layer.backward)):
            rows, clock = [], 0.0
            for op in operators:
                cost = costs[op.name]
                seconds, lane = cost.total_s, _lane(cost.matrix_s, cost.attention_s, cost.vector_s)
                if (moved := op.collective) is not None:
                    seconds = collective_s(run.network, moved.kind.value, moved.bytes, layout.tp)
                    lane = "link"
                if seconds > 0.0:
                    rows.append([op.name, lane, clock, seconds])
                    clock += seconds
            found.append(
                {"layer": layer.name, "repeat": repeat, "pass": name, "makespan_s": clock,
                 "operators": rows}
            )  # fmt: skip
    return found


def _lane(matrix_s: float, attention_s: float, vector_s: float) -> str:
    """The kind of kernel that takes most of an operator's time."""
    kinds = {"matrix": matrix_s, "attention": attention_s, "vector": vector_s}
    return max(kinds, key=lambda name: kinds[name])


def _cluster(best: Estimate) -> dict[str, Any]:
    run, layout = best.run, best.layout
    return {
        "devices": run.devices,
        "order": [["tp", layout.tp], ["cp", layout.cp], ["dp", layout.dp], ["pp", layout.pp]],
        "ep": layout.ep,
        "etp": layout.etp,
        "levels": [{name: getattr(level, name) for name in _LEVEL} for level in run.network.levels],
    }


def launch_files(best: Estimate) -> list[dict[str, Any]]:
    """The launch file of every tool that can say the layout; of the others, why not."""
    found: list[dict[str, Any]] = []
    for target in EXPORTERS:
        try:
            made = export_run(target, best.run, best.layout)
        except AtollError as error:
            found.append({"target": target, "refused": str(error)})
            continue
        found.append(
            {"target": target, "file": made.filename, "text": made.text, "notes": list(made.notes)}
        )
    return found


def _sensitivity(best: Estimate) -> list[dict[str, Any]]:
    """The same layout estimated again with each rate of the machine 10 % lower and higher."""
    rows = []
    for name, changed in _faster(best.run).items():
        less, more = (
            Estimator(changed(factor)).estimate(best.layout).step.time_s for factor in (0.9, 1.1)
        )
        rows.append(
            {
                "what": name,
                "less": {"change": "-10%", "gain": best.step.time_s / less - 1},
                "more": {"change": "+10%", "gain": best.step.time_s / more - 1},
            }
        )
    return rows


def _faster(run: Run) -> dict[str, Callable[[float], Run]]:
    """By name: the run on a machine with one rate multiplied."""

    def memory(factor: float) -> Run:
        return replace(run, gpu=run.gpu.with_hbm(hbm_Bps=run.gpu.hbm_Bps * factor))

    def network(factor: float, level: int) -> Run:
        return replace(run, network=run.network.faster(factor, level))

    links = {
        f"{level.name} link bandwidth": partial(network, level=i)
        for i, level in enumerate(run.network.levels)
    }
    return {"HBM bandwidth": memory, **links}
