"""Compiled lookup of operator costs for a chip, which fills the rows of scheduling problems.

The arrays of a cost table are passed as one named tuple, `Costs`; passes (forward or backward graph
of one layer) are ranges of a flat list of operators. See `atoll.cost.table`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.base.jit import entry, kernel

TENSOR, VECTOR, PAIR, LINK, NONE = range(5)
R_TENSOR, R_VECTOR, R_HBM, R_GLB, R_SLOT, R_LINK = range(6)
RESOURCES = 6
"""Number of resources before the bandwidths of additional buffers."""
MAX_PASS = 256
"""Most operators in one pass; the size of the kernels' arrays."""


class Costs(NamedTuple):
    """Costs of distinct operators on distinct configurations, and the chips that refer to them."""

    kind: NDArray[np.int64]  # (operators,)
    tensor_s: NDArray[np.float64]  # (operators, tensor configurations)
    hbm_bytes: NDArray[np.float64]  # (operators, tensor configurations)
    glb_bytes: NDArray[np.float64]  # (operators, tensor configurations)
    level_bytes: NDArray[np.float64]  # (operators, tensor configurations, additional buffers)
    vector_cycles: NDArray[np.float64]  # (operators, vector configurations)
    bytes: NDArray[np.float64]  # (operators,): bytes read and written, without tiling
    link_s: NDArray[np.float64]  # (operators,)
    tensor_cores: NDArray[np.int64]  # (chips,)
    vector_cores: NDArray[np.int64]
    hbm_Bps: NDArray[np.float64]
    glb_Bps: NDArray[np.float64]
    level_Bps: NDArray[np.float64]  # (chips, additional buffers)
    clock_Hz: NDArray[np.float64]
    tensor_count: NDArray[np.int64]  # (chips, options)
    tensor_config: NDArray[np.int64]
    pair_count: NDArray[np.int64]
    pair_config: NDArray[np.int64]
    vector_count: NDArray[np.int64]
    vector_config: NDArray[np.int64]
    slots: float
    free_spread: bool
    vector_memory: bool
    link_on_vector: bool
    start_s: float
    exposed: float


class Passes(NamedTuple):
    """Flattened operator graphs: pass p has operators op[ptr[p]:ptr[p+1]]."""

    ptr: NDArray[np.int64]
    op: NDArray[np.int64]
    pred_ptr: NDArray[np.int64]  # (total operators + 1,)
    pred_idx: NDArray[np.int64]  # local to the pass


@kernel
def side_by_side(first_s, second_s, exposed):
    """Return the time of overlapping work: longer + exposed * shorter."""
    return max(first_s, second_s) + exposed * min(first_s, second_s)


@kernel
def level_s(c, chip, op, kind, option, level):
    """Return the seconds for which an operator occupies one of the additional buffers."""
    if kind != VECTOR:
        moved = c.level_bytes[op, c.tensor_config[chip, option], level]
    else:
        moved = c.bytes[op] if c.vector_memory else 0.0
    return moved / c.level_Bps[chip, level]


