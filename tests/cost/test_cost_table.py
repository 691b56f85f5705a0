"""The batched table: the same costs as one by one, and no chip's options beat its peak rates."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from atoll.cost import table_kernels as tk
from atoll.cost.chips import Chips, chips_of_accelerator, chips_of_space
from atoll.cost.table import (
    OperatorKey,
    PassSet,
    build_costs,
    drained_bytes,
    flatten,
    masked_fraction,
    pass_problem,
    tail_flops,
)
from atoll.cost.table_kernels import Costs
from atoll.cost.vector import operations_per_element, vector_cycles
from atoll.fabric.nested import collective_s
from atoll.fabric.network import Network
from atoll.hardware.accelerator import KIB, MIB, Accelerator, Hbm
from atoll.hardware.catalog import load_accelerator, load_network
from atoll.hardware.product_space import phaze_space
from atoll.hardware.space import DesignSpace
from atoll.hardware.spacefile import template_space
from atoll.profile import Profile
from atoll.profiles import DEFAULT, PHAZE, PROFILES
from atoll.workload import load_config, prepare
from atoll.workload.graph.operator import Core
from designs import position_of
from oracles.mapping import map_matmul

REFERENCE = load_accelerator("phaze-tpuv4")
LOSING = replace(DEFAULT, network="tpuv4-like")
"""The default profile once more, for chips of 7 nm that lose what their kind does."""
BOTH = pytest.mark.parametrize("profile", PROFILES.values(), ids=list(PROFILES))
ALL = pytest.mark.parametrize(
    "profile", [*PROFILES.values(), LOSING], ids=[*PROFILES, "physical chips"]
)
OURS = pytest.mark.parametrize("profile", [DEFAULT, LOSING], ids=["default", "physical chips"])


@cache
def passes(profile: Profile, tensor_parallel: int = 2) -> PassSet:
    """All operators of a small model as the profile builds it."""
    model = prepare(
        load_config("opt-350m"),
        1,
        256,
        tensor_parallel,
        profile.sequence_parallel,
        profile.attention,
        profile.fusion,
    )
    return flatten(layer for layer, _ in model.layers)


@cache
def space(profile: Profile) -> DesignSpace:
    if profile is LOSING:
        return template_space("physical-7nm").sample(200, seed=7)
    return phaze_space(profile.hbm_bandwidth_Bps, profile.glb_bandwidth_Bpc)


@cache
def all_chips(profile: Profile) -> Chips:
    return chips_of_space(space(profile), profile)


@cache
def some_chips(profile: Profile) -> Chips:
    """Chips of a space, at random but always the same; of PHAZE's with the reference."""
    chips = all_chips(profile)
    chosen = np.random.default_rng(7).choice(len(chips), 24, replace=False)
    if profile is LOSING:
        return chips.subset(chosen)
    reference = position_of(
        space(profile), tensor_cores=8, vector_cores=2, width=128, depth=128, glb_bytes=128 * MIB
    )
    chosen[0] = np.flatnonzero(chips.design == reference)[0]
    return chips.subset(chosen)


@cache
def costs(profile: Profile) -> Costs:
    return build_costs(passes(profile).keys, some_chips(profile), network(profile), profile)


def network(profile: Profile) -> Network:
    return load_network(profile.network)


def accelerator(chips: Chips, index: int, profile: Profile) -> Accelerator:
    """One chip as a device, with the bandwidths that the profile imposes."""
    device = replace(space(profile).accelerator(int(chips.design[index])), stalls=chips.stalls)
    hbm = replace(device.hbm, bandwidth_Bps=float(chips.hbm_Bps[index]))
    glb_Bpc = float(chips.glb_Bps[index] / chips.clock_Hz[index])
    return replace(device, hbm=hbm, glb_bandwidth_Bpc=glb_Bpc)


def kinds(keys: tuple[OperatorKey, ...]) -> set[Core]:
    return {key.operator.core for key in keys}


# --- The same costs as one by one ----------------------------------------------------------------


def test_the_small_model_has_every_kind_of_operator() -> None:
    assert kinds(passes(DEFAULT).keys) == set(Core)
    assert {Core.TENSOR, Core.VECTOR, Core.PAIR, Core.LINK} <= kinds(passes(PHAZE).keys)


