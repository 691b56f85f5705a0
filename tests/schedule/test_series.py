"""Series parts and precedence, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.schedule.series import ordered, part_begins, series_begins

OPERATORS = 9


def random_graph(seed: int) -> tuple[list[list[int]], np.ndarray, np.ndarray]:
    """Predecessors of operators in topological order, and the same as CSR arrays."""
    rng = np.random.default_rng(seed)
    share = rng.uniform(0.1, 0.8)
    before = [np.flatnonzero(rng.random(j) < share).tolist() for j in range(OPERATORS)]
    ptr = np.cumsum([0, *map(len, before)])
    return before, ptr, np.array([i for own in before for i in own], np.int64)


def paths(before: list[list[int]]) -> np.ndarray:
    """Whether a path leads from i to j, by walking edges until nothing is new."""
    known = np.array([[i in own for i in range(OPERATORS)] for own in before])
    for _ in range(OPERATORS):
        known |= (known.astype(int) @ known.astype(int)) > 0
    return known


@pytest.mark.parametrize("seed", range(40))
def test_parts_begin_where_everything_earlier_precedes_everything_later(seed: int) -> None:
    before, ptr, idx = random_graph(seed)
    earlier = paths(before)
    expected = [bool(np.all(earlier[k:, :k])) for k in range(OPERATORS)]
    assert part_begins(ptr, idx).tolist() == expected
    assert np.array_equal(ordered(ptr, idx), earlier | earlier.T)


def test_passes_one_after_the_other_have_their_own_parts() -> None:
    graphs = [random_graph(seed) for seed in (3, 4, 3)]
    ptr = OPERATORS * np.arange(len(graphs) + 1)
    ends = np.cumsum([0, *(len(idx) for _, _, idx in graphs)])
    pred_ptr = np.concatenate(
        [own[:-1] + at for (_, own, _), at in zip(graphs, ends, strict=False)] + [ends[-1:]]
    )
    pred_idx = np.concatenate([idx for _, _, idx in graphs])
    expected = np.concatenate([part_begins(own, idx) for _, own, idx in graphs])
    assert np.array_equal(series_begins(ptr, pred_ptr, pred_idx), expected)
