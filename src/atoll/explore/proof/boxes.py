"""Boxes of a space too large for memory: a range of each list, and one of the memories.

Area, power and every rate of a template grow, or stay, with each parameter. So a box is empty where
its smallest corner breaks a limit; each of its ranges ends at the largest value that fits while all
others are at their least; and no chip of it is faster than its largest corner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atoll.arrays import BoolArray, FloatArray, IntArray
from atoll.cost.chips import Chips, chips_of_space
from atoll.hardware.accelerator import Hbm, core_buffer_bytes
from atoll.hardware.product import ProductSpace
from atoll.hardware.space import Space, allowed_options, product_points
from atoll.hardware.template.template import MACHINE
from atoll.profile import Profile

BUFFER = "glb_bytes"
FREE = (BUFFER, "vector_width", "clock_Hz")
"""Parameters with more of which every product, and every vector operation, is no slower on the same
cores: more lanes, more clocks, a larger and faster buffer; banks and ports likewise."""
_ANY_ROWS = 1e12  # of a core's buffer: more than any product has


@dataclass(frozen=True, eq=False)
class Boxes:
    """One entry per box; places are of the lists in rising order."""

    first: IntArray  # (boxes, parameters)
    last: IntArray
    memory: IntArray
    lower_s: FloatArray  # (boxes, variants): no plan of a chip in it is faster
    score: FloatArray
    """No chip in it scores higher."""

    def __len__(self) -> int:
        return len(self.memory)

    @property
    def points(self) -> IntArray:
        """How many designs each has, whether they keep to the limits or not."""
        return np.asarray(np.prod(self.last - self.first + 1, axis=1))

    def some(self, chosen: IntArray | BoolArray) -> Boxes:
        return Boxes(
            self.first[chosen],
            self.last[chosen],
            self.memory[chosen],
            self.lower_s[chosen],
            self.score[chosen],
        )

    def joined(self, more: Boxes) -> Boxes:
        return Boxes(
            np.concatenate([self.first, more.first]),
            np.concatenate([self.last, more.last]),
            np.concatenate([self.memory, more.memory]),
            np.concatenate([self.lower_s, more.lower_s]),
            np.concatenate([self.score, more.score]),
        )


class Grid:
    """The lists of a space in rising order, with what fits its limits."""

    def __init__(self, space: ProductSpace, memories: Sequence[tuple[Hbm, ...]]) -> None:
        self._space = space
        # Boxes know only the limits that growing chips break; others are looked at by chip.
        self._limits = replace(
            space.limits, min_area_mm2=None, min_peak_flops=None, edge=False, max_W_per_mm2=None
        )
        lists = [np.asarray(values) for values in space.axes.lists()]
        self._order = [np.argsort(values, kind="stable") for values in lists]
        self._values = [values[o] for values, o in zip(lists, self._order, strict=True)]
        self._sizes = [len(values) for values in lists]
        self._member = np.array([[hbm in own for hbm in space.hbm_options] for own in memories])
        names = space.axes.names
        # Where parameters are not the machine's own numbers, one may stand for several of them.
        beside = {p.name for p in space.template.parameters if p.silicon or p.banked}
        self.plain = {p.name for p in space.template.parameters} - beside == set(MACHINE)
        self._sides = [names.index(side) for side in ("width", "depth") if self.plain]
        self._rows = self._most_rows() if self.plain else np.ones((1, 1))
        self.buffer = np.array([self.plain and name == BUFFER for name in names])
        free = beside.union(FREE)
        self.fixed = np.array([not self.plain or name not in free for name in names])
        self._process = names.index("process_nm") if "process_nm" in names else None
        """Parameters that a box must have one value of for bounds from its operators' floors."""

    def whole(self, variants: int) -> Boxes:
        """The space, once with each memory."""
        memories = len(self._member)
        first = np.zeros((memories, len(self._sizes)), np.int64)
        found = Boxes(
            first,
            first + np.array(self._sizes) - 1,
            np.arange(memories),
            np.zeros((memories, variants)),
            np.full(memories, np.inf),
        )
        return self._cut(found)

    def flat(self, places: IntArray) -> IntArray:
        """Where these points (points, parameters) are in the product."""
        listed = tuple(order[at] for order, at in zip(self._order, places.T, strict=True))
        return np.asarray(np.ravel_multi_index(listed, self._sizes))

    def designs(self, places: IntArray) -> Space:
        """The designs at these places, unconstrained."""
        space = self._space
        return product_points(
            space.name, space.axes, space.hbm_options, space.glb_bandwidth, self.flat(places)
        )

    def smallest(self, boxes: Boxes) -> Iterator[tuple[BoolArray, Space]]:
        """The smallest corners in each process, and which boxes have it."""
        at = self._process
        if at is None:
            yield np.ones(len(boxes), np.bool_), self.designs(boxes.first)
            return
        for place in range(self._sizes[at]):
            corners = boxes.first.copy()
            corners[:, at] = place
            within = (boxes.first[:, at] <= place) & (place <= boxes.last[:, at])
            yield np.asarray(within), self.designs(corners)

    def chips(self, boxes: Boxes, profile: Profile, by_memory: bool) -> Chips:
        """The largest corners, whether they keep to the limits or not, with core buffers that hold
        as many rows as those of any chip in the box.
        """
        corners = self.designs(boxes.last)
        columns = dict(corners.columns)
        rows: FloatArray | float = _ANY_ROWS
        if self.plain:
            rows = self._rows[tuple(boxes.last[:, self._sides].T)]
        columns["core_buffer_bytes"] = rows * 4.0 * (columns["width"] + columns["depth"])
        corners = replace(corners, columns=columns, hbm_allowed=self._member[boxes.memory])
        chips = chips_of_space(corners, profile, by_memory)
        return chips.subset(np.argsort(chips.design))

    def _most_rows(self) -> FloatArray:
        """Rows of a core's buffer, at most over all arrays that are no wider and no deeper: they
        do not quite grow with each side.
        """
        width, depth = (self._values[i] for i in self._sides)
        rows = [[_rows(int(w), int(d)) for d in depth] for w in width]
        return np.maximum.accumulate(np.maximum.accumulate(np.array(rows), axis=0), axis=1)

    def points(self, box: Boxes) -> IntArray:
        """All points of one box, by place in the product."""
        ranges = [np.arange(a, b + 1) for a, b in zip(box.first[0], box.last[0], strict=True)]
        places = np.stack([axis.ravel() for axis in np.meshgrid(*ranges, indexing="ij")], axis=1)
        return self.flat(places)

    def halves(self, boxes: Boxes) -> Boxes:
        """Each box in two, where its widest range has its middle; as far as something fits."""
        wide = self._widths(boxes)
        axis = np.argmax(wide, axis=1)
        row = np.arange(len(boxes))
        middle = np.empty(len(boxes), np.int64)
        for i in np.unique(axis):
            own, values = np.flatnonzero(axis == i), self._values[i].astype(np.float64)
            first, last = boxes.first[own, i], boxes.last[own, i]
            root = np.sqrt(values[first] * values[last])
            middle[own] = np.clip(np.searchsorted(values, root, "right") - 1, first, last - 1)
        low_last, high_first = boxes.last.copy(), boxes.first.copy()
        low_last[row, axis] = middle
        high_first[row, axis] = middle + 1
        # With the same smallest corner every range ends where it did.
        low = replace(boxes, last=low_last)
        return self._cooled(low.joined(self._cut(replace(boxes, first=high_first))))

    def _cooled(self, boxes: Boxes) -> Boxes:
        """Those in which the least power may be spread over the largest area."""
        limit, within = self._space.limits.max_W_per_mm2, np.ones(len(boxes), np.bool_)
        if limit is None or len(boxes) == 0:
            return boxes
        least, most = self.designs(boxes.first), self.designs(boxes.last)
        within[:] = False
        for own, hbm in zip(self._member.T, self._space.hbm_options, strict=True):
            dense = least.peak_power_with(hbm) / most.area_with(hbm)
            within |= own[boxes.memory] & (dense <= limit)
        return boxes.some(within)

    def whole_buffers(self, boxes: Boxes) -> BoolArray:
        """Which have one value of everything but the shared buffer."""
        return np.asarray(~((boxes.first < boxes.last) & ~self.buffer).any(axis=1))

    def shaped(self, boxes: Boxes) -> BoolArray:
        """Which have one value of everything that is not free."""
        return np.asarray(~((boxes.first < boxes.last) & self.fixed).any(axis=1))

    def _widths(self, boxes: Boxes) -> FloatArray:
        """By how much each range grows from its first to its last value, in logarithms."""
        found = np.zeros(boxes.first.shape)
        for i, values in enumerate(self._values):
            found[:, i] = np.log(values[boxes.last[:, i]] / values[boxes.first[:, i]])
        # Cores and arrays come first, as floors need one choice of them; buffers, which no roofline
        # knows, last.
        found[:, ~self.fixed] *= 1e-3
        found[:, self.buffer] *= 1e-3
        return found

    def _cut(self, boxes: Boxes) -> Boxes:
        """Those in which something fits, each range up to its largest value that does."""
        boxes = boxes.some(self._fits(boxes.first, boxes.memory))
        # All ranges of all boxes at once, by bisection.
        low, high = boxes.first.copy(), boxes.last.copy()
        row, axis = np.nonzero(low < high)
        places = boxes.first[row]
        at = np.arange(len(row))
        memory = boxes.memory[row]
        least, most = low[row, axis], high[row, axis]
        while (open_ := np.flatnonzero(least < most)).size:
            middle = (least[open_] + most[open_] + 1) // 2
            tried = places[open_]
            tried[at[: len(open_)], axis[open_]] = middle
            fits = self._fits(tried, memory[open_])
            least[open_] = np.where(fits, middle, least[open_])
            most[open_] = np.where(fits, most[open_], middle - 1)
        high[row, axis] = least
        return replace(boxes, last=high)

    def _fits(self, places: IntArray, memory: IntArray) -> BoolArray:
        """Whether these points are within the limits with one of a memory's options."""
        if len(places) == 0:
            return np.zeros(0, np.bool_)
        allowed = allowed_options(self.designs(places), self._limits)
        return np.asarray((allowed & self._member[memory]).any(axis=1))


def _rows(width: int, depth: int) -> float:
    """Of inputs and sums that a core's buffer holds."""
    return max(1.0, core_buffer_bytes(width, depth) // (4.0 * (depth + width)))
