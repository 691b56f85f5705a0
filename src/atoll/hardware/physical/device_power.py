"""Watts of an existing device under load, and of a node of them, from its rating.

    power = idling + multiply-adds + bytes + vector operations, at most the limit

Each rate's watts at the device's peak are a share of its rating: vendors rate devices by what their
parts draw, so shares move little between them while joules follow process and memory. With random
data an H200 at its matrix peak would draw 1.6 times its rating: it is the clock that gives way.

Under a cap below its rating the clock of matrix units gives way further; memory keeps its bandwidth
until little more than its own interface can be fed (`Capped`).

Shares were fitted to 25 workloads of 3 to 6 s on one H200 at 700 W (time, mean power and clock);
hosts and waiting to MLPerf Training 4.0's node powers of 8, 64 and 512 H100.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from atoll.hardware.physical.constants import PUBLISHED, published
from atoll.hardware.physical.power import clock_share


@dataclass(frozen=True, slots=True)
class DevicePower:
    """Shares of a device's rating, and watts of what is around it."""

    idle: float
    running: float
    products: float
    zeros: float
    half_zeros: float
    dram: float
    interface: float
    feeding: float
    cache: float
    vector: float
    held: float
    host_W: float
    fans: float
    supply: float
    waiting: float
    pretraining_wait: float


H200_FIT = published(DevicePower)
SPEED_SPREAD = 0.015
"""Standard deviation of the speed of devices of one type over their mean, as each board reaches its
own clock at the power limit. Products differ by 8 % between the ends of box plots (5.4 standard
deviations) of five clusters (Sinha et al., "Not All GPUs Are Created Equal", SC 2022)."""


@lru_cache(maxsize=256)
def slowest_of(devices: int) -> float:
    """Return the expected time of the slowest of so many devices over the mean one's: the expected
    largest of n normal values is at the quantile (n - 3/8) / (n + 1/4) (Blom 1958)."""
    from statistics import NormalDist  # which single devices do not need

    quantile = (devices - 0.375) / (devices + 0.25) if devices > 1 else 0.5
    return 1 + SPEED_SPREAD * NormalDist().inv_cdf(quantile)


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device does, as shares of its peaks: matrix FLOPs, bytes, vector operations."""

    products: float = 0.0
    dram: float = 0.0
    cache: float = 0.0
    vector: float = 0.0
    data: str = "normal"  # what the operands hold: normal, small, half-zeros or zeros


def device_W(
    rated_W: float, rates: Rates, power: DevicePower = H200_FIT, *, cap_W: float | None = None
) -> float:
    """Mean power of a sustained load, capped as the device caps it."""
    switching = {"zeros": power.zeros, "half-zeros": power.half_zeros}.get(rates.data, 1.0)
    share = (
        power.running
        + power.products * switching * rates.products
        + power.dram * rates.dram
        + power.cache * rates.cache
        + power.vector * rates.vector
    )
    return min(rated_W * share, power.held * (rated_W if cap_W is None else cap_W))


@dataclass(frozen=True, slots=True)
class Capped:
    """A device under a cap, a share of its rating."""

    cap: float
    power: DevicePower = H200_FIT

    @property
    def drawn(self) -> float:
        """Share of the rating drawn when busy."""
        return self.power.held * self.cap

    def slowdown(self, rated: float) -> float:
        """Relative slowdown of a load under the cap, given its slowdown `rated` at the rating.

        Its dynamic power at the burst clock, D, is what made the clock give way to 1 / (1 + rated):
        idling + D f V(f)^2 is all that the rating allows there. The same D gives the clock here.
        """
        power, clock = self.power, 1 / (1 + rated)
        switched = clock * _voltage(clock) ** 2
        dynamic = (power.held - power.idle) / switched
        return 1 / float(clock_share(power.idle, dynamic, self.drawn)) - 1

    @property
    def least(self) -> float:
        """Share of the rating drawn before any data moves or multiplies."""
        power = self.power
        clocked = power.feeding * _voltage(power.feeding) ** 2
        return power.idle + (power.running - power.idle) * clocked

    @property
    def bandwidth(self) -> float:
        """Share of the DRAM bandwidth available under the cap, at the lowest sufficient clock."""
        power = self.power
        ways = (1 - power.interface) * _voltage(power.feeding) ** 2
        return min(1.0, (self.drawn - self.least) / (power.dram * (power.interface + ways)))


def _voltage(clock: float) -> float:
    """Voltage relative to nominal at a share of the burst clock."""
    return PUBLISHED.threshold + (1 - PUBLISHED.threshold) * clock


def training_W(
    rated_W: float, busy: float, cap_W: float | None = None, power: DevicePower = H200_FIT
) -> float:
    """Mean power of a device in training: busy at its limit, or waiting for others."""
    drawn = power.held * (rated_W if cap_W is None else cap_W)
    return busy * drawn + (1 - busy) * min(drawn, power.running * rated_W)


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """Devices of a node and their load."""

    devices: int  # total over all nodes
    per_node: int
    limit_W: float
    fixed_batch: bool  # fine-tuning with a batch that does not grow with the devices
    at_wall: bool
    in_liquid: bool


def node_W(load: NodeLoad, power: DevicePower = H200_FIT) -> float:
    """Mean power of one node in training: devices busy at their cap or waiting, host, fans."""
    nodes = load.devices / load.per_node
    busy = nodes**-power.waiting if load.fixed_batch else 1.0
    if nodes > 1 and not load.fixed_batch:
        busy = 1 - power.pretraining_wait
    device = training_W(load.limit_W, busy, power=power)
    inside = load.per_node * device + power.host_W * load.per_node / 8
    inside *= 1.0 if load.in_liquid else 1 + power.fans
    return inside / power.supply if load.at_wall else inside
