"""ZB-H1: its formula against its replay, its memory, and another implementation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.placement.zero_bubble import (
    ONE_F_ONE_B,
    ZB_H1,
    delayed,
    order,
    simulate_zero_bubble,
    step_s,
)
from atoll.training.pipeline import StagePass, replay

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


@given(p=stages, m=rounds, f=seconds, extra=st.floats(0.0, 1.0), share=st.floats(0.05, 1.0))
def test_it_is_no_slower_than_the_greedy_order_of_the_training_room(p, m, f, extra, share):
    b, w = f + extra, share * f
    greedy = replay("zb-h1", [[StagePass(f, b, w)]] * p, m).time_s
    assert simulated([f] * p, [b] * p, [w] * p, m) <= greedy * (1 + 1e-9)


@given(scale=st.lists(st.floats(0.5, 2.0), min_size=1, max_size=8), m=rounds,
       b=st.floats(1.0, 1.5), w=st.floats(0.2, 1.0))  # fmt: skip
def test_stages_that_differ_in_size_take_no_longer_than_the_formula(scale, m, b, w):
    forward, data, weight = scale, [b * s for s in scale], [w * s for s in scale]
    load = [sum(parts) for parts in zip(forward, data, weight, strict=True)]
    formula = step_s(ZB_H1, load, weight, m)
    assert simulated(forward, data, weight, m) <= formula * (1 + 1e-9)
    assert formula <= step_s(ONE_F_ONE_B, load, weight, m) * (1 + 1e-12)
    assert formula >= m * max(load) * (1 - 1e-12)


@given(p=stages, m=rounds)
def test_every_pass_once_in_the_memory_that_is_counted(p, m):
    for stage in range(p):
        passes = order(stage, p, m)
        assert sorted(passes) == sorted((kind, i) for kind in "FBW" for i in range(m))
        count = {"F": 0, "B": 0, "W": 0}
        for kind, _ in passes:
            count[kind] += 1
            assert 0 <= count["F"] - count["B"] <= min(p - stage, m)
            assert 0 <= count["B"] - count["W"] <= delayed(ZB_H1, stage, m) + 1
            # Held together: what 1F1B's first stage holds.
            assert count["F"] - count["W"] <= min(p - stage, m) + delayed(ZB_H1, stage, m)
    assert delayed(ONE_F_ONE_B, p, m) == 0


def test_slow_transfers_are_waited_for():
    quick = simulated([1.0] * 3, [1.0] * 3, [1.0] * 3, 6)
    slow = simulated([1.0] * 3, [1.0] * 3, [1.0] * 3, 6, [0.5, 0.5])
    assert slow > quick