@ALL
def test_products_cost_what_the_mapper_says(profile: Profile) -> None:
    chips, table = some_chips(profile), costs(profile)
    for row, key in enumerate(passes(profile).keys):
        if not key.operator.matmuls or key.operator.on_chip:
            continue
        (product,) = key.operator.matmuls
        b, m, n, k = product.batch, product.m, product.n, product.k
        extra_bytes = max(0, key.bytes - 2 * b * (m * k + k * n + m * n))
        for chip in range(len(chips)):
            device = accelerator(chips, chip, profile)
            for option in range(table.tensor_count.shape[1]):
                cores = int(table.tensor_count[chip, option])
                if cores < 0:
                    continue
                mapping = map_matmul(
                    product,
                    device,
                    cores,
                    glb_share=profile.glb_share,
                    extra_bytes=extra_bytes,
                )
                config = table.tensor_config[chip, option]
                assert table.tensor_s[row, config] == pytest.approx(mapping.time_s, rel=1e-12)
                assert table.hbm_bytes[row, config] == mapping.hbm_bytes
                assert table.glb_bytes[row, config] == mapping.glb_bytes


@OURS
def test_fused_attention_is_its_products_beside_hbm(profile: Profile) -> None:
    """The products as beside a boundless HBM and a boundless buffer of the same speed: what a mask
    cuts through whole, nothing drained, and at the end one core alone with a part of its block.
    """
    chips, table, lost = some_chips(profile), costs(profile), some_chips(profile).stalls
    rows = [i for i, key in enumerate(passes(profile).keys) if key.operator.on_chip]
    assert len(rows) == 2  # forward and backward
    for row in rows:
        operator = passes(profile).keys[row].operator
        products = [
            replace(p, fraction=masked_fraction(p, operator.matmuls[0].n, lost))
            for p in operator.matmuls
        ]
        for chip in range(len(chips)):
            device = accelerator(chips, chip, profile)
            boundless = replace(
                device, glb_bytes=10**15, hbm=Hbm(1, 1e30), stalls=replace(lost, drained=0.0)
            )
            core_flops = 2 * device.width * device.depth * device.clock_Hz * lost.array
            for option in range(table.tensor_count.shape[1]):
                cores = int(table.tensor_count[chip, option])
                if cores < 0:
                    continue
                alone = [map_matmul(product, boundless, cores) for product in products]
                config = table.tensor_config[chip, option]
                core_s = sum(mapping.time_s for mapping in alone)
                core_s += tail_flops(operator.matmuls, lost) / core_flops
                core_s += drained_bytes(operator.matmuls, lost) / table.glb_Bps[chip]
                hbm_s = table.hbm_bytes[row, config] / chips.stream_Bps[chip]
                seconds = max(core_s, hbm_s) + lost.exposed * min(core_s, hbm_s)
                assert table.tensor_s[row, config] == pytest.approx(seconds, rel=1e-12)
                moved = sum(mapping.glb_bytes for mapping in alone)
                assert table.glb_bytes[row, config] == pytest.approx(moved, rel=1e-12)


@ALL
def test_vector_work_costs_what_one_pass_after_the_other_costs(profile: Profile) -> None:
    configs, table = some_chips(profile).vector_configs, costs(profile)
    for row, key in enumerate(passes(profile).keys):
        for config in range(len(configs)):
            cores, lanes = int(configs.cores[config]), int(configs.lanes[config])
            cycles = sum(
                vector_cycles(work, cores, lanes, profile.name) for work in key.operator.vectors
            )
            assert table.vector_cycles[row, config] == cycles


@BOTH
def test_collectives_cost_what_the_network_says(profile: Profile) -> None:
    for row, key in enumerate(passes(profile).keys):
        link = key.operator.collective
        seconds = collective_s(network(profile), link.kind, link.bytes, link.group) if link else 0.0
        assert costs(profile).link_s[row] == seconds


@BOTH
def test_a_subset_of_chips_has_the_same_costs(profile: Profile) -> None:
    chosen = np.array([3, 17, 8])
    part = some_chips(profile).subset(chosen)
    assert len(part.tensor_configs) < len(some_chips(profile).tensor_configs)
    few = build_costs(passes(profile).keys, part, network(profile), profile)
    for p in range(2 * len(passes(profile).layers)):
        for position, chip in enumerate(chosen):
            alone = pass_problem(few, passes(profile).arrays, p, position)
            of_all_passes = pass_problem(costs(profile), passes(profile).arrays, p, chip)
            for left, right in zip(alone, of_all_passes, strict=True):
                np.testing.assert_array_equal(left, right)


def test_an_empty_subset_is_empty() -> None:
    nothing = some_chips(DEFAULT).subset(np.array([], np.int64))
    assert len(nothing) == len(nothing.tensor_configs) == len(nothing.vector_configs) == 0


