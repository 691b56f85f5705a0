"""A tensor on its way from one layout to another, as collectives over digits: the detailed mode
runs them as messages, the loads of links are their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from atoll.arrays import IntArray
from atoll.fabric.digits import Digits
from atoll.wafer.encoding import role_kernels as roles

Collective = tuple[list[bool], float]
"""Member digits, and bytes of a die: after an all-gather, before a reduce-scatter, exchanged."""


class Passes(NamedTuple):
    """The collectives of a transition, and the bytes a die holds between reduction and gather."""

    scatter: tuple[Collective, ...]
    exchange: tuple[Collective, ...]
    gather: tuple[Collective, ...]
    held_bytes: float


def passes_between(
    digits: Digits, total: float, have: Sequence[int], want: Sequence[int]
) -> Passes:
    """What brings a tensor of so many bytes from one layout to another, digit by digit."""
    radix = [int(r) for r in digits.radix]
    whole, partial = (roles.WHOLE, roles.SUMMED), roles.PARTIAL
    held = total
    for r, h, w in zip(radix, have, want, strict=True):
        if h not in (*whole, partial) or (h in whole and w != roles.WHOLE):
            held /= r
    pairs = list(zip(have, want, strict=True))
    scatter = [h == partial and w != roles.WHOLE for h, w in pairs]
    summed = [h == partial and w == roles.WHOLE for h, w in pairs]
    again = [h == roles.SUMMED and w == roles.WHOLE for h, w in pairs]
    cut = [h not in (*whole, partial) for h in have]
    moved = [c and w not in (roles.WHOLE, h) for c, (h, w) in zip(cut, pairs, strict=True)]
    gather = [c and w == roles.WHOLE for c, (_, w) in zip(cut, pairs, strict=True)]
    first = held
    held /= prod(r for r, m in zip(radix, scatter, strict=True) if m)
    gathered = held * prod(r for r, m in zip(radix, gather, strict=True) if m)
    return Passes(
        ((scatter, first), (summed, held)),
        ((moved, held),) if any(moved) else (),
        ((summed, held), (again, held), (gather, gathered)),
        held,
    )


def stored_layout(source: IntArray, target: IntArray) -> tuple[int, ...]:
    """The layout between a tensor's reduction and its gather."""
    summed = np.where(source == roles.PARTIAL, roles.SUMMED, source)
    return tuple(np.where(target != roles.WHOLE, target, summed).tolist())