@kernel
def operator_options(c, chip, op, duration, demand):
    """Fill one operator's options on one chip (a row of the schedule problem).

    While it runs, an operator uses the share of HBM bandwidth that its bytes need over its
    duration, because the buffer is too small to prefetch for another operator. It keeps its
    resources while it starts and ends.
    """
    for o in range(duration.shape[0]):
        duration[o] = np.inf
        for r in range(demand.shape[1]):
            demand[o, r] = 0.0
    kind = c.kind[op]
    hbm_Bps = c.hbm_Bps[chip]
    glb_Bps = c.glb_Bps[chip]
    clock = c.clock_Hz[chip]
    if kind == LINK:
        duration[0] = c.link_s[op]
        if c.vector_memory:  # sent bytes are read, received bytes are written
            hbm_s = c.bytes[op] / hbm_Bps
            duration[0] = max(duration[0], hbm_s)
            demand[0, R_HBM] = hbm_s / duration[0]
        if c.link_on_vector:
            demand[0, R_VECTOR] = 1.0
        else:
            demand[0, R_LINK] = 1.0
        return
    if kind == NONE:
        duration[0] = 1.0 / clock  # free under PHAZE's assumptions: one clock at least
        if c.vector_memory:
            hbm_s = c.bytes[op] / hbm_Bps
            duration[0] = max(duration[0], hbm_s) + c.start_s
            demand[0, R_HBM] = hbm_s / duration[0]
        return
    best = np.inf
    for o in range(duration.shape[0]):
        hbm_s = 0.0
        glb_s = 0.0
        if kind == VECTOR:
            count_v = c.vector_count[chip, o]
            count_t = 0
            if count_v < 0:
                break
            time = c.vector_cycles[op, c.vector_config[chip, o]] / clock
            if c.vector_memory:
                hbm_s = c.bytes[op] / hbm_Bps
                glb_s = c.bytes[op] / glb_Bps
                time = side_by_side(max(time, glb_s), hbm_s, c.exposed)
        else:
            count_t = c.tensor_count[chip, o]
            if count_t < 0:
                break
            config = c.tensor_config[chip, o]
            time = c.tensor_s[op, config]
            hbm_s = c.hbm_bytes[op, config] / hbm_Bps
            glb_s = c.glb_bytes[op, config] / glb_Bps
            count_v = 0
            if kind == PAIR:
                count_v = c.pair_count[chip, o]
                vector_s = c.vector_cycles[op, c.pair_config[chip, o]] / clock
                time = side_by_side(time, vector_s, c.exposed)
        time = max(time, max(hbm_s, glb_s))
        for level in range(c.level_Bps.shape[1]):
            time = max(time, level_s(c, chip, op, kind, o, level))
        time += c.start_s
        if time >= best:
            continue  # more cores without a gain are no option
        best = time
        duration[o] = time
        if not c.free_spread:
            # PHAZE: an operator on all cores excludes all others, tensor and vector.
            everything = o == 1
            demand[o, R_TENSOR] = c.tensor_cores[chip] if everything else count_t
            demand[o, R_VECTOR] = c.vector_cores[chip] if everything else count_v
            continue
        demand[o, R_TENSOR] = count_t
        demand[o, R_VECTOR] = count_v
        if time > 0.0:
            demand[o, R_HBM] = min(1.0, hbm_s / time)
            demand[o, R_GLB] = min(1.0, glb_s / time)
            for level in range(c.level_Bps.shape[1]):
                used_s = level_s(c, chip, op, kind, o, level)
                demand[o, RESOURCES + level] = min(1.0, used_s / time)
        demand[o, R_SLOT] = 0.0 if kind == VECTOR else 1.0


@kernel
def operator_floor(c, chip, op, capacity, duration, demand, work):
    """Fill `work` with an operator's least work on each resource of a chip, in seconds of the full
    resource; return the shortest duration. Its options are written to `duration` and `demand`.
    """
    operator_options(c, chip, op, duration, demand)
    fastest = np.inf
    for o in range(duration.shape[0]):
        fits = duration[o] < np.inf
        for r in range(RESOURCES):
            fits = fits and demand[o, r] <= capacity[r]
        if fits:
            for r in range(RESOURCES):
                seconds = duration[o] * demand[o, r] / capacity[r]
                work[r] = seconds if fastest == np.inf else min(work[r], seconds)
            fastest = min(fastest, duration[o])
    return fastest


@entry
def fill_problems(start, stop, c, passes, node_pass, node_chip, ptr, duration, demand):
    """Fill durations and demands of pass-chip pairs, whose rows begin at ptr[pair]."""
    for pair in range(start, stop):
        row = ptr[pair]
        p = node_pass[pair]
        for j in range(passes.ptr[p], passes.ptr[p + 1]):
            operator_options(c, node_chip[pair], passes.op[j], duration[row], demand[row])
            row += 1
