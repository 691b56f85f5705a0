"""Bounds and estimates of layouts per second, at once and one by one, and what whole plans take.

    python benchmarks/plan_estimates.py

GPT-3 175B on 1,024 H100: bounds on every layout of the default space; layouts of each of its
variants under every choice of recomputation, as the planner estimates them (pricing the model's
variants apart), and some of them one by one. Both estimates are compared. Then the time and the
peak memory of the command `atoll plan`, for this run and for DeepSeek-V3 on 2,048. Fails where the
two estimates differ, where fewer than 100,000 are made per second, or where a plan takes 1 GB.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import replace
from random import Random

import numpy as np

from atoll.step.layout import Layout
from atoll.training.batch.estimates import LayoutSequence, batch_estimates
from atoll.training.estimate import Estimator
from atoll.training.operators.layers import recompute_choices
from atoll.training.planner.bounds.family_bounds import FamilyBounds
from atoll.training.planner.space import Axes, block_of, families
from atoll.training.request import make_run
from record import figure, recorded

WANTED_PER_S = 100_000
MOST_MB = 1000
A_VARIANT = 400  # layouts
ONE_BY_ONE = 300
COMMANDS = (("gpt3-175b", "1024", "1536", 3), ("deepseek-v3", "2048", "15360", 1))


def main() -> None:
    run = make_run("gpt3-175b", "h100", 1024, batch=1536)
    estimator, axes, random = Estimator(run), Axes(), Random(0)
    floor = FamilyBounds(estimator)
    blocks = [block_of(run, axes, family) for family in families(run, axes)]
    begin = time.perf_counter()
    for block in blocks:
        floor.bounds(block)
    bounds_s = time.perf_counter() - begin
    bounds = len(axes.recompute) * sum(map(len, blocks))

    spaces: list[tuple[list[Layout], tuple[str, ...]]] = []
    for block in blocks:
        for size in (1, 2, 4):
            rows = np.flatnonzero(block.microbatch == size)
            some = np.array(random.sample(rows.tolist(), min(A_VARIANT, len(rows))))
            layouts = block.layouts(some, "none")
            estimator.costs(layouts[0])
            costs = estimator.costs(replace(layouts[0], recompute="optimal"))
            spaces.append((layouts, recompute_choices(costs, "optimal")))
    begin = time.perf_counter()
    found = [batch_estimates(estimator, LayoutSequence(layouts), of) for layouts, of in spaces]
    estimates_s = time.perf_counter() - begin
    count = sum(time_s.size for time_s, _ in found)

    worst, one_by_one_s = 0.0, 0.0
    for _ in range(ONE_BY_ONE):
        space = random.randrange(len(spaces))
        layouts, choices = spaces[space]
        at, policy = random.randrange(len(layouts)), random.choice(axes.recompute)
        begin = time.perf_counter()
        readable = estimator.estimate(replace(layouts[at], recompute=policy))
        one_by_one_s += time.perf_counter() - begin
        column = len(choices) if policy == "optimal" else choices.index(policy)
        time_s, needed = (table[at, column] for table in found[space])
        worst = max(
            worst,
            abs(time_s / readable.step.time_s - 1),
            abs(needed / readable.worst.needed - 1),
        )
    figure("bounds per s", bounds / bounds_s)
    figure("estimates per s", count / estimates_s)
    print(f"bounds             {bounds / bounds_s:>12,.0f} per second ({bounds:,} layouts)")
    print(f"exact, at once     {count / estimates_s:>12,.0f} per second ({count:,} estimates)")
    print(f"exact, one by one  {ONE_BY_ONE / one_by_one_s:>12,.0f} per second")
    print(f"largest difference {worst:>12.1e} of {ONE_BY_ONE}")
    for model, devices, batch, times in COMMANDS:
        wall_s, cpu_s, peak = command(model, devices, batch, times)
        print(
            f"plan of {model:<11}{cpu_s:>12.2f} s of processor time ({wall_s:.2f} s, {peak:.0f} MB)"
        )
        assert peak < MOST_MB
    assert worst < 1e-9
    assert count / estimates_s >= WANTED_PER_S


def command(model: str, devices: str, batch: str, times: int) -> tuple[float, float, float]:
    """Wall and processor seconds and peak MB of the whole command, the best of some times."""
    words = ("plan", "--model", model, "--device", "h100", "--devices", devices,
             "--batch", batch)  # fmt: skip
    spent = []
    for _ in range(times):
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-m", "atoll", *words], check=True, capture_output=True)
        after, end = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        spent.append((end - begin, cpu_s, after.ru_maxrss / 1e3))
    return min(spent, key=lambda figures: figures[1])


if __name__ == "__main__":
    sys.exit(recorded(main))
