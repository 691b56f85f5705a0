"""How work that takes long is asked to end: by a question that it puts between its pieces.

Compiled code cannot ask, and Python hears no signal while its main thread is in it: `watched` runs
it in a thread of its own, asks meanwhile, and halts it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from math import inf
from types import FrameType
from typing import Any, TypeVar

_WAKE_S = 0.05

Result = TypeVar("Result")
Asked = Callable[[], bool]
"""True once the work has to end."""


class StoppedError(Exception):
    """The work was asked to end before it was done; what it had so far is dropped."""


def never() -> bool:
    return False


def go_on(stop: Asked) -> None:
    """Raise where the work has to end."""
    if stop():
        raise StoppedError


def watched(run: Callable[[], Result], halt: Callable[[], object], stop: Asked) -> Result:
    """The result of `run`, which releases the interpreter's lock and ends soon after `halt`."""
    if stop is never:
        return run()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run)
        try:
            while wait([future], timeout=_WAKE_S).not_done:
                go_on(stop)
        finally:
            while not future.done():  # it may not have begun when it is halted first
                halt()
                wait([future], timeout=_WAKE_S)
        return future.result()


class Stop:
    """Asked between pieces of work: `stop()` is true once the search has to end."""

    def __init__(self, time_limit_s: float = inf, began: float | None = None) -> None:
        self._began = time.monotonic() if began is None else began
        self._deadline = self._began + time_limit_s
        self.signal = 0
        """The signal that asked, if one did."""

    @property
    def interrupted(self) -> bool:
        return self.signal != 0

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process, whose clock may be another one, it never asks: the driver does."""
        return Stop, ()

    def limit(self, time_limit_s: float) -> None:
        """End at the latest so long after this was made: for a command, after it began."""
        self._deadline = min(self._deadline, self._began + time_limit_s)

    def __call__(self) -> bool:
        return self.interrupted or time.monotonic() > self._deadline

    @property
    def reason(self) -> str:
        """Why the search ended early; empty if it need not."""
        if self.interrupted:
            return "interrupted"
        return "time limit" if self() else ""

    @contextmanager
    def on_interrupt(self) -> Iterator[None]:
        """The first Ctrl-C or termination signal ends the search with what is known so far; a
        second one ends the process."""

        def ask(number: int, frame: FrameType | None) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.signal = number

        before = {name: signal.signal(name, ask) for name in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)
