"""Pipelines replayed pass by pass: the closed forms where they are exact, bounds elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_cases import dense, mixture, small_run

from atoll.training.estimate import SEARCHED, Estimator, pipeline_bubble_s
from atoll.training.layout import Layout
from atoll.training.memory import held_bytes, in_flight, losses_in_flight
from atoll.training.pipeline import Replay, StagePass, check_replay, replay
from atoll.training.replay import replay_estimate, stage_passes
from atoll.training.stack import MEGATRON
from atoll.training.step import Pass, StageTime

F, B, W = 1.0, 1.25, 0.75
times = st.floats(0.1, 3.0)


def equal(stages: int, chunks: int = 1) -> list[list[StagePass]]:
    return [[StagePass(F / chunks, B / chunks, W / chunks)] * chunks] * stages


@st.composite
def random_passes(draw: st.DrawFn, most_chunks: int = 1) -> list[list[StagePass]]:
    stages, chunks = draw(st.integers(1, 6)), draw(st.integers(1, most_chunks))
    each = st.builds(StagePass, times, times, times)
    return [draw(st.lists(each, min_size=chunks, max_size=chunks)) for _ in range(stages)]


@pytest.mark.parametrize("stages", [1, 2, 3, 8])
@pytest.mark.parametrize("microbatches", [1, 2, 5, 16])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_equal_stages_take_the_closed_form(schedule: str, stages: int, microbatches: int) -> None:
    result = replay(schedule, equal(stages), microbatches)
    assert result.time_s == pytest.approx((microbatches - 1 + stages) * (F + B + W))


@pytest.mark.parametrize(
    ("stages", "chunks", "groups"), [(2, 2, 1), (4, 2, 2), (4, 3, 3), (8, 2, 2)]
)
def test_interleaving_divides_the_bubble(stages: int, chunks: int, groups: int) -> None:
    m = groups * stages
    result = replay("interleaved", equal(stages, chunks), m)
    assert result.time_s == pytest.approx((m + (stages - 1) / chunks) * (F + B + W))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved"])
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("groups", [1, 3])
def test_microbatches_in_flight_are_those_of_the_memory_model(
    schedule: str, stages: int, groups: int
) -> None:
    chunks = 3 if schedule == "interleaved" else 1
    m = groups * stages
    layout = Layout(pp=stages, vpp=chunks, schedule=schedule)
    held = replay(schedule, equal(stages, chunks), m).in_flight
    assert [h / chunks for h in held] == [in_flight(layout, s, m) for s in range(stages)]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (4, 4), (4, 12)])
def test_losses_that_wait_are_those_of_the_memory_model(
    schedule: str, stages: int, microbatches: int
) -> None:
    chunks = 3 if schedule == "interleaved" else 1
    layout = Layout(pp=stages, vpp=chunks, schedule=schedule)
    passes = replay(schedule, equal(stages, chunks), microbatches).events
    losses = [e for e in passes if (e.stage, e.chunk) == (stages - 1, chunks - 1)]
    waiting = most = 0
    for event in sorted(losses, key=lambda e: e.start_s):
        waiting += {"F": 1, "B": -1, "W": 0}[event.kind]
        most = max(most, waiting)
    assert most == losses_in_flight(layout, microbatches)


def test_an_interleaved_stage_holds_the_logits_of_one_microbatch() -> None:
    """The last chunk's backward pass follows its forward pass at once; GPipe keeps all losses."""
    estimator = Estimator(small_run(dense(8), devices=4, global_batch=16))
    plain = estimator.estimate(Layout(pp=4)).memory[-1]
    interleaved = estimator.estimate(Layout(pp=4, vpp=2, schedule="interleaved")).memory[-1]
    assert interleaved.logits == plain.logits
    assert interleaved.activations > 2 * plain.activations
    at_once = estimator.estimate(Layout(pp=4, schedule="gpipe")).memory[-1]
    assert at_once.logits == plain.logits * (1 + 15 * MEGATRON.loss_kept / MEGATRON.loss_bytes)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "zb-h2"])
