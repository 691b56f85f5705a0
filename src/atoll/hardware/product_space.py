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

from atoll.base.arrays import Bools, Floats, Ints
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
    template_designs,
)
from atoll.hardware.template.template import ChipTemplate

RESIDENT_POINTS = 500_000
"""Products of more points than this stay outside memory."""
CLOCK = "clock_Hz"
CLOCK_STEP_HZ = 1e3
"""Clocks that a limit on power sets are rounded down to whole steps."""


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
        """Every design at the clocks of the list."""
        return build_space(self.name, self.axes, self.hbm_options, self.glb_bandwidth, self.limits)

    def points(self, flat: Ints) -> DesignSpace:
        """Build the designs at these points, unconstrained."""
        return product_points(self.name, self.axes, self.hbm_options, self.glb_bandwidth, flat)

    def designs(self, flat: Ints) -> tuple[DesignSpace, Ints]:
        """Build the designs at these points that satisfy the limits, with their positions.

        Where a limit on power lies between the clock of a point and the next lower clock of the
        list, the design has the highest clock within the limit. This clock depends on the HBM, so
        that a point may be several designs, each with other HBM options.
        """
        space = self.points(flat)
        space = replace(space, hbm_allowed=allowed_options(space, self.limits))
        allowed = np.flatnonzero(space.hbm_allowed.any(axis=1))
        solved, places = self.solved_designs(flat, space)
        space = space.subset(allowed).joined(solved)
        places = np.concatenate([flat[allowed], places])
        order = np.argsort(places, kind="stable")
        return space.subset(order), places[order]

    def solved_designs(self, flat: Ints, points: DesignSpace) -> tuple[DesignSpace, Ints]:
        """Build the designs at clocks between those of the list, with their positions."""
        clocks_Hz = self._highest_clocks_Hz(points)
        row, option = np.nonzero(clocks_Hz)
        pairs, number = np.unique(
            np.column_stack([row, clocks_Hz[row, option]]), axis=0, return_inverse=True
        )
        rows = pairs[:, 0].astype(np.int64)
        solved = self.at_clocks(points.subset(rows), pairs[:, 1])
        allowed = np.zeros_like(solved.hbm_allowed)
        allowed[number.ravel(), option] = True
        allowed &= allowed_options(solved, self.limits)
        kept = np.flatnonzero(allowed.any(axis=1))
        return replace(solved, hbm_allowed=allowed).subset(kept), flat[rows[kept]]

    def _highest_clocks_Hz(self, points: DesignSpace) -> Floats:
        """Return the highest clock within the limits on power of each [point, HBM option] that
        breaks one.

        It is in whole steps above the next lower clock of the list; 0 if there is none, or the
        point breaks no limit. Power grows with the clock, so that bisection finds it.
        """
        limits = DesignLimits(
            max_area_mm2=self.limits.max_area_mm2,
            max_power_W=self.limits.max_power_W,
            max_W_per_mm2=self.limits.max_W_per_mm2,
        )
        clock_Hz, highest_Hz = points.columns[CLOCK], np.zeros(points.hbm_allowed.shape)
        if limits.max_power_W is None and limits.max_W_per_mm2 is None:
            return highest_Hz
        for option, hbm in enumerate(self.hbm_options):
            single = replace(
                points, hbm_options=(hbm,), hbm_allowed=points.hbm_allowed[:, option : option + 1]
            )
            rows = np.flatnonzero(~allowed_options(single, limits)[:, 0])
            lower_Hz = self._lower_clocks_Hz(clock_Hz[rows])

            def keeps(rows: Ints, clock_Hz: Floats, single: DesignSpace = single) -> Bools:
                slower = self.at_clocks(single.subset(rows), clock_Hz)
                return allowed_options(slower, limits)[:, 0]

            solvable = np.flatnonzero(lower_Hz > 0.0)
            solvable = solvable[keeps(rows[solvable], lower_Hz[solvable])]
            rows, lower_Hz = rows[solvable], lower_Hz[solvable]
            least, most = (np.floor(hz / CLOCK_STEP_HZ) for hz in (lower_Hz, clock_Hz[rows]))
            while (open_ := np.flatnonzero(least < most)).size:
                middle = np.ceil((least[open_] + most[open_]) / 2.0)
                fits = keeps(rows[open_], middle * CLOCK_STEP_HZ)
                least[open_] = np.where(fits, middle, least[open_])
                most[open_] = np.where(fits, most[open_], middle - 1.0)
            solved_Hz = least * CLOCK_STEP_HZ
            highest_Hz[rows, option] = np.where(solved_Hz > lower_Hz, solved_Hz, 0.0)
        return highest_Hz

    def _lower_clocks_Hz(self, clock_Hz: Floats) -> Floats:
        """Return the next lower clocks of the list, 0 where there is none."""
        listed_Hz = np.sort(np.array([0.0, *self.axes.values.get(CLOCK, ())]))
        place = np.searchsorted(listed_Hz, clock_Hz) - 1
        return np.asarray(listed_Hz[np.maximum(place, 0)])

    def at_clocks(self, points: DesignSpace, clock_Hz: Floats) -> DesignSpace:
        """Return the designs at other clocks, without limits."""
        columns = {**points.columns, CLOCK: clock_Hz}
        listed = self.axes.columns(columns[name] for name in self.axes.names)
        hbm_options, rule = points.hbm_options, self.glb_bandwidth
        return template_designs(self.name, self.template, listed, hbm_options, rule)

    def values(self, place: int) -> dict[str, float]:
        """The parameters of this point, with the clock of the list."""
        return self.points(np.array([place])).values(0)

    def design(self, place: int, clock_Hz: float) -> DesignSpace:
        """Build the design of this point that has this clock."""
        single = self.at_clocks(self.points(np.array([place])), np.array([clock_Hz]))
        return replace(single, hbm_allowed=allowed_options(single, self.limits))

    def place(self, values: Mapping[str, float]) -> int | None:
        """Return the point of the design with these parameters, None where there is none."""
        at = []
        for name in self.axes.names:
            listed, value = self.axes.values[name], values[name]
            if name == CLOCK:  # a clock between those of the list belongs to the next higher
                value = min((hz for hz in listed if hz >= value), default=value)
            if value not in listed:
                return None
            at.append(listed.index(value))
        return int(np.ravel_multi_index(at, [len(listed) for listed in self.axes.lists()]))

    def part(self, values: Mapping[str, tuple[float, ...]]) -> ProductSpace:
        """Return the space with other lists."""
        return replace(self, axes=replace(self.axes, values=values))

    def corner(self, pick: Callable[[Any], Any]) -> DesignSpace:
        """The one point with the least (`min`) or the most (`max`) of everything, unconstrained."""
        ends = {name: (pick(values),) for name, values in self.axes.values.items()}
        return self.part(ends).points(np.zeros(1, np.int64))

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
