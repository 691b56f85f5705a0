"""Mappings of a block drawn at random or listed one by one, for the compiled evaluator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from atoll.fabric.mesh import ALGORITHMS
from atoll.wafer.encoding.block_parts import HOMES, KEEP, BlockMapping
from atoll.wafer.exact.paths import FATE_ORDER, PathChoices
from atoll.wafer.exact.shared_states import SharedStates

from .wafer_batch import Batch, Genes

Ints = NDArray[np.int64]


def path_of(states: SharedStates, genes: BlockMapping) -> PathChoices:
    """The mapping as a path through the tables of shared codes."""
    setting = states.tables.setting
    ways = genes.collectives or ((setting.streaming, setting.algorithm),) * len(genes.codes)
    operators, fates = iter(zip(genes.codes, genes.homes, ways, strict=True)), iter(genes.keep)
    stream = states.tables.stream.index[genes.stream]
    choices = []
    for chain, steps in enumerate(states.chains):
        for step, nodes in zip(steps, states.tables.chain_nodes(chain)[1:], strict=True):
            state, option = stream, 0
            if nodes.unit is not None:
                code, home, (streams, _) = next(operators)
                state = nodes.entry(code, streams)
                option = states.rules.homes.index(home) if nodes.unit.parameters else 0
            fate = FATE_ORDER.index(next(fates)) if step.droppable else 0
            choices.append((state, option, fate))
    return np.array(choices)


def decode(batch: Batch, genes: Genes, row: int) -> BlockMapping:
    nodes = batch.nodes[1:]

    def codes(entries: Ints) -> tuple[str, ...]:
        return tuple(n.codes[c] for n, c in zip(nodes, entries[row], strict=True))

    return BlockMapping(
        batch.nodes[0].codes[genes.stream[row]],
        codes(genes.codes),
        tuple(HOMES[h] for h in genes.homes[row]),
        tuple(int(k) for k in genes.keep[row]),
        tuple(zip(codes(genes.data), codes(genes.weight), strict=True)),
        tuple(
            (bool(n.streams[c]), ALGORITHMS[a])
            for n, c, a in zip(nodes, genes.codes[row], genes.algorithms[row], strict=True)
        ),
    )


def sample(
    batch: Batch, count: int, random: np.random.Generator, homes: Sequence[str], *,
    fates: Sequence[int] = (0, 1), passes: bool = False, algorithms: Sequence[int] = (),
) -> Genes:  # fmt: skip
    """Mappings drawn evenly from the legal codes; `passes`: each pass has a code of its own."""
    nodes = batch.nodes[1:]
    allowed = np.array([HOMES.index(home) for home in homes])
    codes = np.stack([random.integers(len(n.codes), size=count) for n in nodes], axis=1)
    data, weight = codes, codes
    if passes:
        data, weight = (
            np.stack(
                [c // len(n.index) * len(n.index) + random.integers(len(n.index), size=count)
                 for n, c in zip(nodes, codes.T, strict=True)], axis=1)
            for _ in range(2)
        )  # fmt: skip
        weight = np.where(batch.weighted, weight, data)
    ways = np.array(algorithms or [ALGORITHMS.index(batch.tables.setting.algorithm)])
    return Genes(
        random.integers(len(batch.nodes[0].codes), size=count),
        codes, data, weight, ways[random.integers(len(ways), size=codes.shape)],
        allowed[random.integers(len(allowed), size=codes.shape)],
        np.array(fates)[random.integers(len(fates), size=(count, batch.saved))],
    )  # fmt: skip


def reference(batch: Batch, stream: int, count: int = 1) -> Genes:
    """The first code of every operator and everything kept, `count` times."""
    units = len(batch.nodes) - 1
    first = np.zeros((count, units), np.int64)
    way = np.full((count, units), ALGORITHMS.index(batch.tables.setting.algorithm))
    return Genes(
        np.full(count, stream), first, first.copy(), first.copy(), way,
        np.full((count, units), HOMES.index("optimizer")), np.full((count, batch.saved), KEEP),
    )  # fmt: skip


def choices(batch: Batch, unit: int, homes: Sequence[str], passes: bool = False) -> Ints:
    """Everything an operator may do: (choices, 4) entries of its passes, and home."""
    node = batch.nodes[1 + unit]
    each, entries = len(node.index), np.arange(len(node.codes))
    allowed = [HOMES.index(h) for h in homes] if batch.weighted[unit] else [0]
    if not passes:
        rows = np.stack([entries] * 3, axis=1)
    else:
        f, d, w = (
            axis.reshape(-1)
            for axis in np.meshgrid(entries, np.arange(each), np.arange(each), indexing="ij")
        )
        rows = np.stack([f, f // each * each + d, f // each * each + w], axis=1)
        if not batch.weighted[unit]:
            rows = rows[d == w]
    return np.concatenate(
        [np.repeat(rows, len(allowed), axis=0), np.tile(allowed, len(rows))[:, None]], axis=1
    )


def assign(genes: Genes, unit: int, chosen: Ints) -> None:
    for table, column in zip(
        (genes.codes, genes.data, genes.weight, genes.homes), chosen.T, strict=True
    ):
        table[:, unit] = column
