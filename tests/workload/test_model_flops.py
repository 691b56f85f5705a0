"""One convention behind every MFU: what the model needs, never more than a device can do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import atoll
from atoll.base.units import format_mfu
from atoll.wafer.estimate import estimate_wafer
from atoll.workload import load_config
from atoll.workload.flops import model_flops

# One chip that products keep busy, with more bandwidth than they need.
SPACE = """
name: one
tensor_cores: [4]
vector_cores: [512]
width: [32]
depth: [32]
glb: [64 MiB]
hbm: [{capacity: 80 GiB, bandwidth: 8 TB/s}]
"""
LONG = 4096


def test_flops_are_those_of_the_literature_with_masked_attention_left_out() -> None:
    """6 a parameter that multiplies and token (PaLM, appendix B), and 12 s h a layer of attention,
    of which a causal mask leaves half; experts that are not visited do not count.
    """
    gpt3 = load_config("gpt3-175b")
    expected = 6 * (174_615_846_912 - 2048 * 12288) + 6 * 96 * 12288 * 2048
    assert model_flops(gpt3, 2048) / 2048 == pytest.approx(expected, rel=1e-3)
    mixtral = load_config("mixtral-8x7b")
    active = 12.88e9 - 32000 * 4096  # published active parameters, less the embedding
    expected = 6 * active + 6 * 32 * 4096 * 4096
    assert model_flops(mixtral, 4096) / 4096 == pytest.approx(expected, rel=0.01)


def test_attention_counts_where_the_mask_leaves_it() -> None:
    config = replace(load_config("llama2-7b"), layers=1)
    whole = replace(config, causal=False)
    square = 12 * 4096 * 4096 * LONG  # scores and values of all pairs, forward and backward
    products = model_flops(whole, LONG) - square * 1.0
    assert model_flops(config, LONG) == pytest.approx(products + square / 2 * (1 + 1 / LONG))
    windowed = replace(config, window=256)
    seen = 256 * 257 / 2 + (LONG - 256) * 256
    assert model_flops(windowed, LONG) == pytest.approx(products + square * seen / LONG**2)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Narrow, so that attention is most of its work at 4,096 tokens."""
    path = tmp_path / "narrow" / "config.json"
    path.parent.mkdir()
    fields = {
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4,
        "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 512,
        "vocab_size": 512, "max_position_embeddings": LONG, "tie_word_embeddings": False,
    }  # fmt: skip
    path.write_text(json.dumps(fields))
    return str(path)


def test_search_estimate_and_wafer_count_alike_and_stay_below_the_peak(
    model: str, tmp_path: Path
) -> None:
    flops = model_flops(load_config(model), LONG)
    space = tmp_path / "space.yaml"
    space.write_text(SPACE)
    found = atoll.search(
        model=model, devices=1, batch=16, sequence=LONG, microbatch=[1],
        tp=[1], space=str(space), baselines=False,
    )  # fmt: skip
    (chosen,) = found.best.plans
    peak = found.best.accelerator.peak_flops
    assert chosen.mfu == pytest.approx(chosen.samples_per_s * flops / peak)
    assert 0.6 < chosen.mfu <= 1.0

    run = atoll.estimate(model, "h100", 1, batch=16, sequence=LONG)
    peak = run.run.gpu.peak_flops("bf16")
    assert run.mfu == pytest.approx(16 * flops / run.step.time_s / peak)
    assert run.mfu <= 1.0

    job = tmp_path / "job.yaml"
    job.write_text(
        f"wafer: default\nmodel: {model}\nbatch: 16\nsequence: {LONG}\n"
        "layout: { rectangle: [1, 1], stages: 2, microbatch: 1 }\n"
    )
    wafer = estimate_wafer(job)
    assert wafer.mfu == pytest.approx(
        flops * wafer.evaluation.samples_per_s / wafer.wafer.peak_flops
    )
    assert wafer.mfu <= 1.0


def test_a_utilisation_above_one_says_of_which_peak() -> None:
    assert format_mfu(1.529) == "152.9% of the 16-bit peak"
    assert format_mfu(0.541) == "54.1%"
