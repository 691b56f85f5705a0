"""The terminal: tables, bars and a status line; plain text on a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from atoll.step.certificate import relative_gap
from atoll.step.parts import in_words
from atoll.units import format_seconds

_BAR = 40


def console_for_output() -> Console:
    width = None if sys.stdout.isatty() else 110
    return Console(width=width, highlight=False)


def plain_table(*columns: str, left: str = "") -> Table:
    """A table without lines; numbers stand to the right, all but the column `left`."""
    table = Table(box=None, pad_edge=False, header_style="")
    for name in columns:
        table.add_column(name, justify="left" if name == left else "right")
    return table


@contextmanager
def progress(
    quiet: bool, noun: str = "chips"
) -> Iterator[Callable[[str, int, int, float, float], None] | None]:
    """A status line on a terminal; nothing on a pipe or when quiet."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from atoll.jit import compilation

    with compilation() as compiling:
        line = StatusLine(noun, compiling.words)
        with Console(stderr=True).status(line):
            yield line.show


class StatusLine:
    """What a search is at, with the time so far; drawn again and again, whoever reports."""

    def __init__(
        self, noun: str, compiling: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._noun, self._compiling, self._clock = noun, compiling, clock
        self._began = clock()
        self._text = "preparing"

    def show(self, phase: str, left: int, total: int, best: float, bound: float) -> None:
        """Take a report."""
        gap = f", best {best:,.1f}, gap {relative_gap(best, bound):.2%}" if best > 0 else ""
        self._text = f"{phase}: {left:,} of {total:,} {self._noun} left{gap}"

    def __rich__(self) -> Text:
        said = self._compiling() or self._text
        return Text(f"{said} ({self._clock() - self._began:.0f} s)")


def print_bars(console: Console, parts: Mapping[str, float], whole: float) -> None:
    for name, seconds in in_words(parts).items():
        if seconds > 5e-4 * whole:
            share = seconds / whole
            bar = "█" * max(1, round(_BAR * share))
            console.print(f"  {name:<19}{format_seconds(seconds):>10}  {share:6.1%}  {bar}")


def print_error_table(console: Console, what: str, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Errors of groups of rows; a group without rows is left out."""
    table = plain_table(what, "rows", "mean", "median", "p90", left=what)
    for name, errors in groups.items():
        if errors["rows"]:
            keys = ("mean_ape", "median_ape", "p90_ape")
            table.add_row(name, str(errors["rows"]), *(f"{errors[key]:.1%}" for key in keys))
    console.print(table)


def short(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
