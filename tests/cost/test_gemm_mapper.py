"""The mapper finds the best mapping that its description allows, and costs behave as physics does.

The oracle is a twin in plain Python, written from the description in `atoll.cost.gemm_kernels`
alone: it walks the whole space, prices every mapping, and skips nothing.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from atoll.base.errors import AtollError
from atoll.cost.chips import core_counts
from atoll.hardware.accelerator import MIB, Accelerator, Hbm
from atoll.hardware.catalog import load_accelerator
from atoll.hardware.template.stalls import CACHED, NO_STALLS, SCRATCHPAD, Stalls
from atoll.workload.graph.operator import Matmul
from oracles.mapping import Mapping, map_matmul

REFERENCE = load_accelerator("phaze-tpuv4")
SUNSTONE = Path(__file__).parents[1] / "data" / "sunstone_gemm.csv"
UNLIMITED = 1e30


# --- The twin ----------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """A point of the mapping space, named as in `Mapping`, with its price."""

    streams: str
    cores: tuple[int, int, int]  # batch, rows, columns
    rows_per_chunk: int
    order: str
    k_parts: int
    tiles: tuple[int, int]  # rows, columns
    coarsest: bool  # most cores for the columns and fewest chunks
    cycles: float
    hbm_bytes: float
    glb_bytes: float
    time_s: float


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def powers_of_two(limit: int) -> list[int]:
    return [1 << i for i in range(limit.bit_length()) if 1 << i <= limit]


def every_mapping(
    product: Matmul, chip: Accelerator, glb_share: float, extra: float
) -> Iterator[Candidate]:
    limit = chip.tensor_cores
    for streams, rows, columns in (("m", product.m, product.n), ("n", product.n, product.m)):
        for by_batch in powers_of_two(min(limit, 2 * product.batch - 1)):
            for by_rows in powers_of_two(min(limit // by_batch, 2 * rows - 1)):
                left = limit // (by_batch * by_rows)
                busy = min(left, ceil_div(columns, chip.width))
                for by_columns in sorted({*powers_of_two(left), left, busy}):
                    split = (by_batch, by_rows, by_columns)
                    most = by_columns >= busy
                    for c in core_mappings(product, chip, rows, columns, split, glb_share, extra):
                        yield c._replace(streams=streams, coarsest=most and c.coarsest)


def core_mappings(
    product: Matmul,
    chip: Accelerator,
    rows: int,
    columns: int,
    split: tuple[int, int, int],
    glb_share: float,
    extra: float,
) -> Iterator[Candidate]:
    """Chunks and macro tiles of one orientation and one split over the cores."""
    by_batch, by_rows, by_columns = split
    width, depth, k, share = chip.width, chip.depth, product.k, product.fraction
    stalls, glb_Bps = chip.stalls or NO_STALLS, chip.glb_bandwidth_Bpc * chip.clock_Hz
    products_in_turn = ceil_div(product.batch, by_batch)
    budget = chip.glb_bytes * glb_share / min(by_batch, product.batch)
    column_rounds = ceil_div(ceil_div(columns, by_columns), width)
    columns_round = min(columns, by_columns * width)
    k_folds = ceil_div(k, depth)
    rows_core = ceil_div(rows, by_rows)
    fewest = ceil_div(rows_core, max(1, chip.core_buffer_bytes // (4 * depth + 4 * width)))
    a, b, c = (2.0 * product.batch * e for e in (rows * k, k * columns, rows * columns))

    for multiple in powers_of_two(rows_core):
        chunks = fewest * multiple
        if chunks > rows_core:
            continue
        sizes = [rows_core // chunks + (i < rows_core % chunks) for i in range(chunks)]
        tile_cycles = sum(max(size, depth) for size in sizes)
        cycles = share * products_in_turn * k_folds * column_rounds * tile_cycles
        cycles += 2 * depth + width
        core_s = cycles / (stalls.array * chip.clock_Hz)
        core_s += share * products_in_turn * column_rounds * chunks * stalls.fill_s
        core_s += stalls.drained * (share * c + extra) / glb_Bps
        core_reads = share * (a * column_rounds + b * chunks)
        rows_round = min(rows, by_rows * max(sizes))

        for parts in sorted({*powers_of_two(k_folds), k_folds}):
            k_part = min(k, depth * ceil_div(k_folds, parts))
            k_parts = ceil_div(k, k_part)
            sums = share * 4.0 * product.batch * rows * columns * 2 * (k_parts - 1)
            glb = core_reads + share * c + extra + sums
            for order, row_tiles, column_tiles in tiles_that_fit(
                (rows, columns),
                (rows_round, columns_round),
                (chunks, column_rounds),
                k_part,
                k_parts * products_in_turn,
                depth,
                budget,
            ):
                hbm = a * (1 + share * (column_tiles - 1)) + b * (1 + share * (row_tiles - 1))
                hbm += share * c + extra + (0.0 if order == "C tile" else sums)
                busy_s = max(core_s, glb / glb_Bps)
                hbm_s = hbm / (stalls.hbm * chip.hbm.bandwidth_Bps)
                yield Candidate(
                    streams="",
                    cores=split,
                    rows_per_chunk=max(sizes),
                    order=order,
                    k_parts=k_parts,
                    tiles=(row_tiles, column_tiles),
                    coarsest=chunks == fewest,
                    cycles=cycles,
                    hbm_bytes=hbm,
                    glb_bytes=glb,
                    time_s=max(busy_s, hbm_s) + stalls.exposed * min(busy_s, hbm_s),
                )


def tiles_that_fit(
    whole: tuple[int, int],
    per_round: tuple[int, int],
    rounds: tuple[int, int],
    k_part: int,
    panels_of_whole_operand: int,
    depth: int,
    budget: float,
) -> Iterator[tuple[str, int, int]]:
    """Order and number of row and column tiles, for every size in whole rounds that fits."""
    sizes = [
        [(ceil_div(rounds[i], n), min(whole[i], n * per_round[i])) for n in range(1, rounds[i] + 1)]
        for i in range(2)
    ]
    staging = 2 * per_round[0] * per_round[1]
    for i, order in enumerate(("A panel", "B panel")):
        for rounds_inside, (tiles, size) in enumerate(sizes[i], start=1):
            # Every round of a panel passes the other operand's round, which stays for so long.
            kept_rows = min(depth, k_part) if rounds_inside == 1 else k_part
            streaming = 4 * kept_rows * per_round[1 - i]
            copies = 2 if tiles * panels_of_whole_operand > 1 else 1
            if copies * 2 * size * k_part + streaming + staging <= budget:
                yield order, tiles if i == 0 else 1, tiles if i == 1 else 1
    for row_tiles, x in sizes[0]:
        for column_tiles, y in sizes[1]:
            if 4 * x * y + 2 * 2 * k_part * (x + y) <= budget:
                yield "C tile", row_tiles, column_tiles


# --- Random small chips and products -----------------------------------------------------------

LATE = Stalls(fill_s=1e-7, drained=1.0, exposed=0.25)

small_chips = st.builds(
    Accelerator,
    tensor_cores=st.sampled_from([1, 2, 3, 4, 6, 8]),
    vector_cores=st.just(1),
    width=st.sampled_from([1, 2, 4, 8, 32]),
    depth=st.sampled_from([1, 2, 4, 8, 32]),
    vector_width=st.just(4),
    glb_bytes=st.one_of(st.integers(60, 3000), st.integers(1000, 30_000)),
    glb_bandwidth_Bpc=st.sampled_from([1.0, 8.0, 64.0, 1024.0]),
    clock_Hz=st.just(1e9),
    hbm=st.builds(
        Hbm, capacity_bytes=st.just(1), bandwidth_Bps=st.sampled_from([1e8, 1e9, 8e9, 64e9])
    ),
    stated_core_buffer_bytes=st.sampled_from([0, 0, 256, 4096]),
    stalls=st.sampled_from([None, Stalls(array=0.5, hbm=0.7, fill_s=2e-8, drained=0.3), LATE]),
)
small_products = st.builds(
    Matmul,
    batch=st.sampled_from([1, 1, 1, 2, 3, 5]),
    m=st.integers(1, 40),
    n=st.integers(1, 40),
    k=st.integers(1, 40),
    fraction=st.sampled_from([1.0, 1.0, 0.5, 0.3]),
)
glb_shares = st.sampled_from([0.5, 1.0])
extras = st.sampled_from([0.0, 0.0, 100.0])

chips = st.builds(
    Accelerator,
    tensor_cores=st.sampled_from([1, 2, 4, 8, 16, 64]),
    vector_cores=st.just(1),
    width=st.sampled_from([8, 16, 64, 128, 256]),
    depth=st.sampled_from([8, 16, 64, 128, 256]),
    vector_width=st.just(128),
    glb_bytes=st.integers(2, 128).map(lambda n: n * MIB),
    glb_bandwidth_Bpc=st.floats(64.0, 65536.0),
    clock_Hz=st.just(1e9),
    hbm=st.builds(Hbm, capacity_bytes=st.just(1), bandwidth_Bps=st.floats(1e10, 1e13)),
    stalls=st.sampled_from([None, SCRATCHPAD, CACHED]),
)
products = st.builds(
    Matmul,
    batch=st.sampled_from([1, 1, 2, 12, 96]),
    m=st.integers(1, 5000),
    n=st.integers(1, 5000),
    k=st.integers(1, 5000),
    fraction=st.sampled_from([1.0, 0.5]),
)


def at_most(value: float) -> float:
    """The same number up to rounding: sums are taken in another order for another mapping."""
    return value * (1.0 + 1e-12)


# --- Exactness ---------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(product=small_products, chip=small_chips, glb_share=glb_shares, extra=extras)
def test_no_mapping_of_the_described_space_is_faster(
    product: Matmul, chip: Accelerator, glb_share: float, extra: float
) -> None:
    candidates = list(every_mapping(product, chip, glb_share, extra))
    if not candidates:
        event("nothing fits")
        with pytest.raises(AtollError, match="no tile of a product"):
            map_matmul(product, chip, glb_share=glb_share, extra_bytes=extra)
        return
    found = map_matmul(product, chip, glb_share=glb_share, extra_bytes=extra)
    least_s = min(c.time_s for c in candidates)
    event(found.order)
    assert found.time_s == pytest.approx(least_s, rel=1e-12)

    # Its own record describes a mapping of the space, at the price stated.
    twin = [c for c in candidates if describes(found, c)]
    assert twin
    assert found.time_s == pytest.approx(twin[0].time_s, rel=1e-12)
    assert found.compute_cycles == pytest.approx(twin[0].cycles, rel=1e-12)
    assert found.hbm_bytes == pytest.approx(twin[0].hbm_bytes, rel=1e-12)
    assert found.glb_bytes == pytest.approx(twin[0].glb_bytes, rel=1e-12)

    # Ties between coarse mappings go to the one with the least HBM traffic.
    equal = [c.hbm_bytes for c in candidates if c.coarsest and c.time_s <= found.time_s]
    if equal and product.fraction == 1.0:  # otherwise rounding breaks ties
        assert found.hbm_bytes <= at_most(min(equal))


def describes(found: Mapping, candidate: Candidate) -> bool:
    return (
        found.streams == candidate.streams
        and (found.cores_batch, found.cores_rows, found.cores_columns) == candidate.cores
        and found.rows_per_chunk == candidate.rows_per_chunk
        and found.order == candidate.order
        and found.k_parts == candidate.k_parts
        and (found.tiles_rows, found.tiles_columns) == candidate.tiles
    )


@pytest.mark.parametrize("cores", [1, 4])
def test_large_arrays_beside_a_small_buffer_take_smaller_chunks(cores: int) -> None:
    """Cores of 256 x 256 hold chunks of 512 rows: rounds of them fill 2 MiB, or do not fit."""
    chip = replace(REFERENCE, tensor_cores=cores, width=256, depth=256, glb_bytes=2 * MIB)
    product = Matmul(1, 2048, 2048, 512)
    candidates = list(every_mapping(product, chip, 0.5, 0.0))
    least_s = min(c.time_s for c in candidates)
    assert map_matmul(product, chip).time_s == pytest.approx(least_s, rel=1e-12)
    assert least_s < 0.75 * min((c.time_s for c in candidates if c.coarsest), default=math.inf)


@settings(max_examples=200, deadline=None)
@given(product=products, chip=chips)
def test_a_product_costs_what_its_transpose_costs(product: Matmul, chip: Accelerator) -> None:
    flipped = replace(product, m=product.n, n=product.m)
    straight_s = map_matmul(product, chip).time_s
    assert map_matmul(flipped, chip).time_s == pytest.approx(straight_s, rel=1e-12)


def test_a_buffer_too_small_for_any_tile_is_one_sentence() -> None:
    chip = replace(REFERENCE, glb_bytes=1024)
    with pytest.raises(AtollError, match=r"phaze-tpuv4: no tile .* fits 0\.5 KiB .*enlarge"):
        map_matmul(Matmul(1, 512, 512, 512), chip)


# --- Bounds ------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(product=products, chip=chips, extra=st.sampled_from([0.0, 1e6]))
def test_never_below_peak_compute_or_the_bytes_that_must_move(
    product: Matmul, chip: Accelerator, extra: float
) -> None:
    mapping = map_matmul(product, chip, extra_bytes=extra)
    macs = product.fraction * product.flops / 2
    cells = chip.tensor_cores * chip.width * chip.depth
    assert at_most(mapping.compute_cycles) >= macs / cells
    b, m, n, k = product.batch, product.m, product.n, product.k
    outputs = 2 * b * m * n * product.fraction + extra
    operands = 2 * b * (m * k + k * n)
    assert at_most(mapping.hbm_bytes) >= operands + outputs
    assert at_most(mapping.glb_bytes) >= product.fraction * operands + outputs
    glb_Bps = chip.glb_bandwidth_Bpc * chip.clock_Hz
    longest_s = max(
        mapping.compute_cycles / chip.clock_Hz,
        mapping.hbm_bytes / chip.hbm.bandwidth_Bps,
        mapping.glb_bytes / glb_Bps,
    )
    assert at_most(mapping.time_s) >= longest_s
    if chip.stalls is None:
        assert mapping.time_s == pytest.approx(longest_s, rel=1e-12)
    assert mapping.cores_batch * mapping.cores_rows * mapping.cores_columns <= chip.tensor_cores


def test_a_product_with_no_other_limit_takes_its_flops_over_the_peak() -> None:
    """A clock that is off by a thousand would show here."""
    product = Matmul(1, 4096, 4096, 4096)
    ideal_s = product.flops / REFERENCE.peak_flops
    assert REFERENCE.peak_flops == 2 * 8 * 128 * 128 * 1.05e9
    assert ideal_s == pytest.approx(0.4993e-3, rel=1e-4)
    assert ideal_s <= map_matmul(product, REFERENCE).time_s <= 1.01 * ideal_s


def test_a_product_of_one_row_takes_its_bytes_over_the_bandwidth() -> None:
    product = Matmul(1, 1, 8192, 8192)
    ideal_s = 2 * 8192 * (8192 + 2) / REFERENCE.hbm.bandwidth_Bps
    assert map_matmul(product, REFERENCE).time_s == pytest.approx(ideal_s, rel=1e-6)


def test_one_array_by_hand() -> None:
    """128 x 128 x 128 on one array: 128 rows stream once, and 2 x 128 + 128 cycles fill it."""
    mapping = map_matmul(Matmul(1, 128, 128, 128), REFERENCE, cores=1)
    assert mapping.compute_cycles == 128 + 384
    assert mapping.hbm_bytes == 3 * 2 * 128 * 128
    assert mapping.glb_bytes == 3 * 2 * 128 * 128


# --- More of anything never hurts --------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(product=products, chip=chips, factor=st.sampled_from([2, 3, 7, 16]))
def test_more_cores_are_never_slower(product: Matmul, chip: Accelerator, factor: int) -> None:
    """From a power of two of cores to any larger number."""
    more = replace(chip, tensor_cores=factor * chip.tensor_cores)
    assert map_matmul(product, more).time_s <= at_most(map_matmul(product, chip).time_s)


@settings(max_examples=150, deadline=None)
@given(product=products, chip=chips, factor=st.floats(1.0, 4.0))
def test_a_larger_buffer_is_never_slower(product: Matmul, chip: Accelerator, factor: float) -> None:
    larger = replace(chip, glb_bytes=int(chip.glb_bytes * factor))
    assert map_matmul(product, larger).time_s <= at_most(map_matmul(product, chip).time_s)


@settings(max_examples=150, deadline=None)
@given(product=products, chip=chips, hbm=st.floats(1.0, 10.0), glb=st.floats(1.0, 10.0))
def test_more_bandwidth_is_never_slower(
    product: Matmul, chip: Accelerator, hbm: float, glb: float
) -> None:
    faster = replace(
        chip,
        glb_bandwidth_Bpc=chip.glb_bandwidth_Bpc * glb,
        hbm=replace(chip.hbm, bandwidth_Bps=chip.hbm.bandwidth_Bps * hbm),
    )
    assert map_matmul(product, faster).time_s <= at_most(map_matmul(product, chip).time_s)


@settings(max_examples=150, deadline=None)
@given(product=products, chip=chips, dimension=st.sampled_from(["batch", "m", "n", "k"]),
       more=st.integers(1, 300))  # fmt: skip
def test_a_larger_product_never_takes_fewer_cycles(
    product: Matmul, chip: Accelerator, dimension: str, more: int
) -> None:
    """Of compute, that is: a larger product may cut into better tiles and move fewer bytes."""
    unbound = replace(
        chip,
        glb_bytes=10**15,
        glb_bandwidth_Bpc=UNLIMITED,
        hbm=Hbm(capacity_bytes=1, bandwidth_Bps=UNLIMITED),
    )
    larger = replace(product, **{dimension: getattr(product, dimension) + more})
    before = map_matmul(product, unbound).compute_cycles
    assert before <= at_most(map_matmul(larger, unbound).compute_cycles)


@settings(max_examples=150, deadline=None)
@given(product=products, chip=chips, fraction=st.floats(0.01, 1.0))
def test_masked_tiles_only_save(product: Matmul, chip: Accelerator, fraction: float) -> None:
    """A causal mask scales the work of the arrays, and nothing gets dearer."""
    whole = replace(product, fraction=1.0)
    masked = replace(product, fraction=fraction)
    assert map_matmul(masked, chip).time_s <= at_most(map_matmul(whole, chip).time_s)


def test_a_causal_mask_halves_the_cycles_but_not_the_fill_or_the_operands() -> None:
    chip = replace(REFERENCE, glb_bandwidth_Bpc=UNLIMITED)
    whole = map_matmul(Matmul(1, 4096, 4096, 4096), chip)
    half = map_matmul(Matmul(1, 4096, 4096, 4096, fraction=0.5), chip)
    fill = 2 * 128 + 128
    assert half.compute_cycles - fill == 0.5 * (whole.compute_cycles - fill)
    operand = 2 * 4096 * 4096
    assert half.hbm_bytes == 2.5 * operand
    assert whole.hbm_bytes == 3.0 * operand


# --- Faults of PHAZE that must not come back -------------------------------------------------


@pytest.mark.parametrize("cores", [1, 8, 64])
@pytest.mark.parametrize("array", [(32, 32), (128, 128), (256, 64)])
def test_dimensions_that_divide_nothing_are_padded(cores: int, array: tuple[int, int]) -> None:
    """Sunstone maps 1021 x 1019 x 1013 at one multiply-add a cycle, having no divisors."""
    chip = replace(REFERENCE, tensor_cores=cores, width=array[0], depth=array[1])
    odd_s = map_matmul(Matmul(1, 1021, 1019, 1013), chip).time_s
    even_s = map_matmul(Matmul(1, 1024, 1024, 1024), chip).time_s
    assert 0.95 * even_s <= odd_s <= 1.03 * even_s


def test_eight_cores_are_at_least_six_times_as_fast_as_one() -> None:
    """In PHAZE the core count does nothing: its core buffers share one bandwidth."""
    product = Matmul(1, 4096, 4096, 4096)
    one_s = map_matmul(product, REFERENCE, cores=1).time_s
    assert one_s >= 6.0 * map_matmul(product, REFERENCE, cores=8).time_s


def test_every_head_of_attention_fetches_its_own_keys() -> None:
    """PHAZE folds the heads into the rows of one product, with one set of keys for all."""
    heads = map_matmul(Matmul(64, 512, 512, 64), REFERENCE)
    assert heads.hbm_bytes >= 64 * 2 * (512 * 64 + 64 * 512 + 512 * 512)


# --- Beside other estimators -------------------------------------------------------------------


def test_never_slower_than_the_mappings_of_sunstone() -> None:
    """Its estimates as PHAZE calls it, beside the bandwidths that PHAZE sets."""
    with SUNSTONE.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 64
    for row in rows:
        chip = replace(
            REFERENCE,
            tensor_cores=int(row["num_cores"]),
            width=int(row["core_width"]),
            depth=int(row["core_depth"]),
            glb_bytes=int(row["glb_bytes"]),
            glb_bandwidth_Bpc=512.0,
            hbm=Hbm(capacity_bytes=1, bandwidth_Bps=256 * REFERENCE.clock_Hz),
        )
        product = Matmul(1, int(row["M"]), int(row["N"]), int(row["K"]))
        cycles = map_matmul(product, chip, glb_share=1.0).time_s * chip.clock_Hz
        assert float(row["ideal_cycles"]) <= at_most(cycles) <= float(row["cycles"])


@pytest.mark.parametrize(
    ("product", "simulated"),
    [
        (Matmul(1, 128, 128, 128), 509),
        (Matmul(1, 512, 512, 512), 14_303),
        (Matmul(1, 1024, 1024, 1024), 89_983),
        (Matmul(1, 100, 300, 200), 2_891),
        (Matmul(1, 256, 512, 256), 5_103),
    ],
)
def test_scale_sim_pays_for_every_fold_what_is_paid_once_here(
    product: Matmul, simulated: int
) -> None:
    """SCALE-Sim v3, weight stationary: folds (2 R + C + M - 2) - 1; the weights wait for nobody."""
    size = 128
    chip = replace(REFERENCE, tensor_cores=1, glb_bandwidth_Bpc=UNLIMITED, hbm=Hbm(1, UNLIMITED))
    folds = ceil_div(product.k, size) * ceil_div(product.n, size)
    overhead = 3 * size - 2
    assert simulated == folds * (overhead + product.m) - 1
    ours = map_matmul(product, chip).compute_cycles
    assert ours <= simulated - (folds - 1) * overhead + folds * max(0, size - product.m) + 3


# --- Spreads -----------------------------------------------------------------------------------


@given(limit=st.integers(1, 5000))
def test_spreads_are_the_powers_of_two_and_all_cores(limit: int) -> None:
    counts = core_counts(limit)
    assert counts[0] == 1
    assert counts[-1] == limit
    assert list(counts) == sorted(set(counts))
    assert all(math.log2(count).is_integer() for count in counts[:-1])


def test_the_mapper_uses_no_more_cores_than_allowed() -> None:
    product = Matmul(3, 500, 700, 300)
    for cores in (1, 2, 3, 5, 8):
        mapping = map_matmul(product, REFERENCE, cores=cores)
        assert mapping.cores_batch * mapping.cores_rows * mapping.cores_columns <= cores
