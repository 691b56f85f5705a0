"""Jobs on which a search once lost to its own restriction: what it finds now.

    python benchmarks/wafer_former.py [--optimizers NAME ...] [--jobs N ...] [--limit SECONDS]

`asked` is what a restricted search found then, with states of 16 bytes a parameter (`mixed16`);
`mixed` has 18. Processor time is that of the whole search with its bound; a
search that was ended by the limit on it (`*`) has the bound that was known by then. SIGINT
or SIGTERM ends it after the last whole row.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from dataclasses import replace
from functools import partial
from itertools import product
from math import inf

from atoll.hardware.wafer import Wafer
from atoll.hardware.wafer_files import load_wafer
from atoll.step.states import load_states
from atoll.wafer.search import WaferSearch
from atoll.wafer.staging.planner import WaferOptions
from record import figure, processor_s, recorded


def scarce() -> Wafer:
    """The default wafer with links of 127.5 GB/s and 30 GiB a die."""
    wafer = load_wafer("default")
    stack = replace(wafer.stack, capacity_bytes=30 * 2**30 // wafer.stacks)
    return replace(wafer, stated_link_Bps=127.5e9, stack=stack)


JOBS = (
    ("temp-like", load_wafer("temp-like"), "llama2-7b", 16, 191.0),
    ("temp-like", load_wafer("temp-like"), "llama2-70b", 16, 27.9),
    ("default, 127.5 GB/s, 30 GiB", scarce(), "llama2-70b", 128, 11.5),
)


def spent(until_s: float) -> bool:
    return processor_s() > until_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--optimizers", nargs="*", default=("mixed16", "mixed"))
    parser.add_argument("--jobs", nargs="*", type=int, default=tuple(range(len(JOBS))))
    parser.add_argument("--limit", type=float, default=inf, help="processor seconds of a search")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background else
    print("| wafer | model | batch | states | asked | samples/s | gap | stages | processor s |")
    print("|---|---|---|---|---|---|---|---|---|")
    with contextlib.suppress(KeyboardInterrupt):
        for optimizer, number in product(given.optimizers, given.jobs):
            name, wafer, model, batch, asked = JOBS[number]
            began = processor_s()
            options = WaferOptions(states=load_states(optimizer))
            stop = partial(spent, began + given.limit)
            search = WaferSearch(wafer, model, batch, 4096, options, stop=stop)
            found = search.run()
            mapping = found.best.mapping
            print(
                f"| {name} | {model} | {batch} | {optimizer} | {asked} | "
                f"{found.best.samples_per_s:.2f} | {found.gap:.1%} | {len(mapping.stages)} x "
                f"{mapping.stages[0].rectangle.size} dies, microbatch {mapping.microbatch} | "
                f"{processor_s() - began:.0f}{'*' if found.stopped else ''} |",
                flush=True,
            )
            figure(f"{name}, {model}, {optimizer}", found.best.samples_per_s)


if __name__ == "__main__":
    sys.exit(recorded(main))
