"""Clock of a device in a training step, by the mix of kernels that run.

A device at its power limit lowers its clock until the mean power of its kernels fits: products and
attention draw power by their FLOP rates, streaming kernels by their time. Rates and clocks of 45
steps on one H200 that the device limits (benchmarks/h200, half `fit`): the clock is met within
2.6 % (root mean square).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import log
from typing import NamedTuple

from atoll.hardware.gpu import Gpu
from atoll.hardware.physical.device_power import H200_FIT
from atoll.hardware.physical.power import clock_share


class KernelMix(NamedTuple):
    """Rates of a step's kernels over the time of all of them."""

    products: float
    """Computed FLOPs over those of the fastest products of a step; likewise `attention`."""
    attention: float
    streaming: float
    """Share of the time."""

    def times(self, share: float) -> KernelMix:
        """Return the rates over a longer time, of which these kernels take a share."""
        return KernelMix(*(share * rate for rate in self))

    def beside_streams(self, share: float) -> KernelMix:
        """Return the rates where streaming kernels take the rest of the time."""
        products, attention, streaming = self.times(share)
        return KernelMix(products, attention, streaming + 1 - share)


DYNAMIC_POWER = KernelMix(1.90, 2.20, 0.56)
"""Power at the boost clock beyond that of an idle device, as shares of the rating."""
PUBLISHED_MIX = KernelMix(0.83, 0.06, 0.05)
"""Mix of fused training software, on whose runs the slowdowns of the catalogue were fitted."""
BOOST_MHz: Mapping[str, float] = {"h100": 1980.0, "h200": 1980.0}
"""Boost clocks that devices reach."""
ATTENTION_CLOCK = 0.86
"""Clock under attention alone over the boost clock: 1.70 of 1.98 GHz on an H200."""


def dynamic_power(mix: KernelMix) -> float:
    """Return the power at the boost clock beyond that of an idle device, over the rating."""
    return sum(rate * power for rate, power in zip(mix, DYNAMIC_POWER, strict=True))


def clock_of_mix(mix: KernelMix) -> float:
    """Return the clock that the power limit leaves, over the boost clock."""
    return float(clock_share(H200_FIT.idle, dynamic_power(mix), H200_FIT.held))


def drawn_W(gpu: Gpu, mix: KernelMix, busy: float) -> float | None:
    """Return the mean power of one device whose kernels run for the share `busy` of the time and
    which else waits for its host, as an idle device does.
    """
    if gpu.power_W is None:
        return None
    limit_W = H200_FIT.held * (gpu.power_W if gpu.cap_W is None else gpu.cap_W)
    idle_W = H200_FIT.idle * gpu.power_W
    busy_W = min(limit_W, idle_W + gpu.power_W * dynamic_power(mix))
    return busy * busy_W + (1 - busy) * idle_W


PUBLISHED_CLOCK = clock_of_mix(PUBLISHED_MIX)


def in_step(gpu: Gpu, mix: KernelMix) -> Gpu:
    """Return the device with the slowdowns of products and attention in a step of this mix. The
    logarithm of a slowdown is proportional to that of the clock.
    """
    clock, fit = gpu.clock_share or clock_of_mix(mix), gpu.calibration
    products = log(clock) / log(PUBLISHED_CLOCK)
    attention = log(clock) / log(ATTENTION_CLOCK)
    forward, backward = (
        replace(part, throttle=(1 + fit.attention_throttle(part)) ** attention - 1)
        for part in (fit.forward, fit.backward)
    )
    throttle = (1 + fit.limit_throttle) ** products - 1
    calibration = replace(
        fit, step_throttle=throttle, forward=forward, backward=backward, step_attention=True
    )
    return replace(gpu, calibration=calibration)
