"""Recomputation per operator: which saved tensors of a layer to keep.

A dropped tensor is recomputed before the backward pass: its producer runs again, and so do the
producers of dropped inputs, back to kept tensors or the layer's input. `keep_choices` lists the
choices that are not dominated in bytes and operators for any operator times. `frontier` selects
those that matter on a chip: the convex lower hull of bytes and seconds, whose neighbouring choices
the stages combine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, compress, repeat

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Bools, Floats, Ints
from atoll.workload.graph.layer import Layer

_MOST_TENSORS = 16  # 65,536 subsets; beyond that the smallest tensors are always kept
_TOGETHER = 2 * _MOST_TENSORS  # from this count on, all blocks of a period use the same choice,
_MOST_NAMES = 14  # for at most this many tensor names
_BLOCK = re.compile(r"^(?:period\d*\.)?\w*\d\.")


@dataclass(frozen=True, slots=True)
class KeepChoice:
    """Tensors to keep, and indices of the forward operators to recompute."""

    keep: tuple[str, ...]
    rerun: tuple[int, ...]
    kept_bytes: int


def keep_choices(layer: Layer) -> tuple[KeepChoice, ...]:
    """Return the choices that are not dominated in bytes and operators, by ascending bytes.

    The layer's input is always available, and its bytes count wherever it is used. Other saved
    tensors that enter the layer cannot be recomputed in it and are always kept.
    """
    table = _subsets(layer)
    return table.choices(_undominated(table.bytes, table.rerun))


def hull_choices(layer: Layer, forward_s: Floats) -> tuple[KeepChoice, ...]:
    """Return the choices on the convex hull of bytes and seconds, by ascending bytes. The result
    equals `frontier` of `keep_choices`, but is faster to compute. `forward_s` has the seconds of
    the forward operators, shape (operators,).
    """
    table = _subsets(layer)
    # Among equal choices, the one with the fewest operators comes first.
    order = np.lexsort((table.rerun.sum(axis=1), table.bytes))
    seconds = table.rerun.astype(np.float64) @ forward_s
    _, _, hull = frontier(table.bytes[order].astype(np.float64), seconds[order])
    return table.choices(order[hull].tolist())


@dataclass(frozen=True)
class _Subsets:
    """Sets of saved tensors to keep, with their bytes and recomputed operators."""

    fixed: list[str]
    kept: dict[str, Bools]
    rerun: Bools
    bytes: Ints

    def choices(self, rows: Sequence[int]) -> tuple[KeepChoice, ...]:
        # Blocks with experts have thousands of rows: convert whole columns to lists at once.
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
        # The backward pass does not read the input, but recomputed operators may.
        first = [i for i, (reads, _) in enumerate(edges) if layer.input in reads]
        uses_input: Bools = np.asarray(rerun[:, first].any(axis=1))
        bytes_ += size[layer.input] * uses_input
        kept[layer.input] = uses_input
    return _Subsets(fixed, kept, rerun, bytes_)


def _decisions(names: list[str]) -> list[tuple[str, ...]]:
    """Return the groups of tensors that are kept or dropped together. Each tensor is a group; in a
    layer with a period of many blocks, equal names of all blocks form a group.
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
) -> tuple[Bools, Bools]:
    """Return masks of kept tensors, shape (sets, tensors), and recomputed operators, shape (sets,
    operators). Of all subsets with the same operators, only the one that keeps the fewest tensors
    is returned: it drops every tensor that these operators write.
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


def _rerun(edges: Edges, kept: dict[str, Bools], fixed: frozenset[str]) -> Bools:
    """Return which operators recompute the dropped tensors, shape (subsets, operators).

    From the last operator to the first: an operator runs again if it writes a dropped tensor, or an
    unsaved tensor that a later recomputed operator reads.
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


def _masks(rerun: Bools) -> NDArray[np.uint64]:
    """Return the operators of each row as bits of 64-bit words, shape (rows, words)."""
    padded = np.zeros((len(rerun), 64 * -(-rerun.shape[1] // 64)), np.bool_)
    padded[:, : rerun.shape[1]] = rerun
    return np.packbits(padded, axis=1).view(np.uint64)


def _undominated(bytes_: Ints, rerun: Bools) -> list[int]:
    """Return the rows that no other row dominates in bytes and operators, by ascending bytes."""
    # Among equal bytes, fewer operators come first, so a later row never dominates a selected one.
    order = np.lexsort((rerun.sum(axis=1), bytes_))
    undominated = _first_of_each(np.ascontiguousarray(_masks(rerun)[order]).tobytes(), len(order))
    return [int(row) for row in order[undominated]]


@lru_cache(maxsize=64)
def _first_of_each(masks: bytes, rows: int) -> list[int]:
    """Return the rows whose operators contain those of no previously selected row. The result is
    cached because other microbatch sizes of a layer have the same masks.
    """
    sets = np.frombuffer(masks, np.uint64).reshape(rows, -1)
    undominated: list[int] = []
    masks_of_undominated = np.zeros(sets.shape, np.uint64)
    for row, mask in enumerate(sets):
        # A selected subset of this row's operators dominates it: no bit lies outside the mask.
        if not ((masks_of_undominated[: len(undominated)] & ~mask) == 0).all(axis=1).any():
            masks_of_undominated[len(undominated)] = mask
            undominated.append(row)
    return undominated


def rerun_table(choices: Sequence[KeepChoice], operators: int) -> Floats:
    """Return 1 where a choice recomputes an operator, else 0, shape (choices, operators)."""
    table = np.zeros((len(choices), operators))
    again = [choice.rerun for choice in choices]
    rows = np.repeat(np.arange(len(choices)), [len(operators_again) for operators_again in again])
    table[rows, np.array(list(chain.from_iterable(again)), np.int64)] = 1.0
    return table


def frontier(kept_bytes: Floats, extra_s: Floats) -> tuple[Floats, Floats, Ints]:
    """Return the kept bytes (ascending), extra seconds (descending) and indices of the convex lower
    hull of choices, which must be given by ascending bytes.
    """
    least_s = np.minimum.accumulate(extra_s)
    points = np.flatnonzero(np.append(True, least_s[1:] < least_s[:-1]))
    # Among points with equal bytes, the last one is the fastest.
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
