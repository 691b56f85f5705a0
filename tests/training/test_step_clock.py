"""The clock of a step follows the power of its kernels."""

from __future__ import annotations

import pytest

from atoll.hardware.gpu import load_gpu
from atoll.training.operators.step_clock import (
    PUBLISHED_MIX,
    KernelMix,
    clock_of_mix,
    drawn_W,
    in_step,
)


@pytest.mark.parametrize(
    ("products", "attention", "streaming", "measured_GHz"),
    [  # steps on one H200 with a boost clock of 1.98 GHz (benchmarks/h200, half `fit`)
        (0.21, 0.05, 0.62, 1.967),  # Qwen3 0.6B
        (0.40, 0.04, 0.41, 1.823),  # TinyLlama
        (0.34, 0.16, 0.30, 1.738),  # attention over 16k tokens
        (0.47, 0.02, 0.28, 1.797),  # ViT-L
        (0.59, 0.04, 0.26, 1.586),  # six blocks of Llama 3 8B
        (0.68, 0.04, 0.16, 1.541),  # two of Llama 3 70B
    ],
)
def test_clocks_of_measured_steps_are_met(
    products: float, attention: float, streaming: float, measured_GHz: float
) -> None:
    clock = 1.98 * clock_of_mix(KernelMix(products, attention, streaming))
    assert clock == pytest.approx(measured_GHz, rel=0.04)


def test_products_run_faster_beside_kernels_that_draw_less() -> None:
    gpu = load_gpu("h100")
    mixes = [KernelMix(p, 0.05, 0.95 - p) for p in (0.2, 0.5, 0.8, 0.95)]
    slowdowns = [in_step(gpu, mix).calibration.limit_throttle for mix in mixes]
    assert slowdowns == sorted(slowdowns)
    stated = in_step(gpu, PUBLISHED_MIX).calibration.limit_throttle
    assert stated == pytest.approx(gpu.calibration.limit_throttle)


@pytest.mark.parametrize(
    ("mix", "busy", "measured_W"),
    [  # one H200 of 700 W; shares of kernels in the time of a step
        (KernelMix(0.21, 0.05, 0.62), 0.14, 149),  # SmolLM 135M, whose host limits it
        (KernelMix(0.23, 0.01, 0.60), 0.17, 182),  # BERT of 4 x 128 tokens
        (KernelMix(0.68, 0.04, 0.16), 1.0, 692),
    ],
)
def test_a_device_draws_little_while_it_waits_for_its_host(
    mix: KernelMix, busy: float, measured_W: float
) -> None:
    watts = drawn_W(load_gpu("h200"), mix, busy)
    assert watts == pytest.approx(measured_W, rel=0.12)
