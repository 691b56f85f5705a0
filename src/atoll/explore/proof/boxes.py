"""Boxes of a space too large for memory: a range of each list, and one of the memories.

Area, power and every rate of a template never fall with a parameter. So a box is empty where its
smallest corner breaks a limit; a range ends at the largest value that fits while all others are at
their least; and no chip of the box is faster than its largest corner, with the fewest dies. A point
whose power breaks a limit has a lower clock, above the next lower one of the list, at which limits
are judged (`ProductSpace.designs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from atoll.base.arrays import Bools, Floats, Ints
from atoll.cost.chips import Chips, chips_of_space
from atoll.hardware.accelerator import Hbm, core_buffer_bytes
from atoll.hardware.product_space import CLOCK, ProductSpace
from atoll.hardware.space import DesignSpace, allowed_options
from atoll.hardware.template.template import MACHINE
from atoll.profile import Profile

BUFFER = "glb_bytes"
FREE = (BUFFER, "vector_width", "clock_Hz")
"""Parameters of which more makes no operation slower on the same cores: lanes, clock, buffer; banks
and ports likewise."""
_ANY_ROWS = 1e12  # of a core's buffer: more than any product needs


@dataclass(frozen=True, eq=False)
class Boxes:
    """One entry per box; `first` and `last` are indices into the sorted lists."""

    first: Ints  # (boxes, parameters)
    last: Ints
    memory: Ints
    lower_s: Floats  # (boxes, variants): lower bound on the step time of its chips
    score: Floats  # upper bound on the score of its chips

    def __len__(self) -> int:
        return len(self.memory)

    @property
    def points(self) -> Ints:
        """Number of designs per box, whether or not they keep to the limits."""
        return np.asarray(np.prod(self.last - self.first + 1, axis=1))

    def subset(self, chosen: Ints | Bools) -> Boxes:
        return Boxes(*(column[chosen] for column in vars(self).values()))

    def joined(self, more: Boxes) -> Boxes:
        columns = zip(vars(self).values(), vars(more).values(), strict=True)
        return Boxes(*(np.concatenate(both) for both in columns))


class SpaceGrid:
    """The sorted lists of a space, and which of its points fit its limits."""

    def __init__(self, space: ProductSpace, memories: Sequence[tuple[Hbm, ...]]) -> None:
        self._space = space
        # Only limits that larger chips break.
        self._limits = replace(
            space.limits, min_area_mm2=None, min_peak_flops=None, edge=False, per_die=False,
            max_W_per_mm2=None,
        )  # fmt: skip
        lists = [np.asarray(values) for values in space.axes.lists()]
        self._order = [np.argsort(values, kind="stable") for values in lists]
        self._values = [values[o] for values, o in zip(lists, self._order, strict=True)]
        self._sizes = [len(values) for values in lists]
        allowed = [[hbm in options for hbm in space.hbm_options] for options in memories]
        self._memory_options = np.array(allowed)
        names = space.axes.names
        # Parameters that are not numbers of the machine may each set several of those.
        not_machine = {p.name for p in space.template.parameters if p.silicon or p.banked}
        self.plain = {p.name for p in space.template.parameters} - not_machine == set(MACHINE)
        self._sides = [names.index(side) for side in ("width", "depth") if self.plain]
        self._rows = self._most_rows() if self.plain else np.ones((1, 1))
        self.buffer = np.array([self.plain and name == BUFFER for name in names])
        free = not_machine.union(FREE)
        self.fixed = np.array([not self.plain or name not in free for name in names])
        """Parameters of which a box needs a single value for bounds from operator floors."""
        flags = {p.name: p for p in space.template.parameters}
        self._slows = np.array([flags[name].slows for name in names])
        self._repriced = [axis for axis, name in enumerate(names) if flags[name].repriced]
        rated = space.limits.max_power_W is not None or space.limits.max_W_per_mm2 is not None
        self._clock = np.array([rated and name == CLOCK for name in names])

    def root_boxes(self, variants: int) -> Boxes:
        """Return the space as one box per memory."""
        memories = len(self._memory_options)
        first = np.zeros((memories, len(self._sizes)), np.int64)
        last, lower_s = first + np.array(self._sizes) - 1, np.zeros((memories, variants))
        score = np.full(memories, np.inf)
        return self._within_limits(Boxes(first, last, np.arange(memories), lower_s, score))

    def flat(self, places: Ints) -> Ints:
        """Return the flat product indices of points (points, parameters)."""
        listed = tuple(order[index] for order, index in zip(self._order, places.T, strict=True))
        return np.asarray(np.ravel_multi_index(listed, self._sizes))

    def designs(self, places: Ints) -> DesignSpace:
        """Return the designs at these points, ignoring the limits."""
        return self._space.points(self.flat(places))

    def _slowest(self, places: Ints) -> DesignSpace:
        """Return the designs at these points and the least clocks that limits on power leave."""
        return self.designs(np.where(self._clock, np.maximum(places - 1, 0), places))

    def smallest_corners(self, boxes: Boxes) -> Iterator[tuple[Bools, DesignSpace]]:
        """Yield, per value of repriced parameters, which boxes have them and smallest corners."""
        axes = self._repriced
        for places in product(*(range(self._sizes[axis]) for axis in axes)):
            corners, within = boxes.first.copy(), np.ones(len(boxes), np.bool_)
            for axis, place in zip(axes, places, strict=True):
                corners[:, axis] = place
                within &= (boxes.first[:, axis] <= place) & (place <= boxes.last[:, axis])
            yield within, self._slowest(corners)

    def chips(self, boxes: Boxes, profile: Profile, by_memory: bool) -> Chips:
        """Return the fastest corners, ignoring the limits, with core buffers of as many rows as
        those of any chip in the box."""
        corners = self.designs(np.where(self._slows, boxes.first, boxes.last))
        rows = self._rows[tuple(boxes.last[:, self._sides].T)] if self.plain else _ANY_ROWS
        core_bytes = rows * 4.0 * (corners.columns["width"] + corners.columns["depth"])
        columns = {**corners.columns, "core_buffer_bytes": core_bytes}
        corners = replace(corners, columns=columns, hbm_allowed=self._memory_options[boxes.memory])
        chips = chips_of_space(corners, profile, by_memory)
        return chips.subset(np.argsort(chips.design))

    def _most_rows(self) -> Floats:
        """Return the most rows of inputs and sums that a core's buffer holds, over all arrays no
        wider and no deeper."""
        sides = [[int(side) for side in self._values[i]] for i in self._sides]
        rows = [
            [max(1.0, core_buffer_bytes(w, d) // (4.0 * (d + w))) for d in sides[1]]
            for w in sides[0]
        ]
        return np.maximum.accumulate(np.maximum.accumulate(np.array(rows), axis=0), axis=1)

    def points(self, box: Boxes) -> Ints:
        """Return the flat product indices of all points of a single box."""
        ranges = [np.arange(a, b + 1) for a, b in zip(box.first[0], box.last[0], strict=True)]
        places = np.stack([axis.ravel() for axis in np.meshgrid(*ranges, indexing="ij")], axis=1)
        return self.flat(places)

    def halves(self, boxes: Boxes) -> Boxes:
        """Halve every box in the geometric middle of its widest range; drop empty halves."""
        axis = np.argmax(self._widths(boxes), axis=1)
        row = np.arange(len(boxes))
        middle = np.empty(len(boxes), np.int64)
        for i in np.unique(axis):
            members, values = np.flatnonzero(axis == i), self._values[i].astype(np.float64)
            first, last = boxes.first[members, i], boxes.last[members, i]
            root = np.sqrt(values[first] * values[last])
            middle[members] = np.clip(np.searchsorted(values, root, "right") - 1, first, last - 1)
        low_last, high_first = boxes.last.copy(), boxes.first.copy()
        low_last[row, axis] = middle
        high_first[row, axis] = middle + 1
        # The low half has the same smallest corner, so its ranges end where they did.
        low = replace(boxes, last=low_last)
        return self._coolable(low.joined(self._within_limits(replace(boxes, first=high_first))))

    def _coolable(self, boxes: Boxes) -> Boxes:
        """Return the boxes in which least power / largest area is within the limit."""
        limit, within = self._space.limits.max_W_per_mm2, np.zeros(len(boxes), np.bool_)
        if limit is None or len(boxes) == 0:
            return boxes
        least, most = self._slowest(boxes.first), self.designs(boxes.last)
        for in_memory, hbm in zip(self._memory_options.T, self._space.hbm_options, strict=True):
            dense = least.peak_power_with(hbm) / most.area_with(hbm)
            within |= in_memory[boxes.memory] & (dense <= limit)
        return boxes.subset(within)

    def differ_in_buffer_only(self, boxes: Boxes) -> Bools:
        """Return which boxes have a single value of everything but the shared buffer."""
        return np.asarray(~((boxes.first < boxes.last) & ~self.buffer).any(axis=1))

    def have_single_shape(self, boxes: Boxes) -> Bools:
        """Return which boxes have a single value of every fixed parameter."""
        return np.asarray(~((boxes.first < boxes.last) & self.fixed).any(axis=1))

    def _widths(self, boxes: Boxes) -> Floats:
        """Return log(last / first) of every range, reduced for free parameters."""
        widths = np.zeros(boxes.first.shape)
        for i, values in enumerate(self._values):
            positive = np.where(values > 0, values, 0.5)  # lists of spare cores begin with none
            widths[:, i] = np.log(positive[boxes.last[:, i]] / positive[boxes.first[:, i]])
        # Cores and arrays are split first, as floors need a single choice of them; buffers last,
        # as no roofline depends on them.
        widths[:, ~self.fixed] *= 1e-3
        widths[:, self.buffer] *= 1e-3
        return widths

    def _within_limits(self, boxes: Boxes) -> Boxes:
        """Drop boxes in which nothing fits; end every range at its largest value that fits."""
        boxes = boxes.subset(self._fits(boxes.first, boxes.memory))
        # All ranges of all boxes at once, by bisection.
        high = boxes.last.copy()
        row, axis = np.nonzero(boxes.first < high)
        places, memory = boxes.first[row], boxes.memory[row]
        least, most = boxes.first[row, axis], high[row, axis]
        while (open_ := np.flatnonzero(least < most)).size:
            middle = (least[open_] + most[open_] + 1) // 2
            tried = places[open_]
            tried[np.arange(len(open_)), axis[open_]] = middle
            fits = self._fits(tried, memory[open_])
            least[open_] = np.where(fits, middle, least[open_])
            most[open_] = np.where(fits, most[open_], middle - 1)
        high[row, axis] = least
        return replace(boxes, last=high)

    def _fits(self, places: Ints, memory: Ints) -> Bools:
        """Return whether points keep to the limits with any option of their memory."""
        if len(places) == 0:
            return np.zeros(0, np.bool_)
        allowed = allowed_options(self._slowest(places), self._limits)
        return np.asarray((allowed & self._memory_options[memory]).any(axis=1))
