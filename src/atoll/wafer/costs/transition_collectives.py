"""Transitions between layouts as collectives over digits (for replays and link loads)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from atoll.base.arrays import Ints
from atoll.fabric.digits import Digits
from atoll.wafer.encoding import role_kernels as roles

DigitCollective = tuple[list[bool], float]
"""Member digits, and bytes per die: after an all-gather, before a reduce-scatter, or exchanged."""


class TransitionCollectives(NamedTuple):
    """The collectives of a transition, and the bytes a die holds between reduction and gather."""

    scatter: tuple[DigitCollective, ...]
    exchange: tuple[DigitCollective, ...]
    gather: tuple[DigitCollective, ...]
    stored_bytes: float


def collectives_between(
    digits: Digits, total: float, have: Sequence[int], want: Sequence[int]
) -> TransitionCollectives:
    """Return the collectives that bring a tensor of `total` bytes from `have` to `want`."""
    radix = [int(r) for r in digits.radix]
    replicated, partial = (roles.REPLICATED, roles.SUMMED), roles.PARTIAL
    die_bytes = total
    for r, h, w in zip(radix, have, want, strict=True):
        if h not in (*replicated, partial) or (h in replicated and w != roles.REPLICATED):
            die_bytes /= r
    pairs = list(zip(have, want, strict=True))
    scatter = [h == partial and w != roles.REPLICATED for h, w in pairs]
    summed = [h == partial and w == roles.REPLICATED for h, w in pairs]
    regathered = [h == roles.SUMMED and w == roles.REPLICATED for h, w in pairs]
    divided = [h not in (*replicated, partial) for h in have]
    exchanged = [
        c and w not in (roles.REPLICATED, h) for c, (h, w) in zip(divided, pairs, strict=True)
    ]
    gather = [c and w == roles.REPLICATED for c, (_, w) in zip(divided, pairs, strict=True)]
    partial_bytes = die_bytes
    die_bytes /= prod(r for r, m in zip(radix, scatter, strict=True) if m)
    gathered_bytes = die_bytes * prod(r for r, m in zip(radix, gather, strict=True) if m)
    return TransitionCollectives(
        ((scatter, partial_bytes), (summed, die_bytes)),
        ((exchanged, die_bytes),) if any(exchanged) else (),
        ((summed, die_bytes), (regathered, die_bytes), (gather, gathered_bytes)),
        die_bytes,
    )


def stored_layout(source: Ints, target: Ints) -> tuple[int, ...]:
    """Return the layout between a tensor's reduction and its gather."""
    summed = np.where(source == roles.PARTIAL, roles.SUMMED, source)
    return tuple(np.where(target != roles.REPLICATED, target, summed).tolist())
