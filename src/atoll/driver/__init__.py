"""What all searches have in common: a folder, workers, limits and result files.

A problem defines its identity, how it is solved, and the files of its answer; the driver provides
executor, store and limits. So every search continues after it was killed, can be spread over
processes or a cluster, and ends early with the best so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from atoll.base.errors import AtollError
from atoll.base.identity import this_code
from atoll.base.stopping import Stop, StoppedError
from atoll.executors import Executor, PieceRunner, Task, choose_executor
from atoll.files.atomic_file import check_folder, write_folder
from atoll.step.certificate import Certificate

if TYPE_CHECKING:
    from pydantic import JsonValue

    from atoll.answers.designs import Identity
    from atoll.store import RunStore

Progress = Callable[[str, int, int, float, float], None]
"""Called with the phase, items left, items in total, the best score and the bound."""


class CertifiedAnswer(Protocol):
    """An answer with its certificate."""

    @property
    def certificate(self) -> Certificate: ...

    @property
    def ended_early(self) -> bool:
        """Whether a later run of the same search could complete it."""

    def to_dict(self) -> dict[str, JsonValue]: ...


A = TypeVar("A", bound=CertifiedAnswer)


@dataclass(frozen=True)
class ExecutionOptions:
    """Where a search runs and what it stores."""

    out: Path | None = None  # result folder, from which an interrupted search continues
    workers: int | None = None
    cluster: str | None = None  # neither workers nor cluster changes the answer
    grows: bool = False  # whether processes are started by default once the search takes long


@dataclass(frozen=True)
class SearchRuntime:
    """Executor, limits and store with which a problem is solved."""

    executor: Executor
    stop: Stop
    began: float
    listener: Progress | None
    store: RunStore | None

    @property
    def plain(self) -> bool:
        """Whether everything is computed in this process and nothing is stored."""
        return self.store is None and self.executor.in_process

    @property
    def progress(self) -> Progress | None:
        """Receiver of progress: the listener and the store."""
        return self.listener if self.store is None else self._tell

    def _tell(self, phase: str, left: int, total: int, score: float, bound: float) -> None:
        if self.listener is not None:
            self.listener(phase, left, total, score, bound)
        assert self.store is not None
        self.store.report_progress(phase, left, total, None, score, bound)

    def pieces(self, task: Task, context: Any) -> PieceRunner:
        """Return the pieces of the search: recorded, running in a worker, or computed here."""
        return PieceRunner(task, context, self.store, self.executor, self.stop)


class PreparedProblem(Protocol[A]):
    """A prepared question."""

    def identity(self) -> Identity:
        """Return what its records depend on; a folder has a single identity."""

    def solve(self, runtime: SearchRuntime) -> A:
        """Return the answer, or the best so far when stopped; `StoppedError` without one."""

    def files(self, answer: A) -> Mapping[str, str]:
        """Return the contents of the result files by name."""


def drive(
    prepare: Callable[[Stop], PreparedProblem[A]],
    options: ExecutionOptions,
    stop: Stop | None,
    time_limit_s: float,
    progress: Progress | None,
    first: str,
) -> A:
    """Answer a question; `first` names the step before which it cannot end with an answer."""
    began = time.monotonic()
    stop = stop or Stop()
    stop.limit(time_limit_s)
    if options.out is not None:
        check_folder(options.out)
    with _nothing_before(first, stop):
        problem = prepare(stop)
        with _executor(options, stop) as executor:
            if options.out is None:
                return problem.solve(SearchRuntime(executor, stop, began, progress, None))
            from atoll.store import open_store

            identity = {**problem.identity(), **this_code()}
            with open_store(options.out, identity, executor.describe()) as store:
                answer = problem.solve(SearchRuntime(executor, stop, began, progress, store))
                write_folder(options.out, problem.files(answer))
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
def _executor(options: ExecutionOptions, stop: Stop) -> Iterator[Executor]:
    """Start the executor; kernels in this process get as many threads as workers."""
    in_process = options.workers is None and options.cluster is None and not options.grows
    workers = 0 if in_process else options.workers
    with closing(choose_executor(workers, options.cluster, stop)) as executor:
        if not options.workers:
            yield executor
            return
        from atoll.executors.threads import set_threads

        before = set_threads(options.workers)
        try:
            yield executor
        finally:
            set_threads(before)
