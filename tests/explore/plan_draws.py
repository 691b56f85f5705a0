"""Random searches of one chip, and plans on it; half of the models have alternating blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import atoll
from atoll.base.errors import AtollError
from workload.small_families import given

ALTERNATING = ("gpt_oss", "gemma3_text", "llama4_text", "modernbert", "qwen3_next", "bamba")
PLAIN = ("olmo2", "granite", "glm4", "olmoe", "starcoder2", "seed_oss")
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "head_dim": 32}
CHIP = """
name: one chip
tensor_cores: {cores}
vector_cores: {cores}
width: 64
depth: 64
glb: 16 MiB
hbm: [{{ capacity: {GiB} GiB, bandwidth: {GBps} GB/s }}]
"""
NETWORK = """
name: drawn
source: drawn for a test
levels:
  - {{ name: inner, devices: {node}, bandwidth: {inner} GB/s, latency: {latency} us }}
  - {{ name: outer, devices: 1048576, bandwidth: {outer} GB/s, latency: {latency} us }}
"""


def compare(
    seed: int, folder: Path, *, every_layout: bool = False
) -> tuple[float, float, str] | None:
    """Return the plan's step and the search's bound on it in seconds, with what was drawn; none
    where nothing fits. With `every_layout`, of a plan over all layouts and the bound on those.
    """
    draw = np.random.default_rng(seed)
    family = str(draw.choice(ALTERNATING if seed % 2 else PLAIN))
    model = folder / "config.json"
    wide = {} if family == "bamba" else WIDE  # whose heads of state spaces have their own sizes
    model.write_text(json.dumps(given(family, **wide)), encoding="utf-8")
    space, network = folder / "space.yaml", folder / "network.yaml"
    cores, GiB = int(draw.choice([4, 16])), float(draw.choice([0.25, 1, 16]))
    space.write_text(CHIP.format(cores=cores, GiB=GiB, GBps=int(draw.choice([100, 1000]))))
    drawn = {
        "node": int(draw.choice([2, 4])), "inner": float(draw.choice([4.3, 50])),
        "outer": float(draw.choice([0.5, 4.3, 25])), "latency": float(draw.choice([0.1, 5])),
    }  # fmt: skip
    network.write_text(NETWORK.format(**drawn))
    asked: dict[str, Any] = {
        "devices": int(draw.choice([4, 6, 8])), "batch": int(draw.choice([8, 24])),
        "sequence": int(draw.choice([128, 512])), "microbatch": [1, 2], "tp": [1, 2], "cp": [1, 2],
        "network": str(network),
    }  # fmt: skip
    try:
        found = atoll.search(
            model=str(model),
            space=str(space),
            baselines=False,
            out=folder / "out",
            tolerance=0.02,
            **asked,
        )
        chip = str(folder / "out" / "chip.yaml")
        if every_layout:
            for axis in ("microbatch", "tp", "cp"):
                del asked[axis]
        plan = atoll.plan(str(model), chip, optimizer="mixed", **asked)
    except AtollError as error:
        assert "fit" in str(error), error
        return None
    words = f"{family}, {cores} cores, {GiB} GiB, {drawn}, {asked}: {plan.fastest.layout}"
    proof = found.certificate
    bound = proof.peak_bound if every_layout else proof.bound
    return plan.fastest.step.time_s, asked["batch"] / bound, words
