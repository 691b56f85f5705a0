"""How work that takes long is asked to end: by a question that it puts between its pieces.

Compiled code cannot ask, and Python hears no signal while its main thread is in it: `watched` runs
it in a thread of its own, asks meanwhile, and halts it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

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
