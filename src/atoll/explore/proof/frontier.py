"""All chips in memory with their bounds and plans so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Floats, Ints
from atoll.cost.chips import Chips, join_chips
from atoll.explore.proof.journal import EvaluatedPlan


@dataclass
class Frontier:
    """Chips with their bounds and evaluated plans."""

    chips: Chips
    ids: Ints
    """Chip numbers in the complete space, which never change."""
    lower_s: Floats  # (chips, variants): lower bound on the step time
    price: Floats
    """Divisor of a chip's throughput; ones without a price."""
    stage: NDArray[np.int8]
    """Per chip, the strongest bound that was computed: 0 roofline, 1 schedule, 2 placement."""
    plans: dict[int, dict[int, EvaluatedPlan]] = field(default_factory=dict)  # by chip, model

    def subset(self, chips: Ints) -> Frontier:
        """Return these chips, renumbered."""
        position = {int(old): new for new, old in enumerate(chips)}
        return Frontier(
            self.chips.subset(chips),
            self.ids[chips],
            self.lower_s[chips],
            self.price[chips],
            self.stage[chips],
            {position[chip]: plans for chip, plans in self.plans.items() if chip in position},
        )

    def joined(self, more: Frontier) -> Frontier:
        """Return the frontier with more chips appended."""
        return Frontier(
            join_chips(self.chips, more.chips),
            np.concatenate([self.ids, more.ids]),
            np.concatenate([self.lower_s, more.lower_s]),
            np.concatenate([self.price, more.price]),
            np.concatenate([self.stage, more.stage]),
            self.plans,
        )
