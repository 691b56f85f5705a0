"""The line on a terminal while a search runs: its clock goes on, and compilation is named."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace

from numba import njit
from numba.core import event
from rich.console import Console

from atoll.jit import Compilation, compilation
from atoll.printing.console import StatusLine


def drawn(line: StatusLine) -> str:
    console = Console(width=120, record=True, file=StringIO())
    console.print(line)
    return console.export_text().strip()


def test_the_clock_goes_on_between_two_reports() -> None:
    now = [100.0]
    line = StatusLine("chips", lambda: "", lambda: now[0])
    assert drawn(line) == "preparing (0 s)"
    line.show("bounding", 29_360, 29_360, 0.0, 1e9)
    now[0] = 105.0
    assert drawn(line) == "bounding: 29,360 of 29,360 chips left (5 s)"
    now[0] = 131.0
    assert drawn(line) == "bounding: 29,360 of 29,360 chips left (31 s)"
    line.show("tightening", 12, 29_360, 90.0, 100.0)
    assert drawn(line) == "tightening: 12 of 29,360 chips left, best 90.0, gap 10.00% (31 s)"


def test_the_line_says_that_kernels_are_compiled_and_how_many_are_left() -> None:
    seen: list[str] = []

    class Spy(event.Listener):
        def on_start(self, event: object) -> None:
            line = StatusLine("chips", watch.words, lambda: 0.0)
            line.show("bounding", 29_360, 29_360, 0.0, 1e9)
            seen.append(drawn(line))

        def on_end(self, event: object) -> None:
            pass

    with compilation() as watch:
        assert watch.words() == ""
        with event.install_listener("numba:compile", Spy()):
            njit(lambda x: x + 1)(1)
        assert watch.words() == "", "done"
    assert seen and seen[0].startswith("compiling kernels, only once: ")


def test_kernels_are_counted_once_and_other_functions_not() -> None:
    from atoll.explore.pricing import bound_kernels

    watch = Compilation()
    for dispatcher in (bound_kernels.roofline, bound_kernels.roofline, njit(lambda x: x)):
        watch.on_start(SimpleNamespace(data={"dispatcher": dispatcher}))
    assert watch.words().startswith("compiling kernels, only once: 1 of at most ")
