"""Bounds bound: against drawn mappings, against brute force, and against the search's answers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.base.stopping import never
from atoll.fabric.digits import digit_systems
from atoll.fabric.mesh import ALGORITHMS, Rectangle
from atoll.hardware.template.stalls import NO_STALLS
from atoll.wafer.bounds.bound_kernels import least_fill
from atoll.wafer.bounds.layer_bounds import (
    ALL_CODES,
    COUNTS,
    DEPTHS,
    EXACT,
    OPERATORS,
    LayerBounds,
    _LeastPricedSeconds,
)
from atoll.wafer.bounds.step_bounds import StepBound
from atoll.wafer.costs.die_pricer import die_pricer
from atoll.wafer.costs.tables import BlockTables, CostSetting
from atoll.wafer.encoding.block_parts import SCHEDULES, SEARCHED_HOMES, BlockMapping
from atoll.wafer.encoding.codes import legal_codes, splits
from atoll.wafer.encoding.mapping import StageMapping, WaferMapping, problems
from atoll.wafer.evaluate import evaluate
from atoll.wafer.exact.paths import FREE, PathStep, chain_bounds
from atoll.wafer.pieces import WaferPieces
from atoll.wafer.search import WaferSearch
from atoll.wafer.staging.planner import MANY_CODES, TOLERANCE, Planner, WaferOptions
from atoll.wafer.staging.tiling import pack
from oracles.wafer_batch import Batch
from oracles.wafer_batch_kernels import KEPT, REBUILT, STATE, TIME
from oracles.wafer_genes import sample
from oracles.wafer_mutations import mutate

from .wafer_cases import LOSSES, small_block, small_model, small_wafer

KIB = 1024
BATCH = 8
MICROBATCHES = (1, 2, 8)


def planner_of(wafer, options=None, most_codes=MANY_CODES):
    return Planner(wafer, small_model(), BATCH, 24, options or WaferOptions(), most_codes)


def drawn(random: np.random.Generator, wafer, model=None) -> WaferMapping | None:
    """A mapping drawn from the whole encoding."""
    model = model or small_model()
    count = int(random.integers(1, 5))
    sizes = [int(random.integers(1, wafer.dies + 1)) for _ in range(count)]
    rectangles = pack(wafer.rows, wafer.columns, sizes)
    if rectangles is None:
        return None
    microbatch = int(random.choice(MICROBATCHES))
    block = small_block(microbatch)

    def draw(sizes, digits):
        codes = legal_codes(sizes, digits)
        return codes[int(random.integers(len(codes)))]

    cuts = np.sort(random.choice(np.arange(1, block.layers), count - 1, replace=False))
    layers = np.diff([0, *cuts, block.layers])
    stages = []
    for rectangle, held in zip(rectangles, layers, strict=True):
        systems = digit_systems(rectangle.width, rectangle.height)
        digits = systems[int(random.integers(len(systems)))]
        genes = BlockMapping(
            draw(block.stream_sizes, digits),
            tuple(draw(unit.sizes, digits) for unit in block.units),
            tuple(str(random.choice(("replicated", *SEARCHED_HOMES))) for _ in block.units),
            tuple(bool(random.integers(2)) for _ in range(7)),
        )
        head = draw(block.head.sizes, digits)
        stages.append(StageMapping(rectangle, digits, int(held), genes, head))
    return WaferMapping(
        model, BATCH, microbatch, 24, tuple(stages), bool(random.integers(2)),
        str(random.choice(ALGORITHMS)), str(random.choice(SCHEDULES)),
    )  # fmt: skip


def steps_of(wafer, seed: int, count: int) -> list[float]:
    """Steps of mappings that fit: the best one found, drawn ones, and others around the best."""
    random = np.random.default_rng(seed)
    best = WaferSearch(wafer, small_model(), BATCH, 24, None, MICROBATCHES).run().best
    steps = [best.step_s]
    near = best.mapping
    for number in range(count):
        near = mutate(best.mapping if number % 8 == 0 else near, random)
        for mapping in (near, drawn(random, wafer)):
            if mapping is None:
                continue
            assert problems(mapping, wafer.rows, wafer.columns) == []
            found = evaluate(wafer, mapping)
            if found.fits:
                steps.append(found.step_s)
    return steps


@pytest.mark.parametrize(
    "wafer",
    [
        small_wafer(2, 2),
        small_wafer(2, 4, link_Bps=2e9),
        small_wafer(2, 3, memory_bytes=1200 * KIB),
        small_wafer(2, 3, stalls=LOSSES),
    ],
    ids=["roomy", "slow links", "little memory", "losses"],
)
def test_no_mapping_is_faster_than_the_bound(wafer):
    steps = steps_of(wafer, seed=5, count=60)
    assert len(steps) > 20
    bound = StepBound(planner_of(wafer), MICROBATCHES).lowest(min(steps))
    assert 0.0 < bound.bound_s <= min(steps) * (1 + 1e-9)


def test_a_broken_bound_would_be_noticed(monkeypatch):
    """Layers said to take half as long again: then the best mapping is faster than its bound."""
    wafer = small_wafer(2, 2)
    best = min(steps_of(wafer, seed=1, count=0))
    whole = LayerBounds._bound

    def broken(self, *arguments):
        size = whole(self, *arguments)
        return replace(size, layer_s=1.5 * size.layer_s, curves=1.5 * size.curves)

    monkeypatch.setattr(LayerBounds, "_bound", broken)
    lowest = StepBound(planner_of(wafer), MICROBATCHES).lowest(2.0 * best)
    assert lowest.bound_s > best


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    shape=st.sampled_from([(2, 1), (2, 2), (3, 2), (4, 1), (5, 1)]),
    microbatch=st.sampled_from([1, 2]),
    streaming=st.booleans(),
    most=st.sampled_from([OPERATORS, COUNTS, EXACT, ALL_CODES]),
    link=st.sampled_from([2e9, 5e10]),
    stalls=st.sampled_from([NO_STALLS, LOSSES]),
    seed=st.integers(0, 1000),
)
def test_seconds_and_bytes_of_layers(shape, microbatch, streaming, most, link, stalls, seed):
    """Every drawn mapping of a block lies above every point of the curve of its size."""
    wafer = small_wafer(5, 5, link_Bps=link, memory_bytes=400 * KIB, stalls=stalls)
    bounds = LayerBounds(planner_of(wafer, most_codes=1 if most == ALL_CODES else MANY_CODES))
    dies = shape[0] * shape[1]
    while bounds.sharpen(microbatch, dies, most, np.inf, fits=False):
        pass
    size = bounds.size_bound(microbatch, dies)
    assert size.level == most and size.priced == (most >= EXACT)
    if most == EXACT:  # what need not be priced where the fastest layer fits
        held = size.fastest_state + np.array(DEPTHS) * size.fastest_kept
        least = ((size.curves - size.layer_s) / size.prices).max(axis=1)
        assert (least <= held * (1 + 1e-9)).all()
    random = np.random.default_rng(seed)
    systems = digit_systems(*shape)
    rounds = -(-BATCH // microbatch)
    tables = BlockTables(
        small_block(microbatch), systems[int(random.integers(len(systems)))],
        CostSetting(wafer, rounds, streaming=streaming), die_pricer(wafer.chip),
    )  # fmt: skip
    batch = Batch(tables)
    cost = batch.evaluate(sample(batch, 2000, random, ("replicated", *SEARCHED_HOMES)))
    assert (cost[:, TIME] >= size.layer_s * (1 - 1e-9)).all()
    for depth, in_flight in enumerate(DEPTHS):
        # What is made again is there once in a stage, which has at most all layers.
        held = cost[:, STATE] + in_flight * cost[:, KEPT] + cost[:, REBUILT] / tables.block.layers
        for price, value in zip(size.prices, size.curves[depth], strict=True):
            assert (cost[:, TIME] + price * held >= value * (1 - 1e-9)).all()


def test_all_codes_of_fast_splits_are_all_that_is_fast():
    """Codes left out by what their splits take at least change nothing below that."""
    wafer, microbatch, shape = small_wafer(2, 3, link_Bps=2e9), 2, (3, 2)
    few = WaferPieces(wafer, small_model(), BATCH, 24, WaferOptions(), 1, never)
    every = Planner(wafer, small_model(), BATCH, 24, WaferOptions(), MANY_CODES)
    bounds = LayerBounds(few.planner)
    assert every.complete(*shape, microbatch) and not few.planner.complete(*shape, microbatch)
    least_s = min(exact._decoupled.bound_s for exact in every.exacts(*shape, microbatch))
    counted_s = bounds._split_bounds(microbatch, 6).decoupled.least_costs(FREE)
    assert counted_s.min() < least_s < counted_s.max()  # some layouts are left out, not all
    for enough_s in (0.9 * least_s, 1.01 * least_s, np.inf):
        found_s = bounds._all_codes_s(microbatch, 6, enough_s)
        assert found_s == pytest.approx(min(enough_s, least_s), rel=1e-12)
    best = every.best([Rectangle(0, 0, *shape)], microbatch)
    found = few.single_group(microbatch, 1.01 * best.step_s)
    assert found.step_s == pytest.approx(best.step_s, rel=TOLERANCE)


@pytest.mark.parametrize("offload", [False, True])
def test_solvers_that_cannot_be_the_cheapest_are_not_asked(offload):
    wafer = small_wafer(2, 4, link_Bps=2e9)
    planner = planner_of(wafer)
    solvers = [e for shape in ((4, 1), (2, 2), (1, 4)) for e in planner.exacts(*shape, 2)]
    prices = np.geomspace(1e-3, 1e3, 6) * solvers[0].bound_s / wafer.memory_bytes
    cheapest = _LeastPricedSeconds(solvers, prices, 4, offload=offload)
    for in_flight, price in product((1, 3), range(len(prices))):
        every = [e.priced_s(prices[price], in_flight, 4, offload=offload) for e in solvers]
        assert cheapest.least(price, in_flight) == min(every)


def test_the_least_through_every_state():
    random = np.random.default_rng(3)
    states, none = (3, 4, 5, 2, 3), np.zeros((1, 1, 1))
    steps = [
        PathStep(random.random((a, b)), np.zeros((a, b)), np.zeros((a, b)), None, False, none, none)
        for a, b in pairwise(states)
    ]
    found = chain_bounds(steps, FREE)
    for stream, number in product(range(3), range(3)):
        for state in range(states[number + 1]):
            ways = [w for w in product(*map(range, states[1:-1])) if w[number] == state]
            paths = [[stream, *way, stream] for way in ways]
            least = min(
                sum(s.time_s[pair] for s, pair in zip(steps, pairwise(path), strict=True))
                for path in paths
            )
            assert found.through[number][stream, state] == pytest.approx(least)
            after = [steps[-1].time_s[:, stream]]
            for step in steps[-2:number:-1]:
                after.append((step.time_s + after[-1]).min(axis=1))
            assert found.after[number][stream, state] == pytest.approx(after[-1][state])


def every_pipeline(dies, layers, sizes, most, first, fill, late):
    """Brute force: all sequences of stages, from the last to the first, and whichever of them is
    the slowest; weight passes of the first `late` others are put off.
    """
    best = np.inf

    def fills(stages, slowest):
        others = [stage for stage in enumerate(stages) if stage[0] != slowest]
        return sum(fill(i, *stage, n < late) for n, (i, stage) in enumerate(others))

    def go(used, done, costs):
        nonlocal best
        stage = len(costs)
        for k, n in enumerate(sizes):
            if used + n > dies:
                continue
            for stage_layers in range(1, layers - done + 1):
                closes = done + stage_layers == layers
                if stage_layers > (first if closes else most)[min(stage, len(most) - 1)][k]:
                    continue
                more = [*costs, (k, stage_layers)]
                if closes:
                    best = min(best, *(fills(more, slowest) for slowest in range(len(more))))
                else:
                    go(used + n, done + stage_layers, more)

    go(0, 0, [])
    return best


@settings(max_examples=40, deadline=None)
@given(data=st.data(), dies=st.integers(1, 6), layers=st.integers(1, 5), zero=st.booleans())
def test_the_least_fill_is_that_of_all_pipelines(data, dies, layers, zero):
    sizes = sorted(data.draw(st.sets(st.integers(1, dies), min_size=1, max_size=3)))
    times = st.floats(0.1, 2.0)
    layer = [data.draw(times) for _ in sizes]
    but_weight = [0.6 * t for t in layer]
    head = [data.draw(times) for _ in sizes]
    slowest, head_slowest = ([data.draw(times) for _ in sizes] for _ in range(2))
    most = [[data.draw(st.integers(0, layers)) for _ in sizes] for _ in range(3)]
    first = [[data.draw(st.integers(0, layers)) for _ in sizes] for _ in range(3)]
    largest = data.draw(st.floats(0.5, 4.0))
    late = data.draw(st.integers(0, 3))

    def fill(stage, k, count, late):
        ends = head[k] if stage == 0 else 0.0
        if not zero:
            return count * layer[k] + ends
        others = count * but_weight[k] + 0.6 * ends
        weight = count * slowest[k] + (head_slowest[k] if stage == 0 else 0.0)
        return max(0.0, others - min(largest - others, weight)) if late else others

    rows = np.minimum(np.arange(dies + 1) - 1, 2).clip(0)
    parents = np.full((dies + 1, dies + 1, layers + 1, 2), -1, np.int32)
    value, found = least_fill(
        dies, layers, np.array(sizes), np.array(layer), np.array(but_weight), np.array(head),
        0.6 * np.array(head), np.array(slowest), np.array(head_slowest), rows, np.array(most),
        np.array(first), largest, zero, late, 1e9, parents,
    )  # fmt: skip
    expected = every_pipeline(dies, layers, sizes, most, first, fill, late)
    if expected == np.inf:
        assert found[0] < 0
    else:
        assert value == pytest.approx(expected)


def test_more_memory_or_bandwidth_never_raises_the_bound():
    """Intervals are as wide as 0.2 % of the step that is asked about."""
    wafer = small_wafer(2, 3, memory_bytes=700 * KIB)
    start = min(steps_of(small_wafer(2, 3), seed=0, count=0))

    def bound(changed):
        return StepBound(planner_of(changed), MICROBATCHES).lowest(3.0 * start).bound_s

    more = [small_wafer(2, 3, memory_bytes=m * KIB) for m in (500, 700, 1000, 4000)]
    by_memory = [bound(w) for w in more]
    assert all(a >= b - 0.01 * start for a, b in pairwise(by_memory))
    assert by_memory[0] > by_memory[-1]
    faster = replace(wafer.stack, bandwidth_Bps=2 * wafer.stack.bandwidth_Bps)
    assert bound(replace(wafer, stack=faster)) <= bound(wafer) + 0.01 * start
    links = [bound(small_wafer(2, 3, link_Bps=b)) for b in (1e9, 1e10, 1e11)]
    assert all(a >= b - 0.01 * start for a, b in pairwise(links))


def test_the_zero_bubble_schedule_is_covered():
    wafer = small_wafer(2, 4)
    without = WaferOptions(zero_bubble=False)
    best = min(steps_of(wafer, seed=0, count=0))
    with_it = StepBound(planner_of(wafer), MICROBATCHES).lowest(best).bound_s
    assert with_it <= StepBound(planner_of(wafer, without), MICROBATCHES).lowest(best).bound_s


@given(dies=st.integers(1, 60), b=st.sampled_from([1, 2, 3, 8]))
def test_splits_are_those_of_the_legal_codes(dies, b):
    sizes = {"b": b, "s": 6, "k": 40, "n": 8}
    found = {tuple(sorted(parts.items())) for parts in splits(sizes, dies)}
    digits = digit_systems(dies, 1)[0]
    expected = set()
    for code in legal_codes(sizes, digits):
        parts: dict[str, int] = {}
        for tag, radix in zip(code, digits.radix, strict=True):
            parts[tag] = parts.get(tag, 1) * int(radix)
        expected.add(tuple(sorted(parts.items())))
    assert found == expected


def test_ports_bound_a_wafer_that_streams_its_weights():
    wafer = replace(small_wafer(2, 2), io_Bps=1e7, parameter_store=True)
    options = WaferOptions(homes=("external",))
    search = WaferSearch(wafer, small_model(), BATCH, 24, options, (1, 2, 8))
    found = search.run()
    assert found.bound_s <= found.best.step_s
    assert found.gap < 0.05


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_packed_rectangles_are_disjoint_and_in_order(sizes):
    found = pack(4, 6, sizes)
    if found is None:
        return
    assert [r.size for r in found] == sizes
    dies = [die for r in found for die in r.dies()]
    assert len(set(dies)) == len(dies) <= 24
    assert all(0 <= x < 6 and 0 <= y < 4 for x, y in dies)


def test_what_cannot_be_packed_is_not():
    assert pack(2, 2, [5]) is None
    assert pack(2, 2, [3]) is None
    assert pack(3, 4, [6, 6]) is not None
    for sizes in product((1, 2, 4), repeat=3):
        assert (pack(2, 4, sizes) is None) == (sum(sizes) > 8)
