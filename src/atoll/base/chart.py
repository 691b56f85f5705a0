"""Charts as SVG: figures over the values of an axis, one line or one colour of bars per series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import floor, log10
from pathlib import Path

from atoll.base.errors import AtollError
from atoll.base.notebook import COLOURS
from atoll.base.units import format_value

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 90, 20, 40, 60
LEGEND_LINE = 20
MOST_LABELS = 12
"""Labels below the axis; of more values only some have one."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, which notebooks show.

    Examples:
        >>> import atoll
        >>> asked = atoll.EstimateQuestion.of(model="gpt2-xl", device="h100", batch=64)
        >>> atoll.sweep(asked, devices=[8, 16]).chart("step s").save("steps.svg").name
        'steps.svg'
    """

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write the chart to a file.

        Args:
            path: The file, `.svg`.

        Returns:
            Its path.

        Raises:
            AtollError: The file cannot be written.
        """
        file = Path(path)
        try:
            file.write_text(self.svg + "\n", encoding="utf-8")
        except OSError as error:
            raise AtollError(f"path: {file} cannot be written ({error.strerror})") from error
        return file


def draw(
    title: str,
    axis: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    bars: bool,
) -> Chart:
    """Draw series over labels: bars, or points joined by lines; None leaves a gap."""
    values = [value for row in series.values() for value in row if value is not None]
    if not values:
        raise AtollError(f"figure: no run has a number for {title}")
    largest = max(*values, 0.0)
    # Ticks are 1, 2 or 5 times a power of ten apart, and three to eight.
    power: float = 10.0 ** floor(log10((largest or 1.0) / 3))
    step = max(size * power for size in (1, 2, 5) if size * power <= (largest or 1.0) / 3)
    ticks = floor(largest / step) + 1
    legend = len(series) > 1
    height = HEIGHT + LEGEND_LINE * len(series) * legend
    scale = (HEIGHT - TOP - BOTTOM) / (ticks * step)
    slot = (WIDTH - LEFT - RIGHT) / len(labels)
    floor_y = HEIGHT - BOTTOM
    parts = [_text(LEFT, 22, title, weight=600)]
    for number in range(ticks + 1):
        y = floor_y - number * step * scale
        parts.append(_line(LEFT, y, WIDTH - RIGHT, y, "#ddd"))
        parts.append(_text(LEFT - 8, y + 4, format_value(number * step), anchor="end"))
    every = -(-len(labels) // MOST_LABELS)
    for index, label in enumerate(labels):
        if index % every == 0:
            parts.append(_text(LEFT + (index + 0.5) * slot, floor_y + 18, label, anchor="middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, floor_y + 42, axis, anchor="middle"))
    for number, (name, row) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        tops = [None if value is None else floor_y - value * scale for value in row]
        if bars:
            width = 0.8 * slot / len(series)
            starts = [LEFT + (i + 0.1) * slot + number * width for i in range(len(row))]
            parts += _bars(starts, tops, width, floor_y, colour)
        else:
            parts += _points([LEFT + (i + 0.5) * slot for i in range(len(row))], tops, colour)
        if legend:
            y = HEIGHT + LEGEND_LINE * number
            parts.append(f'<rect x="{LEFT}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
            parts.append(_text(LEFT + 18, y, name))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'font-family="sans-serif" font-size="13" role="img"><title>{escape(title)}</title>'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    )
    return Chart("\n".join([head, *parts, "</svg>"]))


def _bars(
    starts: Sequence[float], tops: Sequence[float | None], width: float, floor_y: float, colour: str
) -> list[str]:
    return [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{floor_y - y:.1f}" '
        f'fill="{colour}"/>'
        for x, y in zip(starts, tops, strict=True)
        if y is not None
    ]


def _points(places: Sequence[float], tops: Sequence[float | None], colour: str) -> list[str]:
    points = [(x, y) for x, y in zip(places, tops, strict=True) if y is not None]
    lines = [_line(x1, y1, x2, y2, colour, 2) for (x1, y1), (x2, y2) in pairwise(points)]
    return lines + [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, words: str, *, anchor: str = "start", weight: int = 400) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="#222">{escape(words)}</text>'
    )
