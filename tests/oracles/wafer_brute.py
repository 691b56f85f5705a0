"""Everything: the fastest mapping of a block by trying its whole encoding, chain by chain.

The twin of the exact part, for small meshes. For each stream layout all codes, homes and fates of
each chain are priced by the batched evaluator, which shares no table with the exact part. Points
(seconds, bytes here, bytes elsewhere) that another of the same chain beats are dropped, the rest of
one chain is combined with the rest of every other, and the fastest that fits wins. That costs of
chains add up is what makes this possible, and is itself tested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from atoll.wafer.encoding.block_parts import KEEP, RECOMPUTE
from atoll.wafer.exact.limited_search import MemoryLimits

from .wafer_batch import Batch, Genes
from .wafer_batch_kernels import AWAY, KEPT, REBUILT, STATE, TIME
from .wafer_genes import assign, choices, reference

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PIECE = 1 << 17


def fastest(
    batch: Batch, homes: Sequence[str], layers: int, in_flight: int, limits: Sequence[MemoryLimits],
    fates: Sequence[int] = (RECOMPUTE, KEEP), passes: bool = False,
) -> list[float]:  # fmt: skip
    """Least seconds within each of the limits, over everything; infinity where nothing fits."""
    best = [np.inf] * len(limits)
    for stream, code in enumerate(batch.tables.stream.codes):
        buffers = batch.tables.buffer_bytes(code)
        fixed = _points(batch, reference(batch, stream), layers, in_flight)[0]
        total = fixed + np.array([0.0, buffers, 0.0])
        fronts = [
            front(batch, stream, chain, homes, layers, in_flight, fates, passes) - fixed
            for chain in range(len(batch.tables.block.chains))
        ]
        points = total[None, :]
        for more in fronts:
            points = (points[:, None, :] + more[None, :, :]).reshape(-1, 3)
        for i, limit in enumerate(limits):
            fits = (points[:, 1] <= limit.local_bytes) & (points[:, 2] <= limit.offload_bytes)
            if fits.any():
                best[i] = min(best[i], float(points[fits, 0].min()))
    return best


def front(
    batch: Batch, stream: int, chain: int, homes: Sequence[str], layers: int, in_flight: int,
    fates: Sequence[int], passes: bool = False,
) -> Floats:  # fmt: skip
    """Points of a chain that no other of its points beats, the other chains at the reference."""
    found = np.zeros((0, 3))
    for genes in chain_genes(batch, stream, chain, homes, fates, passes):
        found = undominated_points(
            np.concatenate([found, _points(batch, genes, layers, in_flight)])
        )
    return found


def _points(batch: Batch, genes: Genes, layers: int, in_flight: int) -> Floats:
    cost = batch.evaluate(genes)
    own = layers * (cost[:, STATE] + in_flight * cost[:, KEPT]) + cost[:, REBUILT]
    return np.stack([cost[:, TIME], own, layers * in_flight * cost[:, AWAY]], axis=1)


def chain_genes(
    batch: Batch,
    stream: int,
    chain: int,
    homes: Sequence[str],
    fates: Sequence[int],
    passes: bool = False,
) -> Iterator[Genes]:
    """All mappings of one chain in pieces; everything else is that of the reference.

    `passes`: with all codes of the gradient passes too.
    """
    chains = batch.tables.block.chains
    first = sum(len(c.units) for c in chains[:chain])
    units = range(first, first + len(chains[chain].units))
    saved = [sum(bool(e.kept_name) for e in c.edges) for c in chains]
    offset = sum(saved[:chain])
    options = [choices(batch, unit, homes, passes) for unit in units]
    ends = np.array(list(product(fates, repeat=saved[chain])), np.int64)
    sizes = [len(c) for c in options]
    per_piece = max(1, PIECE // len(ends))
    for start in range(0, int(np.prod(sizes)), per_piece):
        rows = np.arange(start, min(start + per_piece, int(np.prod(sizes))))
        picked = np.unravel_index(rows, sizes)
        genes = reference(batch, stream, len(rows) * len(ends))
        for unit, chosen, index in zip(units, options, picked, strict=True):
            assign(genes, unit, np.repeat(chosen[index], len(ends), axis=0))
        genes.keep[:, offset : offset + saved[chain]] = np.tile(ends, (len(rows), 1))
        yield genes


def undominated_points(points: Floats) -> Floats:
    """Points (seconds, bytes here, bytes elsewhere) less most that another beats: among those with
    equal bytes elsewhere, only the staircase of seconds and bytes here stays.
    """
    kept = []
    away, group = np.unique(points[:, 2], return_inverse=True)
    for number in range(len(away)):
        group_points = points[group.reshape(-1) == number]
        group_points = group_points[np.lexsort((group_points[:, 1], group_points[:, 0]))]
        lowest = np.minimum.accumulate(group_points[:, 1])
        kept.append(group_points[np.append(True, group_points[1:, 1] < lowest[:-1])])
    return np.concatenate(kept)
