"""Interface of executors, shaped like `concurrent.futures`.

An executor is started with a context, which every worker holds from then on; `submit(task, *args)`
returns a future of `task(context, *args)`. Tasks are pure: running one twice does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

Task = Callable[..., Any]  # A module-level function whose first argument is the context


class LostWorkerError(Exception):
    """A worker died with a task: the task may be submitted again."""


class Executor(Protocol):
    """Runs the tasks of a search."""

    @property
    def workers(self) -> int:
        """Number of concurrent tasks; 1 if they run in this process."""

    @property
    def in_process(self) -> bool:
        """Whether tasks run in this process, when their result is requested."""

    def start(self, context: Any) -> None:
        """Send the context of the tasks to every worker, also to later ones."""

    def submit(self, task: Task, *args: Any) -> Future[Any]:
        """Start a task; its future fails with `LostWorkerError` if its worker dies."""

    def consider(self) -> None:
        """Grow if the work takes long; called between pieces of work."""

    def tend(self) -> None:
        """Replace stopped workers while results are awaited; AtollError if none can work."""

    def describe(self) -> str:
        """Return in words what runs where."""

    def close(self) -> None:
        """Stop the workers; tasks that have not started are dropped."""


class InProcess:
    """Runs tasks in this process, one after the other, each with all kernel threads."""

    workers = 1
    in_process = True

    def __init__(self) -> None:
        self._context: Any = None

    def start(self, context: Any) -> None:
        self._context = context

    def submit(self, task: Task, *args: Any) -> Future[Any]:
        return _OnDemand(task, (self._context, *args))

    def consider(self) -> None:
        """Never grows."""

    def tend(self) -> None:
        """Nothing to replace."""

    def describe(self) -> str:
        return "in this process"

    def close(self) -> None:
        self._context = None


class _OnDemand(Future[Any]):
    """A future whose task runs when its result is requested."""

    def __init__(self, task: Task, args: tuple[Any, ...]) -> None:
        super().__init__()
        self._call: tuple[Task, tuple[Any, ...]] | None = (task, args)

    def result(self, timeout: float | None = None) -> Any:
        if self._call is not None:
            task, args = self._call
            self._call = None
            self.set_result(task(*args))
        return super().result(timeout)
