"""What every search has in common: a folder that keeps it, workers, limits, files in the end.

A problem says what its records depend on, how it is solved, and which files its answer makes; the
driver gives it a desk with all that it may need. So each of them continues after it was killed, may
be spread over processes or a cluster, and ends early with what it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from atoll.errors import AtollError
from atoll.executors import Executor, Pieces, Task, choose_executor
from atoll.files.wholefile import check_folder, write_folder
from atoll.identity import this_code
from atoll.step.certificate import Certificate
from atoll.stopping import Stop, StoppedError

if TYPE_CHECKING:
    from pydantic import JsonValue

    from atoll.answers.designs import Identity
    from atoll.store import RunStore

Progress = Callable[[str, int, int, float, float], None]
"""Told of the phase, how many are left of how many, the best score and the bound."""


class Answer(Protocol):
    """What a search found."""

    @property
    def certificate(self) -> Certificate: ...

    @property
    def ended_early(self) -> bool:
        """Whether some of it is left to a later run of the same search."""

    def to_dict(self) -> dict[str, JsonValue]: ...


A = TypeVar("A", bound=Answer)


@dataclass(frozen=True)
class Means:
    """Where a search works, and what it keeps."""

    out: Path | None = None
    """The folder: with it, a search that was interrupted continues."""
    workers: int | None = None
    cluster: str | None = None
    """They do not change the answer."""
    grows: bool = False
    """Whether processes are started without being asked for, once the work turns out to be long."""


@dataclass(frozen=True)
class Desk:
    """What a problem is solved with."""

    executor: Executor
    stop: Stop
    began: float
    listener: Progress | None
    store: RunStore | None

    @property
    def plain(self) -> bool:
        """Whether all is computed here, and nothing kept."""
        return self.store is None and self.executor.in_process

    @property
    def progress(self) -> Progress | None:
        """Who is told how far the search is: whoever listens, and the store."""
        return self.listener if self.store is None else self._tell

    def _tell(self, phase: str, left: int, total: int, score: float, bound: float) -> None:
        if self.listener is not None:
            self.listener(phase, left, total, score, bound)
        assert self.store is not None
        self.store.tell(phase, left, total, None, score, bound)

    def pieces(self, task: Task, context: Any) -> Pieces:
        """The pieces of the search: on record, under way in a worker, or computed here."""
        return Pieces(task, context, self.store, self.executor, self.stop)


class Problem(Protocol[A]):
    """A question that is ready to be answered."""

    def identity(self) -> Identity:
        """What its records depend on: a folder belongs to one such question."""

    def solve(self, desk: Desk) -> A:
        """The answer, or the best so far where it has to end; `StoppedError` without one."""

    def files(self, answer: A) -> Mapping[str, str]:
        """What the folder holds in the end, by file name."""


def drive(
    prepare: Callable[[Stop], Problem[A]],
    means: Means,
    stop: Stop | None,
    time_limit_s: float,
    progress: Progress | None,
    first: str,
) -> A:
    """Answer a question; `first`: what there was not yet where it has to end without an answer."""
    began = time.monotonic()
    stop = stop or Stop()
    stop.limit(time_limit_s)
    if means.out is not None:
        check_folder(means.out)
    with _nothing_before(first, stop):
        problem = prepare(stop)
        with _executor(means, stop) as executor:
            if means.out is None:
                return problem.solve(Desk(executor, stop, began, progress, None))
            from atoll.store import opened

            identity = {**problem.identity(), **this_code()}
            with opened(means.out, identity, executor.describe()) as store:
                answer = problem.solve(Desk(executor, stop, began, progress, store))
                write_folder(means.out, problem.files(answer))
                store.end(answer.to_dict(), answer.certificate, answer.ended_early)
                return answer


@contextmanager
def _nothing_before(first: str, stop: Stop) -> Iterator[None]:
    try:
        yield
    except StoppedError:
        if stop.interrupted:
            raise KeyboardInterrupt from None
        raise AtollError(
            f"job: the search ended ({stop.reason}) before {first}; give it more time."
        ) from None


@contextmanager
def _executor(means: Means, stop: Stop) -> Iterator[Executor]:
    """Where tasks run; kernels called here have as many threads as there are workers."""
    alone = means.workers is None and means.cluster is None and not means.grows
    executor = choose_executor(0 if alone else means.workers, means.cluster, stop)
    try:
        if not means.workers:
            yield executor
            return
        from atoll.executors.threads import set_threads

        before = set_threads(means.workers)
        try:
            yield executor
        finally:
            set_threads(before)
    finally:
        executor.close()
