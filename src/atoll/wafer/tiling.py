"""Cutting a wafer with dead dies into rectangles of working ones.

A guillotine tiling cuts the grid in two, again and again. For every sub-rectangle and every number
of pieces, dynamic programming finds the cut that covers the most working dies; a rectangle counts
only if all of its dies and inner links work. Among equal covers the pieces nearest in size win, for
a pipeline is as slow as its worst stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from atoll.fabric.mesh import Die, Rectangle

Cut = tuple[int, int, tuple[Rectangle, ...]]  # dies covered, minus the sum of squared sizes, pieces


def guillotine(
    rows: int,
    columns: int,
    pieces: int,
    dead: Sequence[Die] = (),
    dead_links: Sequence[tuple[Die, Die]] = (),
) -> tuple[Rectangle, ...]:
    """At most `pieces` rectangles that cover as many working dies as they can, in reading order."""
    broken = set(dead)
    links = {frozenset(link) for link in dead_links}

    def whole(x: int, y: int, width: int, height: int) -> bool:
        inside = {(i, j) for i in range(x, x + width) for j in range(y, y + height)}
        if inside & broken:
            return False
        return not any(link <= inside for link in links)

    @cache
    def best(x: int, y: int, width: int, height: int, count: int) -> Cut:
        if count == 0:
            return (0, 0, ())
        size = width * height
        found: Cut = (0, 0, ())
        if whole(x, y, width, height):
            found = (size, -size * size, (Rectangle(x, y, width, height),))
            if count == 1:
                return found
        cuts = [(True, i) for i in range(1, width)] + [(False, i) for i in range(1, height)]
        for vertical, at in cuts:
            for left in range(count + 1):
                if vertical:
                    a = best(x, y, at, height, left)
                    b = best(x + at, y, width - at, height, count - left)
                else:
                    a = best(x, y, width, at, left)
                    b = best(x, y + at, width, height - at, count - left)
                value = (a[0] + b[0], a[1] + b[1])
                if value > found[:2]:
                    found = (*value, a[2] + b[2])
        return found

    return _in_order(best(0, 0, columns, rows, pieces)[2])


def _in_order(rectangles: tuple[Rectangle, ...]) -> tuple[Rectangle, ...]:
    """A walk from piece to nearest piece, from the top left corner."""
    left = sorted(rectangles, key=lambda r: (r.y, r.x))
    if not left:
        return ()
    walk = [left.pop(0)]
    while left:
        here = walk[-1]
        left.sort(key=lambda r: (here.apart(r), r.y, r.x))
        walk.append(left.pop(0))
    return tuple(walk)
