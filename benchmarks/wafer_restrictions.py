"""A search never loses to its own restriction: random jobs, each asked with and without one.

    python benchmarks/wafer_restrictions.py [JOBS] [SEED]

A job is a wafer of the catalogue with a drawn grid, link bandwidth and memory, a model and a batch;
its restriction allows some numbers of stages, one shape of a stage, some microbatches, or takes a
part of the space away. A violation is a restricted answer that is more than 0.1 % faster.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from atoll.errors import InfeasibleError
from atoll.hardware.wafer import Wafer
from atoll.hardware.wafer_files import load_wafer
from atoll.wafer.job import ABLATIONS
from atoll.wafer.search import Candidate, Found, WaferSearch
from atoll.wafer.staging.stages import MICROBATCHES, Options
from record import recorded

SLACK = 1e-3
WAFERS = ("default", "temp-like", "watos-like")
GRIDS = ((2, 4), (3, 4), (4, 4), (4, 6), (6, 8))
MODELS = (("llama2-7b", 4096), ("llama2-13b", 4096), ("gpt3-6.7b", 2048), ("llama2-70b", 4096))
BATCHES = (8, 16, 32, 128)
WHOLE = Options()


@dataclass(frozen=True)
class Restriction:
    name: str
    options: Options = WHOLE
    microbatches: tuple[int, ...] = MICROBATCHES
    accept: Callable[[Candidate], bool] | None = None


def draw_wafer(random: np.random.Generator) -> Wafer:
    """With links and memory scaled down where they are drawn to be scarce."""
    wafer = load_wafer(str(random.choice(WAFERS)))
    rows, columns = GRIDS[int(random.integers(len(GRIDS)))]
    links = wafer.link_Bps * float(random.choice((1.0, 0.3, 0.1)))
    memory = wafer.stack.capacity_bytes * float(random.choice((2.0, 1.0, 0.5)))
    return replace(
        wafer, rows=min(rows, wafer.rows), columns=min(columns, wafer.columns),
        stated_link_Bps=links, stack=replace(wafer.stack, capacity_bytes=int(memory)),
    )  # fmt: skip


def draw_restriction(random: np.random.Generator, wafer: Wafer) -> Restriction:
    kind = str(random.choice(("stages", "shape", "microbatches", "ablation")))
    if kind == "stages":
        counts = {int(n) for n in random.choice([1, 2, 3, 4, 6, 8, 12, 16], 2, replace=False)}
        return Restriction(f"stages {sorted(counts)}", accept=lambda c: c.stages in counts)
    if kind == "shape":
        width, height = (int(random.integers(1, n + 1)) for n in (wafer.columns, wafer.rows))
        return Restriction(
            f"stages of {width} x {height}",
            accept=lambda c: (c.width, c.height) == (width, height),
        )
    if kind == "microbatches":
        some = tuple(sorted(int(b) for b in random.choice(MICROBATCHES[:8], 2, replace=False)))
        return Restriction(f"microbatches {some}", microbatches=some)
    name = str(random.choice(sorted(ABLATIONS)))
    field, value = ABLATIONS[name]
    return Restriction(name, options=replace(WHOLE, **{field: value}))


def main() -> None:
    given = [int(value) for value in sys.argv[1:]]
    jobs, seed = [*given, *(200, 0)[len(given) :]]
    random = np.random.default_rng(seed)
    compared = violations = 0
    for number in range(jobs):
        wafer = draw_wafer(random)
        model, sequence = MODELS[int(random.integers(len(MODELS)))]
        batch = int(random.choice(BATCHES))
        less = draw_restriction(random, wafer)
        began = time.process_time()

        def asked(
            rule: Restriction, where: tuple[Wafer, str, int, int] = (wafer, model, batch, sequence)
        ) -> Found | None:
            microbatches = rule.microbatches
            search = WaferSearch(*where, rule.options, microbatches, accept=rule.accept)
            try:
                return search.run()
            except InfeasibleError:
                return None

        part, whole = asked(less), asked(Restriction("none"))
        taken = time.process_time() - began
        job = (
            f"{number}: {wafer.name} {wafer.rows} x {wafer.columns}, "
            f"{wafer.link_Bps / 1e9:.0f} GB/s, {wafer.memory_bytes / 2**30:.0f} GiB, {model}, "
            f"batch {batch}, {less.name}"
        )
        if part is None:
            print(f"{job}: the restricted one does not fit; {taken:.0f} s", flush=True)
            continue
        compared += 1
        found = 0.0 if whole is None else whole.best.samples_per_s
        gap = 1.0 if whole is None else whole.gap
        lost = part.best.samples_per_s > found * (1.0 + SLACK)
        violations += lost
        print(
            f"{job}: {found:.2f} (gap {gap:.1%}) against {part.best.samples_per_s:.2f}"
            f"{' VIOLATION' if lost else ''}; {taken:.0f} s",
            flush=True,
        )
    print(f"{compared} compared, {violations} violations")


if __name__ == "__main__":
    sys.exit(recorded(main))
