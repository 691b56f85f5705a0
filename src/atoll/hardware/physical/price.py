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
from atoll.hardware.physical.constants import ranged
from atoll.hardware.physical.die import die_usd

_GIB, _GB = 2.0**30, 1e9
_HOURS_A_YEAR, _W_PER_KW = 8766.0, 1000.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Value, range and source of each; a question gives others (`dataclasses.replace`)."""

    hbm_usd_per_GiB: float = ranged(
        12.0, 7.0, 20.0, "market estimates: HBM2e 7 (2023), HBM3 10 to 13, HBM3e 13 to 20"
    )
    hbm_mm2_per_GiB: float = ranged(
        7.6, 3.4, 15.0, "of the interposer: stacks of 11 x 11 mm with 8 to 36 GiB, here 16"
    )
    interposer_usd_per_mm2: float = ranged(
        0.0274, 0.02, 0.06, "1,937 $ a wafer of 300 mm: Feng and Ma, DAC 2022"
    )
    bond_yield: float = ranged(0.95, 0.9, 0.99, "of die and stacks on it: Feng and Ma, DAC 2022")
    network_usd: float = ranged(
        2000.0, 500.0, 6000.0, "a device's ports, cables and switches: 400G list prices; assumed"
    )
    port_usd_per_GBps: float = ranged(
        4.0, 1.0, 10.0, "of a switch: half of network_usd, over 50 GB/s and five ports of a device"
    )
    optics_usd_per_GBps: float = ranged(
        6.7, 2.0, 20.0, "a cable between racks: the other half, over three of them"
    )
    copper_usd_per_GBps: float = ranged(1.0, 0.3, 2.0, "a cable inside of a rack; assumed")
    network_W: float = ranged(
        80.0, 30.0, 120.0,
        "of switches and optics, a device's part: five ports and three cables of 50 GB/s as below; "
        "116 in the log of 512 H100 (MLPerf Training 4.0, SMC)",
    )  # fmt: skip
    port_W_per_GBps: float = ranged(
        0.15, 0.08, 0.25,
        "of a switch: 913 W of 64 ports of 800 Gb/s without optics (UfiSpace S9321-64E, Tomahawk "
        "5); its chip alone 0.08; a leaf of MLPerf Training 4.1 (Dell) 686 W",
    )  # fmt: skip
    optics_W_per_GBps: float = ranged(
        0.3, 0.1, 0.6, "both ends of a cable: modules of 800 Gb/s, 15 W each; cages take up to 30"
    )
    years: float = ranged(5.0, 3.0, 6.0, "of use: depreciation of servers by Meta, Google, Amazon")
    usd_per_kWh: float = ranged(0.08, 0.04, 0.16, "industry in the USA, 2023: EIA")
    pue: float = ranged(
        1.2, 1.05, 1.6, "power of a site over its machines': Google 1.10, mean of all 1.58 (Uptime)"
    )
    drawn: float = ranged(
        0.8, 0.5, 1.0, "of a chip's peak power in training: what the model's own answers draw"
    )


USUAL_PRICES = Prices()
_OPTICAL = 0.25
"""Share of a torus's cables that close its 4 x 4 x 4 cubes."""


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
    area_mm2: ArrayLike, process_nm: ArrayLike, hbm_bytes: float, prices: Prices = USUAL_PRICES
) -> Floats:
    """Cost of a good die and its HBM on an interposer, divided by the bonding yield."""
    memory_GiB = hbm_bytes / _GIB
    footprint_mm2 = np.asarray(area_mm2) + memory_GiB * prices.hbm_mm2_per_GiB
    package = footprint_mm2 * prices.interposer_usd_per_mm2
    parts_usd = die_usd(area_mm2, process_nm) + memory_GiB * prices.hbm_usd_per_GiB + package
    return np.asarray(parts_usd / prices.bond_yield)


def ownership_usd(
    device_usd: ArrayLike, peak_power_W: ArrayLike, prices: Prices = USUAL_PRICES
) -> Floats:
    """Cost of a device over its lifetime: purchase, network share, and energy of both; switches
    draw constant power."""
    mean_W = np.asarray(peak_power_W) * prices.drawn + prices.network_W
    kWh = mean_W / _W_PER_KW * _HOURS_A_YEAR * prices.years
    purchase_usd = np.asarray(device_usd, np.float64) + prices.network_usd
    return np.asarray(purchase_usd + kWh * prices.pue * prices.usd_per_kWh)
