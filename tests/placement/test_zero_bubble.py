"""ZB-H1: its formula against its replay, its memory and that of ZB-H2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.placement.zero_bubble import (
    ONE_F_ONE_B,
    ZB_H1,
    ZB_H2,
    delayed,
    held,
    most_delayed,
    order,
    simulate_zero_bubble,
    step_s,
)

seconds = st.floats(0.1, 2.0)
stages = st.integers(1, 8)
rounds = st.integers(1, 24)


def simulated(forward, data, weight, microbatches, transfer=None):
    transfer = transfer or [0.0] * len(forward)
    events = simulate_zero_bubble(forward, data, weight, transfer, microbatches)
    return max(event.end_s for event in events)


@given(p=stages, m=rounds, f=seconds, extra=st.floats(0.0, 1.0), share=st.floats(0.05, 1.0))
def test_equal_stages_take_what_the_formula_says(p, m, f, extra, share):
    b, w = f + extra, share * f
    expected = step_s(ZB_H1, [f + b + w] * p, [w] * p, m)
    assert simulated([f] * p, [b] * p, [w] * p, m) == pytest.approx(expected)
    if m >= p:
        # The bubble of the source: (p - 1) (F + B - W).
        assert expected == pytest.approx(m * (f + b + w) + (p - 1) * (f + b - w))


@given(scale=st.lists(st.floats(0.5, 2.0), min_size=1, max_size=8), m=rounds,
       b=st.floats(1.0, 1.5), w=st.floats(0.2, 1.0))  # fmt: skip
def test_stages_that_differ_in_size_take_no_longer_than_the_formula(scale, m, b, w):
    forward, data, weight = scale, [b * s for s in scale], [w * s for s in scale]
    load = [sum(parts) for parts in zip(forward, data, weight, strict=True)]
    formula = step_s(ZB_H1, load, weight, m)
    assert simulated(forward, data, weight, m) <= formula * (1 + 1e-9)
    assert formula <= step_s(ONE_F_ONE_B, load, weight, m) * (1 + 1e-12)
    assert formula >= m * max(load) * (1 - 1e-12)


@given(schedule=st.sampled_from([ONE_F_ONE_B, ZB_H1, ZB_H2]), p=stages, m=rounds)
def test_every_pass_once_in_the_memory_that_is_counted(schedule, p, m):
    for stage in range(p):
        passes = order(schedule, stage, p, m)
        assert sorted(passes) == sorted((kind, i) for kind in "FBW" for i in range(m))
        count = {"F": 0, "B": 0, "W": 0}
        seen = set()
        for kind, _ in passes:
            count[kind] += 1
            seen.add((count["F"] - count["B"], count["B"] - count["W"]))
        # The two fullest moments, and none beyond them: most activations, most weight passes late.
        full = held(schedule, stage, p, m), delayed(schedule, stage, p, m)
        late = most_delayed(schedule, stage, p, m)
        assert full in seen
        assert max(ahead for ahead, _ in seen) == full[0]
        assert max(ahead + behind for ahead, behind in seen if ahead) == sum(full)
        if schedule != ONE_F_ONE_B:
            assert (sum(full) - late, late) in seen
            assert max(ahead + behind for ahead, behind in seen) == sum(full)
            assert max(behind for _, behind in seen) == late


@pytest.mark.parametrize(
    ("schedule", "m", "expected"),
    [
        (ZB_H1, 2, [2, 2, 2, 2]),
        (ZB_H1, 16, [4, 4, 4, 4]),
        (ZB_H2, 4, [4, 4, 4, 4]),
        (ZB_H2, 16, [7, 7, 7, 7]),
        (ONE_F_ONE_B, 16, [4, 3, 2, 1]),
    ],
)
def test_stages_hold_the_microbatches_of_the_source_and_no_more_than_there_are(
    schedule, m, expected
):
    """arXiv:2401.10241: p of them on every stage under ZB-H1, 2 p - 1 under ZB-H2."""
    assert [held(schedule, i, 4, m) + delayed(schedule, i, 4, m) for i in range(4)] == expected


def test_slow_transfers_are_waited_for():
    quick = simulated([1.0] * 3, [1.0] * 3, [1.0] * 3, 6)
    slow = simulated([1.0] * 3, [1.0] * 3, [1.0] * 3, 6, [0.5, 0.5])
    assert slow > quick
