"""Digits: how a rectangle of dies is numbered, so that any split of any dimension lies on its mesh.

A rectangle of h rows and w columns is written as a mixed-radix number: the prime factors of w along
x (columns), then those of h along y (rows), each axis from its outermost digit to its innermost. A
die's coordinates are its digits. An operator's gene has one tag per digit: the loop dimension that
it splits. The product of the radices with the same tag is the split count of that dimension (Part),
the digits' axes and nesting are its order on the mesh (Ord).

Every digit owns a fixed field of every dimension's index (block-cyclic tiles). A digit that splits
rows in two operators therefore selects the same rows in both, whatever the other digits do, and
re-sharding between two layouts is decided digit by digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import permutations, product
from math import prod

import numpy as np

from atoll.base.arrays import Ints

X, Y = 0, 1


@dataclass(frozen=True)
class Digits:
    """The digit system of a rectangle: radices along x and along y, outermost first."""

    x: tuple[int, ...]
    y: tuple[int, ...]

    @property
    def width(self) -> int:
        return prod(self.x)

    @property
    def height(self) -> int:
        return prod(self.y)

    @property
    def size(self) -> int:
        return self.width * self.height

    @property
    def count(self) -> int:
        return len(self.x) + len(self.y)

    @cached_property
    def radix(self) -> Ints:
        return np.array([*self.x, *self.y], np.int64)

    @cached_property
    def axis(self) -> Ints:
        return np.array([X] * len(self.x) + [Y] * len(self.y), np.int64)

    @cached_property
    def stride(self) -> Ints:
        """Dies between neighbours along each digit: the product of the digits inside it."""
        return np.array(
            [prod(axis[i + 1 :]) for axis in (self.x, self.y) for i in range(len(axis))], np.int64
        )

    def digits(self, column: int, row: int) -> tuple[int, ...]:
        """The digits of a die of the rectangle."""
        places = (column,) * len(self.x) + (row,) * len(self.y)
        rules = zip(places, self.stride.tolist(), (*self.x, *self.y), strict=True)
        return tuple(place // stride % radix for place, stride, radix in rules)

    def groups(self, members: Sequence[bool]) -> list[list[tuple[int, int]]]:
        """Dies (column, row) that differ only in the digits marked as members, group by group."""
        groups: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for row, column in product(range(self.height), range(self.width)):
            digits = self.digits(column, row)
            key = tuple(d for d, inside in zip(digits, members, strict=True) if not inside)
            groups.setdefault(key, []).append((column, row))
        return list(groups.values())

    def describe(self) -> str:
        text = [".".join(str(r) for r in axis) or "1" for axis in (self.x, self.y)]
        return f"x {text[0]}, y {text[1]}"


@cache
def factors(number: int) -> tuple[int, ...]:
    """Prime factors, ascending."""
    primes: list[int] = []
    divisor = 2
    while number > 1:
        while number % divisor == 0:
            primes.append(divisor)
            number //= divisor
        divisor += 1
    return tuple(primes)


def digit_systems(width: int, height: int) -> tuple[Digits, ...]:
    """Every order of the prime factors along both axes."""
    return tuple(
        Digits(x, y)
        for x in sorted(set(permutations(factors(width))))
        for y in sorted(set(permutations(factors(height))))
    )