@pytest.mark.parametrize("stages", range(1, 9))
def test_a_stage_never_holds_more_than_the_memory_model_counts(schedule: str, stages: int) -> None:
    """Kept until the backward pass, and of split ones until the weight gradient what it needs: at
    each of three prices, of which the last is that of recomputation.
    """
    for m, (kept, waiting) in product(range(1, 21), [(1.0, 0.0), (1.0, 0.9), (0.1, 1.0)]):
        layout = Layout(pp=stages, schedule=schedule)
        events = replay(schedule, equal(stages), m).events
        split = any(e.kind == "W" for e in events)
        for stage in range(stages):
            held = most = 0.0
            for event in sorted((e for e in events if e.stage == stage), key=lambda e: e.start_s):
                held += {"F": kept, "B": waiting * split - kept, "W": -waiting}[event.kind]
                most = max(most, held)
            assert most == pytest.approx(held_bytes(layout, stage, m, kept, waiting))


def test_zero_bubble_holds_what_waits_for_weight_gradients() -> None:
    """p microbatches on every stage where 1F1B holds p - stage; the head's output gradients too."""
    estimator = Estimator(small_run(dense(8), devices=4, global_batch=16))
    plain = estimator.estimate(Layout(pp=4)).memory
    first = estimator.estimate(Layout(pp=4, schedule="zb-h1")).memory
    second = estimator.estimate(Layout(pp=4, schedule="zb-h2")).memory
    assert first[0].activations == plain[0].activations
    assert second[0].activations == pytest.approx(7 / 4 * plain[0].activations)
    for before, h1, h2 in zip(plain[1:], first[1:], second[1:], strict=True):
        assert before.activations < h1.activations < h2.activations
    block = next(c for c in estimator.costs(Layout(pp=4)) if c.is_block)
    # Two blocks a stage: their inputs are 14 h and their output gradients 18 h bytes a token.
    assert block.waiting_bytes == 32 * 512 * 1024
    assert first[2].activations == 2 * (2 * block.kept("none").bytes + 2 * block.waiting_bytes)


def stage_times(passes: Sequence[Sequence[StagePass]]) -> list[StageTime]:
    found = []
    for row in passes:
        forward_s, weight_s = sum(p.forward_s for p in row), sum(p.weight_s for p in row)
        backward_s = sum(p.backward_s for p in row) + weight_s
        found.append(StageTime(Pass(forward_s), Pass(backward_s), Pass(), weight_s, 0.0))
    return found


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2"])
@pytest.mark.parametrize("stages", range(1, 9))
def test_the_closed_form_is_the_replay_also_with_few_microbatches(
    schedule: str, stages: int
) -> None:
    """For equal stages; of a zero-bubble schedule's bubble it may leave out what searched orders
    gain, but only where there are weight gradients to move.
    """
    chunks = 2 if schedule == "interleaved" else 1
    if chunks > 1 and stages == 1:
        return
    layout = Layout(pp=stages, vpp=chunks, schedule=schedule)
    passes = equal(stages, chunks)
    for m in range(1, 21):
        if chunks > 1 and m % stages:
            continue
        steady_s = m * (F + B + W)
        found_s = steady_s + pipeline_bubble_s(layout, stage_times(passes), m)
        replayed_s = replay(schedule, passes, m).time_s
        if schedule.startswith("zb") and m > stages:
            assert found_s <= replayed_s * (1 + 1e-12)
            assert found_s - steady_s >= SEARCHED * (replayed_s - steady_s) * (1 - 1e-12)
        else:
            assert found_s == pytest.approx(replayed_s)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.5, 2.0), min_size=1, max_size=8),
    st.integers(1, 20),
    st.floats(1.0, 2.2),
    st.floats(0.3, 1.0),
    st.sampled_from(["1f1b", "gpipe", "zb-h1", "zb-h2"]),
)
def test_stages_that_differ_in_size_take_no_longer_than_a_tenth_more_than_the_closed_form(
    sizes: list[float], microbatches: int, data: float, weight: float, schedule: str
) -> None:
    passes = [[StagePass(s, data * s, weight * s)] for s in sizes]
    layout = Layout(pp=len(sizes), schedule=schedule)
    slowest_s = max(row[0].total_s for row in passes)
    bubble_s = pipeline_bubble_s(layout, stage_times(passes), microbatches)
    found_s = microbatches * slowest_s + bubble_s
    replayed_s = replay(schedule, passes, microbatches).time_s
    least = 0.9 if schedule.startswith("zb") else 1 - 1e-12
    assert found_s >= least * replayed_s
    plain = Layout(pp=len(sizes))
    assert bubble_s <= pipeline_bubble_s(plain, stage_times(passes), microbatches) * (1 + 1e-12)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-h2"])
