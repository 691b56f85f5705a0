"""The exact part against brute force over the whole encoding, on 2 x 2 and 2 x 3 meshes."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.fabric.digits import digit_systems
from atoll.fabric.mesh import ALGORITHMS
from atoll.wafer.costs.die_pricer import DiePricer
from atoll.wafer.costs.layer_cost import block_cost
from atoll.wafer.costs.tables import BlockTables, CostSetting
from atoll.wafer.encoding.block_parts import (
    HOMES,
    KEEP,
    OFFLOAD,
    RECOMPUTE,
    SEARCHED_HOMES,
    HelperPath,
)
from atoll.wafer.encoding.codes import legal_codes
from atoll.wafer.exact.block_solver import BlockSolver
from atoll.wafer.exact.limited_search import MemoryLimits
from atoll.wafer.exact.paths import MemoryPrice
from atoll.wafer.exact.shared_states import DecoupledBound, weight_gradient_costs
from oracles import wafer_brute as brute
from oracles.wafer_batch import Batch
from oracles.wafer_batch_kernels import AWAY, KEPT, REBUILT, STATE, TIME
from oracles.wafer_genes import decode, path_of, sample
from oracles.wafer_pass_states import AllPassStates

from .wafer_cases import small_block, small_wafer, sub_block

FATES = (RECOMPUTE, KEEP, OFFLOAD)


def make(shape, link=2e10, *, streaming=True, microbatch=1, chains=(0, 1), only=None, **more):
    wafer = small_wafer(shape[1], shape[0], link_Bps=link)
    block = sub_block(small_block(microbatch), chains)
    setting = CostSetting(wafer, 8, streaming=streaming)
    return BlockTables(
        block, digit_systems(*shape)[0], setting, DiePricer(wafer.chip), only, **more
    )


def exact_passes(tables: BlockTables, homes) -> BlockSolver:
    """The exact part over every code of every pass."""
    found = BlockSolver(tables, homes)
    found.states = AllPassStates(tables, found.states.rules)
    found.paths = replace(found.paths, chains=found.states.chains)
    return found


def some_codes(shape, count, random, microbatch=1, chains=(0, 1)):
    """A few random codes of every operator and of the stream."""
    block, digits = sub_block(small_block(microbatch), chains), digit_systems(*shape)[0]
    names = {u.name: u.sizes for u in block.units} | {"stream": block.stream_sizes}
    return {
        name: tuple(random.choice(legal_codes(sizes, digits), count, replace=False))
        for name, sizes in names.items()
    }


def span(batch: Batch, homes, layers, in_flight, random, **more):
    """Bytes of the smallest and the largest mapping among some thousand."""
    cost = batch.evaluate(sample(batch, 4000, random, homes, **more))
    memory = layers * (cost[:, STATE] + in_flight * cost[:, KEPT]) + cost[:, REBUILT]
    return float(memory.min()), float(memory.max())


def agree(expected, found):
    for best, solved in zip(expected, found, strict=True):
        if best == np.inf:
            assert solved is None
        else:
            assert solved is not None
            assert solved.cost.time_s == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize(
    ("shape", "link", "homes"),
    [
        pytest.param((2, 2), 2e9, ("optimizer", "weights"), marks=pytest.mark.slow),
        ((3, 2), 2e10, ("weights",)),
    ],
)
def test_six_operators_with_every_code_home_and_keep(shape, link, homes):
    tables = make(shape, link)
    batch = Batch(tables)
    low, high = span(batch, homes, 2, 3, np.random.default_rng(0))
    # Roomy, tight, hardly feasible, and too small.
    shares = (1.0, 0.15, 0.12, 0.1, 0.08, 0.06, 0.04, 0.02, -0.2)
    limits = [MemoryLimits(low + share * (high - low)) for share in shares]
    expected = brute.fastest(batch, homes, 2, 3, limits)
    assert expected[-1] == np.inf and expected == sorted(expected)
    assert len(set(expected)) >= 5
    exact = BlockSolver(tables, homes)
    agree(expected, [exact.solve(2, 3, limit.local_bytes) for limit in limits])


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(
    chain=st.sampled_from([0, 1]),
    shape=st.sampled_from([(2, 2), (3, 2), (2, 3), (4, 1)]),
    microbatch=st.sampled_from([1, 2]),
    link=st.sampled_from([2e9, 2e10, 4e11]),
    tight=st.floats(0.0, 0.6),
    in_flight=st.integers(1, 4),
    streaming=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_three_operators_with_all_or_some_codes(
    chain, shape, microbatch, link, tight, in_flight, streaming, seed
):
    random = np.random.default_rng(seed)
    # With samples to cut there are more codes than brute force can try quickly: some of each.
    only = some_codes(shape, 8, random, microbatch, (chain,)) if microbatch > 1 else None
    tables = make(
        shape, link, streaming=streaming, microbatch=microbatch, chains=(chain,), only=only
    )
    batch = Batch(tables)
    homes = ("optimizer", "weights")
    low, high = span(batch, homes, 2, in_flight, random)
    limits = [MemoryLimits(low + tight * (high - low))]
    expected = brute.fastest(batch, homes, 2, in_flight, limits)
    exact = BlockSolver(tables, homes)
    agree(expected, [exact.solve(2, in_flight, limits[0].local_bytes)])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), passes=st.booleans(), streaming=st.booleans())
def test_costs_of_chains_add_up(seed, passes, streaming):
    """What brute force relies on."""
    batch = Batch(make((2, 2), streaming=streaming, microbatch=2), HelperPath(3e9, 1e-7))
    random = np.random.default_rng(seed)
    genes = sample(batch, 50, random, HOMES, fates=FATES, passes=passes)
    first, second, neither = (
        sample(batch, 50, random, HOMES, fates=FATES, passes=passes) for _ in range(3)
    )
    operators, saved = 3, 4
    for other, left, right in (
        (first, genes, neither), (second, neither, genes), (neither, neither, neither)
    ):  # fmt: skip
        other.stream[:] = genes.stream
        for name in ("codes", "data", "weight", "homes", "algorithms", "keep"):
            cut = saved if name == "keep" else operators
            getattr(other, name)[:, :cut] = getattr(left, name)[:, :cut]
            getattr(other, name)[:, cut:] = getattr(right, name)[:, cut:]
    total = batch.evaluate(first) + batch.evaluate(second) - batch.evaluate(neither)
    assert total == pytest.approx(batch.evaluate(genes), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("streaming", [True, False])
def test_the_evaluator_equals_its_compiled_twin(streaming):
    """Every variable drawn: codes of all passes, homes, fates, streaming and algorithms."""
    away, modes = HelperPath(3e9, 1e-7), (True, False)
    tables = make((4, 3), 5e9, streaming=streaming, microbatch=2, modes=modes)
    batch, (block, digits) = Batch(tables, away), (tables.block, tables.digits)
    genes = sample(batch, 40, np.random.default_rng(1), HOMES, fates=FATES, passes=True,
                   algorithms=range(len(ALGORITHMS)))  # fmt: skip
    for row, expected in enumerate(batch.evaluate(genes)):
        found = block_cost(block, digits, tables.setting, decode(batch, genes, row), away)
        cost = found.cost
        own = [cost.time_s, cost.state_bytes, cost.kept_bytes, cost.rebuilt_bytes, cost.away_bytes]
        assert [*own, *found.parts_s.values()] == pytest.approx(expected.tolist(), rel=1e-12)
        assert sum(found.states) == pytest.approx(cost.state_bytes)


@pytest.mark.parametrize(("shape", "chains", "count"), [((2, 2), (0, 1), 4), ((3, 2), (1,), 9)])
def test_offload_with_every_keep(shape, chains, count):
    random = np.random.default_rng(3)
    tables = make(shape, 2e9, chains=chains, only=some_codes(shape, count, random, chains=chains))
    away = HelperPath(4e10, 1e-9)
    batch = Batch(tables, away)
    homes = ("optimizer",)
    low, high = span(batch, homes, 2, 4, random)
    cost = batch.evaluate(sample(batch, 2000, random, homes, fates=FATES))
    most = float(8 * cost[:, AWAY].max())
    limits = [
        MemoryLimits(low + share * (high - low), elsewhere * most)
        for share in (0.4, 0.1, -0.05)
        for elsewhere in (0.0, 0.2, 0.6, 2.0)
    ]
    expected = brute.fastest(batch, homes, 2, 4, limits, FATES)
    exact = BlockSolver(tables, homes).with_offload(away)
    found = [exact.solve(2, 4, limit.local_bytes, limit.offload_bytes) for limit in limits]
    agree(expected, found)
    # More room elsewhere helps, and somewhere it does.
    assert expected[4] > expected[7]
    assert any(OFFLOAD in solved.mapping.keep for solved in found if solved)


@pytest.mark.parametrize(("shape", "chain"), [((2, 2), 0), ((3, 2), 1)])
def test_every_operator_streams_or_not_as_is_best(shape, chain):
    random = np.random.default_rng(5)
    only = some_codes(shape, 5, random, chains=(chain,))
    tables = make(shape, 8e9, chains=(chain,), only=only, modes=(True, False))
    batch = Batch(tables)
    homes = ("optimizer", "weights")
    low, high = span(batch, homes, 2, 3, random)
    limits = [MemoryLimits(low + share * (high - low)) for share in (1.0, 0.2, 0.1)]
    expected = brute.fastest(batch, homes, 2, 3, limits)
    exact = BlockSolver(tables, homes)
    agree(expected, [exact.solve(2, 3, limit.local_bytes) for limit in limits])
    for streaming in (True, False):
        one_way = BlockSolver(
            make(shape, 8e9, chains=(chain,), only=only, streaming=streaming), homes
        )
        assert exact.bound_s <= one_way.bound_s


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), streaming=st.booleans())
def test_the_best_algorithm_for_each_collective_is_the_best_for_the_block(seed, streaming):
    """Why the exact part does not branch over algorithms: "auto" is never slower."""
    batch = Batch(make((4, 2), 5e9, streaming=streaming, microbatch=2), HelperPath(3e9, 1e-7))
    random = np.random.default_rng(seed)
    genes = sample(batch, 100, random, HOMES, fates=FATES, passes=True, algorithms=range(4))
    auto = replace(genes, algorithms=np.zeros_like(genes.algorithms))
    assert (batch.evaluate(auto)[:, TIME] <= batch.evaluate(genes)[:, TIME] * (1 + 1e-12)).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "chain", "link", "count", "modes"),
    [
        pytest.param((2, 2), 0, 2e9, 3, None, marks=pytest.mark.slow),
        pytest.param((3, 2), 1, 2e10, 3, None, marks=pytest.mark.slow),
        ((2, 2), 1, 4e9, 2, (True, False)),
    ],
)
def test_gradient_passes_with_codes_of_their_own(shape, chain, link, count, modes):
    random = np.random.default_rng(7)
    fates = FATES if chain else FATES[:2]
    only = some_codes(shape, count, random, chains=(chain,))
    tables = make(shape, link, chains=(chain,), only=only, modes=modes)
    away = HelperPath(4e10, 1e-9)
    batch = Batch(tables, away)
    homes = ("optimizer", "weights") if count < 3 else ("optimizer",)
    low, high = span(batch, homes, 2, 3, random, passes=True)
    limits = [
        MemoryLimits(low + share * (high - low), elsewhere)
        for share in (1.0, 0.2, 0.08, -0.3) for elsewhere in (0.0, 0.1 * high)
    ]  # fmt: skip
    expected = brute.fastest(batch, homes, 2, 3, limits, fates, passes=True)
    exact = exact_passes(tables, homes)
    exact = exact.with_offload(away) if OFFLOAD in fates else exact
    found = [exact.solve(2, 3, limit.local_bytes, limit.offload_bytes) for limit in limits]
    agree(expected, found)
    shared = BlockSolver(tables, homes)
    assert exact.bound_s <= shared.bound_s
    # What the exact part says of its answer is what the evaluator says of it.
    for solved in found:
        if solved:
            (row,) = batch.evaluate(batch.encode([solved.mapping]))
            assert row[TIME] == pytest.approx(solved.cost.time_s, rel=1e-12)


def test_refined_gradient_codes_and_bounds_on_a_larger_mesh():
    """27 codes an operator: shared codes exactly, then gradient codes; bounds hold for all."""
    tables = make((4, 2), 4e11, modes=(True, False))
    away = HelperPath(4e10, 1e-9)
    batch = Batch(tables, away)
    whole = BlockSolver(tables, passes=True).with_offload(away)
    shared = BlockSolver(tables).with_offload(away)
    assert whole.bound_s <= shared.bound_s
    random = np.random.default_rng(0)
    genes = sample(batch, 20_000, random, SEARCHED_HOMES, fates=FATES, passes=True)
    times = batch.evaluate(genes)[:, TIME]
    assert times.min() >= whole.bound_s
    low, high = span(batch, SEARCHED_HOMES, 2, 3, random, passes=True)
    gains = []
    for share in (1.0, 0.1, 0.06):
        limit = low + share * (high - low)
        found, other = (e.solve(2, 3, limit, 0.01 * high) for e in (whole, shared))
        assert found.cost.time_s <= other.cost.time_s
        assert whole.bound_s <= found.bound_s <= found.cost.time_s
        (row,) = batch.evaluate(batch.encode([found.mapping]))
        cost = found.cost
        assert row[[TIME, STATE, KEPT, REBUILT, AWAY]] == pytest.approx(
            [cost.time_s, cost.state_bytes, cost.kept_bytes, cost.rebuilt_bytes, cost.away_bytes],
            rel=1e-12,
        )
        assert cost.state_bytes <= other.cost.state_bytes * (1 + 1e-12)
        gains.append(other.cost.time_s / cost.time_s)
    assert max(gains) > 1.0


@settings(max_examples=6, deadline=None)
@given(
    shape=st.sampled_from([(2, 2), (3, 2)]),
    link=st.sampled_from([2e9, 2e10, 4e11]),
    tight=st.floats(0.02, 0.6),
    homes=st.sampled_from([SEARCHED_HOMES, HOMES, ("external",), ("weights",)]),
    seed=st.integers(0, 1000),
)
def test_the_bound_of_passes_taken_apart_holds_for_the_exact_optimum(
    shape, link, tight, homes, seed
):
    random = np.random.default_rng(seed)
    tables = make(shape, link, modes=(True, False), only=some_codes(shape, 5, random))
    exact, shared = exact_passes(tables, homes), BlockSolver(tables, homes)
    apart = DecoupledBound.from_states(shared.states, weight_gradient_costs(tables))
    assert apart.least_costs(MemoryPrice(0.0, 0.0, 0.0, 0.0)).min() <= exact.bound_s * (1 + 1e-12)
    assert (
        BlockSolver(tables, homes, passes=True).bound_s == exact.bound_s
    )  # few codes: by their pairs
    low, high = span(Batch(tables), homes, 2, 3, random, passes=True)
    limit = low + tight * (high - low)
    found = exact.solve(2, 3, limit)
    fixed = 6.0 * exact.paths.stream_saved_bytes + exact.paths.buffer_bytes
    for own in (1e-12, 1e-11, 1e-10):
        dual = apart.least_costs(MemoryPrice(own, 0.0, 6.0, 2.0)) + own * (fixed - limit)
        assert found is None or dual.min() <= found.cost.time_s * (1 + 1e-12)


def test_equal_codes_of_all_passes_cost_what_a_shared_code_costs():
    batch = Batch(make((4, 2), microbatch=2), HelperPath(5e9, 1e-7))
    genes = sample(batch, 300, np.random.default_rng(2), HOMES, fates=FATES)
    spelled = replace(genes, data=genes.codes.copy(), weight=genes.codes.copy())
    assert (batch.evaluate(genes) == batch.evaluate(spelled)).all()


def test_the_batched_evaluator_and_the_exact_parts_tables_agree():
    tables = make((4, 2), microbatch=2)
    away = HelperPath(5e9, 1e-7)
    batch, exact = Batch(tables, away), BlockSolver(tables, HOMES).with_offload(away)
    genes = sample(batch, 200, np.random.default_rng(1), HOMES, fates=FATES)
    cost = batch.evaluate(genes)
    for row in range(len(genes)):
        one = decode(batch, genes, row)
        stream = tables.stream.index[one.stream]
        one = exact.paths.path_cost(stream, path_of(exact.states, one))
        assert cost[row, [TIME, STATE, KEPT, REBUILT, AWAY]] == pytest.approx(
            [one.time_s, one.state_bytes, one.kept_bytes, one.rebuilt_bytes, one.away_bytes],
            rel=1e-12,
        )


def test_less_memory_never_makes_a_block_faster():
    exact = BlockSolver(make((2, 2), 50e9))
    roomy = exact.solve(4, 4, 1e12)
    assert roomy is not None
    needed = roomy.cost.memory_bytes(4, 4)
    times = []
    for share in (1.1, 0.9, 0.8, 0.7, 0.6, 0.5):
        found = exact.solve(4, 4, share * needed)
        times.append(found.cost.time_s if found else np.inf)
    assert times == sorted(times)
    assert times[0] == roomy.cost.time_s


def test_another_process_finds_the_arrays_where_it_has_them():
    exact = BlockSolver(make((2, 1)), HOMES)
    ours = exact.paths.packed_steps
    theirs = pickle.loads(pickle.dumps(exact.paths)).packed_steps
    assert (theirs.shapes == ours.shapes).all()
    assert not (theirs.addresses == ours.addresses).any()
