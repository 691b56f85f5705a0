"""A forked copy of this process, which uses a second core for work of about 10 ms.

A process pool takes 0.1 s to start and stop. A copy has all imports and data of this process, and
is killed when it is no longer needed. Results are the same with and without one.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import pickle
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from atoll.base.stopping import StopCheck, check_stop, never

_WAKE_S = 0.05
_LOOKS, _LOOK_S = 3, 0.001
_LENGTH = 8  # bytes of the length prefix of a result
_PARENT_DIED = 1  # PR_SET_PDEATHSIG of Linux: signal on the death of the parent


def shared_zeros(*shape: int) -> NDArray[np.float32]:
    """Return an array shared with forked copies of this process."""
    size = int(np.prod(shape)) * 4
    return np.frombuffer(mmap.mmap(-1, max(size, 1)), np.float32, size // 4).reshape(shape)


def from_both_ends(fill: Callable[[int], None], count: int) -> Iterator[int]:
    """Call `fill(0)` to `fill(count - 1)`, which write into shared arrays only: here from the
    beginning, in a copy from the end. Yields each number before it is called here.
    """
    copy = _forked(lambda out, _: _backwards(fill, count, out)) if count > 1 else None
    try:
        done = 0
        for number in range(count):
            if copy is not None:
                done += copy.written_bytes(wait=done == count - 1 - number)
                if done >= count - number:
                    return
            yield number
            fill(number)
    finally:
        if copy is not None:
            copy.end()


def _backwards(fill: Callable[[int], None], count: int, results: IO[bytes]) -> None:
    for number in reversed(range(count)):
        fill(number)
        results.write(b".")
        results.flush()


class Pairs:
    """Makes two calls at a time, one of them in a copy forked at the first pair."""

    def __init__(
        self, call: Callable[..., Any], subject: Callable[..., Hashable], use_copy: bool
    ) -> None:
        self._call, self._subject = call, subject
        self._copy: _Copy | None = None
        self._copied_subjects: set[Hashable] = set()
        """Subjects of calls that the copy made and has cached."""
        self._use_copy = use_copy
        """Whether a copy is worth it."""

    def results(self, pair: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the results of one or two calls."""
        if len(pair) == 2 and self._use_copy and self._copy is None:
            self._copy = _forked(self._answers)
            self._use_copy = self._copy is not None
        if len(pair) < 2 or self._copy is None:
            return [self._call(*args) for args in pair]
        first, second = (self._subject(*args) for args in pair)
        order = 1 if first not in self._copied_subjects or second in self._copied_subjects else -1
        self._copied_subjects.add((first, second)[order])
        local_args, copy_args = pair[::order]
        self._copy.ask(copy_args)
        local_result = self._call(*local_args)
        copy_result = self._copy.answer()
        if copy_result is None:  # it died
            self.close()
            self._use_copy = False
            copy_result = self._call(*copy_args)
        return [local_result, copy_result][::order]

    def close(self) -> None:
        if self._copy is not None:
            self._copy.end()
            self._copy = None

    def _answers(self, results: IO[bytes], requests: IO[bytes]) -> None:
        while True:
            pickle.dump(self._call(*pickle.load(requests)), results, pickle.HIGHEST_PROTOCOL)
            results.flush()


