"""Mappings of a transformer block priced per second by the compiled evaluator, on all cores.

python benchmarks/wafer_evaluator.py [model] [columns] [rows]
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
from record import figure, recorded

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from oracles.wafer_batch import Batch
from oracles.wafer_genes import sample

COUNT = 200_000


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "llama2-70b"
    columns, rows = (int(v) for v in sys.argv[2:4]) if len(sys.argv) > 3 else (4, 2)
    wafer = load_wafer("default")
    digits = digit_systems(columns, rows)[0]
    tables = BlockTables(
        make_block(model, 1), digits, CostSetting(wafer, 128), die_pricer(wafer.chip)
    )
    batch = Batch(tables)
    genes = sample(batch, COUNT, np.random.default_rng(0), SEARCHED_HOMES)
    batch.evaluate(genes)
    rates = []
    for _ in range(5):
        began = time.perf_counter()
        batch.evaluate(genes)
        rates.append(COUNT / (time.perf_counter() - began))
    figure("mappings per s", float(np.median(rates)))
    print(
        f"{model} on {columns} x {rows} dies: {np.median(rates):,.0f} mappings per s (median of "
        f"5 runs of {COUNT:,}; best {max(rates):,.0f})"
    )


if __name__ == "__main__":
    sys.exit(recorded(main))
