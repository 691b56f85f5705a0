"""Models whose blocks alternate: a search cuts and prices them block by block, as a plan does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import atoll
from workload.small_families import FULL, SLIDING, given

SPACE = """
name: one chip
tensor_cores: 16
vector_cores: 16
width: 64
depth: 64
glb: 32 MiB
hbm: [{ capacity: 64 GiB, bandwidth: 1 TB/s }]
"""
SLOW = """
name: slow
source: drawn for a test
levels: [{ name: flat, devices: 1048576, bandwidth: 4.3 GB/s, latency: 0 s }]
"""
WIDE = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "head_dim": 64}


def model_file(folder: Path, family: str, **fields: Any) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(given(family, **WIDE, **fields)), encoding="utf-8")
    return str(path)


def searched(folder: Path, model: str, **asked: Any) -> atoll.SearchResult:
    """A search of one chip over a slow flat network; the folder out has the chip."""
    (folder / "space.yaml").write_text(SPACE, encoding="utf-8")
    (folder / "network.yaml").write_text(SLOW, encoding="utf-8")
    return atoll.search(
        model=model, space=str(folder / "space.yaml"), network=str(folder / "network.yaml"),
        devices=8, baselines=False, tolerance=0.01, out=folder / "out", **asked,
    )  # fmt: skip


@pytest.mark.slow
def test_a_pipeline_is_cut_between_blocks_of_a_period(tmp_path: Path) -> None:
    """Eight blocks that alternate make eight stages: with whole periods there would be four."""
    kinds = [SLIDING, FULL] * 4
    model = model_file(tmp_path, "gpt_oss", num_hidden_layers=8, layer_types=kinds)
    asked = {"batch": 32, "sequence": 512, "tp": 1, "cp": 1, "ep": 1, "microbatch": 1}
    asked |= {"optimizer": "mixed", "order": "zb-h2"}
    placement = searched(tmp_path, model, **asked).best.plans[0].placement
    plan = atoll.plan(model, str(tmp_path / "out" / "chip.yaml"), 8, **asked)
    assert placement.pipeline == plan.best.layout.pp == 8
    assert placement.step_time_s == pytest.approx(plan.best.step.time_s, rel=0.01)


@pytest.mark.parametrize(
    "family, fields, layout",
    [
        ("modernbert", {"num_hidden_layers": 6}, {"cp": 2, "ep": 1}),
        pytest.param("gpt_oss", {}, {"cp": 1, "ep": 8}, marks=pytest.mark.slow),
    ],
    ids=["a context ring", "experts"],
)
def test_every_block_of_a_period_sends_its_own_messages(
    family: str, fields: dict[str, Any], layout: dict[str, int], tmp_path: Path
) -> None:
    """Of a ring and of experts alike: with whole periods only the first block's were priced."""
    model = model_file(tmp_path, family, **fields)
    asked = {"batch": 16, "sequence": 512, "microbatch": 2, "tp": 1, "zero": 1, "order": "1f1b"}
    asked |= {"optimizer": "bf16", "recompute": "none", **layout}
    placement = searched(tmp_path, model, **asked).best.plans[0].placement
    step = atoll.estimate(
        model, str(tmp_path / "out" / "chip.yaml"), 8, pp=placement.pipeline, **asked
    ).step
    assert placement.step_time_s == pytest.approx(step.time_s, rel=0.01)
    for part, seconds in step.breakdown().items():
        if part in ("context_parallel", "expert_parallel"):
            assert placement.time_parts_s.get(part, 0.0) == pytest.approx(seconds, rel=1e-9)
    assert step.context_s + step.expert_s > 0
