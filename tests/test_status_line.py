"""The line on a terminal while a search runs: its clock goes on, and compilation is named."""

from __future__ import annotations

import logging
import time
from io import StringIO
from types import SimpleNamespace

import pytest
from numba import njit
from numba.core import event
from rich.console import Console

from atoll.base.jit import Compilation, compilation
from atoll.printing.console import StatusLine, progress


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
    assert (
        drawn(line)
        == "tightening: 12 of 29,360 chips left, best 90.0, bound 100.0, gap 10.00% (31 s)"
    )


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
    roofline = bound_kernels.roofline.compiled
    for dispatcher in (roofline, roofline, njit(lambda x: x)):
        watch.on_start(SimpleNamespace(data={"dispatcher": dispatcher}))
    assert watch.words().startswith("compiling kernels, only once: 1 of at most ")


def test_on_a_pipe_the_log_has_a_line_every_few_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "atoll"), progress("chips", every_s=0.01) as show:
        assert show is not None
        show("tightening", 12, 29_360, 90.0, 100.0)
        while not caplog.messages:
            time.sleep(0.01)
    assert "tightening: 12 of 29,360 chips left, best 90.0, bound 100.0" in caplog.messages[-1]


def test_a_quiet_command_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "atoll"), progress("chips") as show:
        assert show is None


def test_a_verbose_command_says_every_step(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "atoll"), progress("chips") as show:
        assert show is not None
        show("bounding", 3, 4, 0.0, 1e9)
        show("tightening", 2, 4, 1.0, 2.0)
    assert [m.split(" s  ")[1].partition(":")[0] for m in caplog.messages] == [
        "bounding",
        "tightening",
    ]
