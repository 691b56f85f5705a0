"""When a search has to end early: its time is up, or the user asked."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from types import FrameType
from typing import Any


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
