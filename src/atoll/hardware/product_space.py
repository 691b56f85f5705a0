"""A space as its lists and limits, not built: for spaces too large to hold in memory at once.

Designs are identified by their position in the full product, before constraints, and built on
demand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from pydantic import JsonValue

from atoll.base.arrays import Ints
from atoll.base.errors import InfeasibleError
from atoll.hardware.accelerator import GlbBandwidth, Hbm
from atoll.hardware.physical.nodes import RETICLE_MM2
from atoll.hardware.space import (
    NO_LIMITS,
    DesignAxes,
    DesignLimits,
    DesignSpace,
    allowed_options,
    build_space,
    product_points,
)
from atoll.hardware.template.template import ChipTemplate

RESIDENT_POINTS = 500_000
"""Products of more points than this stay outside memory."""


@dataclass(frozen=True)
class ProductSpace:
    """The lists of a space, with what its designs must satisfy."""

    name: str
    axes: DesignAxes
    hbm_options: tuple[Hbm, ...]
    glb_bandwidth: GlbBandwidth
    limits: DesignLimits = NO_LIMITS
    topologies: tuple[str, ...] = ()
    """Topologies tried where chips differ in their links (`fabric.topology`)."""

    def __len__(self) -> int:
        """Points of the product, before its constraints."""
        return self.axes.points

    @property
    def template(self) -> ChipTemplate:
        return self.axes.template

    @property
    def reticle_mm2(self) -> float:
        """Silicon of as many reticles as a chip of the space has dies, at most."""
        return RETICLE_MM2 * max(self.axes.values.get("dies", (1,)))

    @property
    def resident(self) -> bool:
        """Whether the space is small enough to be built at once."""
        return self.axes.points <= RESIDENT_POINTS

    def build(self) -> DesignSpace:
        """Every design at once."""
        return build_space(self.name, self.axes, self.hbm_options, self.glb_bandwidth, self.limits)

    def designs(self, flat: Ints) -> tuple[DesignSpace, Ints]:
        """Build the designs at these points that satisfy the limits, with their positions."""
        space = product_points(self.name, self.axes, self.hbm_options, self.glb_bandwidth, flat)
        space = replace(space, hbm_allowed=allowed_options(space, self.limits))
        allowed = np.flatnonzero(space.hbm_allowed.any(axis=1))
        return space.subset(allowed), flat[allowed]

    def values(self, place: int) -> dict[str, float]:
        """The parameters of the design at this point."""
        return self.designs(np.array([place]))[0].values(0)

    def place(self, values: Mapping[str, float]) -> int:
        """The point with these parameters."""
        at = [self.axes.values[name].index(values[name]) for name in self.axes.names]
        return int(np.ravel_multi_index(at, [len(listed) for listed in self.axes.lists()]))

    def part(self, values: Mapping[str, tuple[float, ...]]) -> ProductSpace:
        """Return the space with other lists."""
        return replace(self, axes=replace(self.axes, values=values))

    def corner(self, pick: Callable[[Any], Any]) -> DesignSpace:
        """The one point with the least (`min`) or the most (`max`) of everything, unconstrained."""
        ends = {name: (pick(values),) for name, values in self.axes.values.items()}
        first = np.zeros(1, np.int64)
        axes = self.part(ends).axes
        return product_points(self.name, axes, self.hbm_options, self.glb_bandwidth, first)

    def sample(self, count: int, seed: int) -> DesignSpace:
        """Designs drawn at random, in the order of the product; fewer where few satisfy."""
        rng = np.random.default_rng(seed)
        places: list[Ints] = []
        total = 0
        for _ in range(64):
            flat = np.unique(rng.integers(0, len(self), size=max(4 * count, 4096)))
            places.append(self.designs(flat)[1])
            total += len(places[-1])
            if total >= count:
                break
        drawn = np.unique(np.concatenate(places))
        if len(drawn) == 0:
            raise InfeasibleError(
                f"space {self.name}: none of many points drawn at random satisfies its "
                "constraints; loosen one."
            )
        chosen = np.sort(rng.choice(drawn, size=min(count, len(drawn)), replace=False))
        return self.designs(chosen)[0]

    def identity(self) -> dict[str, JsonValue]:
        """Describe the space as plain data, for identities."""
        return {
            "template": self.template.name,
            "axes": {name: list(values) for name, values in self.axes.values.items()},
            "hbm": [asdict(option) for option in self.hbm_options],
            "glb_bandwidth": asdict(self.glb_bandwidth),
            "limits": asdict(self.limits),
            "topologies": list(self.topologies),
            "defects": [list(density) for density in self.template.defects],
        }
