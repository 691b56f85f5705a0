"""Commands without the start of an interpreter: forks of a process that has loaded everything.

An interpreter that imports Atoll and loads its kernels takes two to three seconds of the
processor, three times as long as a small question. `Server` starts one process that asks each
question with another batch, and forks it for every command. A forked command has a session, files
and signal handlers as a new process has; what it computes for its own question is not in memory.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

Command = Callable[[Path, str, Sequence[str]], None]
"""Runs the command line: the folder of its files, its trouble, its words."""


class Forked:
    """A forked command, with the methods of `subprocess.Popen` that are needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        while not (folder / "pid").exists():
            time.sleep(0.002)
        self.pid = int((folder / "pid").read_text())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, minus the signal that ended it, or None while it runs."""
        if self.returncode is None and (self._folder / "code").exists():
            self.returncode = int((self._folder / "code").read_text())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        began = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() - began > timeout:
                raise subprocess.TimeoutExpired("a forked command", timeout)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Server:
    """The process that is forked; it ends with its input."""

    def __init__(self, script: str, warm: Sequence[Sequence[str]]) -> None:
        """`script`: a program that calls `serve` where its first argument is --serve; `warm`: words
        of commands that load what later ones need.
        """
        self._process = subprocess.Popen(
            [sys.executable, script, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()
        self._write(warm)
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise SystemExit("the process that is forked could not start")

    def _write(self, words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def start(self, folder: Path, trouble: str, words: Sequence[str]) -> Forked:
        """Start a command whose files `out` and `said` lie in a folder."""
        with self._lock:
            self._write([str(folder), trouble, list(words)])
        return Forked(folder)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(command: Command) -> None:
    """Load everything, then fork a process for each line of standard input."""
    for words in json.loads(sys.stdin.readline()):
        _warm(command, words)
    if threading.active_count() > 1:
        raise SystemExit(f"threads are left, which no fork has: {threading.enumerate()}")
    print("ready", flush=True)
    for line in sys.stdin:
        folder, trouble, words = json.loads(line)
        if not os.fork():
            _keep(command, Path(folder), trouble, words)
        _reap(os.WNOHANG)
    _reap(0)  # their seconds count as those of this process


def _warm(command: Command, words: Sequence[str]) -> None:
    """Run a command in this process, without its output."""
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    os.dup2(nowhere, 1)
    try:
        command(Path(os.devnull), "", words)
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _keep(command: Command, folder: Path, trouble: str, words: Sequence[str]) -> None:
    """Fork the command, write its process and, once it has ended, its exit code."""
    process = os.fork()
    if not process:
        _become(command, folder, trouble, words)
    _put(folder / "pid", process)
    _put(folder / "code", os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
    os._exit(0)


def _reap(options: int) -> None:
    """Wait for forks that have ended, or for all."""
    with contextlib.suppress(ChildProcessError):  # none is left
        while os.waitpid(-1, options)[0]:
            pass


def _put(path: Path, number: int) -> None:
    with contextlib.suppress(FileNotFoundError):  # nobody waits any longer
        path.with_suffix(".new").write_text(str(number))
        path.with_suffix(".new").rename(path)


def _become(command: Command, folder: Path, trouble: str, words: Sequence[str]) -> None:
    """Run the command in this process, and end as an interpreter does."""
    os.setsid()
    for file, number in ((os.devnull, 0), (folder / "out", 1), (folder / "said", 2)):
        os.dup2(os.open(file, os.O_RDWR), number)
    code: object = 0
    try:
        command(folder, trouble, words)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    for leave in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        leave()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
