"""No part of a space beats the whole: plans over random restrictions of their default spaces.

    python benchmarks/plan_restrictions.py [restrictions]

Several models, devices, stacks and memories; on every axis a restriction leaves some of the values
that the space has, or all. Fails where a part has a faster plan than the whole, or a certificate
that allows a faster one than the whole's.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, fields, replace
from functools import cache
from random import Random

import numpy as np

from atoll.base.errors import AtollError
from atoll.training.planner.plan import Plan, plan
from atoll.training.planner.space import Axes
from atoll.training.request import make_run
from atoll.training.run import Run
from record import recorded

RESTRICTIONS = 200
FREE = 0.6  # of the axes stay as they are
CASES = (
    ("gpt2-xl", "h100", 16, 64, "megatron"),
    ("gpt2-xl", "a100-40", 12, 24, "eager"),
    ("llama2-7b", "h100", 32, 128, "megatron"),
    ("llama2-7b", "a100-40", 16, 64, "fsdp"),
    ("llama2-7b", "tpu-v4", 64, 64, "xla"),
    ("llama3-70b", "h200", 256, 512, "nemo"),
    ("mixtral-8x7b", "h100", 64, 128, "megatron"),
    ("gpt3-175b", "h100", 1024, 1536, "megatron"),
)


@dataclass(frozen=True)
class Whole:
    run: Run
    plan: Plan
    values: dict[str, list[object]]


@cache
def whole(case: tuple[str, str, int, int, str]) -> Whole:
    """The plan over all, and the values that its space has on each axis."""
    model, device, devices, batch, stack = case
    run = make_run(model, device, devices, batch=batch, stack=stack)
    found = plan(run, runners_up=0)
    space = found.space
    values: dict[str, list[object]] = {}
    for item in fields(Axes):
        name = item.name
        if name == "recompute":
            values[name] = list(space.names)
        elif name == "schedule":
            values[name] = list(space.axes.orders(run))
        elif hasattr(space.blocks[0], name):
            values[name] = np.unique(space.column(name)).tolist()
        else:
            values[name] = sorted({getattr(block.family, name) for block in space.blocks})
    return Whole(run, found, values)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else RESTRICTIONS
    random = Random(0)
    planned = infeasible = 0
    begin = time.perf_counter()
    for number in range(count):
        case = CASES[number % len(CASES)]
        known = whole(case)
        changes = {
            name: tuple(random.sample(values, random.randint(1, len(values))))
            for name, values in known.values.items()
            if random.random() >= FREE
        }
        try:
            part = plan(known.run, replace(Axes(), **changes), runners_up=0)
        except AtollError:  # nothing divides, or nothing fits
            infeasible += 1
            continue
        planned += 1
        mine, theirs = known.plan, part
        worse = theirs.best.step.time_s < mine.best.step.time_s * (1 - 1e-12)
        if worse or theirs.certificate.bound > mine.certificate.bound * (1 + 1e-9):
            raise SystemExit(
                f"{' '.join(map(str, case))}: {theirs.best.layout} ({theirs.best.step.time_s} s) "
                f"of {changes} beats {mine.best.layout} ({mine.best.step.time_s} s)"
            )
    spent_s = time.perf_counter() - begin
    print(f"{count} restrictions of {len(CASES)} spaces: none beats the whole; {planned} planned, "
          f"{infeasible} leave nothing; {spent_s:.0f} s")  # fmt: skip


if __name__ == "__main__":
    sys.exit(recorded(main))
