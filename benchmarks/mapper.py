"""The GEMM mapper beside SCALE-Sim, ZigZag and Sunstone, and its speed, as Markdown.

    python benchmarks/mapper.py

The peers' figures were obtained by running them (versions below); docs/cost-model.md explains the
differences. Speeds are those of this machine: pairs of a product and a core configuration mapped
in a second, over PHAZE's whole space.
"""

from __future__ import annotations

import csv
import math
import os
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from atoll.cost.chips import chips_of_space
from atoll.cost.table import build_costs, flatten
from atoll.hardware.accelerator import GLB_BPC_PER_MIB, MIB, Accelerator, Hbm
from atoll.hardware.catalog import load_accelerator, load_network
from atoll.hardware.product_space import phaze_space
from atoll.profiles import PROFILES
from atoll.workload import load_config, prepare
from atoll.workload.graph.operator import Matmul
from record import recorded

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from oracles.mapping import Mapping, map_matmul

REFERENCE = load_accelerator("phaze-tpuv4")
SUNSTONE = Path(__file__).parents[1] / "tests" / "data" / "sunstone_gemm.csv"

# scalesim 3.0.0, weight stationary, 128 x 128: cycles of M x N x K; None: too slow to run.
SCALE_SIM = {
    (128, 128, 128): 509,
    (512, 512, 512): 14_303,
    (1024, 1024, 1024): 89_983,
    (100, 300, 200): 2_891,
    (256, 512, 256): 5_103,
    (4096, 4096, 4096): None,
}

# zigzag-dse 3.9.1, its tpu_like core at 128 x 128 with 24 MB of SRAM and 1000 B/cycle from DRAM,
# 2-byte words: latency_total2.
ZIGZAG = {
    (128, 128, 128): 417,
    (512, 512, 512): 13_067,
    (1024, 1024, 1024): 100_656,
    (4096, 4096, 4096): 8_423_777,
    (4096, 11008, 4096): 16_998_753,
}

MODELS = ("bert-large", "llama2-7b", "gpt3-175b")
RUNS = 3


def main() -> None:
    scale_sim()
    zigzag()
    sunstone()
    throughput()


def one_core(glb_bytes: int, glb_Bpc: float, hbm_Bpc: float) -> Accelerator:
    """One 128 x 128 array beside these memories."""
    return replace(
        REFERENCE,
        tensor_cores=1,
        glb_bytes=glb_bytes,
        glb_bandwidth_Bpc=glb_Bpc,
        hbm=Hbm(REFERENCE.hbm.capacity_bytes, hbm_Bpc * REFERENCE.clock_Hz),
    )


def cycles(mapping: Mapping) -> float:
    return mapping.time_s * REFERENCE.clock_Hz


