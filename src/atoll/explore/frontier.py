"""All chips in memory with their bounds: what branch and bound has proven so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from atoll.cost.chips import Chips, chips_of_space
from atoll.explore.bounds import LayoutBounds, roofline_bounds
from atoll.explore.journal import Found
from atoll.explore.layouts import Setting
from atoll.explore.stop import Stop
from atoll.explore.work import OperatorWork, operator_work
from atoll.explore.workloads import Variants
from atoll.hardware.space import Space

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass
class Frontier:
    """Chips with their bounds and the plans found."""

    chips: Chips
    ids: IntArray
    """Each chip's number in its whole space, which never changes."""
    lower_s: FloatArray  # (chips, variants): no plan of the node is faster
    stage: NDArray[np.int8]
    """Per chip, the strongest bound that was computed: 0 roofline, 1 schedule, 2 placement."""
    found: dict[int, dict[int, Found]] = field(default_factory=dict)  # chip -> model -> plan


class Reserve(Protocol):
    """The part of a large space that is not in memory."""

    points: int
    """Designs of the whole space, before its constraints."""

    def open(
        self, variants: Variants, setting: Setting, work: OperatorWork
    ) -> tuple[LayoutBounds, Frontier]:
        """Bound the whole space roughly; the frontier begins empty."""

    def bound(self, threshold: float) -> float:
        """No chip outside memory scores higher, or all that do are below the threshold."""

    def admit(
        self, frontier: Frontier, scores: FloatArray, threshold: float, size: int, stop: Stop
    ) -> tuple[Frontier, IntArray | None]:
        """Bring in whatever may be among the `size` best chips that are not yet bounded.

        Chips that can no longer win leave. The new frontier, and where each old chip is in it;
        None where nothing changed.
        """


@dataclass(frozen=True)
class Opened:
    """The beginning of a search."""

    frontier: Frontier
    reserve: Reserve | None
    layouts: LayoutBounds
    work: OperatorWork


def open_frontier(space: Space | Reserve, variants: Variants, setting: Setting) -> Opened:
    """Rooflines of every chip of a space; or of the parts of a large one."""
    work = operator_work(variants.passes.keys, setting.network, setting.profile.name)
    if not isinstance(space, Space):
        layouts, frontier = space.open(variants, setting, work)
        return Opened(frontier, space, layouts, work)
    chips = chips_of_space(space, setting.profile)
    layouts, lower_s = roofline_bounds(chips, variants, setting, work)
    frontier = Frontier(chips, np.arange(len(chips)), lower_s, np.zeros(len(chips), np.int8))
    return Opened(frontier, None, layouts, work)
