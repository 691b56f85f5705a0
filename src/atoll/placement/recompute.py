"""Recomputation per operator: which saved tensors of a layer to keep.

Dropping a tensor means running its producer again before the backward pass, and whatever that
needs which was dropped too (its closure, back to kept tensors or the layer's input). Keeping a set
of tensors costs bytes and saves a set of operators. `keep_choices` lists every choice that no other
beats whatever the operators' times are; `frontier` prices them on a chip and keeps the convex
lower hull, from which stages mix neighbouring choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.workload.layer import Layer

_MOST_TENSORS = 16  # 65,536 subsets; beyond that the smallest tensors are always kept


@dataclass(frozen=True, slots=True)
class KeepChoice:
    """Tensors to keep and forward operators (by index) to run again."""

    keep: tuple[str, ...]
    rerun: tuple[int, ...]
    kept_bytes: int


def keep_choices(layer: Layer) -> tuple[KeepChoice, ...]:
    """Non-dominated choices, from the fewest kept bytes to all (the layer's input always is)."""
    writer = {name: index for index, op in enumerate(layer.forward) for name in op.writes}
    optional = [name for name in layer.saved if name != layer.input and name in writer]
    optional.sort(key=lambda name: layer.tensors[name].bytes, reverse=True)
    fixed = [name for name in layer.saved if name not in optional[:_MOST_TENSORS]]
    optional = optional[:_MOST_TENSORS]
    base = sum(layer.tensors[name].bytes for name in fixed)
    # Bit i of a mask: optional tensor i. Operators likewise in `rerun` masks.
    position = {name: i for i, name in enumerate(optional)}
    available = set(fixed) | {layer.input}
    found: dict[int, tuple[int, int]] = {}
    for mask in range(1 << len(optional)):
        rerun = _closure(layer, writer, optional, position, available, mask)
        kept = base + sum(
            layer.tensors[name].bytes for name, i in position.items() if mask >> i & 1
        )
        if rerun not in found or kept < found[rerun][0]:
            found[rerun] = (kept, mask)
    ordered = sorted((kept, rerun, mask) for rerun, (kept, mask) in found.items())
    choices: list[tuple[int, int, int]] = []
    for kept, rerun, mask in ordered:
        if not any(other & ~rerun == 0 for _, other, _ in choices):
            choices.append((kept, rerun, mask))
    return tuple(
        KeepChoice(
            keep=tuple(fixed) + tuple(n for n, i in position.items() if mask >> i & 1),
            rerun=tuple(i for i in range(len(layer.forward)) if rerun >> i & 1),
            kept_bytes=kept,
        )
        for kept, rerun, mask in choices
    )


def _closure(
    layer: Layer,
    writer: dict[str, int],
    optional: Sequence[str],
    position: dict[str, int],
    available: set[str],
    mask: int,
) -> int:
    """Mask of the operators that rebuild every dropped tensor."""
    rerun = 0
    pending = [name for name in optional if not mask >> position[name] & 1]
    while pending:
        index = writer[pending.pop()]
        if rerun >> index & 1:
            continue
        rerun |= 1 << index
        for name in layer.forward[index].reads:
            kept = name in available or (name in position and mask >> position[name] & 1)
            if not kept and name in writer:
                pending.append(name)
    return rerun


def frontier(
    choices: Sequence[KeepChoice], forward_s: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Kept bytes (ascending), extra seconds (descending) and indices of the convex lower hull.

    `forward_s` are the durations of the layer's forward operators on the chip at hand.
    """
    points = sorted(
        (choice.kept_bytes, float(sum(forward_s[i] for i in choice.rerun)), index)
        for index, choice in enumerate(choices)
    )
    hull: list[tuple[int, float, int]] = []
    for point in points:
        if hull and point[1] >= hull[-1][1]:
            continue
        while len(hull) >= 2 and _above(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return (
        np.array([p[0] for p in hull], np.float64),
        np.array([p[1] for p in hull], np.float64),
        np.array([p[2] for p in hull], np.int64),
    )


def _above(a: tuple[int, float, int], b: tuple[int, float, int], c: tuple[int, float, int]) -> bool:
    """Whether b lies on or above the line from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])
