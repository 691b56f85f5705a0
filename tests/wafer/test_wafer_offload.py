"""Saved tensors in another stage's memory: routes, memory of helpers, and when the planner asks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.fabric.mesh import Rectangle, snake
from atoll.fabric.routes import journeys
from atoll.questions import WaferQuestion
from atoll.step.states import STATES
from atoll.wafer.answer.draw import text_map, wafer_picture
from atoll.wafer.encoding.block_parts import KEEP, OFFLOAD, RECOMPUTE
from atoll.wafer.encoding.mapping import problems
from atoll.wafer.evaluate import evaluate, helper_paths, in_flight
from atoll.wafer.job import options_of
from atoll.wafer.link_loads import link_loads
from atoll.wafer.link_replay import offload_rates_Bps, replay_mapping
from atoll.wafer.staging.offload import Helpers, pairings
from atoll.wafer.staging.planner import Planner, WaferOptions

from .wafer_cases import small_model, small_wafer

SEQUENCE = 96


def planner(wafer, **options) -> Planner:
    # Small states, so that activations are what fills the memory.
    chosen = WaferOptions(states=STATES["mixed16"], **options)
    return Planner(wafer, small_model(layers=8), 32, SEQUENCE, chosen)


def four_stages(wafer, **options):
    return planner(wafer, **options).plan(snake(2, 4, 1, 2, 4), 1)


@pytest.fixture(scope="module")
def tight():
    """A wafer whose first stage must recompute, and the mappings with and without help."""
    roomy = small_wafer(2, 4, link_Bps=4e11)
    needed = evaluate(roomy, four_stages(roomy)).memory_bytes
    wafer = small_wafer(2, 4, link_Bps=4e11, memory_bytes=int(0.65 * needed))
    return wafer, four_stages(wafer), four_stages(wafer, offload=False)


def test_helpers_make_a_pressed_pipeline_faster(tight):
    wafer, helped, alone = tight
    assert any(RECOMPUTE in stage.block.keep for stage in alone.stages)
    assert any(OFFLOAD in stage.block.keep for stage in helped.stages)
    assert problems(helped, 2, 4) == []
    with_help, without = evaluate(wafer, helped), evaluate(wafer, alone)
    assert with_help.fits and without.fits
    assert with_help.step_s < 0.99 * without.step_s
    assert all(stage.helper is None for stage in alone.stages)


def test_help_is_not_asked_for_where_memory_suffices():
    wafer = small_wafer(2, 4, link_Bps=4e11)
    assert all(stage.helper is None for stage in four_stages(wafer).stages)


def test_what_is_left_elsewhere_counts_there(tight):
    wafer, helped, _ = tight
    kept = tuple(
        replace(s, helper=None, block=replace(s.block, keep=tuple(
            KEEP if fate == OFFLOAD else fate for fate in s.block.keep
        )))
        for s in helped.stages
    )  # fmt: skip
    away, here = evaluate(wafer, helped), evaluate(wafer, replace(helped, stages=kept))
    guests = sum(s.memory_bytes.get("guests", 0.0) for s in away.stages)
    moved = 0.0
    for number, stage in enumerate(helped.stages):
        cost, other = away.stages[number], here.stages[number]
        fewer = other.memory_bytes["activations"] - cost.memory_bytes["activations"]
        left = stage.layers * in_flight(helped, number) * cost.block.away_bytes
        assert fewer == pytest.approx(left)
        moved += left
        # Brought back for one microbatch of one layer.
        more = cost.memory_bytes["transient"] - other.memory_bytes["transient"]
        assert more == pytest.approx(cost.block.away_bytes)
    assert guests == pytest.approx(moved) and guests > 0.0


def test_the_pictures_and_the_replay_know_it(tight):
    wafer, helped, _ = tight
    found = evaluate(wafer, helped)
    picture = wafer_picture(wafer, found)
    sender = next(s for s in picture.stages if s.offloaded)
    assert f"with {sender.offload_target}" in text_map(picture)
    assert abs(replay_mapping(wafer, found).difference) < 0.05
    # Links between the stages carry the journeys too.
    bare = replace(helped, stages=tuple(
        replace(s, helper=None, block=replace(s.block, keep=(KEEP,) * 7)) for s in helped.stages
    ))  # fmt: skip
    without = link_loads(wafer, evaluate(wafer, bare))
    assert sum(link_loads(wafer, found).values()) > sum(without.values())


def test_a_link_is_shared_by_the_dies_that_send_over_it():
    wafer = small_wafer(1, 4, link_Bps=1e9, latency_s=1e-8)
    line = [Rectangle(0, 0, 2, 1), Rectangle(2, 0, 2, 1)]
    (away, none) = helper_paths(wafer, line, (1, None))
    # Dies 0 and 1 send to dies 2 and 3: both over the link from 1 to 2.
    assert none is None
    assert away.bandwidth_Bps == pytest.approx(0.5e9)
    assert away.latency_s == pytest.approx(2e-8)
    (way, _) = journeys(wafer.mesh, line, (1, None))
    assert way.loads[((1, 0), (2, 0))] == 2.0 and way.loads[((2, 0), (1, 0))] == 2.0
    # A helper of half the size takes twice as much on each die.
    helpers = Helpers((1, None), (away, None), (0.0, 100.0))
    assert helpers.offload_limit_bytes(0, [Rectangle(0, 0, 2, 1), Rectangle(2, 0, 1, 1)]) == 50.0


def test_packets_on_queues_travel_at_the_rate_of_the_fast_model(tight):
    wafer, helped, _ = tight
    found = evaluate(wafer, helped)
    of = [stage.helper for stage in helped.stages]
    rectangles = [stage.rectangle for stage in helped.stages]
    rates, paths = offload_rates_Bps(wafer, found), helper_paths(wafer, rectangles, of)
    for rate, away, cost in zip(rates, paths, found.stages, strict=True):
        if away is not None:
            left = cost.block.away_bytes
            # Senders of unequal bytes: the fast model's even division is on the safe side.
            assert left / rate < 1.1 * (left / away.bandwidth_Bps + away.latency_s)


@pytest.mark.parametrize("stages", range(2, 9))
def test_pairs_are_other_stages_and_helpers_have_one_guest(stages):
    for of in pairings(stages):
        helpers = [h for h in of if h is not None]
        assert len(helpers) == len(set(helpers)) == stages // 2
        assert not set(helpers) & {s for s, h in enumerate(of) if h is not None}


def test_the_ablation_switches_it_off():
    wafer = small_wafer()
    assert options_of(WaferQuestion.of(), wafer).offload
    assert not options_of(WaferQuestion.of(ablations="no-offload"), wafer).offload
