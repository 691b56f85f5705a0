"""The bound over layouts: those that are left out never hold the least step time."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.phaze.placer import undominated

SECONDS = st.floats(0.0, 1.0)
ROWS = st.lists(st.tuples(st.integers(0, 64), SECONDS), min_size=2, max_size=8).map(sorted)


@settings(max_examples=300, deadline=None)
@given(ROWS, SECONDS, SECONDS)
def test_a_layout_is_left_out_only_if_another_is_never_slower(
    rows: list[tuple[int, float]], fastest_s: float, slower_s: float
) -> None:
    """On any chip whose largest load is no shorter than the one that they were compared on."""
    loads, fixed_s = np.array(rows, np.float64).T
    step_s = loads * (fastest_s + slower_s) + fixed_s
    kept = undominated(loads, fixed_s, fastest_s)
    assert step_s[kept].min() <= step_s.min() * (1 + 1e-12)


def test_layouts_that_lose_everywhere_are_left_out() -> None:
    loads, fixed_s = np.array([3.0, 7.0, 7.0]), np.array([0.2, 0.1, 0.3])
    assert undominated(loads, fixed_s, 1.0) == [0]
    assert undominated(loads, fixed_s, 0.0) == [0, 1]
