"""A whole run: what failures and checkpoints make of its steps."""

from __future__ import annotations

from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.base.errors import AtollError
from atoll.step.length import (
    DAY_S,
    HOUR_S,
    MTBF_S,
    RunLength,
    best_interval_s,
    run_totals,
    stretch,
)

TIMES = st.floats(1.0, 1e4)


def simulated(work_s: float, interval_s: float, write_s: float, restart_s: float, mtbf_s: float,
              draw: np.random.Generator) -> float:  # fmt: skip
    """Seconds of one job, failure by failure; also a restart can fail, and a checkpoint."""
    clock_s, done, failure_s = 0.0, 0, draw.exponential(mtbf_s)
    rounds = round(work_s / interval_s)
    while done < rounds:
        if clock_s + interval_s + write_s <= failure_s:
            clock_s, done = clock_s + interval_s + write_s, done + 1
            continue
        clock_s = failure_s
        while True:
            failure_s = clock_s + draw.exponential(mtbf_s)
            if clock_s + restart_s <= failure_s:
                clock_s += restart_s
                break
            clock_s = failure_s
    return clock_s


@pytest.mark.parametrize(
    ("interval_s", "write_s", "restart_s"), [(600.0, 30.0, 300.0), (3000.0, 60.0, 900.0)]
)
def test_the_formula_is_the_mean_of_simulated_jobs(
    interval_s: float, write_s: float, restart_s: float
) -> None:
    mtbf_s, work_s, draw = 2 * HOUR_S, 100 * interval_s, np.random.default_rng(7)
    took = [simulated(work_s, interval_s, write_s, restart_s, mtbf_s, draw) for _ in range(1500)]
    expected = work_s * stretch(interval_s, write_s, restart_s, mtbf_s)
    assert np.mean(took) == pytest.approx(expected, rel=0.02)


@given(TIMES, st.floats(1e3, 1e8), st.floats(0.1, 10))
def test_no_other_interval_is_better(write_s: float, mtbf_s: float, factor: float) -> None:
    best_s = best_interval_s(write_s, mtbf_s)
    other = stretch(factor * best_s, write_s, 0.0, mtbf_s)
    assert stretch(best_s, write_s, 0.0, mtbf_s) <= other * (1 + 1e-9)


def test_the_interval_is_youngs_where_failures_are_rare() -> None:
    assert best_interval_s(10.0, 1e8) == pytest.approx(sqrt(2 * 10.0 * 1e8), rel=1e-2)


@given(TIMES, TIMES, st.floats(1e4, 1e9))
def test_failures_only_cost(write_s: float, restart_s: float, mtbf_s: float) -> None:
    asked = RunLength(1e9, mtbf_s=64 * mtbf_s, checkpoint_s=write_s, restart_s=restart_s)
    try:
        found = run_totals(asked, 2.0, (1.9, 2.3), 10**6, 64, 1e11, 700.0)
    except AtollError as error:
        assert "gets nowhere" in str(error)
        return
    assert found.steps == 1000
    assert found.busy_days == pytest.approx(2000 / DAY_S)
    assert found.days >= found.busy_days
    assert found.days_low <= found.days <= found.days_high
    assert found.goodput == pytest.approx(found.busy_days / found.days)
    assert found.device_hours == pytest.approx(found.days * 24 * 64)
    assert found.energy_J == pytest.approx(found.days * DAY_S * 64 * 700.0)
    assert found.dollars is None


def test_llama_3_is_as_its_authors_say() -> None:
    """419 interruptions in 54 days on 16,384 devices, and more than 90 % of the time effective."""
    asked = RunLength(54 * DAY_S / 10 * 16e6, price_per_h=2.0)
    found = run_totals(asked, 10.0, (9.0, 11.0), 16 * 10**6, 16384, 405e9 * 14, 700.0)
    assert found.busy_days == pytest.approx(54.0)
    assert found.interruptions * found.busy_days / found.days == pytest.approx(419, rel=1e-3)
    assert 0.9 < found.goodput < 0.95
    assert found.dollars == pytest.approx(2 * found.device_hours)
    assert round(MTBF_S / HOUR_S, -2) == 50_700


def test_a_run_without_failures_is_its_steps_and_checkpoints() -> None:
    assert stretch(100.0, 0.0, 10.0, 1e15) == pytest.approx(1.0)
    assert stretch(1e6, 1.0, 0.0, 1e2) == inf
