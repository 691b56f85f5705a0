"""How fast the explorer answers over many designs.

Fills a store with synthetic designs (figures drawn around a plausible trade-off, not estimated),
starts the explorer on it, and asks each question several times over HTTP, with filters that no
earlier question had, so that nothing comes from a cache. Prints the median and the slowest of each.

    python benchmarks/serve_million.py [--designs 1000000] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from atoll.hardware.silicon.systolic import HBM_PARAMETERS, SYSTOLIC
from atoll.serve.server import Explorer
from atoll.store import FILE, DesignRow, RunStore
from record import recorded

ASKED = 7
PIECE = 50_000


def designs(count: int, seed: int) -> Iterator[DesignRow]:
    rng = np.random.default_rng(seed)
    for start in range(0, count, PIECE):
        size = min(PIECE, count - start)
        powers = ((0, 9), (3, 9), (3, 9), (20, 28))
        vector, width, depth, buffer = (2 ** rng.integers(low, high, size) for low, high in powers)
        tensor = 2 ** rng.integers(0, 19 - np.log2(width * depth).astype(int))
        peak = 2.0 * tensor * width * depth * 1.05e9
        area = 12 + peak / 2.4e12 + buffer / 2**20 * 0.45 + vector * 0.12
        use = rng.beta(5, 2, size) * np.minimum(1, buffer / 2**24 + 0.3)
        score = peak * use / 2.5e11
        power = 30 + 0.35 * area + peak * use / 2e12
        for i in range(size):
            step_s = 4096 / float(score[i])
            plan = {
                "model": "synthetic", "samples_per_s": float(score[i]), "step_time_s": step_s,
                "microbatch": int(2 ** (i % 5)), "tensor": int(2 ** (i % 4)), "pipeline": 1 + i % 8,
                "data": 64,
            }  # fmt: skip
            yield DesignRow(
                chip=start + i,
                design=start + i,
                figures={
                    "score": float(score[i]),
                    "area_mm2": float(area[i]),
                    "power_W": float(power[i]),
                    "energy_per_token_J": float(power[i] / score[i] / 4.0),
                },
                parameters={
                    "tensor_cores": int(tensor[i]), "vector_cores": int(vector[i]),
                    "width": int(width[i]), "depth": int(depth[i]), "vector_width": int(width[i]),
                    "glb_bytes": int(buffer[i]), "hbm_capacity_bytes": 80 * 2**30,
                    "hbm_bandwidth_Bps": 1.2e12, "clock_Hz": 1.05e9,
                },
                plan=plan,
                phase="synthetic",
                plans=[plan],
            )  # fmt: skip


def fill(folder: Path, count: int) -> None:
    job = {
        "devices": 1024, "global_batch": 4096, "models": [{"name": "synthetic", "config": ""}],
        "space": "none", "space_content": {},
        "parameters": [p.to_dict() for p in (*SYSTOLIC.parameters, *HBM_PARAMETERS)],
        "microbatches": [1], "tensor_widths": [1], "profile": "default", "recompute": "none",
        "tolerance": 1e-3,
    }  # fmt: skip
    store = RunStore(folder, job, "benchmark", "0")
    piece: list[DesignRow] = []
    for design in designs(count, 0):
        piece.append(design)
        if len(piece) == PIECE:
            store.put_designs(piece)
            piece.clear()
    store.put_designs(piece)
    store.put_progress("finished", 0, count, None, 1.0, 1.0)
    store.close("finished")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--designs", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="keep the store here, and use it again")
    parser.add_argument("--limit-ms", type=float, default=300.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch) / "million"
        if not (folder / FILE).exists():
            began = time.perf_counter()
            fill(folder, given.designs)
            print(f"filled in {time.perf_counter() - began:.1f} s")
        print(f"store {(folder / FILE).stat().st_size / 1e6:.0f} MB")
        measure(folder, given.limit_ms)


def measure(folder: Path, limit_ms: float) -> None:
    explorer = Explorer([folder], port=0)
    threading.Thread(target=explorer.serve_forever, daemon=True).start()
    base = f"{explorer.address}api/runs"
    began = time.perf_counter()
    while True:
        with urllib.request.urlopen(base) as answer:
            run = json.load(answer)["runs"][0]
        if run["loaded"] and run["loaded"] == run["designs"]:
            break
        time.sleep(0.05)
    print(f"read {run['loaded']:,} designs in {time.perf_counter() - began:.1f} s")
    name, worst = run["id"], 0.0
    questions = {
        "runs": lambda i: "",
        "summary, no filter": lambda i: f"/{name}/summary",
        "summary, three filters": lambda i: (
            f"/{name}/summary?area_mm2=20..{150 + i}&power_W=..{200 + i}&width=16..128"
        ),
        "scatter, no filter": lambda i: f"/{name}/scatter",
        "scatter, two filters": lambda i: f"/{name}/scatter?area_mm2=20..{160 + i}&depth=16..256",
        "scatter, energy and power": lambda i: (
            f"/{name}/scatter?x=power_W&y=energy_per_token_J&area_mm2=..{170 + i}"
        ),
        "table, best first": lambda i: f"/{name}/table?offset={25 * i}",
        "table, last page by area": lambda i: f"/{name}/table?sort=-area_mm2&offset={999_000 - i}",
        "table, filtered by power": lambda i: (
            f"/{name}/table?sort=%2Bpower_W&area_mm2=20..{180 + i}&offset=1000"
        ),
        "one design": lambda i: f"/{name}/design/{1000 * i + 7}",
    }
    print(f"{'':28s} {'median':>8s} {'slowest':>8s}   of {ASKED}, in ms")
    for label, path in questions.items():
        times = []
        for i in range(ASKED):
            began = time.perf_counter()
            with urllib.request.urlopen(base + path(i)) as answer:
                answer.read()
            times.append(1e3 * (time.perf_counter() - began))
        worst = max(worst, *times)
        print(f"{label:28s} {statistics.median(times):8.1f} {max(times):8.1f}")
    explorer.close()
    verdict = "within" if worst < limit_ms else "ABOVE"
    print(f"slowest {worst:.0f} ms: {verdict} {limit_ms:.0f} ms")


if __name__ == "__main__":
    sys.exit(recorded(main))