@ALL
def test_a_chip_alone_costs_what_it_costs_in_its_space(profile: Profile) -> None:
    chips = some_chips(profile)
    alone = chips_of_accelerator(accelerator(chips, 0, profile), profile)
    table = build_costs(passes(profile).keys, alone, network(profile), profile)
    for p in range(2 * len(passes(profile).layers)):
        single = durations(table, passes(profile), p, 0)
        of_all_passes = durations(costs(profile), passes(profile), p, 0)[:, : single.shape[1]]
        np.testing.assert_array_equal(single, of_all_passes)


def durations(table: Costs, pass_set: PassSet, p: int, chip: int) -> np.ndarray:
    duration: np.ndarray = pass_problem(table, pass_set.arrays, p, chip)[0]
    return duration


# --- Options of the two profiles -----------------------------------------------------------------


def test_the_seed_has_one_core_or_all_of_them_and_nothing_beside() -> None:
    chips, table = some_chips(PHAZE), costs(PHAZE)
    assert table.tensor_count.shape[1] == 2
    spread = 0
    for p in range(2 * len(passes(PHAZE).layers)):
        for chip in range(len(chips)):
            duration, demand, *_ = pass_problem(table, passes(PHAZE).arrays, p, chip)
            for op, operator in enumerate(passes(PHAZE).operators(p)):
                if operator.core not in (Core.TENSOR, Core.VECTOR, Core.PAIR):
                    continue
                assert demand[op, 0, tk.R_TENSOR] == (operator.core is not Core.VECTOR)
                assert demand[op, 0, tk.R_VECTOR] == (operator.core is not Core.TENSOR)
                if np.isinf(duration[op, 1]):
                    continue
                spread += 1
                assert duration[op, 1] < duration[op, 0]
                assert demand[op, 1, tk.R_TENSOR] == chips.tensor_cores[chip]
                assert demand[op, 1, tk.R_VECTOR] == chips.vector_cores[chip]
    assert spread > 0


def test_a_wider_spread_is_an_option_only_where_it_is_faster() -> None:
    chips, table = some_chips(DEFAULT), costs(DEFAULT)
    for p in range(2 * len(passes(DEFAULT).layers)):
        for chip in range(len(chips)):
            duration, demand, *_ = pass_problem(table, passes(DEFAULT).arrays, p, chip)
            for op in range(len(duration)):
                offered = np.isfinite(duration[op])
                assert offered[0]
                assert (np.diff(duration[op][offered]) < 0).all()
                cores = demand[op][offered][:, [tk.R_TENSOR, tk.R_VECTOR]]
                assert (cores <= [chips.tensor_cores[chip], chips.vector_cores[chip]]).all()
                assert (np.diff(cores.sum(axis=1)) > 0).all()


@BOTH
def test_every_operator_runs_on_every_chip_of_the_seed_space(profile: Profile) -> None:
    """Chips with large arrays and a small buffer included."""
    table = build_costs(passes(profile, 1).keys, all_chips(profile), network(profile), profile)
    assert np.isfinite(table.tensor_s).all()


@ALL
def test_no_option_beats_peak_rates(profile: Profile) -> None:
    """What the search's first bound takes for granted."""
    chips, table = some_chips(profile), costs(profile)
    for p in range(2 * len(passes(profile).layers)):
        first = passes(profile).arrays.ptr[p]
        for chip in range(len(chips)):
            device = accelerator(chips, chip, profile)
            fastest_s = durations(table, passes(profile), p, chip).min(axis=1)
            for op, operator in enumerate(passes(profile).operators(p)):
                key = passes(profile).keys[passes(profile).arrays.op[first + op]]
                macs = sum(product.flops / 2 * product.fraction for product in operator.matmuls)
                lanes = device.vector_cores * device.vector_width
                operations = sum(
                    work.elements * operations_per_element(work.function, profile.name)
                    for work in operator.vectors
                )
                bounds_s = [2 * macs / device.peak_flops, operations / lanes / device.clock_Hz]
                if operator.matmuls or profile.vector_memory:
                    bounds_s.append(key.bytes / device.hbm.bandwidth_Bps)
                assert fastest_s[op] >= max(bounds_s) * (1 - 1e-12)


# --- Units ---------------------------------------------------------------------------------------


