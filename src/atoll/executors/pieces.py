"""Pieces of a deterministic search: recorded, in flight in a worker, or computed here.

A search requests its pieces in the order of one process. Each is a pure task with a unique name and
plain JSON data as its result, so that results do not depend on restarts or on prefetching.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Protocol

from atoll.base.stopping import StopCheck, StoppedError, check_stop, never
from atoll.executors.base import Executor, InProcess, Task
from atoll.executors.crew import Crew, TaskCall

LONGEST = 40
"""Characters of a name before its hash."""


class Notes(Protocol):
    """Storage of small results by name (`store.RunStore`)."""

    def note(self, key: str) -> Any: ...

    def put_note(self, key: str, value: Any) -> None: ...


class PieceRunner:
    """Pieces of one search with the same task and context."""

    def __init__(
        self, task: Task, context: Any, notes: Notes | None = None,
        executor: Executor | None = None, stop: StopCheck = never,
    ) -> None:  # fmt: skip
        self._task, self._context, self._notes, self._stop = task, context, notes, stop
        self._crew = Crew(executor or InProcess(), stop)
        self._crew.executor.start(context)
        self._sent: dict[str, TaskCall] = {}

    def ask(self, *args: Any, keep: bool = True) -> Any:
        """Return `task(context, *args)`; with `keep` the result is JSON and recorded."""
        name = _name(args)
        notes = self._notes if keep else None
        record = None if notes is None else notes.note(name)
        if record is not None:
            return record["value"]
        check_stop(self._stop)
        self._crew.executor.consider()
        call = self._sent.pop(name, None)
        if call is None:
            value = self._task(self._context, *args)
        elif (boxed := self._crew.result(call)) is None:
            raise StoppedError
        else:
            value = boxed[0]
        if notes is not None:
            notes.put_note(name, {"value": value})
        return value

    def prefetch(self, calls: Iterable[tuple[Any, ...]]) -> None:
        """Start pieces that may be requested soon, if workers are idle."""
        if self._crew.executor.in_process:
            return
        source = iter(calls)
        while self._crew.in_flight(self._sent.values()) < self._crew.capacity:
            args = next(source, None)
            if args is None:
                return
            name = _name(args)
            if name not in self._sent and not self._on_record(name):
                self._sent[name] = self._crew.send(TaskCall(_boxed, (self._task, *args)))

    def _on_record(self, name: str) -> bool:
        return self._notes is not None and self._notes.note(name) is not None


def _boxed(context: Any, task: Task, *args: Any) -> tuple[Any]:
    """Return the result in a tuple, as None means that the crew was stopped."""
    return (task(context, *args),)


def _name(args: tuple[Any, ...]) -> str:
    """Return the name of a call; long ones end in a hash."""
    words = " ".join(str(arg) for arg in args)
    if len(words) <= LONGEST:
        return words
    return f"{words[:LONGEST]} {hashlib.blake2b(words.encode(), digest_size=16).hexdigest()}"