def scale_sim() -> None:
    print("| M x N x K | SCALE-Sim v3 | its closed form | Atoll | Atoll / closed form |")
    print("|---|---|---|---|---|")
    chip = one_core(1 << 40, 1e12, 1e12)  # SCALE-Sim's count leaves out the memories
    for (m, n, k), simulated in SCALE_SIM.items():
        closed = -(-k // 128) * -(-n // 128) * (2 * 128 + 128 + m - 2) - 1
        ours = cycles(map_matmul(Matmul(1, m, n, k), chip))
        ran = "not run" if simulated is None else f"{simulated:,}"
        print(f"| {m} x {n} x {k} | {ran} | {closed:,} | {ours:,.0f} | {ours / closed:.2f} |")
    print()


def zigzag() -> None:
    print("| M x N x K | ZigZag | Atoll | of it compute | HBM bytes | order | Atoll / ZigZag |")
    print("|---|---|---|---|---|---|---|")
    glb_bytes = 24_000_000
    chip = one_core(glb_bytes, GLB_BPC_PER_MIB * glb_bytes / MIB, 1000.0)
    for (m, n, k), peer in ZIGZAG.items():
        mapping = map_matmul(Matmul(1, m, n, k), chip, glb_share=1.0)
        print(
            f"| {m} x {n} x {k} | {peer:,} | {cycles(mapping):,.0f} | "
            f"{mapping.compute_cycles:,.0f} | {mapping.hbm_bytes / 1e6:,.2f} MB | "
            f"{mapping.order} | {cycles(mapping) / peer:.2f} |"
        )
    print()


def sunstone() -> None:
    """Mean utilisation of each core configuration, and how much faster our mappings are."""
    rows = defaultdict(list)
    with SUNSTONE.open() as file:
        for row in csv.DictReader(file):
            product = Matmul(1, int(row["M"]), int(row["N"]), int(row["K"]))
            chip = replace(
                REFERENCE,
                tensor_cores=int(row["num_cores"]),
                width=int(row["core_width"]),
                depth=int(row["core_depth"]),
                glb_bytes=int(row["glb_bytes"]),
            )
            # Sunstone as PHAZE calls it: 256 (GLB) and 128 (DRAM) words of 2 bytes a cycle.
            seed = replace(chip, glb_bandwidth_Bpc=512.0, hbm=Hbm(1, 2 * 128 * REFERENCE.clock_Hz))
            free = replace(chip, glb_bandwidth_Bpc=GLB_BPC_PER_MIB * chip.glb_bytes / MIB)
            key = f"{chip.tensor_cores} x {chip.width}x{chip.depth}, {chip.glb_bytes // MIB} MiB"
            same = cycles(map_matmul(product, seed, glb_share=1.0))
            best = cycles(map_matmul(product, free))
            rows[key].append((float(row["ideal_cycles"]), float(row["cycles"]), same, best))
    print(
        "| cores, GLB | GEMMs | Sunstone util. | Atoll, same bandwidths | Atoll, default "
        "bandwidths | speed-up at the same bandwidths: least, mean, most |"
    )
    print("|---|---|---|---|---|---|")
    for key, found in rows.items():
        ideal, theirs, same, best = np.array(found).T
        gain = theirs / same
        mean = math.exp(np.log(gain).mean())
        print(
            f"| {key} | {len(found)} | {(ideal / theirs).mean():.1%} | {(ideal / same).mean():.1%} "
            f"| {(ideal / best).mean():.1%} | {gain.min():.1f}, {mean:.1f}, {gain.max():,.1f} |"
        )
    print()


def throughput() -> None:
    print("| profile | products | configurations | pairs | seconds | pairs per second |")
    print("|---|---|---|---|---|---|")
    for profile in PROFILES.values():
        space = phaze_space(profile.hbm_bandwidth_Bps, profile.glb_bandwidth_Bpc)
        chips = chips_of_space(space, profile)
        network = load_network(profile.network)
        models = [
            prepare(
                load_config(name),
                1,
                None,
                tensor,
                profile.sequence_parallel and tensor > 1,
                profile.attention,
                profile.fusion,
            )
            for name in MODELS
            for tensor in (1, 8)
        ]
        keys = flatten(layer for model in models for layer, _ in model.layers).keys
        keys = tuple(key for key in keys if key.operator.matmuls)
        products = len(
            {(replace(p, split=""), key.bytes) for key in keys for p in key.operator.matmuls}
        )
        build_costs(keys, chips.subset(np.arange(4)), network, profile)  # compile
        seconds = math.inf
        for _ in range(RUNS):
            start_s = time.perf_counter()
            build_costs(keys, chips, network, profile)
            seconds = min(seconds, time.perf_counter() - start_s)
        pairs = products * len(chips.tensor_configs)
        print(
            f"| {profile.name} | {products} | {len(chips.tensor_configs):,} | {pairs:,} | "
            f"{seconds:.2f} | {pairs / seconds:,.0f} |"
        )
    print(f"\n{os.cpu_count()} cores; {', '.join(MODELS)}, tensor widths 1 and 8.")


if __name__ == "__main__":
    sys.exit(recorded(main))
