"""The bound over layouts: those that are left out never hold the least step time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from atoll.explore.pricing.bound_kernels import layout_bounds
from atoll.explore.pricing.layouts import undominated
from atoll.placement.chain import StepFloors

SECONDS = st.floats(0.0, 1.0)


@dataclass(frozen=True)
class Rows:
    """Layouts of one number of stages, from many copies of the model to few."""

    stages: int
    passes: float
    loads: NDArray[np.float64]
    transfer_s: NDArray[np.float64]
    fixed_s: NDArray[np.float64]

    def kept(self, load_s: float) -> list[int]:
        paid = self.loads, self.passes, self.transfer_s, self.fixed_s
        return list(undominated(self.stages, *paid, load_s))

    def least_step_s(self, rows: list[int], first_s: float, block_s: float, blocks: int) -> float:
        """The search's own bound, for a chip on which an end and a block take so long."""
        best = np.zeros(1)
        same = np.ones(len(rows))
        stages, copies = (np.full(len(rows), n) for n in (self.stages, 1))
        parts = self.loads[rows], self.passes * same, self.transfer_s[rows], self.fixed_s[rows]
        paths = [0.0 * same] * (len(StepFloors._fields) - 6)
        both_s = np.array([first_s, block_s])
        # Forward and backward, and behind them data and weight gradients.
        shares = np.array([(0.4, 0.6), (0.3, 0.3)])
        pass_s = (shares[:, None] * both_s[:, None]).reshape(1, 4, 2)
        layout_bounds(
            0, 1, pass_s, np.zeros(1, np.int64), np.array([0, 4]), np.array([2]),
            np.array([1, blocks, 0, 0]), np.arange(4) == 1, np.array([0, len(rows)]),
            StepFloors(stages, copies, *parts, *paths), best,
        )  # fmt: skip
        return float(best[0])


def rows_of(*given: tuple[float, float, float]) -> Rows:
    """Two stages, and so many loads, transfers and fixed seconds."""
    loads, transfer_s, fixed_s = (np.array(column) for column in zip(*given, strict=True))
    return Rows(2, 1.0, loads, transfer_s, fixed_s)


@st.composite
def random_rows(draw: st.DrawFn) -> Rows:
    loads = sorted(draw(st.lists(st.integers(0, 64), min_size=2, max_size=8)))
    seconds = st.lists(SECONDS, min_size=len(loads), max_size=len(loads))
    return Rows(
        draw(st.integers(1, 6)),
        draw(st.sampled_from((0.0, 1.0))),
        np.array(loads, np.float64),
        np.array(draw(seconds)),
        np.array(draw(seconds)),
    )


@settings(max_examples=300, deadline=None)
@given(random_rows(), SECONDS, SECONDS, st.integers(1, 8), st.floats(0.0, 1.0))
def test_a_layout_is_left_out_only_if_another_is_never_slower(
    rows: Rows, first_s: float, block_s: float, blocks: int, faster: float
) -> None:
    """On any chip that is no faster than the one that they were compared on."""
    fastest_s = faster * (first_s + blocks * block_s) / rows.stages
    every = list(range(len(rows.loads)))
    least = rows.least_step_s(every, first_s, block_s, blocks)
    without = rows.least_step_s(rows.kept(fastest_s), first_s, block_s, blocks)
    assert without <= least * (1 + 1e-12)


def test_every_round_waits_for_transfers() -> None:
    """Of two with as many rounds, the one with the cheaper sum of transfer and reduction may be
    the slower.
    """
    assert rows_of((31.0, 0.10, 0.0), (31.0, 0.0, 0.11)).kept(1.0) == [0, 1]


def test_layouts_that_lose_everywhere_are_left_out() -> None:
    rows = rows_of((3.0, 0.01, 0.2), (7.0, 0.01, 0.1), (7.0, 0.02, 0.3))
    assert rows.kept(1.0) == [0]
    assert rows.kept(0.0) == [0, 1]
