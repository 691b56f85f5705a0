"""Throughput in as little memory as published: ours within AccPar's / 3.6 and DeepSpeed's / 3.1.

    python benchmarks/wafer_memory.py [workload ...]

A workload is model:batch:sequence on the default wafer. Our mappings minimise time within what a
die has; here it has only what the published ratios (TMAC) leave of what each method needs.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from atoll.errors import InfeasibleError
from atoll.hardware.wafer_files import load_wafer
from atoll.wafer.others.baselines import run_baseline
from atoll.wafer.search import WaferSearch
from record import recorded

WORKLOADS = ("llama2-7b:128:4096", "llama2-13b:128:4096", "llama2-70b:128:4096")
PUBLISHED = {"accpar": 3.6, "deepspeed": 3.1}


def main() -> None:
    wafer = load_wafer("default")
    for workload in sys.argv[1:] or WORKLOADS:
        model, batch, sequence = workload.rsplit(":", 2)
        asked = wafer, model, int(batch), int(sequence)
        others = {name: run_baseline(name, *asked) for name in PUBLISHED}
        for name, ratio in PUBLISHED.items():
            other = others[name]
            if other is None:
                continue
            limit = other.needed_bytes / ratio
            less = replace(
                wafer, stack=replace(wafer.stack, capacity_bytes=int(limit / wafer.stacks))
            )
            where = f"{workload}: {name} needs {other.needed_bytes / 2**30:.1f} GiB a die"
            try:
                found = WaferSearch(less, model, int(batch), int(sequence)).run()
            except InfeasibleError:
                print(f"{where}; the states alone do not fit {limit / 2**30:.1f} GiB", flush=True)
                continue
            beside = ""
            if other.samples_per_s is not None:
                beside = f", {found.best.samples_per_s / other.samples_per_s:.2f}x of it"
            print(
                f"{where}; ours in {found.best.memory_bytes / 2**30:.1f} GiB: "
                f"{found.best.samples_per_s:.2f}/s{beside}, gap {found.gap:.1%}",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(recorded(main))
