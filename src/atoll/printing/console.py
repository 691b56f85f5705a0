"""The terminal: tables, bars and a status line; plain text on a pipe."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Literal, Protocol

from atoll.base.notebook import LABEL
from atoll.base.units import format_seconds
from atoll.step.certificate import relative_gap
from atoll.step.parts import in_words

# Rich takes long to import: only tables and status lines import it.
if TYPE_CHECKING:
    from rich.text import Text

    from atoll.answers.validation import Errors

LOG = logging.getLogger("atoll")
EVERY_S = 10.0
"""Interval between two log lines."""
_BAR = 40
_WIDTH = 110
"""Line width when the output is not a terminal."""


class ShortAnswer(Protocol):
    """An answer with a summary."""

    def summary(self) -> list[tuple[str, str]]: ...


class Output:
    """Standard output: text wrapped to the terminal's width, and tables."""

    def __init__(self) -> None:
        terminal = shutil.get_terminal_size((_WIDTH, 0)).columns
        self.width = terminal if sys.stdout.isatty() else _WIDTH

    def table(
        self, heads: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,)
    ) -> None:
        """Print a table without lines that cuts no text and breaks lines only between words; all
        columns but `left` are right-aligned.

        A row may end before the last column.
        """
        from rich.console import Console
        from rich.table import Table

        rows = list(rows)
        table = Table(box=None, pad_edge=False, header_style="")
        left_columns = {number % len(heads) for number in left}
        widths = _column_widths(heads, rows, self.width)
        for number, (head, width) in enumerate(zip(heads, widths, strict=True)):
            justify: Literal["left", "right"] = "left" if number in left_columns else "right"
            table.add_column(head, justify=justify, width=width)
        for row in rows:
            table.add_row(*row)
        width = max(self.width, sum(widths) + 2 * (len(widths) - 1))
        console = Console(width=width, highlight=False, markup=False)
        with console.capture() as lines:
            console.print(table)
        print(*(line.rstrip() for line in lines.get().splitlines()), sep="\n")

    def print(self, text: str = "") -> None:
        for line in text.split("\n"):
            indent = len(line) - len(line.lstrip())
            lines = textwrap.wrap(
                line,
                self.width,
                break_on_hyphens=False,
                replace_whitespace=False,
                subsequent_indent=" " * (indent + 2) if indent else "",
            )
            print(*(lines or [""]), sep="\n")


def _column_widths(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the width of every column: at least its longest word; what the line has left goes to
    cells first, then to heads.
    """
    columns = [[row[i] for row in rows if i < len(row)] for i in range(len(heads))]
    words = [" ".join((head, *cells)).split() for head, cells in zip(heads, columns, strict=True)]
    widths = [max(map(len, column), default=0) for column in words]
    for texts in (columns, [[head] for head in heads]):
        wanted = [max(map(len, column), default=0) for column in texts]
        for i in sorted(range(len(heads)), key=lambda i: wanted[i] - widths[i]):
            spare = width - sum(widths) - 2 * (len(widths) - 1)
            widths[i] += max(0, min(spare, wanted[i] - widths[i]))
    return widths


def print_answer(result: ShortAnswer, following: str, details: Callable[[], None] | None) -> None:
    """Print an answer in short, and what to do next; or with all its details."""
    lines = result.summary()
    if details is None:
        lines.append(("Next", f"{following}; --explain shows all details"))
    print_lines(lines)
    if details is not None:
        details()


def print_lines(lines: Iterable[tuple[str, str]]) -> None:
    """Print lines of (label, text), wrapped right of their labels; in colour on terminals."""
    width, coloured = Output().width, sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for label, text in lines:
        shown = textwrap.fill(
            text,
            width,
            break_on_hyphens=False,
            initial_indent=f"{label:<{LABEL}}",
            subsequent_indent=" " * LABEL,
        )
        style = "31" if "DOES NOT FIT" in text else "33" if label == "Note" else "1"
        print(f"\033[{style}m{shown[:LABEL]}\033[0m{shown[LABEL:]}" if coloured else shown)


@contextmanager
def progress(
    noun: str = "chips", every_s: float = EVERY_S, kernels: bool = True
) -> Iterator[Callable[[str, int, int, float, float], None] | None]:
    """Show a status line on a terminal, elsewhere a log line every few seconds.

    `kernels`: also report the compilation of kernels.
    """
    if not LOG.isEnabledFor(logging.INFO):
        yield None
        return
    with _compiling() if kernels else nullcontext(str) as words:
        line = StatusLine(noun, words)
        if sys.stderr.isatty():
            from rich.console import Console

            with Console(stderr=True).status(line):
                yield line.show
            return
        ended = Event()
        ticking = Thread(target=_log, args=(line, ended, every_s), daemon=True)
        ticking.start()
        try:
            yield line.show
        finally:
            ended.set()
            ticking.join()


def _log(line: StatusLine, ended: Event, every_s: float) -> None:
    while not ended.wait(every_s):
        LOG.info(line.logged())


@contextmanager
def _compiling() -> Iterator[Callable[[], str]]:
    from atoll.base.jit import compilation  # with numba

    with compilation() as compiling:
        yield compiling.words


class StatusLine:
    """Progress of a search with the elapsed time, redrawn regularly."""

    def __init__(
        self, noun: str, compiling: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._noun, self._compiling, self._clock = noun, compiling, clock
        self._began = clock()
        self._text = "preparing"

    def show(self, phase: str, left: int, total: int, best: float, bound: float) -> None:
        """Update the text."""
        gap = ""
        if best > 0:
            gap = f", best {best:,.1f}, bound {bound:,.1f}, gap {relative_gap(best, bound):.2%}"
        self._text = f"{phase}: {left:,} of {total:,} {self._noun} left{gap}"
        LOG.debug(self.logged())

    def __rich__(self) -> Text:
        from rich.text import Text

        text = self._compiling() or self._text
        return Text(f"{text} ({self._clock() - self._began:.0f} s)")

    def logged(self) -> str:
        """Return the text as a log line, with the time first."""
        compiling = self._compiling()
        text = f"{self._text}; {compiling}" if compiling else self._text
        return f"{self._clock() - self._began:8.1f} s  {text}"


def print_bars(console: Output, parts: Mapping[str, float], total_s: float) -> None:
    for name, seconds in in_words(parts).items():
        if seconds > 5e-4 * total_s:
            share = seconds / total_s
            words = f"  {name:<19}{format_seconds(seconds):>10}  {share:6.1%}"
            console.print(f"{words}  {bar(share, _BAR)}")


def bar(share: float, width: int) -> str:
    """Return a share of a bar of `width` characters, in "#" where the output has no blocks."""
    try:
        "█".encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return "#" * max(1, round(width * share))
    return "█" * max(1, round(width * share))


def print_error_table(console: Output, what: str, groups: Mapping[str, Errors]) -> None:
    """Print errors by group; groups without rows are left out."""
    rows = []
    for name, errors in groups.items():
        if errors.rows:
            shares = errors.mean_ape, errors.median_ape, errors.p90_ape
            rows.append((name, str(errors.rows), *(f"{share:.1%}" for share in shares)))
    console.table((what, "rows", "mean", "median", "p90"), rows)


def print_skipped(console: Output, skipped: Mapping[str, int]) -> None:
    """Print the number of rows without a prediction, by reason."""
    for reason, count in skipped.items():
        console.print(f"  skipped {count}: {reason}")


def short(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
