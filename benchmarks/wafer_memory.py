"""Throughput in as little memory as published: ours within AccPar's / 3.6 and DeepSpeed's / 3.1.

    python benchmarks/wafer_memory.py [workload ...]

A workload is model:batch:sequence on the default wafer. Our mappings minimise time within what a
die has; here it has only what the published ratios (TMAC) leave of what each method needs. The
ratio is our throughput over the method's. SIGINT or SIGTERM ends it after the last whole row.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from dataclasses import replace
from itertools import product

from atoll.base.errors import InfeasibleError
from atoll.hardware.wafer_files import load_wafer
from atoll.wafer.baselines import run_baseline
from atoll.wafer.search import WaferSearch
from record import recorded

WORKLOADS = ("llama2-7b:128:4096", "llama2-13b:128:4096", "llama2-70b:128:4096")
PUBLISHED = {"accpar": 3.6, "deepspeed": 3.1}


def main() -> None:
    print(
        "| workload | method | needs, GiB | ours in, GiB | samples/s | ratio | gap | processor s |"
    )
    print("|---|---|---|---|---|---|---|---|")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background else
    with contextlib.suppress(KeyboardInterrupt):
        for workload, method in product(sys.argv[1:] or WORKLOADS, PUBLISHED):
            print(row(workload, method), flush=True)


def row(workload: str, method: str) -> str:
    wafer = load_wafer("default")
    model, batch, sequence = workload.rsplit(":", 2)
    began = time.process_time()
    other = run_baseline(method, wafer, model, int(batch), int(sequence))
    if other is None:
        return f"| {workload} | {method} | - | | | | | |"
    limit = other.needed_bytes / PUBLISHED[method]
    stack = replace(wafer.stack, capacity_bytes=int(limit / wafer.stacks))
    where = f"| {workload} | {method} | {other.needed_bytes / 2**30:.1f} "
    try:
        search = WaferSearch(replace(wafer, stack=stack), model, int(batch), int(sequence))
        found = search.run()
    except InfeasibleError:
        return f"{where}| states alone do not fit {limit / 2**30:.1f} | | | | |"
    rate, theirs = found.best.samples_per_s, other.samples_per_s
    return (
        f"{where}| {found.best.memory_bytes / 2**30:.1f} | {rate:.2f} | "
        f"{'-' if theirs is None else f'{rate / theirs:.2f}x'} | {found.gap:.1%} | "
        f"{time.process_time() - began:.0f} |"
    )


if __name__ == "__main__":
    sys.exit(recorded(main))
