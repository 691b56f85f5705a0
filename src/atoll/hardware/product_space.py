"""Spaces as lists and limits, built at once or, if too large for memory, point by point.

Designs are identified by their position in the full product, before constraints.

PHAZE's space may be widened for a larger area: beside its 29,360 designs comes every chip that is
larger than any of them and within the new budget, from finer and longer lists: with powers of two
alone, much of a budget between two of them could not be spent. A larger budget only adds designs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from pydantic import JsonValue

from atoll.base.arrays import Bools, Floats, Ints
from atoll.base.errors import AtollError, InfeasibleError
from atoll.hardware.accelerator import MIB, GlbBandwidth, Hbm
from atoll.hardware.area import area_mm2, glb_area_mm2
from atoll.hardware.physical.nodes import RETICLE_MM2
from atoll.hardware.silicon.systolic import SYSTOLIC
from atoll.hardware.space import (
    DEFAULT_GLB,
    HBM_BANDWIDTH_BPS,
    HBM_OPTIONS,
    DesignAxes,
    DesignLimits,
    DesignSpace,
    allowed_options,
    checks,
    template_axes,
)
from atoll.hardware.template.parameter import Columns
from atoll.hardware.template.template import ChipTemplate

MAX_POINTS = 20_000_000
_CHUNK_POINTS = 1 << 20  # bounds the memory of the points that the constraints will remove
RESIDENT_POINTS = 500_000  # products of more points than this stay outside memory
CLOCK = "clock_Hz"
CLOCK_STEP_HZ = 1e3  # clocks that a limit on power sets are rounded down to whole steps
NO_LIMITS = DesignLimits()


@dataclass(frozen=True)
class ProductSpace:
    """The lists of a space, with what its designs must satisfy."""

    name: str
    axes: DesignAxes
    hbm_options: tuple[Hbm, ...]
    glb_bandwidth: GlbBandwidth = DEFAULT_GLB
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
        """Build every design, at a listed clock, that satisfies the limits with an HBM option."""
        points, options = len(self), self.hbm_options
        if points == 0 or not options:
            raise AtollError(f"space {self.name} has an empty list for some parameter.")
        if points > MAX_POINTS:
            raise AtollError(
                f"space {self.name} has {points:,} points before its constraints, and at most "
                f"{MAX_POINTS:,} are allowed: shorten a list."
            )
        chunks: list[DesignSpace] = []
        removed: Counter[str] = Counter()
        smallest_mm2 = np.inf
        for start in range(0, points, _CHUNK_POINTS):
            chunk = self.points(np.arange(start, min(start + _CHUNK_POINTS, points)))
            smallest_mm2 = min([smallest_mm2, *(chunk.area_with(hbm).min() for hbm in options)])
            allowed = np.ones_like(chunk.hbm_allowed)
            for constraint, satisfied in checks(chunk, self.limits):
                removed[constraint] += int((~satisfied).sum())
                allowed &= satisfied
            chunk = replace(chunk, hbm_allowed=allowed)
            chunks.append(chunk.subset(np.flatnonzero(allowed.any(axis=1))))
        space = chunks[0].joined(*chunks[1:])
        if len(space) == 0:
            constraint, count = removed.most_common(1)[0]
            raise InfeasibleError(
                f"space {self.name} is empty: {constraint} alone removes {count:,} of its "
                f"{points * len(options):,} pairs of chip and HBM, and the smallest chip in it has "
                f"{smallest_mm2:.2f} mm2."
            )
        used = np.flatnonzero(space.hbm_allowed.any(axis=0))
        used_options = tuple(options[option] for option in used)
        return replace(space, hbm_options=used_options, hbm_allowed=space.hbm_allowed[:, used])

    def points(self, flat: Ints) -> DesignSpace:
        """Build the designs at these positions of the full product, unconstrained."""
        lists = [np.asarray(values) for values in self.axes.lists()]
        places = np.unravel_index(flat, [len(values) for values in lists])
        return self.machines(self.axes.columns(v[i] for v, i in zip(lists, places, strict=True)))

    def machines(self, numbers: Columns) -> DesignSpace:
        """Build designs from the template's machine columns, unconstrained."""
        columns = {**numbers, CLOCK: numbers[CLOCK].astype(np.float64)}
        banked, rule = self.template.banked, self.glb_bandwidth
        columns["glb_bandwidth_Bpc"] = (
            rule.bytes_per_clock(columns["glb_bytes"])
            if banked is None
            else banked.bytes_per_clock(columns)
        )
        return DesignSpace(
            name=self.name,
            columns=columns,
            area_mm2=self.template.area_mm2(columns),
            hbm_options=self.hbm_options,
            hbm_allowed=np.ones((len(columns[CLOCK]), len(self.hbm_options)), dtype=np.bool_),
            template=self.template,
        )

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
                return allowed_options(self.at_clocks(single.subset(rows), clock_Hz), limits)[:, 0]

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
        return replace(self, hbm_options=points.hbm_options).machines(listed)

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


