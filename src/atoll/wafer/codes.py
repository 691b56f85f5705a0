"""Codes: one tag a digit, written as a string such as "nnk"; which are legal, what they lay out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from atoll.fabric.digits import Digits
from atoll.wafer.block import Roles
from atoll.wafer.pricing import Parts

IntArray = NDArray[np.int64]


def parts_of(code: str, digits: Digits) -> Parts:
    """Split count of every tag."""
    parts: Parts = {}
    for tag, radix in zip(code, digits.radix, strict=True):
        parts[tag] = parts.get(tag, 1) * int(radix)
    return parts


def legal(code: str, sizes: dict[str, int], digits: Digits) -> bool:
    """No dimension is cut in more pieces than it has; samples are never cut unevenly."""
    parts = parts_of(code, digits)
    if any(tag not in sizes for tag in parts):
        return False
    if sizes["b"] % parts.get("b", 1):
        return False
    return all(count <= sizes[tag] for tag, count in parts.items() if tag != "r")


def legal_codes(sizes: dict[str, int], digits: Digits) -> tuple[str, ...]:
    tags = [tag for tag, size in sizes.items() if size > 1 or tag == "r"]
    return tuple(
        code
        for code in ("".join(chosen) for chosen in product(tags, repeat=digits.count))
        if legal(code, sizes, digits)
    )


def layouts(codes: Sequence[str], roles: Sequence[Roles]) -> IntArray:
    """(codes, tensors, digits): the role of every digit for every tensor."""
    width = len(codes[0]) if codes else 0
    table = np.zeros((len(codes), len(roles), width), np.int64)
    for i, code in enumerate(codes):
        for t, role in enumerate(roles):
            table[i, t] = [role[tag] for tag in code]
    return table
