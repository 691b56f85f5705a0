"""The compiled division of a chain is the true optimum of the default profile's rules.

Witnesses: exhaustive search with a plain restatement of the rules (`step_time_of`) on small chains,
that restatement worked out by hand, and laws that any optimum obeys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from atoll.base.errors import AtollError
from atoll.fabric.nested import collective_s
from atoll.fabric.network import FabricLevel, Network
from atoll.hardware.catalog import load_network
from atoll.placement.chain import (
    ZERO,
    PlacementProblem,
    describe,
    divide,
    even_starts,
    fixed_division,
    make_chain,
)
from atoll.placement.chain_kernels import (
    Chain,
    System,
    best_plan,
    feasible_depths,
    reduction_s,
)
from atoll.placement.facts import ChainFacts, chain_facts
from atoll.step.states import STATES, load_states
from atoll.workload import load_config, prepare
from oracles.division import step_time_of

EXACT = 1e-12


# --- Exhaustive search ----------------------------------------------------------------------------


def divisions(layers: int) -> Iterator[tuple[int, ...]]:
    """First layers of the stages, for every way to cut a chain."""
    for cuts in range(layers):
        for inner in combinations(range(1, layers), cuts):
            yield (0, *inner)


def brute_force_s(chain: Chain, system: System) -> float:
    """Least step time over every division and data degree; infinite if nothing fits."""
    return min(
        step_time_of(chain, system, starts, data)
        for starts in divisions(len(chain.time_s))
        for data in range(1, 1 + max(1, system.devices // (system.tensor * len(starts))))
    )


# --- Random chains of small whole numbers, so that ties and exact fits do happen ------------------

small = st.integers(0, 6).map(float)
MOST_LAYERS = 12


@st.composite
def chains(draw: st.DrawFn, most_layers: int = 7) -> Chain:
    layers = draw(st.integers(1, most_layers))

    def numbers(count: int) -> np.ndarray:
        return np.array(draw(st.lists(small, min_size=count, max_size=count)))

    kinds = draw(st.integers(1, 2))
    levels = draw(levels_of(kinds))
    return Chain(
        time_s=numbers(layers),
        saved_bytes=numbers(layers),
        parameters=numbers(layers),
        block=np.array(
            draw(st.lists(st.integers(-1, kinds - 1), min_size=layers, max_size=layers)), np.int64
        ),
        **levels,
        rebuilt_bytes=np.array(
            draw(st.lists(st.integers(0, 2).map(float), min_size=kinds, max_size=kinds))
        ),
        boundary_bytes=np.array([0.0, *numbers(layers - 1), 0.0]),
        shared=0.0,
    )


@st.composite
def levels_of(draw: st.DrawFn, kinds: int) -> dict[str, np.ndarray]:
    """What blocks keep, level by level: of each kind bytes grow in steps and seconds fall ever less
    steeply, and levels take the steps of all kinds, the steepest first.
    """
    steps = draw(
        st.lists(
            st.tuples(st.integers(1, 5), st.integers(0, kinds - 1), st.integers(1, 4)), max_size=3
        )
    )
    steps.sort(reverse=True)
    kept = [[float(draw(st.integers(0, 3))) for _ in range(kinds)]]
    saved = [[0.0] * kinds]
    for slope, kind, width in steps:
        kept.append([b + width * (k == kind) for k, b in enumerate(kept[-1])])
        saved.append([s + slope * width * (k == kind) for k, s in enumerate(saved[-1])])
    least = np.array([float(draw(st.integers(0, 2))) for _ in range(kinds)])
    levels = np.arange(len(kept))
    return {
        "kept_bytes": np.array(kept),
        "extra_s": least + np.array(saved[-1]) - np.array(saved),
        "raised": np.array([0, *(kind for _, kind, _ in steps)], np.int64),
        "choice": np.repeat(levels[:, None], kinds, axis=1),
    }


@st.composite
def systems(draw: st.DrawFn) -> System:
    devices = draw(st.integers(1, 12))

    def numbers(*shape: int) -> np.ndarray:
        count = int(np.prod(shape))
        return np.array(draw(st.lists(small, min_size=count, max_size=count))).reshape(shape)

    copies = np.maximum(1.0, np.arange(devices + 1))
    collectives = draw(st.integers(1, 2))
    # Few kinds of transfers, so that some layouts share one and others do not.
    kinds = draw(st.integers(1, 3))
    period, more = draw(st.integers(1, 4)), draw(st.integers(0, 2))
    layouts = np.add.outer(np.arange(devices + 1) // period, more * np.arange(MOST_LAYERS + 1))
    # Larger messages may reach more of a level, but never end sooner.
    share = np.array([[1.0, 1.0], [0.5, draw(st.sampled_from([0.5, 0.6, 0.8]))]])
    return System(
        devices=devices,
        tensor=draw(st.sampled_from([1, 1, 2, 3])),
        microbatches=draw(st.integers(1, 9)),
        memory_bytes=float(draw(st.integers(0, 60) | st.just(10_000))),
        # What replicas divide among them, if they divide anything.
        state_bytes=draw(st.sampled_from([0.0, 1.0, 2.0])) + draw(small) / copies,
        optimizer_s=draw(small) / draw(st.sampled_from([np.ones(devices + 1), copies])),
        reduce_bytes=np.array([2.0, 1.0])[:collectives],
        reduce_s=numbers(collectives, devices + 1),
        reduce_tree_s=numbers(collectives, devices + 1) + draw(st.sampled_from([0.0, np.inf])),
        reduce_s_per_byte=numbers(collectives, devices + 1, 2),
        reduce_steps=1 + numbers(collectives, devices + 1, 2),
        share_s=np.array([[1.0, 2.0], [4.0, 16.0]]),
        share=share,
        cut_kind=layouts % kinds,
        cut_s=numbers(kinds, MOST_LAYERS + 1),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Chain, System]:
    """A chain and a system, often with just the memory that some division needs."""
    chain, system = draw(chains()), draw(systems())
    starts = draw(st.sampled_from(list(divisions(len(chain.time_s)))))
    data = draw(st.integers(1, system.microbatches))
    choice = draw(st.integers(0, len(chain.kept_bytes) - 1))
    spare_bytes = draw(st.sampled_from([-1.0, 0.0, 0.0, 1.0, np.inf]))
    exact_bytes = needed_bytes(chain, system, starts, data, choice)
    return chain, system._replace(memory_bytes=max(0.0, exact_bytes + spare_bytes))


def needed_bytes(
    chain: Chain, system: System, starts: tuple[int, ...], data: int, choice: int
) -> float:
    """Memory of the largest stage if all blocks take the same recomputation choice."""
    rounds = -(-system.microbatches // data)
    kept = np.where(chain.block >= 0, chain.kept_bytes[choice][chain.block], chain.saved_bytes)
    dropped = chain.rebuilt_bytes + chain.kept_bytes[-1] - chain.kept_bytes[choice]
    rebuilt = np.where(chain.block >= 0, dropped[chain.block], 0.0)
    return max(
        system.state_bytes[min(data, system.devices)] * chain.parameters[first:last].sum()
        + min(len(starts) - number, rounds) * kept[first:last].sum()
        + rebuilt[first:last].max()
        + 2.0 * chain.boundary_bytes[first]
        for number, (first, last) in enumerate(zip(starts, (*starts[1:], len(kept)), strict=True))
    )


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(cases())
def test_the_optimum_equals_exhaustive_search(case: tuple[Chain, System]) -> None:
    chain, system = case
    least_s = brute_force_s(chain, system)
    found = divide(chain, system)
    if found is None:
        assert least_s == np.inf
        return
    assert found.step_time_s == pytest.approx(least_s, rel=EXACT)
    assert len(found.starts) == found.pipeline
    assert system.microbatches % found.data == 0
    repriced_s = step_time_of(chain, system, found.starts, found.data)
    assert repriced_s == pytest.approx(found.step_time_s, rel=EXACT)


@settings(max_examples=60, deadline=None)
@given(chains(), systems(), st.integers(0, 100).map(float))
def test_only_plans_below_the_cutoff_are_found(
    chain: Chain, system: System, cutoff_s: float
) -> None:
    best = divide(chain, system)
    below = divide(chain, system, cutoff_s)
    if best is None or best.step_time_s >= cutoff_s:
        assert below is None
    else:
        assert below is not None and below.step_time_s == pytest.approx(best.step_time_s, rel=EXACT)


@settings(max_examples=60, deadline=None)
@given(chains(most_layers=12), systems())
def test_too_little_room_for_partial_plans_changes_nothing(chain: Chain, system: System) -> None:
    assert divide(chain, system, capacity=1) == divide(chain, system, capacity=4096)


def test_a_full_table_is_reported_and_not_cut_off() -> None:
    # From the second layer on, a late cut evens the loads and an early one the parameters.
    chain = plain_chain(time_s=[0.0, 1.0, 1.0, 3.0], parameters=[9.0, 9.0, 9.0, 0.0])
    system = plain_system(devices=3, microbatches=9, optimizer_s=1.0)
    step_s, *_ = best_plan(chain, system, np.inf, 1)
    assert step_s == -1.0
    step_s, *_ = best_plan(chain, system, np.inf, 2)
    assert step_s == brute_force_s(chain, system)


def test_a_smaller_sum_of_loads_is_kept_beside_a_smaller_largest_load() -> None:
    # The first layer is the slowest stage whatever follows, so the uneven but cheap cut wins.
    chain = plain_chain(
        time_s=[20.0, 3.0, 1.0, 4.0],
        parameters=[0.0, 1.0, 1.0, 1.0],
    )
    # Two layers with parameters fit on a stage, three do not.
    system = plain_system(devices=3, microbatches=9, memory_bytes=2.5)._replace(
        state_bytes=np.ones(4), cut_s=np.array([[0.0, 0.0, 0.0, 0.5, 0.0]])
    )
    best = divide(chain, system)
    assert best is not None and best.starts == (0, 1, 2)
    assert best.step_time_s == 8 * 20.0 + 28.0


def test_blocks_of_unequal_times_are_not_taken_for_equal_ones() -> None:
    chain = plain_chain(time_s=[1.0, 1.0, 1.0, 3.0])
    system = plain_system(devices=2, microbatches=9)._replace(
        cut_s=np.array([[0.0, 0.0, 0.0, 99.0, 0.0]]), reduce_s=np.array([[0.0, 0.0, 15.0]])
    )
    best = divide(chain, system)
    assert best is not None and best.starts == (0, 2)


@settings(max_examples=60, deadline=None)
@given(chains(most_layers=12), systems(), st.data())
def test_more_of_anything_never_hurts(chain: Chain, system: System, data: st.DataObject) -> None:
    factor = data.draw(st.sampled_from([0.0, 0.5, 0.9]))
    single = data.draw(st.integers(0, len(chain.time_s) - 1))
    faster = chain.time_s.copy()
    faster[single] *= factor
    better = data.draw(
        st.sampled_from(
            [
                (chain, system._replace(memory_bytes=system.memory_bytes + 7.0)),
                (chain, system._replace(reduce_s_per_byte=system.reduce_s_per_byte * factor)),
                (chain, system._replace(cut_s=system.cut_s * factor)),
                (chain, system._replace(reduce_s=system.reduce_s * factor)),
                (chain, system._replace(optimizer_s=system.optimizer_s * factor)),
                (chain._replace(time_s=faster), system),
                (chain._replace(extra_s=chain.extra_s * max(factor, 0.5)), system),
                (chain._replace(saved_bytes=chain.saved_bytes * factor), system),
                (chain._replace(parameters=chain.parameters * factor), system),
            ]
        )
    )
    before, after = divide(chain, system), divide(*better)
    if before is not None:
        assert after is not None
        assert after.step_time_s <= before.step_time_s * (1 + EXACT)


@settings(max_examples=60, deadline=None)
@given(chains(), systems())
def test_feasible_depths_are_those_that_some_division_fits(chain: Chain, system: System) -> None:
    """With the states of whichever number of replicas holds least."""
    layers = len(chain.time_s)
    least = np.full_like(system.state_bytes, system.state_bytes.min())
    enough = system._replace(microbatches=layers, state_bytes=least)
    expected = {
        len(starts)
        for starts in divisions(layers)
        if step_time_of(chain, enough, starts, data=1) < np.inf
    }
    assert set(np.flatnonzero(feasible_depths(chain, system))) == expected


# --- The restatement, by hand ---------------------------------------------------------------------


def plain_chain(**given: list[float]) -> Chain:
    """Layers of one second each that hold and send nothing, except as given; all are blocks."""
    layers = len(next(iter(given.values())))
    ones, zeros = [1.0] * layers, [0.0] * layers
    return Chain(
        time_s=np.array(given.get("time_s", ones)),
        saved_bytes=np.array(given.get("saved_bytes", zeros)),
        parameters=np.array(given.get("parameters", zeros)),
        block=np.array(given.get("block", zeros)).astype(int),
        kept_bytes=np.array(given.get("kept_bytes", [0.0]))[:, None],
        extra_s=np.array(given.get("extra_s", [0.0]))[:, None],
        raised=np.zeros(len(given.get("kept_bytes", [0.0])), np.int64),
        choice=np.arange(len(given.get("kept_bytes", [0.0])))[:, None],
        rebuilt_bytes=np.zeros(1),
        boundary_bytes=np.array(given.get("boundary_bytes", [*zeros, 0.0])),
        shared=0.0,
    )


def plain_system(
    devices: int, microbatches: int, memory_bytes: float = np.inf, optimizer_s: float = 0.0
) -> System:
    return System(
        devices=devices,
        tensor=1,
        microbatches=microbatches,
        memory_bytes=memory_bytes,
        state_bytes=np.zeros(devices + 1),
        optimizer_s=np.full(devices + 1, optimizer_s),
        reduce_bytes=np.ones(1),
        reduce_s=np.zeros((1, devices + 1)),
        reduce_tree_s=np.full((1, devices + 1), np.inf),
        reduce_s_per_byte=np.zeros((1, devices + 1, 2)),
        reduce_steps=np.ones((1, devices + 1, 2)),
        share_s=np.ones((2, 1)),
        share=np.ones((2, 1)),
        cut_kind=np.zeros((devices + 1, MOST_LAYERS + 1), np.int64),
        cut_s=np.zeros((1, MOST_LAYERS + 1)),
    )


def test_a_pipeline_pays_its_slowest_stage_for_every_further_microbatch() -> None:
    chain = plain_chain(time_s=[1.0, 5.0, 2.0])
    system = plain_system(devices=3, microbatches=10)
    assert step_time_of(chain, system, (0,), 1) == 10 * 8.0
    assert step_time_of(chain, system, (0, 1, 2), 1) == 9 * 5.0 + 8.0
    assert step_time_of(chain, system, (0,), 2) == 5 * 8.0
    assert step_time_of(chain, system, (0, 1), 2) == np.inf


def test_replicas_that_do_not_divide_the_microbatches_are_no_layout() -> None:
    chain = plain_chain(time_s=[1.0, 1.0])
    system = plain_system(devices=4, microbatches=10)
    assert step_time_of(chain, system, (0,), 3) == np.inf
    best = divide(chain, system)
    # 3 or 4 replicas would take 4 or 3 rounds, with some replicas idle in the last.
    assert best is not None and (best.pipeline, best.data) == (2, 2)
    assert best.step_time_s == 4 * 1.0 + 2.0


def test_both_neighbours_of_a_cut_wait_for_what_they_receive() -> None:
    chain = plain_chain(time_s=[1.0, 1.0])
    system = plain_system(devices=2, microbatches=3)
    slow = system._replace(cut_s=np.array([[0.0, 2.0, 0.0]]))
    assert step_time_of(chain, slow, (0, 1), 1) == 2 * 3.0 + 6.0
    assert step_time_of(chain, slow, (0,), 1) == 3 * 2.0


def test_the_stage_with_the_most_parameters_reduces_last_at_the_pace_of_the_slowest_level() -> None:
    chain = plain_chain(parameters=[3.0, 4.0])
    system = plain_system(devices=4, microbatches=2, optimizer_s=2.0)._replace(
        reduce_s=np.array([[0.0, 0.0, 10.0, 0.0, 0.0]]),
        reduce_s_per_byte=np.array([[[0.0, 0.0]] * 2 + [[1.0, 3.0]] + [[0.0, 0.0]] * 2]),
        reduce_steps=np.ones((1, 5, 2)),
    )
    assert step_time_of(chain, system, (0, 1), 2) == 2.0 + (10.0 + 3.0 * 4.0) + 2.0 * 4.0
    assert step_time_of(chain, system, (0,), 2) == 2.0 + (10.0 + 3.0 * 7.0) + 2.0 * 7.0


@pytest.mark.parametrize(
    ("memory_bytes", "extra_s"),
    [
        (24.0, 0.0),  # three blocks keep 4 bytes for each of two microbatches
        (23.0, 3.0),  # 2 x (4 + 4 + 1) and 3 rebuilt: one block reruns
        (20.0, 6.0),  # 2 x (4 + 1 + 1) and 3 rebuilt: two blocks rerun
        (9.0, 9.0),  # 2 x (1 + 1 + 1) and 3 rebuilt
        (8.0, np.inf),
    ],
)
def test_blocks_rerun_only_as_far_as_memory_forces_them(
    memory_bytes: float, extra_s: float
) -> None:
    chain = plain_chain(
        time_s=[1.0] * 4, block=[0, 0, 0, -1], kept_bytes=[1.0, 4.0], extra_s=[3.0, 0.0]
    )
    system = plain_system(devices=2, microbatches=2, memory_bytes=memory_bytes)
    # Two stages and two microbatches: the first stage holds both.
    slowest_s = 3.0 + extra_s
    assert step_time_of(chain, system, (0, 3), 1) == slowest_s + (slowest_s + 1.0)


def test_fewer_microbatches_than_stages_hold_fewer_activations() -> None:
    chain = plain_chain(time_s=[1.0] * 3, kept_bytes=[2.0])
    assert step_time_of(chain, plain_system(3, 3, memory_bytes=5.0), (0, 1, 2), 1) == np.inf
    assert step_time_of(chain, plain_system(3, 2, memory_bytes=5.0), (0, 1, 2), 1) == 4.0


# --- Layouts by hand ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "pipeline", "starts"),
    [
        ([0, 1, 1, 1, 1, 0, 0], 1, (0,)),
        ([0, 1, 1, 1, 1, 0, 0], 2, (0, 3)),
        ([0, 1, 1, 1, 1, 0, 0], 3, (0, 2, 4)),
        ([0, 1, 1, 1, 1, 0, 0], 4, (0, 2, 3, 4)),
        ([0, 1, 1, 1, 1, 0, 0], 5, None),
        ([1, 1, 0, 1, 1], 2, (0, 3)),
        ([0, 0], 1, (0,)),
        ([0, 0], 2, None),
        ([1, 1], 0, None),
    ],
)
def test_blocks_are_spread_evenly_with_the_ends_where_they_belong(
    block: list[int], pipeline: int, starts: tuple[int, ...] | None
) -> None:
    assert even_starts(np.array(block) - 1, pipeline) == starts


@settings(max_examples=100, deadline=None)
@given(chains(most_layers=12), systems(), st.integers(1, 6), st.integers(1, 6))
def test_a_layout_by_hand_never_beats_the_optimum(
    chain: Chain, system: System, pipeline: int, data: int
) -> None:
    fixed = fixed_division(chain, system, pipeline=pipeline, data=data)
    if pipeline * data * system.tensor > system.devices or data > system.microbatches:
        assert fixed is None
    if fixed is not None:
        best = divide(chain, system)
        assert (fixed.pipeline, fixed.data) == (pipeline, data)
        assert best is not None
        assert best.step_time_s <= fixed.step_time_s * (1 + EXACT)


# --- Whole models ---------------------------------------------------------------------------------

NETWORK = Network(
    "two levels", (FabricLevel("node", 4, 300e9, 3e-6), FabricLevel("rack", 64, 25e9, 5e-6))
)
PASS_S = np.array([[1e-4, 1e-4], [2e-3, 5e-3], [3e-3, 6e-3], [1e-4, 2e-4]])  # by kind of layer


@cache
def facts_of(recompute: str = "optimal") -> ChainFacts:
    config = replace(load_config("megatron-gpt2-8.3b"), layers=14)
    model = prepare(config, 4, 1024, tensor_parallel=2, sequence_parallel=True)
    return chain_facts(model, recompute)


def case_of(
    facts: ChainFacts, devices: int, microbatches: int, memory_bytes: float
) -> tuple[Chain, PlacementProblem]:
    layer, _ = facts.layers[facts.blocks[0].layer]
    # Durations that make some of the choices with equal bytes cheaper than others.
    forward_s = 1e-5 * (1.0 + np.arange(len(layer.forward)) % 3)
    problem = PlacementProblem(
        NETWORK,
        STATES["mixed16"],
        facts,
        devices=devices,
        tp=2,
        microbatches=microbatches,
        memory_bytes=memory_bytes,
        hbm_Bps=2e12,
    )
    return make_chain(facts, PASS_S.sum(axis=1), forward_s), problem


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["optimal", "none", "full"]),
    st.integers(2, 64),
    st.integers(1, 64),
    st.floats(1e9, 40e9),
    st.sampled_from(ZERO),
)
def test_a_described_plan_adds_up(
    recompute: str, devices: int, microbatches: int, memory_bytes: float, zero: int
) -> None:
    facts = facts_of(recompute)
    chain, problem = case_of(facts, devices, microbatches, memory_bytes)
    system = problem.system(zero)
    division = divide(chain, system)
    assume(division is not None)
    assert division is not None
    placement = describe(problem, chain, replace(division, zero=zero), PASS_S[:, 0])
    loads_s = [stage.load_s for stage in placement.stages]
    tail_s = sum(placement.time_parts_s[part] for part in ("gradient_reduction", "optimizer"))
    rounds = placement.microbatches
    assert rounds * placement.data == microbatches
    assert (rounds - 1) * max(loads_s) + sum(loads_s) + tail_s == pytest.approx(
        placement.step_time_s, rel=1e-9
    )
    assert sum(placement.time_parts_s.values()) == pytest.approx(placement.step_time_s, rel=1e-9)
    assert all(part_s >= 0.0 for part_s in placement.time_parts_s.values())
    assert placement.step_time_s == pytest.approx(
        step_time_of(chain, system, division.starts, division.data), rel=EXACT
    )
    assert all(stage.total_memory_bytes <= memory_bytes for stage in placement.stages)
    assert sum(stage.last - stage.first for stage in placement.stages) == len(facts.kind)
    assert placement.devices <= devices
    assert sum(stage.forward_s or 0.0 for stage in placement.stages) == pytest.approx(
        PASS_S[facts.kind, 0].sum()
    )


def test_the_words_name_the_operators_whose_time_is_paid() -> None:
    # Many choices keep equally many bytes and rerun different operators.
    facts = facts_of()
    chain, problem = case_of(facts, 16, 64, 6.5e9)
    (block,) = facts.blocks
    layer, _ = facts.layers[block.layer]
    seconds = {op.name: 1e-5 * (1 + i % 3) for i, op in enumerate(layer.forward)}
    for index, choice in enumerate(block.choices[i] for i in chain.choice[:, 0]):
        assert choice.kept_bytes == chain.kept_bytes[index, 0]
        paid_s = sum(seconds[layer.forward[i].name] for i in choice.rerun)
        assert paid_s == pytest.approx(chain.extra_s[index, 0])
    division = divide(chain, problem.system())
    assert division is not None
    placement = describe(problem, chain, division)
    alone = [stage for stage in placement.stages if "blocks:" not in stage.recompute]
    assert any(stage.recompute_s > 0 for stage in placement.stages) and alone
    for stage in placement.stages:
        phrases = [((facts.block[stage.first : stage.last] >= 0).sum(), stage.recompute)]
        if "blocks:" in stage.recompute:
            parts = [part.split(" blocks: ") for part in stage.recompute.split(", ")]
            phrases = [(int(count), phrase) for count, phrase in parts]
        named_s = sum(
            count * rerun_s(phrase, seconds) for count, phrase in phrases if phrase != "none"
        )
        assert named_s == pytest.approx(stage.recompute_s)


def rerun_s(phrase: str, seconds: dict[str, float]) -> float:
    """Time of the operators in a phrase; fused operators have a + in their own names."""
    total_s = 0.0
    for name in sorted(seconds, key=len, reverse=True):
        if name in phrase:
            phrase = phrase.replace(name, "", 1)
            total_s += seconds[name]
    assert not phrase.strip("+")
    return total_s


def test_links_are_priced_like_any_collective_and_any_send() -> None:
    system = case_of(facts_of(), 32, 8, 1e9)[1].system()
    for data in (1, 2, 3, 8, 16):
        for parameters in (1e3, 1e9):
            assert reduction_s(system, data, parameters) == pytest.approx(
                collective_s(NETWORK, "all_reduce", 2.0 * parameters, data, stride=2)
            )
    sent = facts_of().boundary_bytes[3]
    # Two stages two devices apart share a node of four; three, or two four apart, do not.
    for data, stages, seconds in (
        (1, 2, 3e-6 + sent / 300e9), (1, 3, 5e-6 + sent / 25e9), (2, 2, 5e-6 + sent / 25e9)
    ):  # fmt: skip
        assert system.cut_s[system.cut_kind[data, stages], 3] == pytest.approx(seconds)


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "tpu-v4", "gb200-nvl72"])
def test_compiled_reductions_are_those_of_the_measured_network(name: str) -> None:
    network = load_network(name)
    system = PlacementProblem(
        network, STATES["mixed16"], facts_of(), devices=64, tp=2, microbatches=8,
        memory_bytes=1e9, hbm_Bps=1e12,
    ).system()  # fmt: skip
    for data in (1, 2, 5, 8, 32):
        for parameters in (1e2, 3e6, 1e7, 5e7, 4e8, 2e10):
            assert reduction_s(system, data, parameters) == pytest.approx(
                collective_s(network, "all_reduce", 2.0 * parameters, data, stride=2), rel=1e-12
            )


def test_policies_differ_only_in_the_choices_they_allow() -> None:
    none, full, optimal = (
        facts_of(policy).blocks[0].choices for policy in ("none", "full", "optimal")
    )
    assert [len(none), len(full)] == [1, 1]
    assert none[0].rerun == ()
    assert full[0] == optimal[0]
    with pytest.raises(AtollError, match="unknown policy 'some'; allowed are optimal, none, full"):
        chain_facts(facts_of().model, "some")


def test_the_block_of_a_one_block_model_is_not_its_embedding() -> None:
    model = prepare(replace(load_config("gpt2-xl"), layers=1), 1, 128)
    facts = chain_facts(model, "optimal")
    assert [facts.layers[kind.layer][0].name for kind in facts.blocks] == ["block"]
    assert facts.block.tolist() == [-1, 0, -1, -1]


def test_an_unknown_optimizer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(AtollError, match="states 'lion' are not known"):
        load_states("lion")
