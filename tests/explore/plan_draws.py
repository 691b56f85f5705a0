"""Random searches of one chip, and plans on it; half of the models have alternating blocks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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

SCOPES = ("searched lists", "every layout")


class Comparison(NamedTuple):
    """A plan's step and the search's bound on it, with what was drawn."""

    scope: str
    """Which layouts were planned over, and are bounded."""
    step_s: float
    bound_s: float
    words: str


def compare(seed: int, folder: Path, scopes: Sequence[str] = SCOPES) -> list[Comparison]:
    """Search a chip once, and plan on it in each scope; without the plans that fit nothing."""
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
    except AtollError as error:
        assert "fit" in str(error), error
        return []
    chip, proof = str(folder / "out" / "chip.yaml"), found.certificate
    compared = []
    for scope in scopes:
        axes = () if scope == "searched lists" else ("microbatch", "tp", "cp")
        restricted = {name: value for name, value in asked.items() if name not in axes}
        try:
            plan = atoll.plan(str(model), chip, optimizer="mixed", **restricted)
        except AtollError as error:
            assert "fit" in str(error), error
            continue
        bound = proof.bound if scope == "searched lists" else proof.peak_bound
        words = f"{family}, {cores} cores, {GiB} GiB, {drawn}, {restricted}: {plan.fastest.layout}"
        compared.append(Comparison(scope, plan.fastest.step.time_s, asked["batch"] / bound, words))
    return compared
