"""The GEMM mapper's hot loops, compiled.

All kernels live in this one file: numba's on-disk cache does not notice edits in other modules.
The model that they evaluate is described in `atoll.cost.gemm`.
"""

from __future__ import annotations

import numpy as np

from atoll.jit import entry, kernel

A_PANEL = 0
B_PANEL = 1
C_TILE = 2

# Columns of a mapping record.
COMPUTE, HBM, GLB, STREAM_N, SPLIT_BATCH, SPLIT_M, SPLIT_N, ROWS = range(8)
ORDER, K_PARTS, TILES_M, TILES_N = range(8, 12)
RECORD = 12


@kernel
def _panel(kept, rounds, granule, k_part, other_granule, depth, budget):
    """Rounds of the kept operand's rows that fit as one panel (0 when not even one fits).

    A panel of `rounds x granule` rows by `k_part` in 2-byte words, doubled when several panels
    follow each other (the next is fetched meanwhile); the other operand streams through a double
    buffer of one array depth; finished outputs leave through a staging granule.
    """
    overhead = 4.0 * depth * other_granule + 2.0 * granule * other_granule
    room = budget - overhead
    if room <= 0.0:
        return 0
    if 2.0 * kept * k_part <= room:
        return rounds
    fit = int(room / (4.0 * granule * k_part))
    return min(fit, rounds - 1)