@pytest.mark.parametrize("microbatches", [2, 4, 12])
def test_steps_can_follow_one_another_in_the_time_that_a_replay_takes(
    schedule: str, microbatches: int
) -> None:
    one = replay(schedule, equal(4), microbatches)
    again = [
        replace(e, start_s=e.start_s + one.time_s, end_s=e.end_s + one.time_s) for e in one.events
    ]
    check_replay(replace(one, events=(*one.events, *again)), 4)


@settings(max_examples=60, deadline=None)
@given(random_passes(), st.integers(1, 12), st.sampled_from(["1f1b", "gpipe", "zb-h1", "zb-h2"]))
def test_random_pipelines_obey_order_and_time(
    passes: list[list[StagePass]], microbatches: int, schedule: str
) -> None:
    result = replay(schedule, passes, microbatches, send_s=0.05)
    check_replay(result, len(passes))
    assert_ordered(result, len(passes), microbatches, 0.05)
    slowest = max(stage[0].total_s for stage in passes)
    assert result.time_s >= microbatches * slowest * (1 - 1e-12)
    assert result.time_s >= sum(stage[0].forward_s + stage[0].backward_s for stage in passes)


@settings(max_examples=30, deadline=None)
@given(random_passes(most_chunks=3), st.integers(1, 3))
def test_random_interleaved_pipelines_obey_order(
    passes: list[list[StagePass]], groups: int
) -> None:
    microbatches = groups * len(passes)
    result = replay("interleaved", passes, microbatches)
    check_replay(result, len(passes))
    assert len(result.events) == 2 * microbatches * sum(len(stage) for stage in passes)
    slowest = max(sum(p.total_s for p in stage) for stage in passes)
    assert result.time_s >= microbatches * slowest * (1 - 1e-12)


def assert_ordered(result: Replay, stages: int, microbatches: int, send_s: float) -> None:
    """Forward passes go down the stages, backward passes up, weight gradients come last."""
    end = {(e.kind, e.stage, e.microbatch): e.end_s for e in result.events}
    start = {(e.kind, e.stage, e.microbatch): e.start_s for e in result.events}
    slip = 1e-9
    for m in range(microbatches):
        for here, following in pairwise(range(stages)):
            assert start["F", following, m] >= end["F", here, m] + send_s - slip
            assert start["B", here, m] >= end["B", following, m] + send_s - slip
        for stage in range(stages):
            assert start["B", stage, m] >= end["F", stage, m] - slip
            if ("W", stage, m) in start:
                assert start["W", stage, m] >= end["B", stage, m] - slip


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_zero_bubble_is_never_longer_than_1f1b(stages: int, groups: int) -> None:
    m = groups * stages
    plain = replay("1f1b", equal(stages), m).time_s
    first = replay("zb-h1", equal(stages), m).time_s
    second = replay("zb-h2", equal(stages), m).time_s
    assert m * (F + B + W) <= second <= first <= plain


def test_a_stage_that_runs_two_passes_at_once_is_found() -> None:
    good = replay("1f1b", equal(2), 2)
    check_replay(good, 2)
    bad = Replay(good.time_s, (*good.events, good.events[0]), good.in_flight)
    with pytest.raises(AssertionError, match="stage 0 runs two passes"):
        check_replay(bad, 2)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(dp=2, pp=4, recompute="full"),
        Layout(dp=2, pp=4, vpp=2, schedule="interleaved"),
        Layout(dp=4, pp=2, schedule="zb-h1"),
        Layout(dp=8),
        Layout(dp=1, pp=8, microbatch=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("model", [dense(8), mixture(14)], ids=lambda m: m.name)
def test_replayed_steps_are_close_to_the_estimate(layout: Layout, model: object) -> None:
    run = small_run(model, devices=8, global_batch=128, sequence=512)  # type: ignore[arg-type]
    estimate = Estimator(run).estimate(layout)
    replayed = replay_estimate(estimate)
    assert abs(replayed.difference) < 0.06
    assert len(stage_passes(estimate)) == layout.pp


def test_long_steps_are_replayed_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.training.replay.MOST_PASSES", 3000)
    run = small_run(dense(4), devices=2, global_batch=20_000)
    estimate = Estimator(run).estimate(Layout(dp=1, pp=2))
    replayed = replay_estimate(estimate)
    assert replayed.step.replayed < 1000
    assert abs(replayed.difference) < 0.02
