"""A search never loses to its own restriction: random jobs, each asked with and without one.

    python benchmarks/wafer_restrictions.py [JOBS] [SEED] [DIES]

A job is a wafer of the catalogue with a drawn grid (of at most so many dies), link bandwidth and
memory, a model and a batch; its restriction allows some numbers of stages, one shape of a stage,
some microbatches, or takes a part of the space away. A violation is a restricted answer that is
more than 0.1 % faster; jobs whose restriction does not fit are drawn again. SIGINT or SIGTERM ends
it after the last whole job: the table then holds what was compared until then.
"""

from __future__ import annotations

import contextlib
import signal
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
from record import figure, recorded

SLACK = 1e-3
WAFERS = ("default", "temp-like", "watos-like")
GRIDS = ((1, 4), (2, 2), (2, 3), (2, 4), (3, 3), (3, 4), (4, 4), (4, 6), (6, 8))
MODELS = (
    ("bert-large", 512), ("gpt2-xl", 1024), ("llama2-7b", 4096), ("gpt-j-6b", 2048),
    ("llama2-13b", 4096), ("llama2-70b", 4096),
)  # fmt: skip
BATCHES = (2, 8, 16, 32)
KINDS = ("stages", "shape", "microbatches", "ablation")
WHOLE = Options()


@dataclass(frozen=True)
class Restriction:
    name: str
    kind: str
    options: Options = WHOLE
    microbatches: tuple[int, ...] = MICROBATCHES
    accept: Callable[[Candidate], bool] | None = None


def draw_wafer(random: np.random.Generator, dies: int) -> Wafer:
    """With links and memory scaled down where they are drawn to be scarce."""
    wafer = load_wafer(str(random.choice(WAFERS)))
    grids = [(rows, columns) for rows, columns in GRIDS if rows * columns <= dies]
    rows, columns = grids[int(random.integers(len(grids)))]
    links = wafer.link_Bps * float(random.choice((1.0, 0.3, 0.1)))
    memory = wafer.stack.capacity_bytes * float(random.choice((2.0, 1.0, 0.5)))
    return replace(
        wafer, rows=min(rows, wafer.rows), columns=min(columns, wafer.columns),
        stated_link_Bps=links, stack=replace(wafer.stack, capacity_bytes=int(memory)),
    )  # fmt: skip


def draw_restriction(random: np.random.Generator, wafer: Wafer) -> Restriction:
    kind = str(random.choice(KINDS))
    if kind == "stages":
        counts = {int(n) for n in random.choice([1, 2, 3, 4, 6, 8, 12, 16], 2, replace=False)}
        return Restriction(f"stages {sorted(counts)}", kind, accept=lambda c: c.stages in counts)
    if kind == "shape":
        width, height = (int(random.integers(1, n + 1)) for n in (wafer.columns, wafer.rows))
        return Restriction(
            f"stages of {width} x {height}",
            kind,
            accept=lambda c: (c.width, c.height) == (width, height),
        )
    if kind == "microbatches":
        some = tuple(sorted(int(b) for b in random.choice(MICROBATCHES[:8], 2, replace=False)))
        return Restriction(f"microbatches {some}", kind, microbatches=some)
    name = str(random.choice(sorted(ABLATIONS)))
    field, value = ABLATIONS[name]
    return Restriction(name, kind, options=replace(WHOLE, **{field: value}))


def asked(where: tuple[Wafer, str, int, int], rule: Restriction) -> Found | None:
    search = WaferSearch(*where, rule.options, rule.microbatches, accept=rule.accept)
    try:
        return search.run()
    except InfeasibleError:
        return None


@dataclass(slots=True)
class Compared:
    """What the jobs so far lost to their restrictions, and their gaps, by kind of restriction."""

    lost: dict[str, list[float]]
    gaps: dict[str, list[float]]
    number: int = 0
    unfit: int = 0

    def one(self, random: np.random.Generator, dies: int) -> None:
        """Draw a job and compare it with its restriction."""
        wafer = draw_wafer(random, dies)
        model, sequence = MODELS[int(random.integers(len(MODELS)))]
        batch = int(random.choice(BATCHES))
        less = draw_restriction(random, wafer)
        began = time.process_time()
        where = (wafer, model, batch, sequence)
        part = asked(where, less)
        if part is None:
            self.unfit += 1
            return
        whole = asked(where, Restriction("none", ""))
        found, gap = (0.0, 1.0) if whole is None else (whole.best.samples_per_s, whole.gap)
        lost = part.best.samples_per_s / max(found, 1e-9) - 1.0
        print(
            f"{self.number}: {wafer.name} {wafer.rows} x {wafer.columns}, "
            f"{wafer.link_Bps / 1e9:.0f} GB/s, {wafer.memory_bytes / 2**30:.0f} GiB, {model}, "
            f"batch {batch}, {less.name}: {found:.2f} (gap {gap:.1%}) against "
            f"{part.best.samples_per_s:.2f}{' VIOLATION' if lost > SLACK else ''}; "
            f"{time.process_time() - began:.0f} s",
            flush=True,
        )
        self.lost[less.kind].append(lost)
        self.gaps[less.kind].append(gap)
        self.number += 1


def main() -> None:
    given = [int(value) for value in sys.argv[1:]]
    jobs, seed, dies = [*given, *(200, 0, 12)[len(given) :]]
    random = np.random.default_rng(seed)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background else
    done = Compared({kind: [] for kind in KINDS}, {kind: [] for kind in KINDS})
    with contextlib.suppress(KeyboardInterrupt):
        while done.number < jobs:
            done.one(random, dies)
    print("| restriction | jobs | restricted faster by more than 0.1 % | at most | mean gap |")
    print("|---|---|---|---|---|")
    for kind in KINDS:
        rows = np.array(done.lost[kind] or [0.0])
        print(
            f"| {kind} | {len(done.lost[kind])} | {(rows > SLACK).sum()} | "
            f"{max(0.0, rows.max()):.2%} | {np.mean(done.gaps[kind] or [0.0]):.1%} |"
        )
    every = np.array([share for shares in done.lost.values() for share in shares])
    violations = int((every > SLACK).sum())
    print(f"{done.number} compared, {violations} violations; {done.unfit} drawn that do not fit")
    figure("jobs", done.number)
    figure("violations", violations)
    figure("mean gap", float(np.mean([gap for each in done.gaps.values() for gap in each])))


if __name__ == "__main__":
    sys.exit(recorded(main))
