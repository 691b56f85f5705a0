"""Estimates of layouts a second, compiled and one by one, and what a whole plan takes.

    python benchmarks/plan_estimates.py

GPT-3 175B on 1,024 H100: every layout of the default space under every choice of recomputation,
once as the planner estimates them (tables and kernels; pricing the model's variants apart), once as
bounds for choices that are not priced, and some of them one by one. Both estimates are compared.
Then the processor time and the peak memory of the command `atoll plan`, kernels compiled. Fails
where the two estimates differ, or where fewer than 100,000 are made in a second.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import replace
from itertools import chain
from random import Random

from atoll.training.batch import LEAST, batch_estimates
from atoll.training.estimate import Estimator
from atoll.training.layers import choices_of
from atoll.training.request import make_run
from atoll.training.space import Axes, block_of, variants

WANTED_PER_S = 100_000
ONE_BY_ONE = 300
COMMAND = ("plan", "--model", "gpt3-175b", "--device", "h100", "--devices", "1024",
           "--batch", "1536")  # fmt: skip


def main() -> None:
    run = make_run("gpt3-175b", "h100", 1024, batch=1536)
    estimator, axes = Estimator(run), Axes()
    spaces = []
    for variant in variants(run, axes):
        block = block_of(run, axes, variant)
        if len(block):
            costs = estimator.costs(variant.layout(recompute="optimal"))
            choices = dict.fromkeys(chain(*(choices_of(costs, name) for name in axes.recompute)))
            estimator.costs(variant.layout())
            layouts = [block.layout(int(i)) for i in block.bases()[0]]
            spaces.append((layouts, tuple(choices)))
    batch_estimates(estimator, *spaces[0])  # compiles
    begin = time.perf_counter()
    found = [batch_estimates(estimator, *space) for space in spaces]
    estimates_s = time.perf_counter() - begin
    count = sum(time_s.size for time_s, _ in found)
    begin = time.perf_counter()
    for layouts, _ in spaces:
        batch_estimates(estimator, layouts, (LEAST,))
    bounds_s = time.perf_counter() - begin
    bounds = sum(len(layouts) for layouts, _ in spaces)

    random = Random(0)
    worst, one_by_one_s = 0.0, 0.0
    for _ in range(ONE_BY_ONE):
        space = random.randrange(len(spaces))
        layouts, choices = spaces[space]
        at, policy = random.randrange(len(layouts)), random.choice(("none", "selective", "full"))
        begin = time.perf_counter()
        readable = estimator.estimate(replace(layouts[at], recompute=policy))
        one_by_one_s += time.perf_counter() - begin
        time_s, needed = (table[at, choices.index(policy)] for table in found[space])
        worst = max(
            worst,
            abs(time_s / readable.step.time_s - 1),
            abs(needed / readable.worst.needed - 1),
        )
    print(f"exact, compiled    {count / estimates_s:>12,.0f} a second ({count:,} estimates)")
    print(f"exact, one by one  {ONE_BY_ONE / one_by_one_s:>12,.0f} a second")
    print(f"bounds             {bounds / bounds_s:>12,.0f} a second ({bounds:,} layouts)")
    print(f"largest difference {worst:>12.1e} of {ONE_BY_ONE}")
    wall_s, cpu_s, peak = command()
    print(f"atoll plan         {cpu_s:>12.2f} s of processor time ({wall_s:.2f} s, {peak:.0f} MB)")
    assert worst < 1e-9
    assert count / estimates_s >= WANTED_PER_S


def command() -> tuple[float, float, float]:
    """Wall and processor seconds and peak MB of the whole command, the best of three."""
    spent = []
    for _ in range(3):
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-m", "atoll", *COMMAND], check=True, capture_output=True)
        after, end = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        spent.append((end - begin, cpu_s, after.ru_maxrss / 1e3))
    return min(spent, key=lambda figures: figures[1])


if __name__ == "__main__":
    main()
