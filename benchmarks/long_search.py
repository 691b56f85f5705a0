"""Long searches: processes, the store's overhead, its queries, and spaces of a billion designs.

    python benchmarks/long_search.py [speedup | overhead | store | large | billion] ...

Without arguments all of them, in that order. Kernels are compiled first. On a shared machine wall
times are noise: alternate runs are repeated and the least of each is taken; CPU time stands beside.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from atoll.answers.designs import StoredEnergy, StoredPlan
from atoll.executors.threads import set_threads
from atoll.explore.run import run_search
from atoll.questions import SearchQuestion
from atoll.store import DesignRow, RunReader, RunStore
from record import figure, recorded

ROOT = Path(__file__).parent.parent
MODELS = ("llama2-7b", "megatron-gpt2-8.3b")


@contextmanager
def measured(into: dict[str, float]) -> Iterator[None]:
    """Wall seconds, and CPU seconds of this process and of child processes that have ended."""

    def cpu(who: int) -> float:
        usage = resource.getrusage(who)
        return usage.ru_utime + usage.ru_stime

    wall = time.perf_counter()
    own, others = cpu(resource.RUSAGE_SELF), cpu(resource.RUSAGE_CHILDREN)
    yield
    into["wall_s"] = time.perf_counter() - wall
    into["driver_s"] = cpu(resource.RUSAGE_SELF) - own
    into["workers_s"] = cpu(resource.RUSAGE_CHILDREN) - others
    into["cpu_s"] = into["driver_s"] + into["workers_s"]


def least(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, dict[str, float]]:
    """Alternate the runs, and take the least wall and CPU time of each."""
    best: dict[str, dict[str, float]] = {}
    for _ in range(repeats):
        for name, run in runs.items():
            took: dict[str, float] = {}
            with measured(took):
                run()
            old = best.setdefault(name, dict(took))
            best[name] = {key: min(old[key], took[key]) for key in took}
    return best


def phaze_job(model: str) -> SearchQuestion:
    return SearchQuestion.of(model=model, space="phaze", baselines=False)


def speedup(models: list[str], repeats: int) -> None:
    """One process of one thread against two, over PHAZE's 29,360 chips.

    The CPU columns hold on a busy machine too: a quiet one with two cores cannot be faster than
    the driver's CPU time and half of the workers'.
    """
    print("\n2 local processes against 1 (one thread each), 29,360 chips; wall and CPU seconds")
    print("model                 1: wall driver worker   2: wall driver workers   ratio CPU ratio")
    for model in models:
        job = phaze_job(model)
        run_search(job)
        took = least({str(n): partial(run_search, job, workers=n) for n in (1, 2)}, repeats)
        one, two = took["1"], took["2"]
        ratio = one["wall_s"] / two["wall_s"]
        possible = one["cpu_s"] / (two["driver_s"] + two["workers_s"] / 2)
        print(
            f"{model:<22}{one['wall_s']:>8.2f} {one['driver_s']:>6.2f} {one['workers_s']:>6.2f}"
            f"{two['wall_s']:>10.2f} {two['driver_s']:>6.2f} {two['workers_s']:>7.2f}"
            f"{ratio:>8.2f} {possible:>10.2f}"
        )


def overhead(models: list[str], repeats: int) -> None:
    """The store, and a process apart, against a search that has neither."""
    print("\nOverhead (CPU seconds; one thread)")
    print("model                     plain    with store          one process apart, with store")
    for model in models:
        job = phaze_job(model)
        run_search(job)

        def stored(workers: int, job: SearchQuestion = job) -> None:
            with tempfile.TemporaryDirectory() as folder:
                run_search(job, out=Path(folder) / "run", workers=workers)

        set_threads(1)
        runs: dict[str, Callable[[], object]] = {
            "plain": partial(run_search, job, workers=0),
            "store": partial(stored, 0),
            "apart": partial(stored, 1),
        }
        took = least(runs, repeats)
        base = took["plain"]["cpu_s"]
        print(
            f"{model:<24}{base:>7.2f} {took['store']['cpu_s']:>10.2f} "
            f"({took['store']['cpu_s'] / base - 1:+.1%}) {took['apart']['cpu_s']:>14.2f} "
            f"({took['apart']['cpu_s'] / base - 1:+.1%})"
        )


def synthetic(count: int, seed: int = 0) -> Iterator[DesignRow]:
    """Designs with plausible figures: score grows with area, with scatter."""
    rng = np.random.default_rng(seed)
    sizes = 2 ** rng.integers(0, 9, size=(count, 6))
    area = rng.uniform(50.0, 600.0, count)
    score = 10.0 * np.sqrt(area) * rng.uniform(0.2, 1.0, count)
    power = area * rng.uniform(0.5, 1.5, count)
    for i in range(count):
        step_s = 1.0 / float(score[i])
        plan = StoredPlan(
            number=0, model="synthetic", samples_per_s=float(score[i]), step_time_s=step_s,
            variant=0, microbatch=1, tensor=1, cp=1, ep=1, etp=1, sp=False, pipeline=1, data=1,
            pass_s=(), energy=StoredEnergy(parts_J={}, step_time_s=step_s, devices=1, tokens=1),
            effort="quick",
        )  # fmt: skip
        yield DesignRow(
            chip=i,
            design=i,
            figures={
                "score": float(score[i]), "area_mm2": float(area[i]), "power_W": float(power[i]),
                "energy_per_token_J": float(power[i] / score[i]),
            },
            parameters=dict(
                zip(
                    ("tensor_cores", "vector_cores", "width", "depth", "vector_width", "glb_bytes"),
                    sizes[i].tolist(),
                    strict=True,
                )
            )
            | {"hbm_capacity_bytes": 2**35, "hbm_bandwidth_Bps": 1.2e12, "clock_Hz": 1.05e9},
            plan=plan,
            phase="place",
            plans=[],
        )  # fmt: skip


def store(points: int) -> None:
    """Fill a store and ask it."""
    print(f"\nStore with {points:,} designs")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.perf_counter()
        opened = RunStore(folder, {}, "benchmark", "0")
        opened.put_designs(synthetic(points))
        opened.close("finished")
        size = (folder / "search.sqlite").stat().st_size
        took = time.perf_counter() - began
        print(f"  filled in {took:.0f} s ({points / took:,.0f} a second), {size / 2**20:,.0f} MiB")
        with RunReader(folder) as reader:
            questions: dict[str, Callable[[], object]] = {
                "best 50": lambda: reader.designs(),
                "page 1,000 by score": lambda: reader.designs(offset=50_000),
                "50 least power": lambda: reader.designs(sort="power_W"),
                "slice: width 128, area 100 to 200": lambda: reader.designs(
                    {"width": 128, "area_mm2": (100.0, 200.0)}
                ),
                "count of the slice": lambda: reader.count(
                    {"width": 128, "area_mm2": (100.0, 200.0)}
                ),
                "slice: tensor width 1 (not indexed)": lambda: reader.designs({"tensor": 1}),
                "front: score against area": lambda: reader.front("area_mm2"),
                "front: score against power": lambda: reader.front("power_W"),
                "front against energy, width 128": lambda: reader.front(
                    "energy_per_token_J", {"width": 128}
                ),
                "status": lambda: reader.status(),
            }
            for question, ask in questions.items():
                best = least({"ask": ask}, 3)["ask"]
                wall, cpu = 1e3 * best["wall_s"], 1e3 * best["cpu_s"]
                print(f"  {question:<36}{wall:>9.1f} ms, CPU {cpu:>7.1f} ms")


BILLION = {"model": "bert-large", "devices": 16, "batch": 256, "tolerance": 0.005}


def large(name: str, limit_s: float, workers: int, **asked: Any) -> str:
    """Millions of designs: first answer, memory of the driver, how the gap falls; as a row."""
    space = ROOT / "examples" / "spaces" / f"{name}.yaml"
    job = SearchQuestion.of(space=str(space), baselines=False, time_limit=limit_s, **asked)
    took: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        with measured(took):
            result = run_search(job, out=Path(folder) / "run", workers=workers)
        with RunReader(Path(folder) / "run") as reader:
            first = reader.incumbents()[0]
            points = [p for p in reader.progress() if p.score > 0.0]
            bounded = reader.status().bounded
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = result.phases_s["search"]
    print(f"\n{result.certificate.items:,} designs, {workers} processes")
    print(f"  first answer after {first.seconds:.1f} s; driver {memory:,.0f} MiB at most")
    print(f"  {result.certificate.sentence()}, {seconds:.0f} s")
    print(
        f"  {result.certificate.items / seconds:,.0f} designs a second in all, "
        f"{bounded:,} chips with schedule bounds ({bounded / seconds:,.0f} a second), "
        f"{result.certificate.evaluated:,} evaluated"
    )
    print("  seconds     gap  chips left  evaluated")
    wanted = np.linspace(points[0].seconds, points[-1].seconds, 12)
    for moment in wanted:
        p = min(points, key=lambda p: abs(p.seconds - moment))
        print(f"  {p.seconds:>7.1f} {1 - p.score / p.bound:>7.2%} {p.left:>11,} {p.evaluated:>10,}")
    figure(f"{name} processor_s", took["cpu_s"])
    figure(f"{name} driver_MiB", memory)
    proof = result.certificate
    return (
        f"| {name}, {result.best.plans[0].model} on {job.devices:,} devices | {proof.items:,} | "
        f"{proof.bound / proof.score - 1:.2%} | {took['cpu_s']:.0f} s | {memory:,.0f} MiB | "
        f"{bounded:,} | {proof.evaluated:,} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help="speedup, overhead, store, large, billion")
    parser.add_argument("--model", action="append", help="for speedup and overhead; repeatable")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--points", type=int, default=2_000_000)
    parser.add_argument("--limit", type=float, default=300.0)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    parts = given.parts or ["speedup", "overhead", "store", "large", "billion"]
    if "speedup" in parts:
        speedup(given.model or list(MODELS), given.repeats)
    if "overhead" in parts:
        overhead(given.model or list(MODELS), given.repeats)
    if "store" in parts:
        store(given.points)
    rows = []
    if "billion" in parts:  # first: memory is the most that the process had
        rows.append(large("billion", given.limit, given.workers, **BILLION))
    if "large" in parts:
        rows.append(large("ten-million", given.limit, given.workers))
    if rows:
        print("\n| space | points | gap | processor time | driver | bounded | evaluated |")
        print("|---|---|---|---|---|---|---|")
        print("\n".join(rows))


if __name__ == "__main__":
    sys.exit(recorded(main))