SearchedSpace = DesignSpace | ProductSpace


def phaze_space(hbm_Bps: float | None = None, glb_Bpc: float | None = None) -> DesignSpace:
    """PHAZE's 29,360 designs, from its rule: 13 x 13 x 8 x 8 x 7 points filtered by area.

    The area budget is that of 8 tensor cores of 128x128, 2 vector cores of 128 and 128 MiB; a
    design below 0.3 of it stays only with a single tensor core or a single vector core. HBM of 32,
    64 or 80 GiB. PHAZE fixes the bandwidths of the HBM and of the shared buffer (bytes per clock);
    where they are not given, they are 1.2 TB/s and 128 bytes per clock and MiB.
    """
    budget_mm2 = float(area_mm2(8, 2, 128, 128, 128, 128 * MIB))
    bandwidth_Bps = hbm_Bps or HBM_BANDWIDTH_BPS
    return ProductSpace(
        name="phaze",
        axes=template_axes(SYSTOLIC),
        hbm_options=tuple(replace(option, bandwidth_Bps=bandwidth_Bps) for option in HBM_OPTIONS),
        glb_bandwidth=DEFAULT_GLB if glb_Bpc is None else GlbBandwidth(fixed_Bpc=glb_Bpc),
        limits=DesignLimits(
            max_area_mm2=budget_mm2, min_area_mm2=0.3 * budget_mm2, single_cores_may_be_smaller=True
        ),
    ).build()


# --- PHAZE's space beyond its budget --------------------------------------------------------------


# Lists are finer where a doubling would take much of the budget. Tensor cores: every number up to
# 16, then 18, 20, ... 32, 36, ...; shared buffers: 2, 4, 8, 16, then 24, 32, 48, 64, ... MiB;
# vector cores: powers of two.
_TENSOR_BITS = 4
_FINE_GLB_MIB = 16
_MOST_CORES = 4096
_MOST_GLB_MIB = 1 << 16  # far beyond a reticle


def widened_space(max_area_mm2: float) -> DesignSpace:
    """PHAZE's space, and beyond its largest chip everything up to this area."""
    default = phaze_space()
    largest_mm2 = float(default.area_mm2.max())
    budget_mm2 = min(max_area_mm2, RETICLE_MM2)
    if budget_mm2 <= largest_mm2:
        return default
    # The longest counts grow with the budget, by doublings.
    most = _MOST_CORES << int(np.ceil(np.log2(budget_mm2 / largest_mm2)))
    sides = tuple(int(side) for side in np.unique(default.width))
    coarse, fine = (round_numbers(_MOST_GLB_MIB, bits) for bits in (1, 2))
    sizes = {size for size in coarse if size > 1} | {size for size in fine if size > _FINE_GLB_MIB}
    glb_bytes = np.array(sorted(sizes)) * MIB
    larger = ProductSpace(
        name=default.name,
        axes=DesignAxes.with_defaults(
            tensor_cores=round_numbers(most, _TENSOR_BITS),
            vector_cores=round_numbers(most, 1),
            width=sides,
            depth=sides,
            glb_bytes=tuple(int(b) for b in glb_bytes[glb_area_mm2(glb_bytes) < budget_mm2]),
        ),
        hbm_options=default.hbm_options,
        limits=DesignLimits(
            min_area_mm2=float(np.nextafter(largest_mm2, np.inf)), max_area_mm2=budget_mm2
        ),
    )
    joined = default.joined(larger.build())
    return replace(joined, name=f"{default.name} widened to {budget_mm2:g} mm2")


def round_numbers(most: int, bits: int) -> tuple[int, ...]:
    """Whole numbers up to `most` that so many significant binary digits write."""
    shifts = range(most.bit_length())
    numbers = {digits << shift for digits in range(1, 1 << bits) for shift in shifts}
    return tuple(sorted(number for number in numbers if number <= most))
