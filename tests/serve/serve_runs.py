"""Runs to serve: a small search, synthetic designs, a plan; and a way to ask an app."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import atoll
from atoll.hardware.silicon.systolic import HBM_PARAMETERS, SYSTOLIC
from atoll.report import folder as plan_file
from atoll.serve.app import App, Response
from atoll.serve.guard import Guard
from atoll.serve.runs import SearchRun, open_runs
from atoll.serve.server import Explorer
from atoll.store import DesignRow, RunReader, RunStore
from wafer.wafer_cases import small_file, small_model

TINY = Path(__file__).parents[2] / "examples" / "jobs" / "tiny.yaml"
JOB = {
    "devices": 8, "global_batch": 64, "models": [{"name": "synthetic", "config": ""}],
    "space": "none", "space_content": {},
    "microbatches": [1, 2], "tensor_widths": [1], "profile": "default", "recompute": "none",
    "tolerance": 1e-3,
    "parameters": [p.to_dict() for p in (*SYSTOLIC.parameters, *HBM_PARAMETERS)],
}  # fmt: skip


def write_search(folder: Path) -> Path:
    """A real search, of a moment."""
    atoll.search(TINY, out=folder, baselines=False, pareto=True)
    return folder


def write_wafer_search(folder: Path) -> Path:
    """A real search on a small wafer."""
    wafer, model = str(small_file(folder.parent)), small_model(heads=8)
    atoll.search(wafer=wafer, model=model, batch=8, sequence=64, microbatch=(1,), out=folder)
    return folder


def write_plan(folder: Path) -> Path:
    """A real plan with its runners-up."""
    tried = [1, 2]
    found = atoll.plan("gpt2-xl", "h100", 16, batch=64, tp=tried, pp=tried, microbatch=tried)
    return plan_file.write_plan(found, folder).parent


def own_model(folder: Path, layers: int) -> Path:
    """A configuration of the user's own, named after its folder."""
    folder.mkdir(parents=True)
    configuration = {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": layers, "num_attention_heads": 16, "vocab_size": 32_000,
        "max_position_embeddings": 2048,
    }  # fmt: skip
    path = folder / "config.json"
    path.write_text(json.dumps(configuration), encoding="utf-8")
    return path


def design(chip: int, score: float | None, area: float, width: int = 64) -> DesignRow:
    plan = {
        "model": "synthetic", "samples_per_s": score, "step_time_s": 1.0 + chip, "microbatch": 1,
        "tensor": 1, "pipeline": 1 + chip % 3, "data": 8, "number": 0, "variant": 0, "cp": 1,
        "ep": 1, "etp": 1, "sp": True, "pass_s": [[0.1, 0.2]], "effort": "quick",
        "energy": {"parts_J": {}, "step_time_s": 1.0, "devices": 8, "tokens": 8},
    }  # fmt: skip
    return DesignRow(
        chip=chip,
        design=chip,
        figures={"score": score, "area_mm2": area, "power_W": area / 2, "energy_per_token_J": 0.1},
        parameters={
            "tensor_cores": 8, "vector_cores": 8, "width": width, "depth": 64, "vector_width": 64,
            "glb_bytes": 2**25, "hbm_capacity_bytes": 2**35, "hbm_bandwidth_Bps": 1e12,
            "clock_Hz": 1e9,
        },
        plan=plan,
        phase="place",
        plans=[plan],
    )  # fmt: skip


def random_designs(count: int, seed: int = 0) -> list[DesignRow]:
    draw = random.Random(seed)
    return [
        design(chip, draw.uniform(10, 100), draw.uniform(100, 300), 2 ** draw.randint(3, 7))
        for chip in draw.sample(range(10 * count), count)
    ]


@contextmanager
def open_store(folder: Path) -> Iterator[RunStore]:
    store = RunStore(folder, JOB, "here", "0")
    try:
        yield store
    finally:
        store.close("finished")


def write_designs(folder: Path, rows: list[DesignRow]) -> Path:
    with open_store(folder) as store:
        store.put_designs(rows)
        store.put_progress("finished", 0, len(rows), None, 1.0, 1.0)
    return folder


def loaded(run: SearchRun) -> SearchRun:
    """The run with its designs read, without its thread."""
    with RunReader(run.folder) as reader:
        run.look(reader)
    return run


def write_wafer(folder: Path) -> Path:
    """What a wafer search leaves, as far as the explorer looks."""
    folder.mkdir(parents=True)
    for name in ("result.json", "mapping.json"):
        (folder / name).write_text("{}", encoding="utf-8")
    return folder


def make_app(*folders: Path, guard: Guard | None = None) -> App:
    runs, others = open_runs(folders)
    for run in runs.values():
        if isinstance(run, SearchRun):
            loaded(run)
    return App(runs, guard or Guard("127.0.0.1", 8737), others)


def ask(app: App, target: str, method: str = "GET", **headers: str) -> Response:
    return app.respond(method, target, {"host": "localhost:8737"} | headers)


def ask_json(app: App, target: str, status: int = 200) -> Any:
    answer = ask(app, target)
    assert isinstance(answer.body, bytes)
    assert answer.status == status, answer.body
    return json.loads(answer.body)


@contextmanager
def serving(*folders: Path, **options: Any) -> Iterator[Explorer]:
    """A server on a free port of this machine, ."""
    explorer = Explorer(folders, **({"port": 0} | options))
    thread = Thread(target=explorer.serve_forever, daemon=True)
    thread.start()
    try:
        yield explorer
    finally:
        explorer.close()
        thread.join(10)
