"""How far from its bound the search ends, how long it takes, and how far the replay is from it.

    python benchmarks/wafer_gaps.py [--model NAME] [--wafers NAME ...] [--batches N ...]

Every wafer at every batch; `NAME/10` is a wafer with links a tenth as fast. Processor time is that
of the whole search with its bound; the replay follows every message and piece
(`wafer/link_replay.py`). The last column: mappings with stages of one shape. SIGINT or
SIGTERM ends it after the last whole row.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from dataclasses import replace
from itertools import product

from atoll.base.errors import InfeasibleError
from atoll.hardware.wafer import Wafer
from atoll.hardware.wafer_files import load_wafer
from atoll.questions import WaferQuestion
from atoll.wafer.encoding.codes import log10_mappings
from atoll.wafer.job import options_of, tokens_of
from atoll.wafer.link_replay import replay_mapping
from atoll.wafer.search import QUICK_CODES, WaferSearch
from atoll.wafer.staging.planner import MANY_CODES, MICROBATCHES
from record import figure, processor_s, recorded

WAFERS = ("temp-like", "default", "dojo-tile", "cs-2", "cs-3", "watos-like", "default/10")


def wafer_of(name: str) -> Wafer:
    base, _, slower = name.partition("/")
    wafer = load_wafer(base)
    return replace(wafer, stated_link_Bps=wafer.link_Bps / float(slower)) if slower else wafer


def row(name: str, model: str, batch: int) -> tuple[str, float, float]:
    """The row of a table, its gap and the difference of the replay."""
    wafer = wafer_of(name)
    job = WaferQuestion.of(wafer=name.partition("/")[0], model=model, batch=batch)
    options, tokens = options_of(job, wafer), tokens_of(job)
    codes = QUICK_CODES if wafer.sram_memory else MANY_CODES
    began, clock = processor_s(), time.perf_counter()
    search = WaferSearch(wafer, model, batch, tokens, options, most_codes=codes)
    try:
        found = search.run()
    except InfeasibleError:
        return f"| {name} | {batch} | does not fit | | | | | | |", 0.0, 0.0
    taken, seconds = processor_s() - began, time.perf_counter() - clock
    best = found.best
    replay = replay_mapping(wafer, best)
    mapping = best.mapping
    size = log10_mappings(wafer, model, batch, tokens, options.homes, MICROBATCHES)
    return (
        f"| {name} | {batch} | {best.samples_per_s:.2f} | {found.gap:.1%} | "
        f"{len(mapping.stages)} x {mapping.stages[0].rectangle.size} dies, "
        f"microbatch {mapping.microbatch} | {taken:.0f} | {seconds:.0f} | "
        f"{replay.difference:+.2%} | 10^{size:.0f} |",
        found.gap,
        abs(replay.difference),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama2-70b")
    parser.add_argument("--wafers", nargs="*", default=WAFERS)
    parser.add_argument("--batches", nargs="*", type=int, default=(16, 128))
    given = parser.parse_args()
    print("| wafer | batch | samples/s | gap | stages | processor s | s | replay | mappings |")
    print("|---|---|---|---|---|---|---|---|---|")
    gaps, replays = [0.0], [0.0]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background else
    with contextlib.suppress(KeyboardInterrupt):
        for name, batch in product(given.wafers, given.batches):
            words, gap, replay = row(name, given.model, batch)
            print(words, flush=True)
            gaps.append(gap)
            replays.append(replay)
    figure("largest gap", max(gaps))
    figure("largest difference of the replay", max(replays))


if __name__ == "__main__":
    sys.exit(recorded(main))
