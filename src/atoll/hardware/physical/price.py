"""What a device costs to make, and to own: silicon by yield, HBM, package; energy and network.

Dollars of making are the foundry's and the memory maker's prices: no design, masks, margin or
software, which do not tell one chip of a space from another. Each figure grows, or stays, with
area and memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from atoll.base.arrays import Floats
from atoll.fabric.topology import Topology
from atoll.hardware.physical.constants import published

_GIB, _GB = 2.0**30, 1e9
_HOURS_A_YEAR, _W_PER_KW = 8766.0, 1000.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Values of `constants.yaml`; a question gives others (`dataclasses.replace`)."""

    hbm_usd_per_GiB: float
    hbm_mm2_per_GiB: float
    interposer_usd_per_mm2: float
    bond_yield: float
    further_bond_yield: float
    network_usd: float
    port_usd_per_GBps: float
    optics_usd_per_GBps: float
    copper_usd_per_GBps: float
    network_W: float
    port_W_per_GBps: float
    optics_W_per_GBps: float
    years: float
    usd_per_kWh: float
    pue: float
    drawn: float


USUAL_PRICES = published(Prices)
_OPTICAL = 0.25  # share of a torus's cables that close its 4 x 4 x 4 cubes


def with_links(prices: Prices, topology: Topology, link_Bps: float, devices: int) -> Prices:
    """Set the network dollars and watts per device: shared cables, and for n switch layers 2 n - 1
    ports and n cables; joining domains costs the usual network. Copper cables draw no power."""
    if topology.switched:
        layers = topology.layers(devices)
        ports, copper, optics = 2.0 * layers - 1.0, 1.0, layers - 1.0
    else:
        ports, copper, optics = 0.0, (1 - _OPTICAL) / 2, _OPTICAL / 2
    usd_per_GBps = ports * prices.port_usd_per_GBps + copper * prices.copper_usd_per_GBps
    usd_per_GBps += optics * prices.optics_usd_per_GBps
    W_per_GBps = ports * prices.port_W_per_GBps + optics * prices.optics_W_per_GBps
    outside = 0.0 if topology.joins_all(devices) else 1.0
    return replace(
        prices,
        network_usd=outside * prices.network_usd + usd_per_GBps * link_Bps / _GB,
        network_W=outside * prices.network_W + W_per_GBps * link_Bps / _GB,
    )


def device_usd(
    dies_usd: ArrayLike,
    area_mm2: ArrayLike,
    hbm_bytes: float,
    prices: Prices = USUAL_PRICES,
    dies: ArrayLike = 1.0,
) -> Floats:
    """Cost of good dies and their HBM on an interposer, divided by the bonding yields."""
    memory_GiB = hbm_bytes / _GIB
    footprint_mm2 = np.asarray(area_mm2) + memory_GiB * prices.hbm_mm2_per_GiB
    package = footprint_mm2 * prices.interposer_usd_per_mm2
    parts_usd = np.asarray(dies_usd) + memory_GiB * prices.hbm_usd_per_GiB + package
    further = prices.further_bond_yield ** (np.asarray(dies, np.float64) - 1.0)
    return np.asarray(parts_usd / (prices.bond_yield * further))


def ownership_usd(
    device_usd: ArrayLike, peak_power_W: ArrayLike, prices: Prices = USUAL_PRICES
) -> Floats:
    """Cost of a device over its lifetime: purchase, network share, and energy of both; switches
    draw constant power."""
    mean_W = np.asarray(peak_power_W) * prices.drawn + prices.network_W
    kWh = mean_W / _W_PER_KW * _HOURS_A_YEAR * prices.years
    purchase_usd = np.asarray(device_usd, np.float64) + prices.network_usd
    return np.asarray(purchase_usd + kWh * prices.pue * prices.usd_per_kWh)
