"""Rectangles of given numbers of dies laid on the grid: stages of different sizes.

The first free die in reading order is the corner of the next rectangle, or stays idle where dies
may. Depth first, larger rectangles first, squarer ones before longer ones; given up after so many
tries, so that an answer is an answer and no answer is not a proof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from atoll.fabric.mesh import Rectangle

MOST_TRIES = 4_000


def pack(rows: int, columns: int, sizes: Sequence[int]) -> tuple[Rectangle, ...] | None:
    """One rectangle for each size, in the given order, neighbours close; None if none was found."""
    idle = rows * columns - sum(sizes)
    if idle < 0:
        return None
    left = Counter(sizes)
    grid = [[False] * columns for _ in range(rows)]
    placed: list[Rectangle] = []
    tries = 0

    def free(x: int, y: int, width: int, height: int) -> bool:
        if x + width > columns or y + height > rows:
            return False
        return not any(grid[j][i] for j in range(y, y + height) for i in range(x, x + width))

    def mark(r: Rectangle, value: bool) -> None:
        for i, j in r.dies():
            grid[j][i] = value

    def go(idle: int) -> bool:
        nonlocal tries
        if not +left:
            return True
        tries += 1
        if tries > MOST_TRIES:
            return False
        corner = next(
            ((i, j) for j in range(rows) for i in range(columns) if not grid[j][i]), None
        )
        if corner is None:
            return False
        x, y = corner
        for size in sorted(+left, reverse=True):
            for width, height in _shapes(size):
                if free(x, y, width, height):
                    r = Rectangle(x, y, width, height)
                    mark(r, True)
                    left[size] -= 1
                    placed.append(r)
                    if go(idle):
                        return True
                    placed.pop()
                    left[size] += 1
                    mark(r, False)
        if idle:
            grid[y][x] = True
            if go(idle - 1):
                return True
            grid[y][x] = False
        return False

    return _ordered(placed, sizes) if go(idle) else None


def _shapes(size: int) -> list[tuple[int, int]]:
    """Width and height, squarest first."""
    found = [(width, size // width) for width in range(1, size + 1) if size % width == 0]
    return sorted(found, key=lambda shape: (abs(shape[0] - shape[1]), shape))


def _ordered(placed: Sequence[Rectangle], sizes: Sequence[int]) -> tuple[Rectangle, ...]:
    """For each size in turn the rectangle that is nearest to the one before."""
    left = sorted(placed, key=lambda r: (r.y, r.x))
    walk: list[Rectangle] = []
    for size in sizes:
        alike = [r for r in left if r.size == size]
        chosen = min(alike, key=lambda r: (walk[-1].apart(r) if walk else 0.0, r.y, r.x))
        walk.append(chosen)
        left.remove(chosen)
    return tuple(walk)
