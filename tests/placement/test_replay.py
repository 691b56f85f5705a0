"""The replay of a 1F1B pipeline obeys its rules, and the step formula stays within its bounds."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.answers.design import PlacedStageAnswer, PlacementAnswer
from atoll.base.errors import AtollError
from atoll.fabric.network import FabricLevel, Network
from atoll.placement.replay import replay_placement
from atoll.step.replay import PassEvent, PassTime, replay

ROUNDING = 1e-9


class Timeline:
    """A 1F1B pipeline in arrays of (stages, microbatches, forward and backward)."""

    def __init__(
        self,
        forward_s: list[float],
        backward_s: list[float],
        transfer_s: list[float],
        microbatches: int,
    ) -> None:
        times = [[PassTime(f, b, 0.0)] for f, b in zip(forward_s, backward_s, strict=True)]
        delays_s = list(zip([0.0, *transfer_s], [*transfer_s, 0.0], strict=True))
        found = replay("1f1b", times, microbatches, (), delays_s)
        self.makespan_s = found.time_s
        self.bubble_s = [found.idle_s(stage) for stage in range(len(times))]
        self.start_s, self.end_s = (np.zeros((len(times), microbatches, 2)) for _ in range(2))
        self.rows: list[list[PassEvent]] = [[] for _ in times]
        for event in found.events:
            where = event.stage, event.microbatch, int(event.kind == "B")
            self.start_s[where], self.end_s[where] = event.start_s, event.end_s
            self.rows[event.stage].append(event)


def simulate_pipeline(*case: Any) -> Timeline:
    return Timeline(*case)


def estimate_s(
    forward_s: list[float], backward_s: list[float], transfer_s: list[float], microbatches: int
) -> float:
    """The placement's formula for the same pipeline."""
    loads = loads_s(forward_s, backward_s, transfer_s)
    return (microbatches - 1) * max(loads) + sum(loads)


def loads_s(
    forward_s: list[float], backward_s: list[float], transfer_s: list[float]
) -> list[float]:
    received = [0.0, *transfer_s]
    returned = [*transfer_s, 0.0]
    return [sum(parts) for parts in zip(forward_s, backward_s, received, returned, strict=True)]


# Whole numbers make ties; cubes of fractions make stages of very different size.
durations = st.integers(0, 4).map(float) | st.floats(0.0, 1.0).map(lambda x: x**3)


@st.composite
def pipelines(
    draw: st.DrawFn, transfers: st.SearchStrategy[float] = durations
) -> tuple[list[float], list[float], list[float], int]:
    stages = draw(st.integers(1, 7))

    def several(one: st.SearchStrategy[float], count: int) -> list[float]:
        return draw(st.lists(one, min_size=count, max_size=count))

    return (
        several(durations, stages),
        several(durations, stages),
        several(transfers, stages - 1),
        draw(st.integers(1, 12)),
    )


# --- Rules ----------------------------------------------------------------------------------------


@given(st.integers(1, 8), st.integers(0, 12), st.integers(0, 5), st.integers(0, 5))
def test_equal_stages_without_transfers_take_the_textbook_time(
    stages: int, more: int, forward_s: int, backward_s: int
) -> None:
    microbatches = stages + more
    timeline = simulate_pipeline(
        [forward_s] * stages, [backward_s] * stages, [0.0] * (stages - 1), microbatches
    )
    textbook_s = (microbatches - 1 + stages) * (forward_s + backward_s)
    assert timeline.makespan_s == textbook_s
    assert timeline.bubble_s == [(stages - 1) * (forward_s + backward_s)] * stages


@given(pipelines())
def test_every_pass_runs_once_after_what_it_needs(
    case: tuple[list[float], list[float], list[float], int],
) -> None:
    forward_s, backward_s, transfer_s, microbatches = case
    stages = len(forward_s)
    timeline = simulate_pipeline(*case)
    start, end = timeline.start_s, timeline.end_s
    assert start.min() == 0.0
    durations_s = np.stack([forward_s, backward_s], axis=-1)[:, None, :]
    assert end - start == pytest.approx(np.broadcast_to(durations_s, end.shape), abs=ROUNDING)
    for i, transfer in enumerate(transfer_s):
        assert (start[i + 1, :, 0] >= end[i, :, 0] + transfer).all()
        assert (start[i, :, 1] >= end[i + 1, :, 1] + transfer).all()
    assert (start[-1, :, 1] >= end[-1, :, 0]).all()
    assert sum(len(row) for row in timeline.rows) == 2 * stages * microbatches


@given(pipelines())
def test_a_stage_does_one_thing_at_a_time_in_1f1b_order(
    case: tuple[list[float], list[float], list[float], int],
) -> None:
    stages, microbatches = len(case[0]), case[3]
    timeline = simulate_pipeline(*case)
    for stage in range(stages):
        own = timeline.rows[stage]
        assert all(before.end_s <= after.start_s for before, after in pairwise(own))
        kinds = [event.kind for event in own]
        ahead = min(stages - stage, microbatches)
        # The last of the passes ahead is the first of a turn.
        assert kinds == ["F"] * ahead + ["B", "F"] * (microbatches - ahead) + ["B"] * ahead


