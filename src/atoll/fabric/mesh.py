"""A mesh of dies: their places, rectangles of them, and links between neighbours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Die = tuple[int, int]
"""Column and row."""
Link = tuple[Die, Die]
"""From a die to its neighbour: one direction."""

ALGORITHMS = ("auto", "line", "ring", "2d")
"""Collective algorithms on a rectangle; indices are the constants of `mesh_kernels`."""


@dataclass(frozen=True)
class Mesh:
    """`rows` x `columns` dies; `link_Bps` is one link in one direction."""

    name: str
    rows: int
    columns: int
    link_Bps: float
    link_latency_s: float

    def neighbours(self, die: Die) -> list[Die]:
        x, y = die
        around = ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1))
        return [(a, b) for a, b in around if 0 <= a < self.columns and 0 <= b < self.rows]


@dataclass(frozen=True)
class Rectangle:
    """Columns x..x+width-1, rows y..y+height-1."""

    x: int
    y: int
    width: int
    height: int

    @property
    def size(self) -> int:
        return self.width * self.height

    def dies(self) -> list[Die]:
        return [
            (x, y)
            for y in range(self.y, self.y + self.height)
            for x in range(self.x, self.x + self.width)
        ]

    def apart(self, second: Rectangle) -> float:
        """Hops between the centres of two rectangles."""
        across = abs(self.x + self.width / 2 - second.x - second.width / 2)
        return across + abs(self.y + self.height / 2 - second.y - second.height / 2)


def both_directions(links: Iterable[Link]) -> set[Link]:
    return {link for a, b in links for link in ((a, b), (b, a))}


def snake(
    rows: int, columns: int, width: int, height: int, count: int
) -> tuple[Rectangle, ...] | None:
    """Equal rectangles in boustrophedon order, neighbours adjacent; None if they do not fit."""
    across, down = columns // width, rows // height
    if count > across * down:
        return None
    cells = [(i if j % 2 == 0 else across - 1 - i, j) for j in range(down) for i in range(across)]
    return tuple(Rectangle(i * width, j * height, width, height) for i, j in cells[:count])


def xy_path(source: Die, target: Die) -> tuple[Link, ...]:
    """Route along x, then along y."""
    path: list[Link] = []
    (x, y), (column, row) = source, target
    while (x, y) != target:
        across = (column > x) - (column < x)
        step = x + across, y if across else y + (1 if row > y else -1)
        path.append(((x, y), step))
        x, y = step
    return tuple(path)


def rectangle_ring(r: Rectangle) -> list[Die]:
    """Return a closed walk of neighbours over a rectangle with an even side: down the first column
    (or along the first row), and back through the others."""
    if r.height % 2 and r.width % 2:
        raise ValueError("a rectangle of odd sides holds no ring")
    if r.height % 2:
        return [(a, b) for b, a in rectangle_ring(Rectangle(r.y, r.x, r.height, r.width))]
    dies = [(r.x, r.y + row) for row in range(r.height)]
    for row in reversed(range(r.height)):
        columns = range(1, r.width)
        back = columns if (r.height - 1 - row) % 2 == 0 else reversed(columns)
        dies += [(r.x + column, r.y + row) for column in back]
    return dies
