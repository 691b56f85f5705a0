"""Recomputation per operator: which saved tensors of a layer to keep.

Dropping a tensor means running its producer again before the backward pass, and whatever that
needs which was dropped too (its closure, back to kept tensors or the layer's input). Keeping a set
of tensors costs bytes and saves a set of operators. `keep_choices` lists every choice that no other
beats whatever the operators' times are; `frontier` takes those that matter on a chip: the convex
lower hull of bytes and seconds, from which stages mix neighbouring choices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, compress, repeat

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import FloatArray
from atoll.workload.graph.layer import Layer

_MOST_TENSORS = 16  # 65,536 subsets; beyond that the smallest tensors are always kept
_TOGETHER = 2 * _MOST_TENSORS  # from so many on, the blocks of a period decide alike,
_MOST_NAMES = 14  # and on so many names
_BLOCK = re.compile(r"^(?:period\d*\.)?\w*\d\.")


@dataclass(frozen=True, slots=True)
class KeepChoice:
    """Tensors to keep and forward operators (by index) to run again."""

    keep: tuple[str, ...]
    rerun: tuple[int, ...]
    kept_bytes: int


def keep_choices(layer: Layer) -> tuple[KeepChoice, ...]:
    """Choices that no other beats in both bytes and operators, from the fewest bytes to all.

    The layer's input is always there to start from, and counted wherever it is used; what else
    enters and is saved cannot be made again here, and stays.
    """
    table = _subsets(layer)
    return table.choices(_undominated(table.bytes, table.rerun))


def hull_choices(layer: Layer, forward_s: FloatArray) -> tuple[KeepChoice, ...]:
    """Choices on the convex hull of bytes and seconds, from the fewest bytes to all, where each
    forward operator takes so long: those of `keep_choices` that `frontier` takes, without the
    long way over what no times favour.
    """
    table = _subsets(layer)
    # Of equal choices the one with the fewest operators: it comes first.
    order = np.lexsort((table.rerun.sum(axis=1), table.bytes))
    seconds = table.rerun.astype(np.float64) @ forward_s
    _, _, hull = frontier(table.bytes[order].astype(np.float64), seconds[order])
    return table.choices(order[hull].tolist())


@dataclass(frozen=True)
class _Subsets:
    """Sets of saved tensors to keep, with what they cost."""

    fixed: list[str]
    kept: dict[str, NDArray[np.bool_]]
    rerun: NDArray[np.bool_]
    bytes: NDArray[np.int64]

    def choices(self, rows: Sequence[int]) -> tuple[KeepChoice, ...]:
        # Thousands in the blocks of experts: as lists at once, not number by number.
        kept_rows = [self.kept[name][rows].tolist() for name in self.kept]
        kept = zip(*kept_rows, strict=True) if kept_rows else repeat((), len(rows))
        operators = range(self.rerun.shape[1])
        return tuple(
            KeepChoice(
                (*self.fixed, *compress(self.kept, kept_flags)),
                tuple(compress(operators, again)),
                size,
            )
            for kept_flags, again, size in zip(
                kept, self.rerun[rows].tolist(), self.bytes[rows].tolist(), strict=True
            )
        )


def _subsets(layer: Layer) -> _Subsets:
    size = {name: tensor.bytes for name, tensor in layer.tensors.items()}
    made_inside = [name for name in layer.saved if name not in layer.entering]
    groups = sorted(
        _decisions(made_inside), key=lambda names: sum(size[name] for name in names), reverse=True
    )[: _MOST_TENSORS if len(made_inside) < _TOGETHER else _MOST_NAMES]
    droppable = [name for names in groups for name in names]
    fixed = [name for name in layer.saved if name not in droppable]
    edges = tuple((op.reads, op.writes) for op in layer.forward)
    kept_sets, rerun = _distinct(edges, tuple(groups), frozenset(fixed))
    kept = {name: kept_sets[:, i] for i, name in enumerate(droppable)}
    sizes = np.array([size[name] for name in droppable], np.int64)
    bytes_ = sum(size[name] for name in fixed) + kept_sets @ sizes
    if layer.input not in fixed:
        # Backward itself does not read it, but operators that run again may.
        first = [i for i, (reads, _) in enumerate(edges) if layer.input in reads]
        uses_input: NDArray[np.bool_] = np.asarray(rerun[:, first].any(axis=1))
        bytes_ += size[layer.input] * uses_input
        kept[layer.input] = uses_input
    return _Subsets(fixed, kept, rerun, bytes_)


def _decisions(names: list[str]) -> list[tuple[str, ...]]:
    """Tensors that are kept or dropped together: each alone, but in a layer that holds a period of
    many blocks those of one name in all of them.
    """
    if len(names) < _TOGETHER:
        return [(name,) for name in names]
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(_BLOCK.sub("", name), []).append(name)
    return [tuple(names_alike) for names_alike in alike.values()]


Edges = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]


@lru_cache(maxsize=64)
def _distinct(
    edges: Edges, groups: tuple[tuple[str, ...], ...], fixed: frozenset[str]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(sets, tensors) kept and (sets, operators) run again: of all subsets with the same operators
    the one that keeps least (what they write is there anyway), whatever the sizes.
    """
    subset = np.arange(1 << len(groups))
    kept = {
        name: (subset >> i & 1).astype(np.bool_) for i, names in enumerate(groups) for name in names
    }
    rerun = _rerun(edges, kept, fixed)
    kept_sets = np.array(list(kept.values()), np.bool_).reshape(len(kept), len(subset)).T
    fewest = np.lexsort((subset, kept_sets.sum(axis=1)))
    _, first = np.unique(_masks(rerun)[fewest], axis=0, return_index=True)
    rows = np.sort(fewest[first])
    return np.ascontiguousarray(kept_sets[rows]), np.ascontiguousarray(rerun[rows])


