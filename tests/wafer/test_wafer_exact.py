"""The exact part against brute force over the whole encoding, on 2 x 2 and 2 x 3 meshes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.wafer.batch import KEPT, REBUILT, STATE, TIME, Batch
from atoll.wafer.digits import digit_systems
from atoll.wafer.exact import Exact
from atoll.wafer.pricing import Pricer
from atoll.wafer.tables import HOMES, Setting, Tables, legal_codes

from .wafer_cases import small_block, small_wafer, sub_block

HOMES_TRIED = ("optimizer", "weights")


def brute_force(batch: Batch, homes, layers, in_flight, limit):
    """The least time over everything that fits, or infinity."""
    buffers = np.array([batch.tables.buffer_bytes(c) for c in batch.tables.stream.codes])
    best = np.inf
    for genes in batch.everything(homes):
        cost = batch.evaluate(genes)
        memory = layers * (cost[:, STATE] + in_flight * cost[:, KEPT]) + cost[:, REBUILT]
        fits = memory + buffers[genes.stream] <= limit
        if fits.any():
            best = min(best, float(cost[fits, TIME].min()))
    return best


def limits(batch: Batch, homes, layers, in_flight, random):
    """A memory limit between the smallest mapping seen and a roomy one."""
    cost = batch.evaluate(batch.sample(2000, random, homes))
    memory = layers * (cost[:, STATE] + in_flight * cost[:, KEPT]) + cost[:, REBUILT]
    return float(memory.min()), float(memory.max())


@settings(max_examples=5, deadline=None)
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
def test_three_operators_with_every_code_home_and_keep(
    chain, shape, microbatch, link, tight, in_flight, streaming, seed
):
    wafer = small_wafer(shape[1], shape[0], link_Bps=link)
    block = sub_block(small_block(microbatch), (chain,))
    digits = digit_systems(*shape)[0]
    only = None
    if microbatch > 1:
        # With samples to cut there are more codes than brute force can try: some of each.
        random = np.random.default_rng(seed)
        names = {u.name: u.sizes for u in block.units} | {"stream": block.stream_sizes}
        only = {
            name: tuple(random.choice(legal_codes(sizes, digits), 8, replace=False))
            for name, sizes in names.items()
        }
    tables = Tables(
        block, digits, Setting(wafer, 8, streaming=streaming), Pricer(wafer.chip), only
    )
    batch = Batch(tables)
    low, high = limits(batch, HOMES_TRIED, 2, in_flight, np.random.default_rng(seed))
    limit = low + tight * (high - low)
    expected = brute_force(batch, HOMES_TRIED, 2, in_flight, limit)
    found = Exact(tables, HOMES_TRIED).solve(2, in_flight, limit)
    if expected == np.inf:
        assert found is None
    else:
        assert found is not None
        assert found.cost.time_s == pytest.approx(expected, rel=1e-12)


@settings(max_examples=3, deadline=None)
@given(
    shape=st.sampled_from([(2, 2), (3, 2)]),
    link=st.sampled_from([2e9, 2e10]),
    tight=st.floats(0.0, 0.6),
    seed=st.integers(0, 1000),
)
def test_six_operators_with_every_keep(shape, link, tight, seed):
    wafer = small_wafer(shape[1], shape[0], link_Bps=link)
    block = small_block()
    digits = digit_systems(*shape)[0]
    random = np.random.default_rng(seed)
    names = {u.name: u.sizes for u in block.units} | {"stream": block.stream_sizes}
    only = {
        name: tuple(random.choice(legal_codes(sizes, digits), 2 + (i % 2), replace=False))
        for i, (name, sizes) in enumerate(names.items())
    }
    tables = Tables(block, digits, Setting(wafer, 8), Pricer(wafer.chip), only)
    batch = Batch(tables)
    low, high = limits(batch, HOMES_TRIED[:1], 2, 3, random)
    limit = low + tight * (high - low)
    expected = brute_force(batch, HOMES_TRIED[:1], 2, 3, limit)
    found = Exact(tables, HOMES_TRIED[:1]).solve(2, 3, limit)
    if expected == np.inf:
        assert found is None
    else:
        assert found is not None
        assert found.cost.time_s == pytest.approx(expected, rel=1e-12)


def test_the_batched_evaluator_and_the_exact_parts_tables_agree():
    wafer = small_wafer(2, 4)
    digits = digit_systems(4, 2)[0]
    tables = Tables(small_block(2), digits, Setting(wafer, 8), Pricer(wafer.chip))
    batch, exact = Batch(tables), Exact(tables, HOMES)
    genes = batch.sample(200, np.random.default_rng(1), HOMES)
    cost = batch.evaluate(genes)
    for row in range(len(genes)):
        one = exact.price(batch.decode(genes, row))
        assert cost[row] == pytest.approx(
            [one.time_s, one.state_bytes, one.kept_bytes, one.rebuilt_bytes], rel=1e-12
        )


def test_less_memory_never_makes_a_block_faster():
    wafer = small_wafer(2, 2)
    digits = digit_systems(2, 2)[0]
    exact = Exact(Tables(small_block(), digits, Setting(wafer, 8), Pricer(wafer.chip)))
    roomy = exact.solve(4, 4, 1e12)
    assert roomy is not None
    needed = roomy.cost.memory_bytes(4, 4)
    times = []
    for share in (1.1, 0.9, 0.8, 0.7, 0.6, 0.5):
        found = exact.solve(4, 4, share * needed)
        times.append(found.cost.time_s if found else np.inf)
    assert times == sorted(times)
    assert times[0] == roomy.cost.time_s
