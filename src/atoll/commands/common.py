"""Functions shared by commands."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from atoll.base.stopping import Stop
from atoll.base.streams import say
from atoll.printing.console import progress

if TYPE_CHECKING:
    from pydantic import JsonValue

    from atoll.driver import Progress

INTERRUPTED = 130
"""Exit code of a process that Ctrl-C ended."""
SIGNALLED = tuple(
    128 + getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Exit codes of processes that these signals ended."""


@contextmanager
def leave_when_interrupted() -> Iterator[None]:
    """Exit at once on Ctrl-C, for libraries that cannot handle an exception.

    An exception in Python code called by torch's destructors would abort the process. The block
    must not leave partial output.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        say("interrupted")
        os._exit(INTERRUPTED)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interruptible(
    began: float, noun: str, kernels: bool = True
) -> Iterator[tuple[Stop, Progress | None]]:
    """Yield the stop condition and the progress callback of a search.

    `began`: start of the command by the monotonic clock, from which its time limit counts.
    """
    stop = Stop(began=began)
    try:
        with stop.on_interrupt(), progress(noun, kernels=kernels) as show:
            yield stop, show
    except KeyboardInterrupt:  # before there is an answer
        if stop.signal in (0, signal.SIGINT):
            raise
        name = signal.Signals(stop.signal).name
        say(f"ended by {name} before there was an answer")
        raise typer.Exit(128 + stop.signal) from None


def leave_if_interrupted(stop: Stop, out: Path | None) -> None:
    """Exit with the code of the signal that ended a search, after its answer was printed."""
    if stop.interrupted:
        again = "" if out is None else "; the same command continues"
        say(f"interrupted{again}")
        raise typer.Exit(128 + stop.signal)


def print_json(value: Mapping[str, JsonValue]) -> None:
    """Print one JSON object."""
    json.dump(value, sys.stdout, indent=1, allow_nan=False)
    sys.stdout.write("\n")


def swept(question: Any, as_json: bool) -> bool:
    """Answer a question with a sweep; return whether it has one."""
    if not question.sweep:
        return False
    from atoll.printing.tables import print_sweep
    from atoll.several import sweep

    answer(sweep(question), as_json, partial(print_sweep, folder=question.out))
    return True


def answer(value: Any, as_json: bool, show: Callable[[Any], None]) -> None:
    """Print an answer as JSON or as text."""
    if as_json:
        print_json(value if isinstance(value, dict) else value.to_dict())
    else:
        show(value)
