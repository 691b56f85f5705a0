"""Sends calls to an executor: bounded number in flight, lost ones sent again, any order.

The bound on calls in flight bounds memory for lists of any length. A crew stops early on request.

Pieces of a deterministic search are recorded, in flight in a worker, or computed here. A search
requests them in the order of one process. Each is a pure task with a unique name and plain JSON
data as its result, so that results do not depend on restarts or on prefetching.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass
from typing import Any, Protocol

from atoll.base.errors import AtollError
from atoll.base.stopping import StopCheck, StoppedError, check_stop, never
from atoll.executors.base import Executor, InProcess, LostWorkerError, Task

ATTEMPTS = 5
CALLS_PER_WORKER = 2  # tasks in flight per worker: one runs, one waits
_WAKE_S = 0.2


@dataclass(eq=False)
class TaskCall:
    """One task, sent at most `ATTEMPTS` times."""

    task: Task
    args: tuple[Any, ...]
    tag: Any = None
    future: Future[Any] | None = None
    attempts: int = 0


class Crew:
    """Sends calls to an executor and gives their results back."""

    def __init__(self, executor: Executor, stop: Callable[[], bool] = lambda: False) -> None:
        self.executor = executor
        self.stop = stop
        self.retried = 0

    @property
    def capacity(self) -> int:
        """Largest useful number of calls in flight."""
        return 1 if self.executor.in_process else CALLS_PER_WORKER * self.executor.workers

    def send(self, call: TaskCall) -> TaskCall:
        """Start a call."""
        if call.attempts >= ATTEMPTS:
            raise AtollError(
                f"{self.executor.describe()}: a worker died {ATTEMPTS} times with the same task; "
                "give it more memory, or run with fewer workers."
            )
        call.attempts += 1
        call.future = self.executor.submit(call.task, *call.args)
        return call

    def result(self, call: TaskCall) -> Any:
        """Wait for one call; None if stopped before it is done."""
        if call.future is None:
            self.send(call)
        while True:
            assert call.future is not None
            if not self.executor.in_process:
                wait([call.future], timeout=_WAKE_S)
                if not call.future.done():
                    if self.stop():
                        return None
                    self.executor.tend()
                    continue
            try:
                return call.future.result()
            except StoppedError:
                return None
            except (LostWorkerError, CancelledError):
                self.retried += 1
                self.send(call)

    def results(self, calls: Iterable[TaskCall]) -> Iterator[tuple[TaskCall, Any]]:
        """Yield results as they arrive, with a bounded number of calls in flight.

        Ends early when stopped: calls in flight are dropped.
        """
        waiting: dict[Future[Any], TaskCall] = {}
        source = iter(calls)
        while True:
            while len(waiting) < self.capacity and not self.stop():
                next_call = next(source, None)
                if next_call is None:
                    break
                waiting[self._sent(next_call)] = next_call
            if self.stop():
                self.drop(waiting.values())
                return
            if not waiting:
                return
            for future in self._done(waiting):
                call = waiting.pop(future)
                try:
                    value = future.result()
                except (LostWorkerError, CancelledError):
                    self.retried += 1
                    waiting[self._sent(call)] = call
                    continue
                yield call, value

    def _sent(self, call: TaskCall) -> Future[Any]:
        future = self.send(call).future
        assert future is not None
        return future

    def _done(self, waiting: dict[Future[Any], TaskCall]) -> list[Future[Any]]:
        if self.executor.in_process:
            return [next(iter(waiting))]
        done, _ = wait(waiting, timeout=_WAKE_S, return_when=FIRST_COMPLETED)
        if not done:
            self.executor.tend()
        return list(done)

    def in_flight(self, calls: Iterable[TaskCall]) -> int:
        """Return how many of these calls are in flight."""
        return sum(call.future is not None and not call.future.done() for call in calls)

    def drop(self, calls: Iterable[TaskCall]) -> None:
        """Cancel calls."""
        for call in calls:
            if call.future is not None:
                call.future.cancel()


# --- Pieces of a search ---------------------------------------------------------------------------


LONGEST = 40  # characters of a name before its hash


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
