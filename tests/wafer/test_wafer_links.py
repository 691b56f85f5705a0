"""Closed forms of collectives against the event simulation of the mesh."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.wafer import block_kernels as kernels
from atoll.wafer.detailed import simulate_exchange, simulate_pass, simulated_line_s, streamed_s
from atoll.wafer.digits import Digits, digit_systems
from atoll.wafer.links import Message, simulate
from atoll.wafer.schedules import Schedule, ring_of

from .wafer_cases import small_wafer

VOLUME = 3e6


def closed(digits: Digits, member, wafer, algorithm=kernels.AUTO, volume=VOLUME) -> float:
    return kernels.pass_one(
        np.array(member, np.bool_), volume, digits.radix, digits.axis, digits.stride,
        wafer.link_Bps, wafer.link_latency_s, algorithm,
    )  # fmt: skip


def test_one_message_over_two_hops_is_stored_and_forwarded():
    message = Message((((0, 0), (1, 0)), ((1, 0), (2, 0))), 100.0)
    assert simulate([message], 50.0, 0.5).end_s == pytest.approx(2 * (2.0 + 0.5))


def test_two_messages_share_a_link_one_after_the_other():
    link = (((0, 0), (1, 0)),)
    result = simulate([Message(link, 100.0), Message(link, 100.0)], 50.0, 0.0)
    assert result.arrival_s == pytest.approx((2.0, 4.0))
    assert result.busy_s[link[0]] == pytest.approx(4.0)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(2, 9), latency=st.sampled_from([0.0, 1e-8, 1e-6]))
def test_a_line_takes_n_minus_one_nths_of_the_volume(n, latency):
    wafer = small_wafer(1, n, latency_s=latency)
    expected = (n - 1) * (VOLUME / n / wafer.link_Bps + latency)
    assert simulated_line_s([(i, 0) for i in range(n)], VOLUME, wafer) == pytest.approx(expected)
    digits = digit_systems(n, 1)[0]
    assert closed(digits, [True] * digits.count, wafer) == pytest.approx(expected)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_reduce_scatter_on_a_line_takes_as_long_as_all_gather(n):
    wafer = small_wafer(1, n)
    schedule = Schedule()
    schedule.scatter_line([(i, 0) for i in range(n)], VOLUME, {})
    simulated = simulate(schedule.messages, wafer.link_Bps, wafer.link_latency_s).end_s
    assert simulated == pytest.approx((n - 1) * (VOLUME / n / wafer.link_Bps + 1e-8))


@pytest.mark.parametrize(("width", "height"), [(2, 2), (3, 2), (2, 3), (4, 3), (4, 4), (5, 2)])
def test_a_rectangle_with_an_even_side_holds_a_ring_of_neighbours(width, height):
    ring = ring_of(1, 2, width, height)
    assert sorted(ring) == sorted((1 + i, 2 + j) for i in range(width) for j in range(height))
    steps = zip(ring, ring[1:] + ring[:1], strict=True)
    assert all(abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 for a, b in steps)
    n = width * height
    wafer = small_wafer(height, width)
    schedule = Schedule()
    schedule.gather_ring(ring, VOLUME)
    simulated = simulate(schedule.messages, wafer.link_Bps, wafer.link_latency_s).end_s
    expected = (n - 1) * (VOLUME / (2 * n) / wafer.link_Bps + wafer.link_latency_s)
    assert simulated == pytest.approx(expected)
    digits = digit_systems(width, height)[0]
    assert closed(digits, [True] * digits.count, wafer, kernels.RING) == pytest.approx(expected)


@settings(max_examples=40, deadline=None)
@given(
    width=st.sampled_from([1, 2, 3, 4, 6, 8]),
    height=st.sampled_from([1, 2, 3, 4, 6]),
    algorithm=st.sampled_from(["auto", "line", "ring"]),
    data=st.data(),
)
def test_any_group_of_any_rectangle_agrees_with_the_simulation(width, height, algorithm, data):
    """All groups of a rectangle at once, strided ones sharing their wires."""
    digits = data.draw(st.sampled_from(digit_systems(width, height)))
    member = [data.draw(st.booleans()) for _ in range(digits.count)]
    wafer = small_wafer(height, width)
    fast = closed(digits, member, wafer, {"auto": 0, "line": 1, "ring": 2}[algorithm])
    simulated = simulate_pass(digits, member, VOLUME, wafer, algorithm)
    runs = sum(
        m and (i == 0 or not member[i - 1] or digits.axis[i] != digits.axis[i - 1])
        for i, m in enumerate(member)
    )
    if runs <= 1 or all(s == 1 for s, m in zip(digits.stride, member, strict=True) if m):
        assert simulated == pytest.approx(fast, rel=1e-9)
    else:
        # Phases of neighbouring lines may overlap: never slower than the closed form.
        assert simulated <= fast * (1 + 1e-9)
        assert simulated >= 0.5 * fast


@pytest.mark.parametrize(("width", "height"), [(2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (4, 4)])
def test_all_to_all_reaches_the_bisection_within_the_pipeline_depth(width, height):
    wafer = small_wafer(height, width, latency_s=0.0)
    digits = digit_systems(width, height)[0]
    member = [True] * digits.count
    n = width * height
    bound = n * VOLUME / (4 * wafer.link_Bps * min(width, height))
    if min(width, height) == 1:
        bound = n * VOLUME / (4 * wafer.link_Bps)
    fast = kernels.exchange_one(
        np.array(member), VOLUME, digits.radix, digits.axis, digits.stride, wafer.link_Bps, 0.0
    )
    assert fast == pytest.approx(bound)
    simulated = simulate_exchange(digits, member, VOLUME, wafer)
    message = VOLUME / n / wafer.link_Bps
    assert bound * (1 - 1e-9) <= simulated <= bound + (width + height) * message


@settings(max_examples=30, deadline=None)
@given(
    faster=st.floats(1.0, 10.0),
    shape=st.sampled_from([(2, 2), (4, 2), (3, 4), (8, 6)]),
    data=st.data(),
)
def test_time_never_rises_with_link_bandwidth(faster, shape, data):
    digits = digit_systems(*shape)[0]
    roles = [data.draw(st.sampled_from(range(5))) for _ in range(digits.count)]
    source = np.array([data.draw(st.sampled_from([0, 1, 2, 3, 5])) for _ in roles], np.int64)
    mesh = (digits.radix, digits.axis, digits.stride)
    target = np.array(roles, np.int64)
    slow = kernels.transition_one(VOLUME, source, target, *mesh, 1e9, 1e-8, 0)
    quick = kernels.transition_one(VOLUME, source, target, *mesh, faster * 1e9, 1e-8, 0)
    assert (quick[:3] <= slow[:3] * (1 + 1e-12)).all()
    assert quick[3] == slow[3]


@settings(deadline=None)
@given(gather=st.floats(0, 4), compute=st.floats(0.01, 4), scatter=st.floats(0, 4))
def test_streaming_hides_no_more_than_the_fast_model_says_for_one_side(gather, compute, scatter):
    """The fast model's exposed time is never below what pieces on one link and one core need."""
    fast = (
        compute
        + kernels.exposed_one(gather, compute, True)
        + kernels.exposed_one(scatter, compute, True)
    )
    assert streamed_s(gather, compute, scatter, 4) <= fast + 1e-9
