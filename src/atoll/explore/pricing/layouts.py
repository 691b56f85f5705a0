"""The layouts that a bound must consider, per variant.

For each variant: every stage count that can fit in memory, every number of microbatches per replica
that a data-parallel degree gives, and the part of the step that does not depend on the chip
(transfers between stages, gradient reduction, optimizer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.explore.pricing.planned.layout_list import AllowedLayouts
from atoll.explore.pricing.planned.layout_prices import PlannedLayouts, RunTerms, planned_layouts
from atoll.explore.pricing.workloads import Variant
from atoll.placement.chain import (
    Division,
    PlacementProblem,
    PricedLayouts,
    StepFloors,
    VariantTimes,
)
from atoll.placement.facts import ChainFacts
from atoll.profile import Profile

Row = tuple[float, ...]  # one layout, in the order of the fields of `StepFloors`


@dataclass(frozen=True, slots=True)
class PowerLimit:
    """Power limit of a device: in total, and per square millimetre of its die."""

    W: float = np.inf
    W_per_mm2: float = np.inf

    def of(self, area_mm2: Floats) -> Floats:
        """Return the limit in watts for dies of these areas."""
        return np.minimum(self.W, self.W_per_mm2 * area_mm2)

    def words(self) -> str:
        limits = ((self.W, "W"), (self.W_per_mm2, "W/mm2"))
        return " and ".join(f"{value:g} {unit}" for value, unit in limits if np.isfinite(value))


@dataclass(frozen=True, kw_only=True)
class SearchSetting(AllowedLayouts):
    """Settings shared by all chips and models of a search."""

    profile: Profile
    limit: PowerLimit | None = None
    """Limit on the mean power of a device during a pass; None: no limit."""

    def problem(self, variant: Variant, memory_bytes: float, hbm_Bps: float) -> PlacementProblem:
        return PlacementProblem(
            self.network, self.states, variant.facts, self.devices, variant.tp,
            variant.microbatches, memory_bytes, hbm_Bps, self.recompute, self._layouts(variant),
        )  # fmt: skip

    def _layouts(self, variant: Variant) -> PricedLayouts | None:
        if self.profile.placer is not None:
            return self.profile.placer
        key = variant.facts, variant.ep
        if key not in self._planned_layouts:
            self._planned_layouts[key] = planned_layouts(self, variant, self._runs)
        return self._planned_layouts[key]

    @cached_property
    def _planned_layouts(self) -> dict[tuple[ChainFacts, int], PlannedLayouts | None]:
        """Return the cache of `_layouts`."""
        return {}

    @cached_property
    def _runs(self) -> list[RunTerms]:
        """Return what variants of the same run share."""
        return []

    def place(
        self, problem: PlacementProblem, times: VariantTimes, cutoff_s: float = np.inf
    ) -> Division | None:
        """Return the fastest placement below the cutoff; None if none or if a layer cannot run."""
        return problem.fastest(times, cutoff_s) if np.isfinite(times.pass_s).all() else None


class Layouts(NamedTuple):
    """Layouts of all variants as flat arrays for the kernels: rows ptr[v]:ptr[v + 1] are v's."""

    ptr: Ints
    floors: StepFloors


def list_layouts(
    variants: Sequence[Variant],
    setting: SearchSetting,
    memory_bytes: float,
    hbm_Bps: float,
    least_layer_s: Sequence[Floats],
) -> Layouts:
    """Return the layouts of all variants without those that are slower on every chip.
    `least_layer_s` has lower bounds on each variant's layers on the fastest chip."""
    rows: list[Row] = []
    ptr = [0]
    for variant, layer_s in zip(variants, least_layer_s, strict=True):
        problem = setting.problem(variant, memory_bytes, hbm_Bps)
        if problem.layouts is not None:
            total_s = float((layer_s[variant.facts.kind]).sum())
            rows.extend(_undominated_rows(problem.layouts.floors(problem, total_s)))
        ptr.append(len(rows))
    table = np.array(rows, np.float64).reshape(len(rows), len(StepFloors._fields)).T
    stages, copies = (column.astype(np.int64) for column in table[:2])
    floors = StepFloors(stages, copies, *(np.ascontiguousarray(column) for column in table[2:]))
    return Layouts(np.array(ptr, np.int64), floors)


def _undominated_rows(floors: StepFloors) -> list[Row]:
    """Return the rows of layouts, without those for which another layout with as many stages and
    copies is no larger in any term."""
    rows = np.unique(np.stack([column.astype(np.float64) for column in floors], axis=1), axis=0)
    kept_rows: list[Row] = []
    for stages in np.unique(rows[:, :2], axis=0):
        alike = rows[(rows[:, :2] == stages).all(axis=1)]
        alike = alike[np.argsort(alike.sum(axis=1), kind="stable")]
        while len(alike):
            # No later row is below the first: its sum is no smaller, and rows differ.
            kept_rows.append(tuple(alike[0].tolist()))
            alike = alike[(alike < alike[0]).any(axis=1)]
    return kept_rows
