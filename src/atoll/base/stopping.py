"""Early end of long work, which checks a stop condition between its pieces.

Compiled code cannot check it, and Python handles no signal while its main thread runs such code:
`watched` runs it in a thread, checks meanwhile, and halts it.
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
REPEATED_S = 1.0
"""Signals within this time of the first are the same request: `timeout` and shells send a signal
to the process and then to its group."""

Result = TypeVar("Result")
StopCheck = Callable[[], bool]
"""True once the work has to end."""


class StoppedError(Exception):
    """The work was stopped before it was done; its partial result is dropped."""


def never() -> bool:
    return False


def check_stop(stop: StopCheck) -> None:
    """Raise StoppedError if the work has to end."""
    if stop():
        raise StoppedError


def watched(run: Callable[[], Result], halt: Callable[[], object], stop: StopCheck) -> Result:
    """Return `run()`, which releases the interpreter's lock and ends soon after `halt`."""
    if stop is never:
        return run()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run)
        try:
            while wait([future], timeout=_WAKE_S).not_done:
                check_stop(stop)
        finally:
            while not future.done():  # the first halt may come before its start
                halt()
                wait([future], timeout=_WAKE_S)
        return future.result()


class Stop:
    """Stop condition: `stop()` is true once the search has to end."""

    def __init__(self, time_limit_s: float = inf, began: float | None = None) -> None:
        self._began = time.monotonic() if began is None else began
        self._deadline = self._began + time_limit_s
        self.signal = 0
        """Number of the signal that stopped it, or 0."""

    @property
    def interrupted(self) -> bool:
        return self.signal != 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a Stop that never stops: only the driver's clock counts."""
        return Stop, ()

    def limit(self, time_limit_s: float) -> None:
        """Set a time limit, counted from the start of the command."""
        self._deadline = min(self._deadline, self._began + time_limit_s)

    def __call__(self) -> bool:
        return self.interrupted or time.monotonic() > self._deadline

    @property
    def reason(self) -> str:
        """Reason of the early end; empty if there is none."""
        if self.interrupted:
            return "interrupted"
        return "time limit" if self() else ""

    @contextmanager
    def on_interrupt(self) -> Iterator[None]:
        """Stop on the first Ctrl-C, SIGTERM or SIGHUP; a later one ends the process."""
        first_s = inf

        def ask(number: int, frame: FrameType | None) -> None:
            nonlocal first_s
            if time.monotonic() - first_s > REPEATED_S:
                raise KeyboardInterrupt
            if not self.interrupted:
                self.signal, first_s = number, time.monotonic()

        names = [signal.SIGINT, signal.SIGTERM]
        has_hangup = hasattr(signal, "SIGHUP")  # which Windows has not, and nohup ignores
        if has_hangup and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            names.append(signal.SIGHUP)
        before = {name: signal.signal(name, ask) for name in names}
        try:
            yield
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)
