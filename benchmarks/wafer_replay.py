"""How far the replay of a mapping, message by message, is from the fast model: all wafers.

    python benchmarks/wafer_replay.py [--wafers NAME ...] [--batches N ...] [--models NAME ...]

On every wafer of the catalogue the first of the models that fits it, at every batch. For some
numbers of stages and microbatches the best mapping of the largest shape that there is room for is
replayed (`wafer/link_replay.py`) under either schedule: one group of all dies; pipelines down to
one die a stage. `fastest`: the one with the shortest step, whose replay must be near; `farthest`:
the one whose replay is farthest from its fast model. SIGINT or SIGTERM ends it after the last whole
row.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from atoll.base.errors import InfeasibleError
from atoll.fabric.mesh import snake
from atoll.hardware.catalog import entry_names
from atoll.hardware.wafer import Wafer
from atoll.hardware.wafer_files import load_wafer
from atoll.questions import WaferQuestion
from atoll.wafer.encoding.block_parts import SCHEDULES
from atoll.wafer.evaluate import MappingCost, evaluate
from atoll.wafer.job import options_of, tokens_of
from atoll.wafer.link_replay import replay_mapping
from atoll.wafer.search import QUICK_CODES, WaferSearch
from atoll.wafer.staging.planner import Planner
from record import figure, recorded

MODELS = ("llama2-70b", "llama2-13b", "llama2-7b", "gpt2-xl")
"""From the largest on."""
STAGES = (1, 2, 4, 8, 16, 48)
MICROBATCHES = (1, 4, 16)
MOST = 0.02
"""Of a step: what the replay of the fastest mapping may differ."""


def mappings(wafer: Wafer, model: str, batch: int) -> Iterator[MappingCost]:
    """Those that fit."""
    job = WaferQuestion.of(wafer=wafer.name, model=model, batch=batch)
    where = wafer, model, batch, tokens_of(job), options_of(job, wafer)
    planner = Planner(*where, QUICK_CODES)
    queue = WaferSearch(*where, MICROBATCHES, most_codes=QUICK_CODES).candidates()
    queue.sort(key=lambda c: (c.width * c.height, -c.bound_s))
    first = {(c.stages, c.microbatch): c for c in queue if c.stages in STAGES}
    for (stages, microbatch), shape in sorted(first.items()):
        laid = snake(wafer.rows, wafer.columns, shape.width, shape.height, stages)
        found = None if laid is None else planner.best(laid, microbatch)
        for schedule in SCHEDULES[: min(stages, 2)] if found is not None else ():
            assert found is not None
            either = evaluate(wafer, replace(found.mapping, schedule=schedule))
            if either.fits:
                yield either


def row(name: str, models: Sequence[str], batch: int) -> tuple[str, float, float]:
    """The row of a table, and the differences of the fastest mapping and of the farthest."""
    wafer, began = load_wafer(name), time.process_time()
    for model in models:
        with contextlib.suppress(InfeasibleError):
            found = list(mappings(wafer, model, batch))
            if found:
                break
    else:
        return f"| {name} | - | {batch} | none fits | | | | | |", 0.0, 0.0
    replays = [replay_mapping(wafer, each).difference for each in found]
    fastest = min(range(len(found)), key=lambda n: found[n].step_s)
    farthest = max(range(len(found)), key=lambda n: abs(replays[n]))
    return (
        f"| {name} | {model} | {batch} | {len(found)} | {found[fastest].samples_per_s:.2f} | "
        f"{shown(found[fastest])} | {replays[fastest]:+.2%} | {shown(found[farthest])} | "
        f"{replays[farthest]:+.2%} | {time.process_time() - began:.0f} |",
        abs(replays[fastest]),
        abs(replays[farthest]),
    )


def shown(found: MappingCost) -> str:
    stages = found.mapping.stages
    order = f", {found.mapping.schedule}" if len(stages) > 1 else ""
    return f"{len(stages)} x {stages[0].rectangle.size} dies, {found.mapping.microbatch}{order}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wafers", nargs="*", default=entry_names("wafer"))
    parser.add_argument("--batches", nargs="*", type=int, default=(16, 128))
    parser.add_argument("--models", nargs="*", default=MODELS)
    given = parser.parse_args()
    heads = "wafer | model | batch | mappings | samples/s | fastest: stages, microbatch | replay"
    print(f"| {heads} | farthest | replay | processor s |")
    print("|---" * 10 + "|")
    nearest, farthest = [0.0], [0.0]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background else
    with contextlib.suppress(KeyboardInterrupt):
        for name, batch in product(given.wafers, given.batches):
            words, near, far = row(name, given.models, batch)
            print(words, flush=True)
            nearest.append(near)
            farthest.append(far)
    figure("largest difference of a fastest mapping", max(nearest))
    figure("largest difference", max(farthest))
    return int(max(nearest) > MOST)


if __name__ == "__main__":
    sys.exit(recorded(main))
