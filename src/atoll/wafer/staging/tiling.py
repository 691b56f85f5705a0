"""Rectangles on the grid: tile a wafer with dead dies, or pack stages of given sizes.

A guillotine tiling cuts the grid in two recursively. For every sub-rectangle and every number
of pieces, dynamic programming finds the cut that covers the most working dies; a rectangle counts
only if all of its dies and inner links work. Among equal covers the pieces nearest in size win, for
a pipeline is as slow as its worst stage.

Packing places stages of different sizes depth first: the first free die in reading order is the
corner of the next rectangle (larger first, then squarer), or stays idle if dies are spare. It gives
up after `MOST_TRIES`: no packing found is no proof that there is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from atoll.fabric.mesh import Die, Link, Rectangle

MOST_TRIES = 4_000


class Tiling(NamedTuple):
    covered_dies: int
    evenness: int
    """Minus the sum of squared sizes."""
    pieces: tuple[Rectangle, ...]


def guillotine(
    rows: int, columns: int, pieces: int, dead: Sequence[Die] = (), dead_links: Sequence[Link] = ()
) -> tuple[Rectangle, ...]:
    """Return at most `pieces` rectangles that cover the most working dies, in reading order."""
    links = [*dead_links, *((die, die) for die in dead)]

    @cache
    def is_usable(x: int, y: int, width: int, height: int) -> bool:
        return not any(
            all(x <= i < x + width and y <= j < y + height for i, j in link) for link in links
        )

    @cache
    def best(x: int, y: int, width: int, height: int, count: int, usable: bool) -> Tiling:
        """Return the best tiling relative to its corner; usable ones are computed at (0, 0)."""
        if count == 0:
            return Tiling(0, 0, ())

        def part(dx: int, dy: int, width: int, height: int, count: int) -> Tiling:
            if usable or is_usable(x + dx, y + dy, width, height):
                return best(0, 0, width, height, count, True)
            return best(x + dx, y + dy, width, height, count, False)

        size = width * height
        best_cut = Tiling(0, 0, ())
        if usable:
            best_cut = Tiling(size, -size * size, (Rectangle(0, 0, width, height),))
            if count == 1:
                return best_cut
        cuts = [(i, 0) for i in range(1, width)] + [(0, i) for i in range(1, height)]
        for dx, dy in cuts:
            for first_count in range(count + 1):
                first = part(0, 0, dx or width, dy or height, first_count)
                second = part(dx, dy, width - dx, height - dy, count - first_count)
                covered_dies = first.covered_dies + second.covered_dies
                score = covered_dies, first.evenness + second.evenness
                if score > best_cut[:2]:
                    moved = (replace(r, x=r.x + dx, y=r.y + dy) for r in second.pieces)
                    best_cut = Tiling(*score, (*first.pieces, *moved))
        return best_cut

    tiling = best(0, 0, columns, rows, pieces, is_usable(0, 0, columns, rows))
    return _nearest_first(tiling.pieces)


def pack(rows: int, columns: int, sizes: Sequence[int]) -> tuple[Rectangle, ...] | None:
    """Place one rectangle per size, in this order, neighbours close; None if that fails."""
    idle = rows * columns - sum(sizes)
    if idle < 0:
        return None
    unplaced_sizes = Counter(sizes)
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

    def place_next(idle: int) -> bool:
        nonlocal tries
        if not +unplaced_sizes:
            return True
        tries += 1
        if tries > MOST_TRIES:
            return False
        corner = next(((i, j) for j in range(rows) for i in range(columns) if not grid[j][i]), None)
        if corner is None:
            return False
        x, y = corner
        for size in sorted(+unplaced_sizes, reverse=True):
            for width, height in _shapes(size):
                if free(x, y, width, height):
                    r = Rectangle(x, y, width, height)
                    mark(r, True)
                    unplaced_sizes[size] -= 1
                    placed.append(r)
                    if place_next(idle):
                        return True
                    placed.pop()
                    unplaced_sizes[size] += 1
                    mark(r, False)
        if idle:
            grid[y][x] = True
            if place_next(idle - 1):
                return True
            grid[y][x] = False
        return False

    return _nearest_first(placed, sizes) if place_next(idle) else None


def _shapes(size: int) -> list[tuple[int, int]]:
    """Return widths and heights, squarest first."""
    shapes = [(width, size // width) for width in range(1, size + 1) if size % width == 0]
    return sorted(shapes, key=lambda shape: (abs(shape[0] - shape[1]), shape))


def _nearest_first(
    rectangles: Sequence[Rectangle], sizes: Sequence[int] | None = None
) -> tuple[Rectangle, ...]:
    """Order rectangles from the top left, nearest next; with `sizes`, in this order of sizes."""
    unvisited = sorted(rectangles, key=lambda r: (r.y, r.x))
    walk: list[Rectangle] = []
    for number in range(len(unvisited)):
        same_size = [r for r in unvisited if sizes is None or r.size == sizes[number]]
        chosen = min(same_size, key=lambda r: (walk[-1].apart(r) if walk else 0.0, r.y, r.x))
        walk.append(chosen)
        unvisited.remove(chosen)
    return tuple(walk)
