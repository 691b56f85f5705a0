"""Prices that divide a score: dollars, watts, or total cost of ownership.

Each price is exact for a chip and does not decrease with any of its parameters or its memory. So
(bound on throughput) / price bounds the score of a chip; for a group of chips, the throughput bound
of the fastest corner / the price of the cheapest corner does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atoll.base.arrays import Floats
from atoll.base.errors import AtollError
from atoll.cost.chips import Chips
from atoll.fabric.topology import parse_linked_network
from atoll.hardware.accelerator import Hbm
from atoll.hardware.physical.price import (
    USUAL_PRICES,
    Prices,
    device_usd,
    ownership_usd,
    with_links,
)
from atoll.hardware.silicon.chip import dies_usd
from atoll.hardware.space import DesignSpace
from atoll.questions import SearchQuestion


@dataclass(frozen=True, slots=True)
class Per:
    """A quantity per device by which a score can be divided."""

    name: str
    unit: str
    device: Callable[[DesignSpace, Hbm, Prices], Floats]
    """Function that returns the quantity of each design of a space with an HBM."""
    priced: bool = True
    """Whether prices are needed, which only templates with a process have."""


def _usd(space: DesignSpace, hbm: Hbm, prices: Prices) -> Floats:
    area_mm2, dies = space.area_with(hbm), space.columns.get("dies", np.ones(1))
    silicon_usd = dies_usd(space.template, space.columns, area_mm2)
    return device_usd(silicon_usd, area_mm2, hbm.capacity_bytes, prices, dies)


def _watts(space: DesignSpace, hbm: Hbm, prices: Prices) -> Floats:
    return space.peak_power_with(hbm)


def _owned(space: DesignSpace, hbm: Hbm, prices: Prices) -> Floats:
    return ownership_usd(_usd(space, hbm, prices), space.peak_power_with(hbm), prices)


PERS = {
    per.name: per
    for per in (
        Per("dollar", "$", _usd),
        Per("watt", "W", _watts, priced=False),
        Per("tco", "$ of ownership", _owned),
    )
}


def price_of(job: SearchQuestion) -> Price | None:
    """Return the price that divides a job's throughput, or None."""
    if job.per is None:
        return None
    options = {
        "years": job.years,
        "usd_per_kWh": job.kwh_price,
        "pue": job.pue,
        "network_usd": job.network_price,
    }
    stated_prices = {name: value for name, value in options.items() if value is not None}
    prices = replace(USUAL_PRICES, **stated_prices)
    network = parse_linked_network(job.network or "")
    if network is not None:
        prices = with_links(prices, *network, job.devices)
    return Price(PERS[job.per], job.devices, prices)


@dataclass(frozen=True)
class Price:
    """Price of all devices of a job."""

    per: Per
    devices: int
    prices: Prices = USUAL_PRICES

    def of_designs(self, space: DesignSpace, hbm: Hbm) -> Floats:
        """Return the price of every design of a space with one HBM, shape (designs,)."""
        without = space.template.process_nm is None and "process_nm" not in space.columns
        if self.per.priced and without:
            raise AtollError(
                f"job: per: chips of template {space.template.name} have no price, as areas are "
                "not those of a process; take one of the physical model, such as physical-7nm."
            )
        return self.devices * self.per.device(space, hbm, self.prices)

    def of_chips(
        self, space: DesignSpace, chips: Chips, memories: Sequence[tuple[Hbm, ...]]
    ) -> Floats:
        """Return the prices of chips of a space, each with the memory that it has, (chips,)."""
        prices = np.empty(len(chips))
        for number, options in enumerate(memories):
            for hbm in options:
                chosen = (chips.memory == number) & (chips.hbm_capacity_bytes == hbm.capacity_bytes)
                prices[chosen] = self.of_designs(space, hbm)[chips.design[chosen]]
        return prices
