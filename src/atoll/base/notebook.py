"""Results as HTML for notebooks and as a line of text, with a bar of the step's parts.

Takes plain values only; the HTML loads nothing and has no scripts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from itertools import cycle

from atoll.base.units import format_seconds

# Palette of Okabe and Ito, suitable for colour-blind readers.
COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B3A000", "#7F7F7F",
)  # fmt: skip
LEAST_SHARE = 0.0005
"""Share of the total below which a part is left out."""


def answer_html(summary: Iterable[tuple[str, str]], parts_s: Mapping[str, float]) -> str:
    """Return an answer as HTML: its summary, and the parts of its time."""
    rows = "".join(_row(name, value) for name, value in summary)
    return f'<div class="atoll"><table style="margin:4px 0">{rows}</table>{_bar(parts_s)}</div>'


def summary_lines(summary: Iterable[tuple[str, str]]) -> list[str]:
    """Return (label, text) as lines with labels in a column."""
    return [f"{label:<{LABEL}}{text}" for label, text in summary]


LABEL = 12
"""Width of the column of labels."""
SHADES = "█▓▒░"


def bar_text(parts_s: Mapping[str, float], width: int = 40) -> str:
    """Return the parts of a time as a text bar, largest first, with their shares."""
    total_s, shown = _shown_parts(parts_s)
    shown.sort(key=lambda part: -part[1])
    bar, words, sum_s = "", [], 0.0
    for (name, value), shade in zip(shown, cycle(SHADES)):
        sum_s += value
        bar += shade * (round(width * sum_s / total_s) - len(bar))
        words.append(f"{shade} {name.replace('_', ' ')} {value / total_s:.1%}")
    return f"{bar}  {', '.join(words)}"


def _shown_parts(parts_s: Mapping[str, float]) -> tuple[float, list[tuple[str, float]]]:
    total_s = sum(parts_s.values())
    return total_s, [(n, v) for n, v in parts_s.items() if total_s and v / total_s >= LEAST_SHARE]


def _row(name: str, value: str) -> str:
    return (
        f'<tr><td style="text-align:left;opacity:.75">{escape(name)}</td>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
    )


def _bar(parts_s: Mapping[str, float]) -> str:
    """Return the parts of a time as an HTML bar with a legend."""
    total_s, shown = _shown_parts(parts_s)
    pieces, legend = [], []
    for (name, value), colour in zip(shown, cycle(COLOURS)):
        words = escape(f"{name.replace('_', ' ')} {format_seconds(value)} ({value / total_s:.1%})")
        pieces.append(
            f'<div title="{words}" style="width:{100 * value / total_s:.3f}%;background:{colour}">'
            "</div>"
        )
        legend.append(
            f'<span style="margin-right:12px;white-space:nowrap"><span style="display:inline-block;'
            f'width:10px;height:10px;background:{colour};margin-right:4px"></span>{words}</span>'
        )
    return (
        '<div style="display:flex;height:16px;max-width:640px;border-radius:3px;overflow:hidden">'
        f'{"".join(pieces)}</div><div style="font-size:85%">{"".join(legend)}</div>'
    )
