"""Kernels of one rank around its shards: fused updates, launch by launch."""

from __future__ import annotations

import pytest

import atoll
from atoll.hardware.gpu import load_gpu
from atoll.training.shard_kernels import (
    ADAMW,
    CHUNK_ELEMENTS,
    MOST_BLOCKS,
    _fused_s,
    _tensor_sizes,
)

H200 = load_gpu("h200")
MOVED = 1.0  # bytes per element, so few that blocks decide


def launch_s(blocks: int, is_table: bool = False) -> float:
    """Return the seconds of an update of one tensor of so many full blocks."""
    return _fused_s(H200, ADAMW, [(blocks * CHUNK_ELEMENTS, is_table)], MOVED)


def test_blocks_of_a_launch_run_in_waves() -> None:
    alone_s = ADAMW.launch_s + ADAMW.chunk_s
    assert launch_s(1) == pytest.approx(alone_s)
    assert launch_s(H200.sms) == pytest.approx(alone_s)
    crowded_s = ADAMW.crowded * ADAMW.chunk_s
    assert launch_s(2 * H200.sms) == pytest.approx(ADAMW.launch_s + crowded_s)
    assert launch_s(MOST_BLOCKS) == pytest.approx(ADAMW.launch_s + 2 * crowded_s)
    assert launch_s(2 * MOST_BLOCKS) == pytest.approx(2 * launch_s(MOST_BLOCKS))


@pytest.mark.parametrize(("model", "tables"), [("bloom-7b1", 0), ("llama3-8b", 1)])
def test_gradients_of_a_tied_table_are_dense(model: str, tables: int) -> None:
    """The head's gradient has no zeros, whose update takes twice as long."""
    estimate = atoll.estimate(model, "h200", 8, batch=8, tp=1, pp=1)
    stepper, stages = estimate.prices.shares(estimate.layout)
    pairs = estimate.prices.layers_of(estimate.layout, stages[0])
    assert sum(is_table for _, is_table in _tensor_sizes(stepper, pairs)) == tables
    assert launch_s(100, is_table=True) > 1.7 * launch_s(100)
