"""What every command shares."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED = 130
"""What a shell reports of a process that Ctrl-C ended."""


def say_interrupted() -> None:
    print("atoll: interrupted", file=sys.stderr, flush=True)


@contextmanager
def leave_when_interrupted() -> Iterator[None]:
    """Ctrl-C ends the process where it stands, for work in libraries that cannot take an exception.

    An exception that is raised in Python code called from torch's destructors has nowhere to go:
    the process would abort. Nothing may be half done meanwhile.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        say_interrupted()
        os._exit(INTERRUPTED)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears signals
        return
    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on standard output."""
    json.dump(value, sys.stdout, indent=1, allow_nan=False)
    sys.stdout.write("\n")


def answer(value: Any, as_json: bool, show: Callable[[Any], None]) -> None:
    """An answer as JSON, or as people read it."""
    if as_json:
        print_json(value if isinstance(value, Mapping) else value.to_dict())
    else:
        show(value)
