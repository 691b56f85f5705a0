"""Pipelines replayed pass by pass: what they hold, and that estimates are their replay."""

from __future__ import annotations

from itertools import product

import pytest
from training_cases import dense, grouped, mixture, small_run

from atoll.step.bubbles import in_flight_per_chunk, peak_activation_bytes
from atoll.step.layout import Layout
from atoll.step.orders import ORDERS, chunks_per_stage, model_copies, route
from atoll.step.replay import PassTime, replay
from atoll.tools.stack import MEGATRON
from atoll.training.estimate import Estimator
from atoll.training.memory import losses_in_flight
from atoll.training.replay import replay_estimate

F, B, W = 1.0, 1.25, 0.75


def equal(stages: int, chunks: int = 1) -> list[list[PassTime]]:
    return [[PassTime(F / chunks, B / chunks, W / chunks)] * chunks] * stages


@pytest.mark.parametrize("schedule", ORDERS)
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (4, 4), (4, 6), (4, 12)])
def test_losses_that_wait_are_those_of_the_memory_model(
    schedule: str, stages: int, microbatches: int
) -> None:
    vpp = 3 if schedule == "interleaved" else 1
    chunks = chunks_per_stage(schedule, vpp)
    layout = Layout(pp=stages, vpp=vpp, schedule=schedule)
    passes = replay(schedule, equal(stages, chunks), microbatches).events
    last = route(schedule, stages, chunks, 0)[-1]
    losses = [e for e in passes if (e.stage, e.chunk) == last]
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


@pytest.mark.parametrize("schedule", [s for s in ORDERS if s != "interleaved"])
@pytest.mark.parametrize("stages", range(1, 9))
def test_a_stage_never_holds_more_than_the_memory_model_counts(schedule: str, stages: int) -> None:
    """Kept until the backward pass, and of split ones until the weight gradient what it needs: at
    each of three prices, of which the last is that of recomputation.
    """
    chunks, unit = chunks_per_stage(schedule), model_copies(schedule) / chunks_per_stage(schedule)
    for m, (kept, waiting) in product(range(1, 21), [(1.0, 0.0), (1.0, 0.9), (0.1, 1.0)]):
        if schedule == "dualpipe" and (stages % 2 or m % 2):
            continue
        events = replay(schedule, equal(stages, chunks), m).events
        split = any(e.kind == "W" for e in events)
        for stage in range(stages):
            held = most = 0.0
            for event in sorted((e for e in events if e.stage == stage), key=lambda e: e.start_s):
                held += {"F": kept, "B": waiting * split - kept, "W": -waiting}[event.kind]
                most = max(most, held)
            assert most * unit == pytest.approx(
                peak_activation_bytes(
                    schedule, stages, stage, m, kept_bytes=kept, waiting_bytes=waiting
                )
            )


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (4, 4), (4, 12), (8, 6), (8, 20)])
def test_each_chunk_holds_what_the_memory_model_counts_of_it(
    schedule: str, stages: int, microbatches: int
) -> None:
    """Few of the chunk whose backward pass comes soon: at one moment exactly as many."""
    events = replay(schedule, equal(stages, 2), microbatches).events
    for stage in range(stages):
        now, seen = [0, 0], set()
        for event in sorted((e for e in events if e.stage == stage), key=lambda e: e.start_s):
            now[event.chunk] += {"F": 1, "B": -1, "W": 0}[event.kind]
            seen.add(tuple(now))
        assert in_flight_per_chunk(schedule, stages, stage, microbatches) in seen


def test_a_bidirectional_pipeline_holds_the_model_twice() -> None:
    """arXiv:2412.19437, table 2: twice the parameters, activations of PP + 1 microbatches."""
    estimator = Estimator(small_run(grouped(8), devices=4, global_batch=16))
    plain = estimator.estimate(Layout(pp=4)).memory
    both = estimator.estimate(Layout(pp=4, schedule="dualpipe")).memory
    assert sum(m.weights for m in both) == 2 * sum(m.weights for m in plain)
    assert [m.weights for m in both] == [m.weights for m in reversed(both)]
    # Stages within the pipeline have blocks alone: two, and two of the mirrored stage.
    assert both[1].activations == 5 / 3 * plain[1].activations
    # Both copies' ranks divide its states, so that a rank has as much of them as without.
    assert sum(m.optimizer for m in both) == sum(m.optimizer for m in plain)
    assert both[0].logits == both[3].logits == plain[3].logits > both[1].logits


def test_a_pipeline_in_a_v_has_both_ends_on_its_first_stage() -> None:
    estimator = Estimator(small_run(dense(8), devices=4, global_batch=16))
    layout = Layout(pp=4, schedule="zb-v")
    memory = estimator.estimate(layout).memory
    assert memory[0].logits > 0 == memory[3].logits
    # The tied table stands there once.
    assert sum(m.weights for m in memory) == 2 * estimator.model(layout).parameters
    # As 1F1B's first stage: two blocks of four microbatches, on every stage but the first.
    block = next(c for c in estimator.costs(layout) if c.is_block)
    assert [m.activations for m in memory[1:]] == [4 * 2 * block.kept("none").bytes] * 3


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
        Layout(dp=2, pp=4, schedule="zb-v"),
        Layout(dp=2, pp=4, schedule="dualpipe"),
        Layout(dp=2, pp=4, vpp=2, microbatch=4, schedule="interleaved", hsdp=2),
        Layout(dp=8),
        Layout(dp=1, pp=8, microbatch=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("model", [dense(8), mixture(14)], ids=lambda m: m.name)
def test_the_estimate_is_the_replay(layout: Layout, model: object) -> None:
    run = small_run(model, devices=8, global_batch=128, sequence=512)  # type: ignore[arg-type]
    estimate = Estimator(run).estimate(layout)
    replayed = replay_estimate(estimate)
    assert replayed.time_s == pytest.approx(estimate.step.time_s, rel=1e-3)
    assert len(replayed.step.passes) == layout.pp
    assert sum(estimate.step.breakdown().values()) == pytest.approx(estimate.step.time_s)


def test_long_steps_are_replayed_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.training.replay.MOST_PASSES", 3000)
    run = small_run(dense(4), devices=2, global_batch=20_000)
    estimate = Estimator(run).estimate(Layout(dp=1, pp=2))
    replayed = replay_estimate(estimate)
    assert replayed.step.replayed < 1000
    assert replayed.time_s == pytest.approx(estimate.step.time_s, rel=1e-9)
