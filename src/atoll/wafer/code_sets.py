"""Which codes a shape is solved over: all of them, one dimension each, or several parts of many."""

from __future__ import annotations

from itertools import product
from math import prod

from atoll.fabric.digits import Digits
from atoll.wafer.block import Block
from atoll.wafer.tables import legal, legal_codes

PART_CODES = 81  # codes that a part of many may leave to digits that do not cut samples

CodeSet = dict[str, tuple[str, ...]] | None


def code_sets(block: Block, digits: Digits, most: int, *, one_axis: bool) -> list[CodeSet]:
    """Codes to choose from: all of them (None); or, where an operator has more than `most`, several
    parts of them, in each of which all operators cut samples by the same digits. `one_axis`: only
    codes with one tag, where there are any.
    """
    sizes_of = _named_sizes(block)
    if one_axis:
        return [
            {
                name: tuple(c for c in legal_codes(sizes, digits) if len(set(c)) <= 1)
                or legal_codes(sizes, digits)
                for name, sizes in sizes_of.items()
            }
        ]
    if most_codes(block, digits) <= most:
        return [None]
    found: list[CodeSet] = []
    for cut in outer_digits(digits):
        parts = prod(int(digits.radix[d]) for d in cut)
        rest = digits.count - len(cut)
        if not cut or block.microbatch % parts or 3**rest > PART_CODES:
            continue
        only = {name: tuple(_on_digits(sizes, digits, cut)) for name, sizes in sizes_of.items()}
        if all(only.values()):
            found.append(only)
    return found


def _named_sizes(block: Block) -> dict[str, dict[str, int]]:
    return {unit.name: unit.sizes for unit in block.units} | {"stream": block.stream_sizes}


def most_codes(block: Block, digits: Digits) -> int:
    """Codes of the operator that has most, at most: every tag on every digit."""
    tags = max(
        sum(size > 1 or tag == "r" for tag, size in sizes.items())
        for sizes in _named_sizes(block).values()
    )
    if tags**digits.count <= 1 << 12:
        return max(len(legal_codes(sizes, digits)) for sizes in _named_sizes(block).values())
    return int(tags**digits.count)


def outer_digits(digits: Digits) -> list[tuple[int, ...]]:
    """The outermost digits of both axes, so many of each."""
    across = len(digits.x)
    return [
        (*range(x), *range(across, across + y))
        for x in range(across + 1)
        for y in range(len(digits.y) + 1)
    ]


def _on_digits(sizes: dict[str, int], digits: Digits, cut: tuple[int, ...]) -> list[str]:
    """Legal codes that cut samples by exactly these digits."""
    tags = [tag for tag, size in sizes.items() if (size > 1 or tag == "r") and tag != "b"]
    choices = [("b",) if d in cut else tags for d in range(digits.count)]
    codes = ("".join(chosen) for chosen in product(*choices))
    return [code for code in codes if legal(code, sizes, digits)]
