"""Closed forms of collectives against the event simulation of the mesh."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.fabric.digits import digit_systems
from atoll.fabric.mesh import Mesh, Rectangle, rectangle_ring
from atoll.fabric.mesh_collectives import (
    MessageSchedule,
    gather_s,
    simulate_exchange,
    simulate_pass,
    wires,
)
from atoll.fabric.mesh_events import LinkMessage, simulate
from atoll.fabric.mesh_kernels import exchange_flags
from atoll.fabric.routes import flows

VOLUME = 3e6


def mesh_of(rows: int, columns: int, latency_s: float = 1e-8, link_Bps: float = 50e9) -> Mesh:
    return Mesh("small", rows, columns, link_Bps, latency_s)


def test_one_message_over_two_hops_is_stored_and_forwarded():
    message = LinkMessage((((0, 0), (1, 0)), ((1, 0), (2, 0))), 100.0)
    assert simulate([message], mesh_of(1, 3, 0.5, 50.0)).end_s == pytest.approx(2 * (2.0 + 0.5))


def test_two_messages_share_a_link_one_after_the_other():
    link = (((0, 0), (1, 0)),)
    result = simulate(
        [LinkMessage(link, 100.0), LinkMessage(link, 100.0)], mesh_of(1, 2, 0.0, 50.0)
    )
    assert result.arrival_s == pytest.approx((2.0, 4.0))
    assert result.busy_s[link[0]] == pytest.approx(4.0)


SIDES = st.integers(1, 12)


@settings(max_examples=50, deadline=None)
@given(before=st.tuples(SIDES, SIDES), after=st.tuples(SIDES, SIDES))
def test_every_die_of_two_stages_sends_and_receives_an_equal_share(before, after):
    sources, targets = Rectangle(0, 0, *before), Rectangle(20, 3, *after)
    shares = flows(sources, targets)
    for stage, die_of in ((sources, 0), (targets, 1)):
        for die in stage.dies():
            total = sum(flow[2] for flow in shares if flow[die_of] == die)
            assert total == pytest.approx(1.0 / stage.size)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(2, 9), latency=st.sampled_from([0.0, 1e-8, 1e-6]))
def test_a_line_takes_n_minus_one_nths_of_the_volume(n, latency):
    mesh = mesh_of(1, n, latency)
    expected = (n - 1) * (VOLUME / n / mesh.link_Bps + latency)
    digits = digit_systems(n, 1)[0]
    member = [True] * digits.count
    assert gather_s(digits, member, VOLUME, mesh) == pytest.approx(expected)
    assert simulate_pass(digits, member, VOLUME, mesh) == pytest.approx(expected)


def scatter_line(schedule: MessageSchedule, dies) -> None:
    """Reduce-scatter along a line: partial sums inwards, the farthest owner's first."""
    for owner in range(len(dies)):
        for begin, step in ((0, 1), (len(dies) - 1, -1)):
            before = []
            for at in range(begin, owner, step):
                sent = (dies[at], dies[at + step], VOLUME / len(dies))
                before = [schedule.send(*sent, before, rank=abs(owner - begin))]


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_reduce_scatter_on_a_line_takes_as_long_as_all_gather(n):
    mesh = mesh_of(1, n)
    schedule = MessageSchedule()
    scatter_line(schedule, [(i, 0) for i in range(n)])
    simulated = simulate(schedule.messages, mesh).end_s
    assert simulated == pytest.approx((n - 1) * (VOLUME / n / mesh.link_Bps + 1e-8))


@pytest.mark.parametrize(("width", "height"), [(2, 2), (3, 2), (2, 3), (4, 3), (4, 4), (5, 2)])
def test_a_rectangle_with_an_even_side_holds_a_ring_of_neighbours(width, height):
    ring = rectangle_ring(Rectangle(1, 2, width, height))
    assert sorted(ring) == sorted((1 + i, 2 + j) for i in range(width) for j in range(height))
    steps = zip(ring, ring[1:] + ring[:1], strict=True)
    assert all(abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 for a, b in steps)
    n = width * height
    mesh = mesh_of(height, width)
    schedule = MessageSchedule()
    schedule.gather_ring(ring, VOLUME)
    simulated = simulate(schedule.messages, mesh).end_s
    expected = (n - 1) * (VOLUME / (2 * n) / mesh.link_Bps + mesh.link_latency_s)
    assert simulated == pytest.approx(expected)
    digits = digit_systems(width, height)[0]
    fast = gather_s(digits, [True] * digits.count, VOLUME, mesh, "ring")
    assert fast == pytest.approx(expected)


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
    mesh = mesh_of(height, width)
    fast = gather_s(digits, member, VOLUME, mesh, algorithm)
    simulated = simulate_pass(digits, member, VOLUME, mesh, algorithm)
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
    mesh = mesh_of(height, width, 0.0)
    digits = digit_systems(width, height)[0]
    member = [True] * digits.count
    n = width * height
    bound = n * VOLUME / (4 * mesh.link_Bps * min(width, height))
    if min(width, height) == 1:
        bound = n * VOLUME / (4 * mesh.link_Bps)
    fast = exchange_flags(np.array(member), VOLUME, wires(digits, mesh))
    assert fast == pytest.approx(bound)
    simulated = simulate_exchange(digits, member, VOLUME, mesh)
    message = VOLUME / n / mesh.link_Bps
    assert bound * (1 - 1e-9) <= simulated <= bound + (width + height) * message
