"""The exact part beside brute force over all codes, homes and keeps of a block.

    python benchmarks/wafer_brute.py [model] [microbatch] [tokens]

On 2 x 2 and 2 x 3 dies of the default wafer, for several limits of memory. Minutes with a
microbatch of 2 (16 codes an operator), seconds with 1.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from atoll.fabric.digits import digit_systems
from atoll.hardware.wafer_files import load_wafer
from atoll.wafer.costs.die_pricer import die_pricer
from atoll.wafer.costs.tables import BlockTables, CostSetting
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.block_parts import SEARCHED_HOMES
from atoll.wafer.exact.block_solver import BlockSolver
from atoll.wafer.exact.limited_search import MemoryLimits
from record import recorded

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from oracles import wafer_brute as brute
from oracles.wafer_batch import Batch
from oracles.wafer_batch_kernels import KEPT, REBUILT, STATE
from oracles.wafer_genes import sample

LAYERS, IN_FLIGHT = 10, 8


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "llama2-7b"
    microbatch = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    tokens = int(sys.argv[3]) if len(sys.argv) > 3 else 4096
    wafer = load_wafer("default")
    for shape in ((2, 2), (3, 2)):
        block = make_block(model, microbatch, tokens)
        digits = digit_systems(*shape)[0]
        tables = BlockTables(block, digits, CostSetting(wafer, 128), die_pricer(wafer.chip))
        batch, exact = Batch(tables), BlockSolver(tables)
        cost = batch.evaluate(sample(batch, 5000, np.random.default_rng(0), SEARCHED_HOMES))
        memory = LAYERS * (cost[:, STATE] + IN_FLIGHT * cost[:, KEPT]) + cost[:, REBUILT]
        low, high = float(memory.min()), float(memory.max())
        shares = (1.0, 0.3, 0.15, 0.1, 0.05, 0.02, -0.2)
        limits = [MemoryLimits(low + share * (high - low)) for share in shares]
        began = time.process_time()
        expected = brute.fastest(batch, SEARCHED_HOMES, LAYERS, IN_FLIGHT, limits)
        tried = time.process_time() - began
        for limit, best in zip(limits, expected, strict=True):
            began = time.process_time()
            found = exact.solve(LAYERS, IN_FLIGHT, limit.local_bytes)
            ours = np.inf if found is None else found.cost.time_s
            same = ours == best or abs(ours - best) <= 1e-12 * best
            gib = limit.local_bytes / 2**30
            print(f"{shape[0]} x {shape[1]}, {gib:.1f} GiB: everything {best:.9g} s, "
                  f"exact part {ours:.9g} s ({time.process_time() - began:.2f} s of processor time)"
                  f"{'' if same else ' DIFFERENT'}", flush=True)  # fmt: skip
        print(f"brute force took {tried:.0f} s of processor time")


if __name__ == "__main__":
    sys.exit(recorded(main))
