"""All chips in memory with their bounds: what branch and bound has proven so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from atoll.arrays import FloatArray, IntArray
from atoll.cost.chips import Chips, join_chips
from atoll.explore.proof.journal import Found


@dataclass
class Frontier:
    """Chips with their bounds and the plans found."""

    chips: Chips
    ids: IntArray
    """Each chip's number in its whole space, which never changes."""
    lower_s: FloatArray  # (chips, variants): no plan of the node is faster
    price: FloatArray
    """What a chip's throughput is divided by; ones where it is by nothing."""
    stage: NDArray[np.int8]
    """Per chip, the strongest bound that was computed: 0 roofline, 1 schedule, 2 placement."""
    found: dict[int, dict[int, Found]] = field(default_factory=dict)  # chip -> model -> plan

    def kept(self, chips: IntArray) -> Frontier:
        """These chips alone, renumbered."""
        place = {int(old): new for new, old in enumerate(chips)}
        return Frontier(
            self.chips.subset(chips),
            self.ids[chips],
            self.lower_s[chips],
            self.price[chips],
            self.stage[chips],
            {place[chip]: plans for chip, plans in self.found.items() if chip in place},
        )

    def joined(self, more: Frontier) -> Frontier:
        """With more chips behind the old ones."""
        return Frontier(
            join_chips(self.chips, more.chips),
            np.concatenate([self.ids, more.ids]),
            np.concatenate([self.lower_s, more.lower_s]),
            np.concatenate([self.price, more.price]),
            np.concatenate([self.stage, more.stage]),
            self.found,
        )
