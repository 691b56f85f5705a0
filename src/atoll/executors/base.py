"""The one small interface behind which tasks run, shaped like `concurrent.futures`.

An executor is started with a context, which every worker holds from then on; `submit(task, *args)`
returns a future of `task(context, *args)`. Tasks are pure: running one twice does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

Task = Callable[..., Any]
"""A module-level function whose first argument is the context."""


class LostWorkerError(Exception):
    """A worker died with a task: the task may be submitted again."""


class Executor(Protocol):
    """What a search needs of the machinery that runs its tasks."""

    @property
    def workers(self) -> int:
        """Tasks that run at once; 1 where they run in this process."""

    @property
    def in_process(self) -> bool:
        """Whether tasks run in this process, when their result is asked for."""

    def start(self, context: Any) -> None:
        """Give every worker, also those that come later, the context of the tasks."""

    def submit(self, task: Task, *args: Any) -> Future[Any]:
        """Begin a task. A future fails with `LostWorkerError` when its worker died."""

    def consider(self) -> None:
        """Between pieces of work: one that grows with the work may do so now."""

    def tend(self) -> None:
        """While results are awaited: replace workers that cannot go on; an `AtollError` where
        nobody can.
        """

    def describe(self) -> str:
        """In a few words: what runs where."""

    def close(self) -> None:
        """Let the workers go; tasks that have not begun are dropped."""


class InProcess:
    """Tasks run here, one after the other, each with all threads that kernels may use."""

    workers = 1
    in_process = True

    def __init__(self) -> None:
        self._context: Any = None

    def start(self, context: Any) -> None:
        self._context = context

    def submit(self, task: Task, *args: Any) -> Future[Any]:
        return _OnDemand(task, (self._context, *args))

    def consider(self) -> None:
        """It stays alone."""

    def tend(self) -> None:
        """Nothing is awaited."""

    def describe(self) -> str:
        return "in this process"

    def close(self) -> None:
        self._context = None


class _OnDemand(Future[Any]):
    """A future whose task runs when its result is asked for: nothing is computed in vain."""

    def __init__(self, task: Task, args: tuple[Any, ...]) -> None:
        super().__init__()
        self._call: tuple[Task, tuple[Any, ...]] | None = (task, args)

    def result(self, timeout: float | None = None) -> Any:
        if self._call is not None:
            task, args = self._call
            self._call = None
            self.set_result(task(*args))
        return super().result(timeout)