@ALL
def test_twice_the_clock_and_all_bandwidths_halve_every_time(profile: Profile) -> None:
    """Bytes a clock stay; anything not in seconds would show here. (Ways that take their time do
    not follow a clock.)
    """
    lost = replace(some_chips(profile).stalls, start_s=0.0, fill_s=0.0)
    unbound = replace(profile, hbm_bandwidth_Bps=None, glb_bandwidth_Bpc=None)
    once = replace(REFERENCE, stalls=lost)
    twice = replace(
        once,
        clock_Hz=2 * REFERENCE.clock_Hz,
        hbm=replace(REFERENCE.hbm, bandwidth_Bps=2 * REFERENCE.hbm.bandwidth_Bps),
    )
    slow = network(profile)
    fast = replace(
        slow,
        levels=tuple(
            replace(
                v,
                bandwidth_Bps=2 * v.bandwidth_Bps,
                latency_s=v.latency_s / 2,
                start_s=v.start_s / 2,
            )
            for v in slow.levels
        ),
    )
    keys, arrays = passes(profile).keys, passes(profile).arrays
    before = build_costs(keys, chips_of_accelerator(once, unbound), slow, unbound)
    after = build_costs(keys, chips_of_accelerator(twice, unbound), fast, unbound)
    for p in range(2 * len(passes(profile).layers)):
        duration, demand, *_ = pass_problem(before, arrays, p, 0)
        halved, same, *_ = pass_problem(after, arrays, p, 0)
        np.testing.assert_allclose(halved, duration / 2, rtol=1e-12)
        np.testing.assert_allclose(same, demand, rtol=1e-12)


def test_a_block_of_bert_large_takes_about_its_flops_over_the_peak() -> None:
    """512 tokens through 12.6 M weights: 13 GFLOP forward at 275 TFLOP/s are 47 us."""
    model = prepare(load_config("bert-large"), 1, 512)
    block = flatten([model.layers[1][0]])
    alone = chips_of_accelerator(REFERENCE, DEFAULT)
    table = build_costs(block.keys, alone, network(DEFAULT), DEFAULT)
    forward_s = durations(table, block, 0, 0).min(axis=1).sum()
    ideal_s = block.layers[0].flops_forward / REFERENCE.peak_flops
    assert ideal_s == pytest.approx(51e-6, rel=0.02)
    assert ideal_s < forward_s < 10 * ideal_s


# --- Fused attention through memory --------------------------------------------------------------


def attention_hbm_bytes(glb_bytes: int, backward: bool) -> tuple[float, OperatorKey]:
    """Of Llama-2 7B's attention (32 heads of 128, 4096 tokens) on a chip with this buffer."""
    model = prepare(load_config("llama2-7b"), 1, 4096)
    keys = flatten(layer for layer, _ in model.layers).keys
    products = 5 if backward else 2
    (key,) = (k for k in keys if k.operator.on_chip and len(k.operator.matmuls) == products)
    chips = chips_of_accelerator(replace(REFERENCE, glb_bytes=glb_bytes), DEFAULT)
    return float(build_costs([key], chips, network(DEFAULT), DEFAULT).hbm_bytes[0, 0]), key


@pytest.mark.parametrize("backward", [False, True])
def test_attention_that_fits_the_buffer_moves_its_tensors_once(backward: bool) -> None:
    moved, key = attention_hbm_bytes(128 * MIB, backward)
    tensor = 2 * 4096 * 4096
    statistics = 4 * 32 * 4096
    assert moved == key.bytes == (8 if backward else 4) * tensor + statistics


def test_keys_and_values_pass_again_for_every_block_of_queries() -> None:
    """A quarter of 1 MiB holds a twelfth of a head's queries with the sums of their outputs."""
    moved, key = attention_hbm_bytes(1 * MIB, backward=False)
    (scores, _) = key.operator.matmuls
    blocks = -(-4096 * 128 * (2 + 4) // (256 * KIB))
    assert blocks == 12
    keys_and_values = 32 * 2 * 2 * 4096 * 128
    assert moved == pytest.approx(key.bytes + 11 * keys_and_values * scores.fraction)


def test_the_backward_pass_streams_queries_past_blocks_of_keys() -> None:
    """Blocks of keys and values with the sums of their gradients; q, dout and sums of dq pass."""
    moved, key = attention_hbm_bytes(1 * MIB, backward=True)
    blocks = -(-4096 * 128 * (2 + 2 + 4 + 4) // (256 * KIB))
    passed = 32 * 4096 * 128 * (2 + 2 + 8)
    fraction = key.operator.matmuls[0].fraction
    assert moved == pytest.approx(key.bytes + (blocks - 1) * passed * fraction)


@pytest.mark.parametrize("backward", [False, True])
def test_a_larger_buffer_never_moves_more_attention_bytes(backward: bool) -> None:
    moved = [attention_hbm_bytes(n * MIB, backward)[0] for n in (1, 2, 3, 4, 8, 16, 64)]
    assert moved == sorted(moved, reverse=True)
