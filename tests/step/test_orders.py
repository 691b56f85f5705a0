"""Every pipeline order: its replay, formulas of equal stages, and what stages hold."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from atoll.base.errors import AtollError
from atoll.step.bubbles import (
    bubble_s,
    microbatches_before_weight_pass,
    microbatches_in_flight,
    step_s,
)
from atoll.step.orders import ORDERS, SPLIT, chunks_per_stage, first_group, groups, passes, route
from atoll.step.replay import PassTime, Replay, pipeline_s, replay

STAGES, MICROBATCHES = range(1, 9), range(1, 21)


def runnable(order: str, stages: int, microbatches: int) -> bool:
    """DualPipe takes microbatches from both ends, in equal numbers."""
    return order != "dualpipe" or (stages % 2 == 0 and microbatches % 2 == 0)


def run(
    order: str, stages: int, microbatches: int, vpp: int, f: float, b: float, w: float
) -> Replay:
    chunks = chunks_per_stage(order, vpp)
    return replay(order, [[PassTime(f, b, w)] * chunks] * stages, microbatches)


def test_an_order_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AtollError, match="pipeline order zb-h0: there is no such order"):
        run("zb-h0", 2, 4, 1, 1.0, 1.0, 1.0)


def load(order: str, vpp: int, f: float, b: float, w: float) -> PassTime:
    """All passes of one microbatch through one stage."""
    chunks = 1 if order == "dualpipe" else chunks_per_stage(order, vpp)
    return PassTime(chunks * f, chunks * b, chunks * w)


def cases(order: str) -> list[tuple[int, int, int]]:
    chunks = (2, 3, 4) if order == "interleaved" else (1,)
    return [
        (p, m, v)
        for p in STAGES
        for m in MICROBATCHES
        for v in chunks
        if runnable(order, p, m) and not (order == "interleaved" and p == 1)
    ]


@pytest.mark.parametrize("order", ORDERS)
def test_the_formula_of_equal_stages_is_the_replay(order):
    for p, m, v in cases(order):
        for f, b, w in ((1.0, 1.0, 1.0), (1.0, 1.2, 0.8), (1.0, 1.5, 0.5), (1.0, 2.0, 1.0)):
            found = run(order, p, m, v, f, b, w)
            stage = load(order, v, f, b, w)
            step_s = m * stage.total_s + bubble_s(order, [stage] * p, m, v)
            assert step_s == pytest.approx(found.time_s, rel=1e-9), (p, m, v, f, b, w)


@pytest.mark.parametrize("order", ORDERS)
def test_what_a_stage_holds_is_what_the_replay_held(order):
    for p, m, v in cases(order):
        chunks = 1 if order == "dualpipe" else chunks_per_stage(order, v)
        found = run(order, p, m, v, 1.0, 1.0, 1.0)
        for stage in range(p):
            most = microbatches_in_flight(order, p, stage, m, v) + microbatches_before_weight_pass(
                order, p, stage, m
            )
            assert most * chunks == pytest.approx(found.peak_before_weight[stage]), (p, m, v, stage)
            assert microbatches_in_flight(order, p, stage, m, v) * chunks == pytest.approx(
                found.peak_before_backward[stage]
            )


@pytest.mark.parametrize("order", ORDERS)
def test_every_pass_runs_once_and_never_two_at_once(order):
    for p, m, v in ((4, 6, 2), (4, 3, 2), (2, 2, 3), (8, 10, 2)):
        vpp = v if order == "interleaved" else 1
        chunks = chunks_per_stage(order, vpp)
        found = run(order, p, m, vpp, 1.0, 1.5, 0.7)
        visits = [(place, i) for i in range(m) for place in route(order, p, chunks, i)]
        kinds = ("F", "B", "W") if order in SPLIT else ("F", "B")
        expected = {(s, c, i, kind) for (s, c), i in visits for kind in kinds}
        assert {(e.stage, e.chunk, e.microbatch, e.kind) for e in found.events} == expected
        assert len(found.events) == len(expected)
        for stage in range(p):
            spans = sorted((e.start_s, e.end_s) for e in found.events if e.stage == stage)
            assert all(end <= start + 1e-12 for (_, end), (start, _) in pairwise(spans))


@given(
    order=st.sampled_from(ORDERS),
    stages=st.lists(st.tuples(st.floats(0.8, 1.2), st.floats(0.0, 0.6)), min_size=2, max_size=6),
    microbatches=st.integers(1, 16),
    vpp=st.integers(2, 3),
)
@settings(max_examples=150, deadline=None)
def test_unequal_stages_are_near_their_replay(order, stages, microbatches, vpp):
    """Stages within 20 % of each other, weight passes of a half to the whole of a forward pass."""
    assume(runnable(order, len(stages), microbatches))
    v = vpp if order == "interleaved" else 1
    chunks = chunks_per_stage(order, v)
    rows = [PassTime(f, f * (1.0 + more), f * (1.0 - more / 2)) for f, more in stages]
    found = replay(order, [[t] * chunks for t in rows], microbatches)
    count = 1 if order == "dualpipe" else chunks
    whole = [PassTime(count * t.forward_s, count * t.backward_s, count * t.weight_s) for t in rows]
    step_s = microbatches * max(t.total_s for t in whole)
    step_s += bubble_s(order, whole, microbatches, v)
    assert 0.91 * found.time_s <= step_s <= 1.18 * found.time_s


@given(
    order=st.sampled_from(["1f1b", "gpipe", "zb-h1"]),
    sizes=st.lists(st.floats(0.5, 2.0), min_size=1, max_size=8),
    microbatches=st.integers(1, 24),
    data=st.floats(1.0, 1.5),
    weight=st.floats(0.2, 1.0),
)
@settings(max_examples=80, deadline=None)
def test_stages_that_differ_only_in_size_take_no_longer_than_the_formula(
    order, sizes, microbatches, data, weight
):
    stages = [PassTime(s, data * s, weight * s) for s in sizes]
    found = replay(order, [[stage] for stage in stages], microbatches)
    assert found.time_s <= step_s(order, stages, microbatches) * (1 + 1e-9)


@given(stages=st.integers(1, 9), microbatches=st.integers(1, 60))
def test_groups_of_microbatches_fill_the_pipeline_where_they_can(stages, microbatches):
    sizes = groups(stages, microbatches)
    assert sum(sizes) == microbatches
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= min(stages, microbatches)
    assert first_group(stages, microbatches) == sizes[0] == max(sizes)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[str, np.ndarray, int, np.ndarray]:
    """An order, passes of unequal chunks (1, stages, chunks, 3), microbatches, and messages."""
    order = draw(st.sampled_from(ORDERS))
    stages, microbatches = draw(st.integers(2, 7)), draw(st.integers(1, 60))
    assume(runnable(order, stages, microbatches))
    chunks = chunks_per_stage(order, draw(st.integers(2, 3)) if order == "interleaved" else 1)
    shape = 1, stages, chunks, 3
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    passes_s = random.uniform(0.1, 2.0, shape) if draw(st.booleans()) else np.ones(shape)
    passes_s[0, -1, -1] *= draw(st.floats(1.0, 3.0))
    message_s = np.full((1, stages, 2), draw(st.sampled_from([0.0, 0.1, 1.0])))
    return order, passes_s, microbatches, message_s


@given(drawn=pipelines(), shown=st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=150, deadline=None)
def test_many_microbatches_take_as_long_as_all_of_them_replayed(drawn, shown):
    order, passes_s, microbatches, message_s = drawn
    messages = shown * message_s, (1 - shown) * message_s
    (found_s,) = pipeline_s(order, passes_s, microbatches, *messages)
    times = [[PassTime(*chunk) for chunk in stage] for stage in passes_s[0].tolist()]
    every = replay(order, times, microbatches, *(x[0].tolist() for x in messages))
    near = 0.06 if order == "interleaved" else 0.02
    assert found_s == pytest.approx(every.time_s, rel=near)
    if microbatches <= 64:
        assert found_s == every.time_s


@given(drawn=pipelines(), longer=st.floats(1.0, 2.0), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_passes_that_take_longer_end_no_step_sooner(drawn, longer, seed):
    order, passes_s, microbatches, message_s = drawn
    slower_s = passes_s * np.random.default_rng(seed).uniform(1.0, longer, passes_s.shape)
    microbatches = min(microbatches, 40 if order == "dualpipe" else 41)
    steps = [
        pipeline_s(order, x, microbatches, message_s, message_s)[0] for x in (passes_s, slower_s)
    ]
    assert steps[0] <= steps[1] * (1 + 1e-12)


def test_python_and_the_compiled_loop_replay_alike(monkeypatch):
    random = np.random.default_rng(7)
    for order in ORDERS:
        chunks = chunks_per_stage(order, 3 if order == "interleaved" else 1)
        passes_s, message_s = (
            random.uniform(0.1, 1, (3, 4, chunks, 3)),
            random.uniform(0, 1, (3, 4, 2)),
        )
        given_ = order, passes_s, 10, message_s, 0.5 * message_s
        monkeypatch.setattr("atoll.step.replay._compiles", lambda passes: False)
        plain_s = pipeline_s(*given_)
        monkeypatch.setattr("atoll.step.replay._compiles", lambda passes: True)
        monkeypatch.setattr("atoll.step.replay._steps_s", {})  # computed once more
        assert (pipeline_s(*given_) == plain_s).all()


@given(
    order=st.sampled_from(SPLIT),
    p=st.integers(2, 9),
    m=st.integers(1, 40),
    passes=st.tuples(*[st.floats(0.1, 2.0)] * 3),
)
@settings(max_examples=200, deadline=None)
def test_the_formula_of_equal_stages_is_never_above_the_replay(order, p, m, passes):
    """Whatever the three passes take: bounds of zero-bubble orders rest on it."""
    assume(runnable(order, p, m))
    stage = load(order, 1, *passes)
    by_formula_s = m * stage.total_s + bubble_s(order, [stage] * p, m)
    assert by_formula_s <= run(order, p, m, 1, *passes).time_s * (1 + 1e-9)


def test_what_is_held_of_endless_batches_is_known_at_once():
    assert microbatches_in_flight("interleaved", 2, 0, 10**15, 2) == microbatches_in_flight(
        "interleaved", 2, 0, 100, 2
    )


def test_transfers_wait_for_each_other_on_a_link():
    """Two stages, sends of 4 s: the second activation leaves when the first has arrived."""
    times = [[PassTime(1.0, 2.0, 0.0)]] * 2
    found = replay("1f1b", times, 2, (), [(4.0, 4.0)] * 2)
    forward = [e for e in found.events if e.stage == 1 and e.kind == "F"]
    assert [e.start_s for e in forward] == [5.0, 9.0]


def test_more_microbatches_never_fewer_seconds():
    for order in ORDERS:
        even = [m for m in MICROBATCHES if runnable(order, 4, m)]
        steps = [run(order, 4, m, 2 if order == "interleaved" else 1, 1.0, 1.3, 0.8).time_s
                 for m in even]  # fmt: skip
        assert all(a < b for a, b in pairwise(steps))


def test_orders_run_every_microbatch_in_sequence_within_a_chunk():
    for order in ORDERS:
        chunks = chunks_per_stage(order, 2 if order == "interleaved" else 1)
        for stage in range(4):
            line = passes(order, stage, 4, chunks, 8)
            for chunk in range(chunks):
                own = [p.microbatch for p in line if p.kind == "F" and p.chunk == chunk]
                assert own == sorted(own)
