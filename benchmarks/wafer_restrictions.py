"""A search never loses to its own restriction: random jobs, each asked with and without one.

    python benchmarks/wafer_restrictions.py [--jobs N] [--first N] [--seed N] [--dies N]
                                            [--known FILE]

A job is a wafer of the catalogue with a drawn grid (of at most so many dies), link bandwidth and
memory, a model and a batch; its restriction allows some numbers of stages, one shape of a stage,
some microbatches, or takes a part of the space away. A violation is a restricted answer that is
more than 0.1 % faster; jobs whose restriction does not fit are drawn again. Every job has a
generator of its own, so that any range of them may be run for itself. With `--known` each is
written to a file as it ends, and those that the same sources have there already are not run again.
SIGINT or SIGTERM ends it after the last whole job: the table then holds what was compared until
then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from atoll.base.errors import InfeasibleError
from atoll.base.identity import this_code
from atoll.hardware.wafer import Wafer
from atoll.hardware.wafer_files import load_wafer
from atoll.wafer.job import ABLATIONS
from atoll.wafer.search import PipelineShape, SearchOutcome, WaferSearch
from atoll.wafer.staging.planner import MICROBATCHES, WaferOptions
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
WHOLE = WaferOptions()


@dataclass(frozen=True)
class Restriction:
    name: str
    kind: str
    options: WaferOptions = WHOLE
    microbatches: tuple[int, ...] = MICROBATCHES
    accept: Callable[[PipelineShape], bool] | None = None


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


def asked(where: tuple[Wafer, str, int, int], rule: Restriction) -> SearchOutcome | None:
    search = WaferSearch(*where, rule.options, rule.microbatches, accept=rule.accept)
    try:
        return search.run()
    except InfeasibleError:
        return None


@dataclass(frozen=True)
class Compared:
    """A job, what it lost to its restriction, and its gap."""

    job: int
    kind: str
    lost: float
    gap: float
    unfit: int
    """Drawn before it: their restrictions do not fit."""
    words: str


def compared(job: int, seed: int, dies: int) -> Compared:
    """Draw a job whose restriction fits, and compare both."""
    random = np.random.default_rng((seed, job))
    began = time.process_time()
    part, unfit = None, -1
    while part is None:
        wafer = draw_wafer(random, dies)
        model, sequence = MODELS[int(random.integers(len(MODELS)))]
        batch = int(random.choice(BATCHES))
        less = draw_restriction(random, wafer)
        where = (wafer, model, batch, sequence)
        part = asked(where, less)
        unfit += 1
    whole = asked(where, Restriction("none", ""))
    found, gap = (0.0, 1.0) if whole is None else (whole.best.samples_per_s, whole.gap)
    lost = part.best.samples_per_s / max(found, 1e-9) - 1.0
    words = (
        f"{job}: {wafer.name} {wafer.rows} x {wafer.columns}, {wafer.link_Bps / 1e9:.0f} GB/s, "
        f"{wafer.memory_bytes / 2**30:.0f} GiB, {model}, batch {batch}, {less.name}: {found:.2f} "
        f"(gap {gap:.1%}) against {part.best.samples_per_s:.2f}"
        f"{' VIOLATION' if lost > SLACK else ''}; {time.process_time() - began:.0f} s"
    )
    return Compared(job, less.kind, lost, gap, unfit, words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("jobs", 200), ("first", 0), ("seed", 0), ("dies", 8)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--known", type=Path)
    given = parser.parse_args()
    asked_for = {"seed": given.seed, "dies": given.dies, "sources": this_code()["sources"]}
    done: dict[int, Compared] = {}
    if given.known is not None and given.known.exists():
        for line in given.known.read_text(encoding="utf-8").splitlines():
            told = json.loads(line)
            if told.pop("asked") == asked_for:
                done[told["job"]] = Compared(**told)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background else
    with contextlib.suppress(KeyboardInterrupt):
        for job in range(given.first, given.first + given.jobs):
            if job in done:
                continue
            done[job] = compared(job, given.seed, given.dies)
            print(done[job].words, flush=True)
            if given.known is not None:
                with given.known.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(done[job]) | {"asked": asked_for}) + "\n")
    print("| restriction | jobs | restricted faster by more than 0.1 % | at most | mean gap |")
    print("|---|---|---|---|---|")
    for kind in KINDS:
        rows = [row for row in done.values() if row.kind == kind]
        lost = np.array([row.lost for row in rows] or [0.0])
        print(
            f"| {kind} | {len(rows)} | {(lost > SLACK).sum()} | {max(0.0, lost.max()):.2%} | "
            f"{np.mean([row.gap for row in rows] or [0.0]):.1%} |"
        )
    violations = sum(row.lost > SLACK for row in done.values())
    unfit = sum(row.unfit for row in done.values())
    print(f"{len(done)} compared, {violations} violations; {unfit} drawn that do not fit")
    figure("jobs", len(done))
    figure("violations", violations)
    figure("mean gap", float(np.mean([row.gap for row in done.values()] or [0.0])))


if __name__ == "__main__":
    sys.exit(recorded(main))