@given(pipelines())
def test_a_link_carries_one_message_at_a_time(
    case: tuple[list[float], list[float], list[float], int],
) -> None:
    # Each message arrives no sooner than all those before it, one after another.
    start, end = (getattr(simulate_pipeline(*case), name) for name in ("start_s", "end_s"))
    for i, transfer in enumerate(case[2]):
        for m in range(case[3]):
            for earlier in range(m + 1):
                queue_s = (m - earlier + 1) * transfer - ROUNDING
                assert start[i + 1, m, 0] >= end[i, earlier, 0] + queue_s
                assert start[i, m, 1] >= end[i + 1, earlier, 1] + queue_s


def test_two_stages_by_hand() -> None:
    # F0 F1 .. B0 F2 B1 .. B2 on the first stage, F0 B0 F1 B1 F2 B2 on the second.
    timeline = simulate_pipeline([1.0, 2.0], [2.0, 3.0], [0.5], 3)
    assert timeline.start_s[1].tolist() == [[1.5, 3.5], [6.5, 8.5], [11.5, 13.5]]
    assert timeline.start_s[0].tolist() == [[0.0, 7.0], [1.0, 12.0], [9.0, 17.0]]
    assert timeline.makespan_s == 19.0
    assert timeline.bubble_s == [10.0, 4.0]


# --- The estimate against the replay --------------------------------------------------------------


@settings(max_examples=300)
@given(pipelines())
def test_the_replay_exceeds_the_estimate_only_by_unmatched_passes(
    case: tuple[list[float], list[float], list[float], int],
) -> None:
    forward_s, backward_s, transfer_s, microbatches = case
    longest_s = max(transfer_s, default=0.0)
    unmatched_s = max(*forward_s, longest_s) + max(*backward_s, longest_s) - max(loads_s(*case[:3]))
    passes = max(0, min(len(forward_s) - 2, microbatches - 1))
    bound_s = estimate_s(*case) + passes * max(0.0, unmatched_s)
    assert simulate_pipeline(*case).makespan_s <= bound_s + ROUNDING


@settings(max_examples=300)
@given(pipelines())
def test_the_replay_falls_short_only_by_what_runs_beside_the_slowest_stage(
    case: tuple[list[float], list[float], list[float], int],
) -> None:
    forward_s, backward_s, _, microbatches = case
    loads = loads_s(*case[:3])
    slowest = int(np.argmax(loads))
    transfers_s = loads[slowest] - forward_s[slowest] - backward_s[slowest]
    least_s = estimate_s(*case) - sum(loads[slowest + 1 :]) - microbatches * transfers_s
    assert simulate_pipeline(*case).makespan_s >= least_s - ROUNDING


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=7),
    st.floats(0.0, 3.0),
    st.floats(0.0, 1.0),
    st.integers(1, 12),
)
def test_stages_that_differ_only_in_size_never_exceed_the_estimate(
    size: list[float], ratio: float, share: float, microbatches: int
) -> None:
    backward_s = [ratio * forward_s for forward_s in size]
    transfer_s = [share * min(1.0, ratio) * max(size)] * (len(size) - 1)
    case = (size, backward_s, transfer_s, microbatches)
    assert simulate_pipeline(*case).makespan_s <= estimate_s(*case) + ROUNDING


@pytest.mark.parametrize("stages", range(3, 9))
def test_a_forward_heavy_stage_before_a_backward_heavy_one_exceeds_it_by_all_that_is_allowed(
    stages: int,
) -> None:
    forward_s = [1.0, 0.0] + [0.0] * (stages - 2)
    backward_s = [0.0, 1.0] + [0.0] * (stages - 2)
    case = (forward_s, backward_s, [0.0] * (stages - 1), stages)
    assert estimate_s(*case) == stages + 1
    assert simulate_pipeline(*case).makespan_s == estimate_s(*case) + stages - 2


# --- Placements -----------------------------------------------------------------------------------

NETWORK = Network(
    "two levels", (FabricLevel("node", 8, 300e9, 3e-6), FabricLevel("pod", 256, 25e9, 5e-6))
)
FLOPS = 150e12  # about half the peak of an A100


def placement(forward_s: float | None = 1.0) -> PlacementAnswer:
    """Two stages without chunks, as a wafer's mapping has them."""
    stages = tuple(
        PlacedStageAnswer(
            layers=("block",), devices=1, compute_s=3.0 + n, recompute_s=0.5,
            transfer_s=0.25, receive_s=0.25 * n, recompute="none", memory_bytes={},
            forward_s=forward_s, weight_s=None, chunks=(),
        )
        for n in range(2)
    )  # fmt: skip
    parts_s = {"gradient_reduction": 0.5, "optimizer": 0.125}
    return PlacementAnswer(
        pipeline=2, tensor=1, data=1, microbatch=1, microbatches=8, step_time_s=40.0,
        stages=stages, time_parts_s=parts_s, schedule="1f1b", zero=0, cp=1, ep=1, etp=None, vpp=1,
    )  # fmt: skip


def test_a_replay_has_the_placements_stages_and_tail() -> None:
    placed = placement()
    again = replay_placement(placed)
    for number, stage in enumerate(placed.stages):
        busy_s = again.pipeline.time_s - again.pipeline.idle_s(number)
        load_s = stage.compute_s + stage.recompute_s + stage.transfer_s
        assert busy_s == pytest.approx(placed.microbatches * load_s)
    assert again.time_s == pytest.approx(again.pipeline.time_s + 0.625)


def test_a_placement_without_forward_times_is_not_replayed() -> None:
    with pytest.raises(AtollError, match="describe it with the forward times"):
        replay_placement(placement(forward_s=None))
