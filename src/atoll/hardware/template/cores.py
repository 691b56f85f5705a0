"""Configurations of tensor cores, and what prices matrix products on them.

A cost model fills one table: each distinct product of a search on each distinct configuration of
tensor cores. All else (vector work, schedules, placement, proof) is built on it. Bounds take peak
rates, so a model may be slower than those, never faster (`atoll.testing.check_cost_model`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from atoll.base.arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class TensorConfigs:
    """Distinct (cores, array, buffers, memory, clock) combinations. HBM's bandwidth and the clock
    are those that the kind of chip reaches (`stalls`)."""

    cores: Ints
    width: Ints
    depth: Ints
    core_buffer_bytes: Floats
    glb_budget_bytes: Floats
    glb_Bps: Floats
    hbm_Bps: Floats
    clock_Hz: Floats
    level_budget_bytes: Floats  # (configurations, further levels), the nearest first
    level_Bps: Floats
    fill_s: Floats  # before every round, of a core
    drained: Floats  # share of the outputs' way through the GLB for which cores wait
    exposed: Floats  # of the shorter of cores' and HBM time, what the longer does not hide

    @property
    def outer_budget_bytes(self) -> Floats:
        """Budget of the buffer next to HBM."""
        return self.level_budget_bytes[:, -1] if self.levels else self.glb_budget_bytes

    @property
    def levels(self) -> int:
        """Buffers between the shared one and HBM."""
        return int(self.level_Bps.shape[1])

    def __len__(self) -> int:
        return len(self.cores)


class ProductShape(NamedTuple):
    """A product: `batch` times m x k by k x n."""

    batch: int
    m: int
    n: int
    k: int
    fraction: float = 1.0
    """Share of the outputs that is computed (causal masks)."""
    extra_bytes: float = 0.0
    """HBM traffic that rides along: operands of a fused epilogue."""
    on_chip: bool = False
    """Whether its operands and output stay on the chip; its HBM traffic is then counted apart."""

    @property
    def macs(self) -> float:
        """Multiply-adds that are computed."""
        return self.batch * self.m * self.n * self.k * self.fraction


class ProductCosts(NamedTuple):
    """Cost of each product on each configuration: arrays (shapes, configurations)."""

    seconds: Floats
    """Maximum of compute and traffic time."""
    hbm_bytes: Floats
    glb_bytes: Floats
    """Through the shared buffer."""
    level_bytes: Floats | None = None
    """Through further buffers: (shapes, configurations, levels). None: there are none."""


Products = Callable[[Sequence[ProductShape], TensorConfigs], ProductCosts]
"""Prices products on configurations."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """A named cost model of products."""

    name: str
    products: Products
    floors: Products | None = None
    """Cheap lower bounds, with which a search skips exact pricing. Bytes are those that every
    configuration moves. None: no cheaper bound exists."""
