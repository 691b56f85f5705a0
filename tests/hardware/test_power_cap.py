"""Devices held below their rating: the clock gives way, memory last, and plans stay proven."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.base.errors import AtollError
from atoll.cost.gpu_gemm import fastest_flops, gemm_times_s
from atoll.hardware.device import load_device
from atoll.hardware.gpu import load_gpu
from atoll.hardware.physical.device_power import Capped, training_W
from atoll.hardware.silicon.chip import peak_power_W

SMALL = {"model": "llama2-7b", "device": "a100-80", "devices": 8, "batch": 64}


def test_at_its_rating_nothing_changes() -> None:
    for name in ("h200", "h100", "a100-80", "mi300x"):
        gpu = load_gpu(name)
        assert gpu.power_W is not None and gpu.capped(gpu.power_W) == gpu
        held = gpu.capped(gpu.power_W * (1 - 1e-12))
        assert fastest_flops(held, "bf16") == pytest.approx(fastest_flops(gpu, "bf16"), rel=1e-9)
        assert held.hbm_Bps == gpu.hbm_Bps


@given(st.floats(0.2, 1.0), st.floats(0.2, 1.0), st.floats(0.0, 0.5))
def test_a_lower_cap_is_slower_and_hotter_loads_lose_more_clock(
    cap: float, other: float, rated: float
) -> None:
    low, high = Capped(min(cap, other)), Capped(max(cap, other))
    assert low.slowdown(rated) >= high.slowdown(rated) - 1e-9 >= rated - 2e-9
    assert low.bandwidth <= high.bandwidth <= 1
    assert low.slowdown(rated) >= low.slowdown(rated / 2) - 1e-9


def test_one_silicon_at_two_ratings_is_predicted_within_a_percent() -> None:
    """MI300X and MI325X: best products of 668.4 TFLOP/s at 750 W and 784.9 at 1,000 W (stas00,
    ml-engineering, MAMF).
    """
    full = load_gpu("mi325x")
    held = full.capped(750.0)
    ratio = fastest_flops(held, "bf16") / fastest_flops(full, "bf16")
    assert ratio == pytest.approx(668.4 / 784.9, rel=0.01)


def test_an_a100_in_products_has_the_clock_that_was_measured() -> None:
    """1,275 to 1,335 MHz of 1,410 at 400 W in large products (public telemetry of an A100)."""
    clock = 1.41e9 / (1 + load_gpu("a100-40").calibration.limit_throttle)
    assert clock == pytest.approx(1.305e9, rel=0.03)


def test_half_of_the_power_gives_more_tokens_a_joule() -> None:
    """CARAML (SC-W 2024): of NVIDIA's devices the H100 at 350 W has most tokens per Wh."""
    full, half = (
        atoll.estimate("llama3-8b", "h100", 8, batch=64, zero=3, power_cap=cap)
        for cap in (None, 350.0)
    )
    assert full.energy_per_token_J and half.energy_per_token_J
    assert 1.1 < full.energy_per_token_J / half.energy_per_token_J < 1.4
    assert 0.5 < full.step.time_s / half.step.time_s < 0.8


def test_streams_keep_their_bandwidth_longer_than_products_their_clock() -> None:
    gpu, held = load_gpu("h200"), load_gpu("h200").capped(500.0)
    assert held.stream_Bps == gpu.stream_Bps
    slower = gemm_times_s(held, 8192, 8192, 8192, sustained=True) / gemm_times_s(
        gpu, 8192, 8192, 8192, sustained=True
    )
    assert slower == pytest.approx(1.2, abs=0.03)
    assert load_gpu("h200").capped(300.0).stream_Bps < gpu.stream_Bps


def test_a_device_that_waits_draws_less() -> None:
    assert training_W(700, 1.0) == pytest.approx(690, abs=1)
    assert training_W(700, 0.5, 500) < training_W(700, 0.5) < training_W(700, 1.0)


@pytest.mark.parametrize(
    ("device", "cap", "said"),
    [
        ("h200", "90 W", "draws 118 W before anything moves"),
        ("h200", "800 W", "is rated 700 W"),
        ("tpu-v5p", "100 W", "has no rated power"),
        ("physical-tpuv4", "10 W", "is not between"),
    ],
)
def test_a_cap_that_cannot_be_is_refused_in_words(device: str, cap: str, said: str) -> None:
    with pytest.raises(AtollError, match=said):
        atoll.estimate("gpt2-xl", device, 8, batch=64, power_cap=cap)


def test_a_chip_runs_at_the_clock_that_keeps_to_the_cap() -> None:
    chip = load_device("physical-tpuv4")
    most_W = peak_power_W(chip.accelerator)
    held = chip.capped(0.8 * most_W)
    assert 0.79 * most_W < peak_power_W(held.accelerator) <= 0.8 * most_W
    assert held.clock_Hz < chip.clock_Hz


def test_a_capped_plan_is_the_best_of_all_layouts() -> None:
    """Bounds follow the slower device: no layout estimated by itself is faster."""
    found = atoll.plan(**SMALL, power_cap=250.0, pp=1, cp=1, recompute="none", zero=[1, 3], ties=0)
    assert found.certificate.proven
    each = [
        atoll.estimate(**SMALL, power_cap=250.0, tp=tp, microbatch=micro, zero=zero)
        for tp in (1, 2, 4, 8)
        for micro in (1, 2, 4, 8)
        for zero in (1, 3)
    ]
    fastest_s = min(one.step.time_s for one in each if one.fits)
    assert found.fastest.step.time_s <= fastest_s * (1 + 1e-9)
    steps = [atoll.plan(**SMALL, power_cap=cap, pp=1, cp=1).best.step for cap in (400, 300, 200)]
    assert all(a.time_s < b.time_s for a, b in pairwise(steps))


@pytest.mark.parametrize("order", ["1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe"])
@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("batch", [32, 64])
def test_less_power_is_never_faster_though_the_host_sets_the_pace(
    order: str, model: str, batch: int
) -> None:
    """Of short sequences launches take longer than kernels: slower weight gradients must not leave
    less of the host's time in bubbles.
    """
    layout = {"tp": 2, "pp": 4, "sp": True, "order": order, "stack": "megatron", "sequence": 512}
    steps = [
        atoll.estimate(model, "h100", 16, batch=batch, power_cap=cap, **layout).step
        for cap in (700, 665, 630, 560, 490, 420, 350, 250)
    ]
    assert all(a.time_s <= b.time_s * (1 + 1e-12) for a, b in pairwise(steps))
    for step in steps:
        assert sum(step.breakdown().values()) == pytest.approx(step.time_s, rel=1e-9)
