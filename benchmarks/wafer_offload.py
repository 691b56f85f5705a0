"""What offload to stages with room is worth beside recomputation, on pipelines short of memory.

    python benchmarks/wafer_offload.py [--optimizer NAME]

Llama-2 70B on the default wafer with less memory a die; stages and microbatch given. Samples/s, and
how many stages leave tensors with another.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from atoll.fabric.mesh import snake
from atoll.hardware.wafer_files import load_wafer
from atoll.step.states import load_states
from atoll.wafer.encoding.block_parts import OPTIMIZER
from atoll.wafer.evaluate import evaluate
from atoll.wafer.staging.planner import Planner, WaferOptions
from record import figure, recorded

CASES = (
    (64, 4096, (2, 3, 8), 30),
    (64, 4096, (4, 3, 4), 26),
    (32, 16384, (2, 3, 8), 60),
    (32, 16384, (4, 3, 4), 36),
)
OPTIONS = {
    "both": WaferOptions(),
    "recomputation only": WaferOptions(offload=False),
    "offload only": WaferOptions(recompute=False),
    "neither": WaferOptions(recompute=False, offload=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--optimizer", default=OPTIMIZER)
    states = load_states(parser.parse_args().optimizer)
    default = load_wafer("default")
    print(f"| tokens, batch | stages | GiB per die | {' | '.join(OPTIONS)} |")
    print("|---" * (3 + len(OPTIONS)) + "|")
    for batch, sequence, (width, height, stages), gib in CASES:
        capacity = int(gib * 2**30 / default.stacks)
        wafer = replace(default, stack=replace(default.stack, capacity_bytes=capacity))
        cells = []
        for name, options in OPTIONS.items():
            planner = Planner(wafer, "llama2-70b", batch, sequence, replace(options, states=states))
            rectangles = snake(wafer.rows, wafer.columns, width, height, stages)
            assert rectangles is not None
            mapping = planner.plan(rectangles, 1)
            if mapping is None:
                cells.append("does not fit")
                continue
            senders = sum(stage.helper is not None for stage in mapping.stages)
            rate = evaluate(wafer, mapping).samples_per_s
            cells.append(f"{rate:.2f}" + (f" ({senders} senders)" if senders else ""))
            figure(f"{sequence}, {stages} stages, {name}", rate)
        where = f"| {sequence:,}, {batch} | {stages} of {width} x {height} | {gib} "
        print(f"{where}| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(recorded(main))
