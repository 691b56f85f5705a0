"""GEMM mapper: the fastest mapping of a product to HBM, shared buffer, core buffers and arrays.

Model. A product (batch x) m x k by k x n runs on some number of tensor cores, each a weight-
stationary systolic array of `depth` rows (reduction) by `width` columns (outputs):

* Orientation: the rows of A stream past resident tiles of B, or the columns of B past tiles of A.
  Below, A is the streaming operand and B the resident one.
* Cores split the batch and the streamed rows by powers of two (up to the first that leaves one
  each), the columns by a power of two or by all remaining cores that have columns to work on.
  Uneven shares are padded: each core takes the ceiling of its share.
* Core: its rows stream in chunks of even size that fit its buffer (double-buffered 2-byte inputs
  and 4-byte accumulators: 4 depth + 4 width bytes per row), in the fewest such chunks or two, four,
  ... times as many. A resident tile takes one cycle per row, but at least `depth` per chunk: the
  next tile of weights loads at one row per cycle. Accumulation over k stays in the core.
  Filling and draining the array costs 2 depth + width cycles once per product.
* Shared buffer (GLB): A is read once per round of columns, B once per chunk of rows; cores that
  need the same data share one read (multicast). Outputs and operands of a fused epilogue pass once.
* HBM: macro tiles in the buffer, in one of three orders. A panel of A, or of B, stays while the
  other operand streams; space for the next panel is reserved if one follows. Or a tile of C stays
  as 4-byte partial sums while slices of both operands stream. The reduction is cut into a power of
  two of parts of whole array depths, or into single depths; partial sums then pass the GLB, and in
  the panel orders HBM, once out and once in per additional part. Tiles are whole rounds of the
  cores (a chunk of rows, or an array's columns, on each), so tiling adds no padding. Concurrent
  products share the buffer.

Time is the largest of compute, GLB and HBM time: all levels are double buffered. If chips have
stalls (`hardware.template.stalls`), cores wait for the first operands of every round and for the
outputs to reach the GLB, and a share of the shorter of core and HBM time does not overlap. The
mapper is exact over this space. Among equally fast mappings with the fewest chunks and most cores
it takes one with the least HBM traffic. `docs/cost-model.md` has the formulas.
All kernels are in this file, because numba's on-disk cache does not notice edits in other modules.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from atoll.base.jit import entry, kernel

A_PANEL = 0
B_PANEL = 1
C_TILE = 2

# Columns of a mapping record.
COMPUTE, HBM, GLB, STREAM_N, SPLIT_BATCH, SPLIT_M, SPLIT_N, ROWS = range(8)
ORDER, K_PARTS, TILES_M, TILES_N = range(8, 12)
RECORD = 12

_LOG_CORES = 31  # no chip has 2^31 cores


class Product(NamedTuple):
    """`batch` products of m x k by k x n; in kernels m is the streaming dimension."""

    batch: int
    m: int
    n: int
    k: int
    fraction: float
    extra: float
    on_chip: bool


class Cores(NamedTuple):
    """One configuration of tensor cores (`TensorConfigs`), or columns of many."""

    cores: Any
    width: Any
    depth: Any
    core_buffer_bytes: Any
    glb_budget_bytes: Any
    hbm_Bps: Any
    glb_Bps: Any
    clock_Hz: Any
    fill_s: Any
    drained: Any
    exposed: Any


@kernel
def _side_by_side_s(core_s, hbm_s, exposed):
    """Return the time of overlapping core and HBM work: longer + exposed * shorter."""
    return max(core_s, hbm_s) + exposed * min(core_s, hbm_s)


@kernel
def _panel_rounds(kept, rounds, granule, cross_granule, k_part, depth, followed, budget):
    """Return the rounds of the kept operand that fit as one panel (0 if none fits).

    Elements have 2 bytes, and space for the next panel is reserved if one follows; `followed` means
    that one follows even if a panel holds the whole operand. A round of the other operand is used
    by every round of the panel and stays for so long, double buffered; past a panel of one round it
    streams, one array depth at a time. Outputs leave through a staging buffer of one round.
    """
    free_bytes = budget - 2.0 * granule * cross_granule
    several_bytes = free_bytes - 4.0 * k_part * cross_granule
    single_bytes = free_bytes - 4.0 * min(depth, k_part) * cross_granule
    panel_bytes = 2.0 * kept * k_part
    if (2.0 * panel_bytes if followed else panel_bytes) <= (
        single_bytes if rounds == 1 else several_bytes
    ):
        return rounds
    round_bytes = 4.0 * granule * k_part
    if 2.0 * round_bytes <= several_bytes:
        return int(several_bytes / round_bytes)
    return 1 if round_bytes <= single_bytes else 0


@kernel
def _record_tile(out, hbm, glb, order, k_parts, tiles_m, tiles_n):
    out[HBM], out[GLB], out[ORDER] = hbm, glb, order
    out[K_PARTS], out[TILES_M], out[TILES_N] = k_parts, tiles_m, tiles_n


@kernel
def _moved_bytes(p):
    """Return the bytes of outputs, and those of outputs and operands that must pass the HBM."""
    batch, m, n, k, fraction, extra, on_chip = p
    outputs = 2.0 * batch * float(m) * n * fraction + extra
    compulsory = 0.0 if on_chip else 2.0 * batch * (float(m) * k + float(k) * n) + outputs
    return outputs, compulsory


@kernel
def _core_work(p, c, per_core, rows_core, folds_n, chunks, outputs):
    """Return cycles, compute seconds and GLB bytes of cores that stream their rows in `chunks`."""
    folds_k = -(-p.k // c.depth)
    # Chunks of even size: the array waits for weights only if chunks are shorter than depth.
    stream = max(rows_core, chunks * c.depth)
    cycles = p.fraction * per_core * folds_k * folds_n * stream + 2 * c.depth + c.width
    drained = 0.0 if p.on_chip else c.drained  # outputs stay in the cores
    waits_s = p.fraction * per_core * folds_n * chunks * c.fill_s + drained * outputs / c.glb_Bps
    reads = float(p.m) * p.k * folds_n + float(p.k) * p.n * chunks
    glb = 2.0 * p.batch * p.fraction * reads + outputs
    return cycles, cycles / c.clock_Hz + waits_s, glb


@kernel
def _best_tile(
    p, c, per_core, rounds_m, rounds_n, g_m, g_n, budget, glb_base, compute_s, best, best_hbm, out
):
    """Find the fastest macro tile for one core-level mapping, if it is better than the best so far.

    Better means a lower time, or an equal time with fewer HBM bytes. If so, fill out[HBM], out[GLB]
    and out[ORDER:] and return the time; otherwise return infinity. `budget` is the buffer of one of
    the concurrent products, `per_core` the number of products that follow each other there;
    bytes are for all products.
    """
    batch, m, n, k, fraction, extra, _ = p
    depth, hbm_Bps, glb_Bps, exposed = c.depth, c.hbm_Bps, c.glb_Bps, c.exposed
    a_bytes = 2.0 * m * k * batch
    b_bytes = 2.0 * k * n * batch
    output_bytes = 2.0 * m * n * batch * fraction + extra
    compulsory = a_bytes + b_bytes + output_bytes
    floor_s = _side_by_side_s(max(compute_s, glb_base / glb_Bps), compulsory / hbm_Bps, exposed)
    best_s = np.inf
    folds_k = -(-k // depth)
    parts = 1
    while True:
        k_part = min(k, depth * (-(-folds_k // parts)))
        real_parts = -(-k // k_part)
        # Partial sums of a split reduction: 4 bytes written and 4 read per additional part.
        spill = 8.0 * m * n * batch * fraction * (real_parts - 1)
        glb = glb_base + spill
        glb_s = glb / glb_Bps
        if glb_s > best:
            return best_s
        core_s = max(compute_s, glb_s)
        # One operand stays as a panel; partial sums spill to HBM.
        followed = per_core > 1 or real_parts > 1
        for order in range(2):
            tiles_m = 1
            tiles_n = 1
            if order == A_PANEL:
                fit = _panel_rounds(m, rounds_m, g_m, g_n, k_part, depth, followed, budget)
                if fit >= 1:
                    tiles_m = -(-rounds_m // fit)
            else:
                fit = _panel_rounds(n, rounds_n, g_n, g_m, k_part, depth, followed, budget)
                if fit >= 1:
                    tiles_n = -(-rounds_n // fit)
            if fit < 1:
                continue
            again = a_bytes * (tiles_n - 1) + b_bytes * (tiles_m - 1)
            hbm = compulsory + fraction * again + spill
            time = _side_by_side_s(core_s, hbm / hbm_Bps, exposed)
            if time < best or (time == best and hbm < best_hbm):
                best = time
                best_s = time
                best_hbm = hbm
                _record_tile(out, hbm, glb, order, real_parts, tiles_m, tiles_n)
        if best <= floor_s and best_hbm <= compulsory:
            return best_s
        # An output tile stays as 4-byte partial sums; slices of both operands stream. No tile of
        # x by x sums with its slices, 4 x^2 + 8 k x bytes, fetches fewer bytes than this:
        side = budget / 4.0 / (k_part + np.sqrt(k_part * k_part + budget / 4.0))
        fetched = 4.0 * m * n * k * batch / side
        square = fraction * fetched + (1.0 - fraction) * (a_bytes + b_bytes) + output_bytes
        hopeless = square / hbm_Bps > best or (best <= floor_s and square >= best_hbm)
        per = rounds_m
        if 4.0 * k_part * m > budget:
            per = min(rounds_m, int(budget / (4.0 * k_part * g_m)))
        while per >= 1 and not hopeless:
            # The fewest tiles that this size allows, then made even; smaller sizes are covered too.
            tiles_m = -(-rounds_m // per)
            per = -(-rounds_m // tiles_m)
            fewest = compulsory + fraction * b_bytes * (tiles_m - 1)
            if fewest / hbm_Bps > best or (best <= floor_s and fewest >= best_hbm):
                break
            rows = min(m, per * g_m)
            free_bytes = budget - 4.0 * k_part * rows
            column = 4.0 * rows + 4.0 * k_part
            fit = rounds_n if column * n <= free_bytes else int(free_bytes / (column * g_n))
            if fit >= 1:
                tiles_n = -(-rounds_n // fit)
                hbm = fewest + fraction * a_bytes * (tiles_n - 1)
                time = _side_by_side_s(core_s, hbm / hbm_Bps, exposed)
                if time < best or (time == best and hbm < best_hbm):
                    best = time
                    best_s = time
                    best_hbm = hbm
                    _record_tile(out, hbm, glb, C_TILE, real_parts, tiles_m, tiles_n)
                if tiles_n == 1:
                    break
            per -= 1
        if (best <= floor_s and best_hbm <= compulsory) or parts >= folds_k:
            return best_s
        parts = min(2 * parts, folds_k)


@kernel
def _best_columns(p, c, per_core, split_m, most_n, rows_max, budget, moved, best, out):
    """Find the best column split, chunks of rows and macro tile, if better than the best so far.

    Fill `out` and return the time like `_best_tile`. Fewer than `most_n` cores and more chunks than
    the core buffer requires give smaller rounds, which fit a small GLB better. They cost cycles and
    GLB reads, so they are tried only if they could be faster.
    """
    m, n, width = p.m, p.n, c.width
    outputs, compulsory = moved
    best_s = np.inf
    rows_core = -(-m // split_m)
    fewest_chunks = -(-rows_core // rows_max)
    coarsest = True
    split_n = most_n
    while True:
        columns_core = -(-n // split_n)
        folds_n = -(-columns_core // width)
        chunks = fewest_chunks
        while True:
            cycles, compute_s, glb = _core_work(p, c, per_core, rows_core, folds_n, chunks, outputs)
            core_s = max(compute_s, glb / c.glb_Bps)
            floor_s = _side_by_side_s(core_s, compulsory / c.hbm_Bps, c.exposed)
            # From here the lower bound only rises, with more chunks and with fewer cores.
            tie = coarsest and floor_s == best and compulsory < out[HBM]
            if floor_s >= best and not tie:
                if chunks == fewest_chunks:
                    return best_s
                break
            rows = -(-rows_core // chunks)
            if p.on_chip:
                time = floor_s
                out[HBM] = 0.0
                out[GLB] = glb
            else:
                g_m, g_n = min(m, split_m * rows), min(n, split_n * width)
                hbm = out[HBM] if coarsest else 0.0
                time = _best_tile(
                    p,
                    c,
                    per_core,
                    chunks,
                    folds_n,
                    g_m,
                    g_n,
                    budget,
                    glb,
                    compute_s,
                    best,
                    hbm,
                    out,
                )
            coarsest = False
            if time < np.inf:
                best = time
                best_s = time
                out[COMPUTE] = cycles
                out[SPLIT_M] = split_m
                out[SPLIT_N] = split_n
                out[ROWS] = rows
            if time <= floor_s and chunks == fewest_chunks:
                return best_s
            if 2 * chunks > rows_core:
                break
            chunks *= 2
        if split_n == 1:
            return best_s
        fewer = 1
        while 2 * fewer < split_n:
            fewer *= 2
        split_n = fewer


@kernel
def map_product(p, c, out):
    """Find the fastest mapping of one (batched) product on at most `cores` cores.

    Fill `out` with the record and return the seconds, infinite if nothing fits the buffer. Products
    that are `on_chip` move nothing through HBM.
    """
    batch, m, n, k, fraction, extra, on_chip = p
    cores, width, depth, buffer_bytes, _, hbm_Bps, glb_Bps, clock_Hz, fill_s, drained, exposed = c
    best = np.inf
    rows_max = max(1, int(buffer_bytes / (4.0 * depth + 4.0 * width)))
    moved = _moved_bytes(p)
    outputs, compulsory = moved
    if on_chip:  # outputs stay in the cores
        drained = 0.0
    # No mapping is faster than full arrays on all cores; the search ends if one reaches this.
    folds_k = -(-k // depth)
    ideal = fraction * batch * folds_k * float(m) * n / (width * cores) + 2 * depth + width
    rounds = max(1.0, batch * float(m) * n / (width * float(cores) * rows_max))
    ideal_s = ideal / clock_Hz + fraction * rounds * fill_s + drained * outputs / glb_Bps
    ideal_s = _side_by_side_s(ideal_s, compulsory / hbm_Bps, exposed)
    for i in range(RECORD):
        out[i] = 0.0
    out[HBM] = np.inf
    for stream_n in range(2):
        sm = n if stream_n else m
        sn = m if stream_n else n
        side = Product(batch, sm, sn, k, fraction, extra, on_chip)
        for log_batch in range(_LOG_CORES):
            split_batch = 1 << log_batch
            if split_batch > cores or split_batch >= 2 * batch:
                break
            per_core = -(-batch // split_batch)
            budget = c.glb_budget_bytes / min(split_batch, batch)
            for log_m in range(_LOG_CORES):
                split_m = 1 << log_m
                if split_batch * split_m > cores or split_m >= 2 * sm:
                    break
                # All remaining cores that have columns to work on.
                most_n = min(cores // (split_batch * split_m), -(-sn // width))
                time = _best_columns(
                    side, c, per_core, split_m, most_n, rows_max, budget, moved, best, out
                )
                if time < np.inf:
                    best = time
                    out[STREAM_N] = stream_n
                    out[SPLIT_BATCH] = split_batch
                    if best <= ideal_s and out[HBM] <= compulsory:
                        return best
    return best


@kernel
def product_floor_s(p, c):
    """Return a lower bound on `map_product`: the minimum over core splits of the time before
    tiling, which only rises with more chunks and with fewer cores for the columns.
    """
    batch, m, n, k, fraction, extra, on_chip = p
    best = np.inf
    rows_max = max(1, int(c.core_buffer_bytes / (4.0 * c.depth + 4.0 * c.width)))
    outputs, compulsory = _moved_bytes(p)
    for stream_n in range(2):
        sm = n if stream_n else m
        sn = m if stream_n else n
        side = Product(batch, sm, sn, k, fraction, extra, on_chip)
        split_batch = 1
        while split_batch <= c.cores and split_batch < 2 * batch:
            per_core = -(-batch // split_batch)
            split_m = 1
            while split_batch * split_m <= c.cores and split_m < 2 * sm:
                most_n = min(c.cores // (split_batch * split_m), -(-sn // c.width))
                columns_core = -(-sn // most_n)
                folds_n = -(-columns_core // c.width)
                rows_core = -(-sm // split_m)
                chunks = -(-rows_core // rows_max)
                work = _core_work(side, c, per_core, rows_core, folds_n, chunks, outputs)
                best = min(best, max(work[1], work[2] / c.glb_Bps))
                split_m *= 2
            split_batch *= 2
    return _side_by_side_s(best, compulsory / c.hbm_Bps, c.exposed)


@kernel
def _pair(pair, shapes, fractions, extras, on_chip, configs):
    """Return indices, product and configuration of a pair of the (shape, configuration) grid."""
    s = pair // configs.cores.shape[0]
    c = pair % configs.cores.shape[0]
    product = Product(
        shapes[s, 0], shapes[s, 1], shapes[s, 2], shapes[s, 3], fractions[s], extras[s], on_chip[s]
    )
    cores = Cores(
        configs.cores[c], configs.width[c], configs.depth[c], configs.core_buffer_bytes[c],
        configs.glb_budget_bytes[c], configs.hbm_Bps[c], configs.glb_Bps[c], configs.clock_Hz[c],
        configs.fill_s[c], configs.drained[c], configs.exposed[c],
    )  # fmt: skip
    return s, c, product, cores


@entry
def floor_range(start, stop, shapes, fractions, extras, on_chip, configs, time):
    """Fill `time` with `product_floor_s` for pairs of the (shape, configuration) grid."""
    for pair in range(start, stop):
        s, c, product, cores = _pair(pair, shapes, fractions, extras, on_chip, configs)
        time[s, c] = product_floor_s(product, cores)


@entry
def map_range(start, stop, shapes, fractions, extras, on_chip, configs, time, hbm, glb, records):
    """Map pairs start..stop-1 of the (shape, configuration) grid with `map_product`.

    Fill seconds, HBM bytes and GLB bytes, each of shape (shapes, configurations), and the mapping
    records of shape (pairs, RECORD) unless they are empty.
    """
    out = np.zeros(RECORD)
    for pair in range(start, stop):
        s, c, product, cores = _pair(pair, shapes, fractions, extras, on_chip, configs)
        time[s, c] = map_product(product, cores, out)
        hbm[s, c] = out[HBM]
        glb[s, c] = out[GLB]
        if len(records):
            for column in range(RECORD):  # compiles faster than the assignment of a row
                records[pair, column] = out[column]
