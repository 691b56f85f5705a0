"""Splits of blocks over the chunks of a pipeline, tried against all splits."""

from __future__ import annotations

from itertools import accumulate, combinations, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.step.orders import chunks_per_stage, route
from atoll.step.replay import PassTime, replay
from atoll.step.stages import balanced_sizes, even_sizes, filled_sizes, lightest_sizes


def slowest(sizes: tuple[int, ...], order: str, pp: int, vpp: int, behind: float) -> float:
    """Blocks that the slowest stage takes as long as, for two microbatches."""
    loads = [0.0] * pp
    for microbatch in range(2):
        way = route(order, pp, chunks_per_stage(order, vpp), microbatch)
        for (stage, _), size in zip(way, sizes, strict=True):
            loads[stage] += size
        loads[way[-1][0]] += behind
    return max(loads)


@given(
    st.integers(4, 12),
    st.sampled_from([("1f1b", 2, 1), ("1f1b", 3, 1), ("zb-h1", 4, 1), ("interleaved", 2, 2),
                     ("zb-v", 2, 1), ("dualpipe", 4, 1)]),
    st.floats(0.0, 4.0),
)  # fmt: skip
def test_no_split_has_a_faster_slowest_stage(blocks: int, shape, behind: float) -> None:
    order, pp, vpp = shape
    chunks = len(route(order, pp, chunks_per_stage(order, vpp), 0))
    found = balanced_sizes(blocks, order, pp, vpp, behind)
    assert sum(found) == blocks
    cuts = combinations(range(1, blocks), chunks - 1)
    every = (tuple(b - a for a, b in pairwise((0, *cut, blocks))) for cut in cuts)
    least = min(slowest(sizes, order, pp, vpp, behind) for sizes in every)
    assert slowest(found, order, pp, vpp, behind) <= least + 1e-9


@pytest.mark.parametrize("behind", [0.0, 0.5, 1.0])
def test_a_head_of_no_more_than_a_block_leaves_stages_even(behind: float) -> None:
    for blocks, pp in ((32, 4), (30, 4)):
        assert balanced_sizes(blocks, "1f1b", pp, 1, behind) == even_sizes(blocks, pp)


def test_the_last_chunk_has_fewer_blocks_where_the_head_is_large() -> None:
    assert balanced_sizes(32, "1f1b", 4, 1, 2.4) == (8, 9, 9, 6)
    assert balanced_sizes(4, "1f1b", 4, 1, 9.0) == (1, 1, 1, 1)  # none is left without a block


def test_a_stage_with_the_head_has_fewer_blocks_beside_it_than_in_its_other_chunks() -> None:
    """All stages wait for the slowest chunk of each turn: a block less anywhere else is no help."""
    assert balanced_sizes(8, "interleaved", 2, 2, 2.0) == (2, 2, 3, 1)

    def step_s(sizes: tuple[int, ...]) -> float:
        work = [*map(float, sizes[:-1]), sizes[-1] + 2.0]
        times = [[PassTime(x, 1.2 * x, 0.8 * x) for x in work[stage::2]] for stage in range(2)]
        return replay("interleaved", times, 8).time_s

    assert step_s((2, 2, 3, 1)) == pytest.approx(129.0)
    assert step_s((2, 1, 3, 2)) == pytest.approx(144.0)
    assert step_s(even_sizes(8, 4)) == pytest.approx(150.0)


@given(
    st.lists(st.floats(0.1, 3.0), min_size=2, max_size=7),
    st.integers(2, 4),
    st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 5.0)),
)
def test_no_split_of_unequal_blocks_has_a_lighter_slowest_stage(
    block_work: list[float], stages: int, end_work: tuple[float, float]
) -> None:
    stages = min(stages, len(block_work))

    def slowest(sizes: tuple[int, ...]) -> float:
        ends = [0, *accumulate(sizes)]
        loads = [sum(block_work[a:b]) for a, b in pairwise(ends)]
        loads[0] += end_work[0]
        loads[-1] += end_work[1]
        return max(loads)

    sizes = lightest_sizes(tuple(block_work), stages, end_work)
    assert len(sizes) == stages and sum(sizes) == len(block_work) and min(sizes) >= 1
    every = product(range(1, len(block_work)), repeat=stages)
    least = min(slowest(one) for one in every if sum(one) == len(block_work))
    assert slowest(sizes) == pytest.approx(least)
    block_work = [1.0] * len(block_work)
    lightest = lightest_sizes(tuple(block_work), stages, end_work)
    filled = filled_sizes(len(block_work), stages, end_work)
    assert slowest(filled) == pytest.approx(slowest(lightest))
