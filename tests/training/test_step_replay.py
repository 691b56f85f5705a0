"""Pipelines replayed pass by pass: the closed forms where they are exact, bounds elsewhere."""

from __future__ import annotations

from itertools import product

import pytest
from training_cases import dense, mixture, small_run

from atoll.step.bubbles import held_bytes
from atoll.step.layout import Layout
from atoll.step.replay import PassTime, replay
from atoll.training.estimate import Estimator
from atoll.training.memory import losses_in_flight
from atoll.training.replay import replay_estimate, stage_passes
from atoll.training.stack import MEGATRON

F, B, W = 1.0, 1.25, 0.75


def equal(stages: int, chunks: int = 1) -> list[list[PassTime]]:
    return [[PassTime(F / chunks, B / chunks, W / chunks)] * chunks] * stages


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
        events = replay(schedule, equal(stages), m).events
        split = any(e.kind == "W" for e in events)
        for stage in range(stages):
            held = most = 0.0
            for event in sorted((e for e in events if e.stage == stage), key=lambda e: e.start_s):
                held += {"F": kept, "B": waiting * split - kept, "W": -waiting}[event.kind]
                most = max(most, held)
            assert most == pytest.approx(held_bytes(
                schedule, stages, stage, m, kept_bytes=kept, waiting_bytes=waiting
            ))


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


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-h2"])
@pytest.mark.parametrize("microbatches", [2, 4, 12])
def test_steps_can_follow_one_another_in_the_time_that_a_replay_takes(
    schedule: str, microbatches: int
) -> None:
    one = replay(schedule, equal(4), microbatches)
    for stage in range(4):
        own = [e for e in one.events if e.stage == stage]
        first_s, last_s = min(e.start_s for e in own), max(e.end_s for e in own)
        assert first_s + one.time_s >= last_s - 1e-9


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_zero_bubble_is_never_longer_than_1f1b(stages: int, groups: int) -> None:
    m = groups * stages
    plain = replay("1f1b", equal(stages), m).time_s
    first = replay("zb-h1", equal(stages), m).time_s
    second = replay("zb-h2", equal(stages), m).time_s
    assert m * (F + B + W) <= second <= first <= plain


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