class Lookahead:
    """Pure calls with plain data; a copy of this process makes upcoming calls in order, while this
    process makes others.
    """

    def __init__(self, call: Callable[..., Any], stop: StopCheck = never) -> None:
        self._call, self._stop = call, stop
        self._results: dict[str, Any] = {}
        """Results by call, computed before they were requested."""
        self._upcoming: list[tuple[Any, ...]] = []
        self._copy: _Copy | None = None
        self._assigned: list[tuple[Any, ...]] = []
        """Calls that the copy has not finished; it works on the first."""
        self._received = bytearray()

    def prefetch(self, calls: Iterable[tuple[Any, ...]]) -> None:
        """Replace the upcoming calls: the copy starts with them at the next call here, and ends
        if there are none.
        """
        self._upcoming = list(calls)
        if not self._upcoming:
            self.close()

    def ask(self, *args: Any) -> Any:
        name = repr(args)
        self._receive()
        # While the copy makes this call, this process makes another one.
        while self._assigned and self._assigned[0] == args:
            check_stop(self._stop)
            remaining = self._left(args)
            has_spare = len(remaining) > 1  # the copy takes the next one
            if has_spare:
                self._results[repr(remaining[-1])] = self._call(*remaining[-1])
            self._receive(0.0 if has_spare else _WAKE_S)
        if name in self._results:
            return self._results[name]
        self._upcoming = self._left(args)
        self._begin(list(self._upcoming))
        return self._call(*args)

    def _left(self, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Return the upcoming calls other than this one that have no result."""
        return [call for call in self._upcoming if call != args and repr(call) not in self._results]

    def _begin(self, calls: list[tuple[Any, ...]]) -> None:
        """Let a copy make these calls, unless it is working on one of them."""
        if not self._assigned or self._assigned[0] not in calls:
            self.close()
            self._copy = _forked(lambda out, _: self._make(calls, out)) if calls else None
            self._assigned = calls if self._copy is not None else []

    def close(self) -> None:
        if self._copy is not None:
            self._copy.end()
        self._copy, self._assigned = None, []
        self._received.clear()

    def _make(self, calls: Sequence[tuple[Any, ...]], results: IO[bytes]) -> None:
        for call in calls:
            result = pickle.dumps(self._call(*call), pickle.HIGHEST_PROTOCOL)
            results.write(len(result).to_bytes(_LENGTH) + result)
            results.flush()

    def _receive(self, wait_s: float = 0.0) -> None:
        """Read the results that the copy has written; if it died, this process makes its calls."""
        while self._copy is not None and self._assigned:
            received = self._copy.received(wait_s)
            if received is None:
                return
            if not received:  # it died
                self.close()
                return
            self._received += received
            while len(self._received) >= _LENGTH:
                end = _LENGTH + int.from_bytes(self._received[:_LENGTH])
                if len(self._received) < end:
                    break
                content = self._received[_LENGTH:end]
                self._results[repr(self._assigned.pop(0))] = pickle.loads(content)
                del self._received[:end]
            wait_s = 0.0


class _Copy:
    """A copy of this process, with pipes to and from it."""

    def __init__(self, pid: int, results: IO[bytes], requests: IO[bytes]) -> None:
        self._pid, self._results, self._requests = pid, results, requests

    def written_bytes(self, wait: bool) -> int:
        """Return the number of bytes written since the last call; 0 if it died."""
        os.set_blocking(self._results.fileno(), wait)
        with suppress(BlockingIOError):
            return len(os.read(self._results.fileno(), 4096))
        return 0

    def received(self, wait_s: float) -> bytes | None:
        """Return new bytes, None if there are none within `wait_s`; empty if it died."""
        number = self._results.fileno()
        return os.read(number, 1 << 16) if select.select([number], [], [], wait_s)[0] else None

    def ask(self, request: tuple[Any, ...]) -> None:
        with suppress(BrokenPipeError):  # it died: there is no answer
            pickle.dump(request, self._requests, pickle.HIGHEST_PROTOCOL)
            self._requests.flush()

    def answer(self) -> Any:
        """Return the result; None if the copy died."""
        try:
            return pickle.load(self._results)
        except (EOFError, pickle.UnpicklingError):
            return None

    def end(self) -> None:
        with suppress(BrokenPipeError):
            self._requests.close()
        self._results.close()
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _core_waits() -> bool:
    """Return whether a core is idle: some check finds fewer running threads than cores."""
    if len(os.sched_getaffinity(0)) < 2:
        return False
    for look in range(_LOOKS):
        if look:
            time.sleep(_LOOK_S)
        if _running() < (os.cpu_count() or 1):
            return True
    return False


def _running() -> int:
    """Return the number of running threads of the machine, including this one."""
    try:
        text = Path("/proc/loadavg").read_text(encoding="ascii")
        return int(text.split()[3].split("/")[0])
    except (OSError, ValueError, IndexError):
        return 1


def _forked(work: Callable[[IO[bytes], IO[bytes]], None]) -> _Copy | None:
    """Fork a copy that runs `work` with its ends of the pipes; None if the system is not Linux, no
    core is idle, or this is not the main thread.
    """
    if (
        sys.platform != "linux"
        or threading.current_thread() is not threading.main_thread()
        or not _core_waits()
    ):
        return None
    results, requests = os.pipe(), os.pipe()
    parent = os.getpid()
    try:
        with warnings.catch_warnings():
            # The threads that Python 3.12 warns of, a spinner's, hold no lock that a copy takes.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except OSError:  # no further process can be created
        for end in (*results, *requests):
            os.close(end)
        return None
    if pid:
        os.close(results[1])
        os.close(requests[0])
        return _Copy(pid, os.fdopen(results[0], "rb"), os.fdopen(requests[1], "wb"))
    try:
        # It inherits open files and a folder's lock: it must not outlive this process.
        ctypes.CDLL(None).prctl(_PARENT_DIED, signal.SIGKILL)
        if os.getppid() != parent:
            return None  # to the end
        os.close(results[0])
        os.close(requests[1])
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.freeze()  # a collection would copy all shared pages
        with os.fdopen(results[1], "wb") as out, os.fdopen(requests[0], "rb") as orders:
            work(out, orders)
    except BaseException:
        pass  # the parent repeats the call and raises the error
    finally:
        os._exit(0)  # without the parent's exit handlers