@kernel
def best_tile(batch_each, m, n, k, fraction, extra, g_m, g_n, depth, budget,
              glb_base, compute_s, hbm_Bps, glb_Bps, out):
    """The macro tile with the least time for one core-level mapping.

    Fills out[HBM:GLB+1] and out[ORDER:] and returns the time without the array's fill. `budget`
    is the buffer for one of the products that run side by side; bytes are for all products.
    """
    rounds_m = -(-m // g_m)
    rounds_n = -(-n // g_n)
    a_bytes = 2.0 * m * k * batch_each
    b_bytes = 2.0 * k * n * batch_each
    c_bytes = 2.0 * m * n * batch_each * fraction
    compulsory = a_bytes + b_bytes + c_bytes + extra
    floor_s = max(compute_s, max(compulsory / hbm_Bps, glb_base / glb_Bps))
    best = np.inf
    best_hbm = np.inf
    folds_k = -(-k // depth)
    parts = 1
    while True:
        k_part = min(k, depth * (-(-folds_k // parts)))
        real_parts = -(-k // k_part)
        spill = 8.0 * m * n * batch_each * fraction * (real_parts - 1)
        # One operand resident as a panel; partial sums of a split reduction spill to HBM.
        for order in range(2):
            if order == A_PANEL:
                fit = _panel(m, rounds_m, g_m, k_part, g_n, depth, budget)
            else:
                fit = _panel(n, rounds_n, g_n, k_part, g_m, depth, budget)
            if fit < 1:
                continue
            if order == A_PANEL:
                tiles_m = -(-rounds_m // fit)
                tiles_n = 1
                hbm = a_bytes + b_bytes * tiles_m * fraction + b_bytes * (1.0 - fraction)
            else:
                tiles_m = 1
                tiles_n = -(-rounds_n // fit)
                hbm = b_bytes + a_bytes * tiles_n * fraction + a_bytes * (1.0 - fraction)
            hbm += c_bytes + spill + extra
            time = max(compute_s, max(hbm / hbm_Bps, glb_base / glb_Bps))
            if time < best or (time == best and hbm < best_hbm):
                best = time
                best_hbm = hbm
                out[HBM] = hbm
                out[GLB] = glb_base
                out[ORDER] = order
                out[K_PARTS] = real_parts
                out[TILES_M] = tiles_m
                out[TILES_N] = tiles_n
        if best <= floor_s and best_hbm <= compulsory:
            return best
        # Output tile resident as 4-byte partial sums; slices of both operands stream.
        glb = glb_base + spill
        glb_s = glb / glb_Bps
        # No tile of x by x sums and its slices, 4 x^2 + 8 k x bytes, moves fewer bytes than this.
        side = -k_part + np.sqrt(k_part * k_part + budget / 4.0)
        square = 4.0 * m * n * k * batch_each * fraction / side + c_bytes + extra
        hopeless = square / hbm_Bps > best or (best <= floor_s and square >= best_hbm)
        if max(compute_s, glb_s) <= best and not hopeless:
            widest = int(budget / (4.0 * k_part * g_m))
            tiles_m = 1 if widest < 1 else -(-rounds_m // min(widest, rounds_m))
            while tiles_m <= rounds_m:
                fewest = (a_bytes + b_bytes * tiles_m) * fraction + c_bytes + extra
                if fewest / hbm_Bps > best or (best <= floor_s and fewest >= best_hbm):
                    break
                per = -(-rounds_m // tiles_m)
                rows = min(m, per * g_m)
                room = budget - 4.0 * k_part * rows
                fit = int(room / ((4.0 * rows + 4.0 * k_part) * g_n))
                if fit >= 1:
                    fit = min(fit, rounds_n)
                    tiles_n = -(-rounds_n // fit)
                    hbm = (a_bytes * tiles_n + b_bytes * tiles_m) * fraction
                    hbm = max(hbm, a_bytes + b_bytes) + c_bytes + extra
                    time = max(compute_s, max(hbm / hbm_Bps, glb_s))
                    if time < best or (time == best and hbm < best_hbm):
                        best = time
                        best_hbm = hbm
                        out[HBM] = hbm
                        out[GLB] = glb
                        out[ORDER] = C_TILE
                        out[K_PARTS] = real_parts
                        out[TILES_M] = tiles_m
                        out[TILES_N] = tiles_n
                    if tiles_n == 1:
                        break
                # The next count of tiles that shrinks a tile.
                tiles_m = -(-rounds_m // (per - 1)) if per > 1 else rounds_m + 1
        if (best <= floor_s and best_hbm <= compulsory) or parts >= folds_k:
            return best
        parts = min(2 * parts, folds_k)


@entry
def map_one(batch, m, n, k, fraction, extra, on_chip, cores, width, depth, buffer_bytes,
            glb_budget, hbm_Bps, glb_Bps, clock_Hz, out):
    """The fastest mapping of one (batched) product on exactly or fewer than `cores` cores.

    Enumerates orientation (which operand streams), the split of batch, rows and columns over the
    cores (powers of two), and for each the macro tile through the buffer. Fills `out` with the
    record and returns the time in seconds.
    """
    best = np.inf
    rows_max = max(1, int(buffer_bytes / (4.0 * depth + 4.0 * width)))
    fill = 2 * depth + width
    scratch = np.zeros(RECORD)
    out[HBM] = np.inf
    compulsory = 2.0 * batch * (float(m) * k + float(k) * n + float(m) * n * fraction) + extra
    for stream_n in range(2):
        sm = n if stream_n else m
        sn = m if stream_n else n
        folds_k = -(-k // depth)
        split_batch = 1
        while split_batch <= cores and split_batch < 2 * batch:
            each = -(-batch // split_batch)
            split_m = 1
            while split_batch * split_m <= cores:
                split_n = cores // (split_batch * split_m)
                # Cores beyond the columns would idle: halve until they have work.
                while split_n > 1 and split_n // 2 * width >= sn:
                    split_n //= 2
                rows_core = -(-sm // split_m)
                cols_core = -(-sn // split_n)
                chunks = -(-rows_core // rows_max)
                rows = -(-rows_core // chunks)
                folds_n = -(-cols_core // width)
                cycles = fraction * each * folds_k * folds_n * chunks * max(rows, depth) + fill
                compute_s = cycles / clock_Hz
                glb = 2.0 * batch * fraction * (
                    float(sm) * k * folds_n + float(k) * sn * chunks)
                if on_chip:
                    scratch[HBM] = 0.0
                    scratch[GLB] = glb
                    time = max(compute_s, glb / glb_Bps)
                else:
                    glb += 2.0 * batch * float(m) * n * fraction
                    # No tile beats the candidate's own floor: most splits end here.
                    floor_s = max(compute_s, max(compulsory / hbm_Bps, glb / glb_Bps))
                    time = np.inf
                    if floor_s < best or (floor_s == best and compulsory < out[HBM]):
                        g_m = min(sm, split_m * rows)
                        g_n = min(sn, split_n * width)
                        time = best_tile(batch, sm, sn, k, fraction, extra, g_m, g_n, depth,
                                         glb_budget / split_batch, glb, compute_s, hbm_Bps,
                                         glb_Bps, scratch)
                if time < best or (time == best and scratch[HBM] < out[HBM]):
                    best = time
                    for i in range(RECORD):
                        out[i] = scratch[i]
                    out[COMPUTE] = cycles
                    out[STREAM_N] = stream_n
                    out[SPLIT_BATCH] = split_batch
                    out[SPLIT_M] = split_m
                    out[SPLIT_N] = split_n
                    out[ROWS] = rows
                if split_m >= sm:
                    break
                split_m *= 2
            split_batch *= 2
    return best


@entry
def map_range(start, stop, shapes, fractions, extras, on_chip, cores, width, depth, buffer_bytes,
              glb_budget, hbm_Bps, glb_Bps, clock_Hz, time, hbm, glb):
    """`map_one` for pairs start..stop-1 of the (shape, configuration) grid.

    Fills seconds, HBM bytes and GLB bytes, each (shapes, configurations).
    """
    configs = cores.shape[0]
    out = np.zeros(RECORD)
    for pair in range(start, stop):
        s = pair // configs
        c = pair % configs
        time[s, c] = map_one(
            shapes[s, 0], shapes[s, 1], shapes[s, 2], shapes[s, 3], fractions[s], extras[s],
            on_chip[s], cores[c], width[c], depth[c], buffer_bytes[c], glb_budget[c], hbm_Bps[c],
            glb_Bps[c], clock_Hz[c], out)
        hbm[s, c] = out[HBM]
        glb[s, c] = out[GLB]