def _rerun(
    edges: Edges, kept: dict[str, NDArray[np.bool_]], fixed: frozenset[str]
) -> NDArray[np.bool_]:
    """(subsets, operators): which operators rebuild the dropped tensors of every subset.

    From the last operator to the first: one runs again if it writes a dropped tensor, or one that
    was never saved and that a later operator needs to run again.
    """
    subsets = len(next(iter(kept.values()), np.zeros(1)))
    rerun = np.zeros((subsets, len(edges)), np.bool_)
    for index in reversed(range(len(edges))):
        for name in edges[index][1]:
            if name in kept:
                rerun[:, index] |= ~kept[name]
            elif name not in fixed:
                readers = [i for i, (reads, _) in enumerate(edges) if name in reads]
                rerun[:, index] |= rerun[:, readers].any(axis=1)
    return rerun


def _masks(rerun: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Each row's operators as bits of whole words."""
    padded = np.zeros((len(rerun), 64 * -(-rerun.shape[1] // 64)), np.bool_)
    padded[:, : rerun.shape[1]] = rerun
    return np.packbits(padded, axis=1).view(np.uint64)


def _undominated(bytes_: NDArray[np.int64], rerun: NDArray[np.bool_]) -> list[int]:
    """Rows for which no other has as few bytes and reruns no other operators; bytes ascending."""
    # Among equal bytes fewer operators first, so that what comes later never beats what is taken.
    order = np.lexsort((rerun.sum(axis=1), bytes_))
    undominated = _first_of_each(np.ascontiguousarray(_masks(rerun)[order]).tobytes(), len(order))
    return [int(row) for row in order[undominated]]


@lru_cache(maxsize=64)
def _first_of_each(masks: bytes, rows: int) -> list[int]:
    """Rows whose operators contain those of no row that was taken before; other microbatches of a
    layer, whose tensors are as many times as large, ask the same again.
    """
    sets = np.frombuffer(masks, np.uint64).reshape(rows, -1)
    undominated: list[int] = []
    masks_of_undominated = np.zeros(sets.shape, np.uint64)
    for row, mask in enumerate(sets):
        # A taken set of operators within this one's beats it: no bit of it lies outside.
        if not ((masks_of_undominated[: len(undominated)] & ~mask) == 0).all(axis=1).any():
            masks_of_undominated[len(undominated)] = mask
            undominated.append(row)
    return undominated


def rerun_table(choices: Sequence[KeepChoice], operators: int) -> FloatArray:
    """1 where a choice (row) runs an operator (column) again, and 0 elsewhere."""
    table = np.zeros((len(choices), operators))
    again = [choice.rerun for choice in choices]
    rows = np.repeat(np.arange(len(choices)), [len(operators_again) for operators_again in again])
    table[rows, np.array(list(chain.from_iterable(again)), np.int64)] = 1.0
    return table


def frontier(
    kept_bytes: FloatArray, extra_s: FloatArray
) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
    """Kept bytes (ascending), extra seconds (descending) and indices of the convex lower hull of
    choices that come from the fewest bytes to the most.
    """
    least_s = np.minimum.accumulate(extra_s)
    points = np.flatnonzero(np.append(True, least_s[1:] < least_s[:-1]))
    # Of those with as many bytes the last one is the fastest.
    points = points[np.append(np.diff(kept_bytes[points]) > 0, True)]
    x, y = kept_bytes[points].tolist(), extra_s[points].tolist()
    hull: list[int] = []
    for c in range(len(points)):
        while len(hull) >= 2:
            a, b = hull[-2:]
            # b lies strictly below the line from a to c.
            if (y[b] - y[a]) * (x[c] - x[a]) < (y[c] - y[a]) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(c)
    on_hull = points[hull]
    return kept_bytes[on_hull], extra_s[on_hull], on_hull
