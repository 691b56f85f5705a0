"""A Dask scheduler and its workers in processes of their own, to be killed and stopped."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ATOLL = Path(__file__).parent.parent / "src" / "atoll"
OTHER_NUMPY = "import numpy\nnumpy.__version__ = '1.0.0'\n"
NO_ATOLL = "import sys\nsys.modules['atoll'] = None\n"


class Cluster:
    """A scheduler; workers are added by kind."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="atoll-cluster-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        self.scheduler = self._start(
            "dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"
        )
        self.workers: list[subprocess.Popen[bytes]] = []
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                return
            time.sleep(0.05)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.scheduler, *self.workers):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, kind: str = "same") -> subprocess.Popen[bytes]:
        """A worker with the Atoll that runs here, an edited one, none, with another numpy, or one
        that Dask pauses for its memory.
        """
        paths = [str(ATOLL.parent)]
        if kind == "edited atoll":
            copy = self.folder / "edited"
            shutil.copytree(ATOLL, copy / "atoll", ignore=shutil.ignore_patterns("__pycache__"))
            with (copy / "atoll" / "base" / "units.py").open("a", encoding="utf-8") as file:
                file.write("# edited\n")
            paths = [str(copy)]
        elif kind not in ("same", "paused"):
            custom = self.folder / kind.replace(" ", "-")
            custom.mkdir()
            text = OTHER_NUMPY if kind == "other numpy" else NO_ATOLL
            (custom / "sitecustomize.py").write_text(text, encoding="utf-8")
            paths.insert(0, str(custom))
        words = (self.address, "--no-nanny", "--nthreads", "1", "--no-dashboard")
        if kind == "paused":  # once it has imported Atoll
            words += ("--memory-limit", "150MiB")
        worker = self._start(
            "dask_worker", *words, "--local-directory", str(self.folder),
            more={"PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        self.workers.append(worker)
        return worker

    def wait(self) -> None:
        """Until all workers have joined."""
        import distributed

        with distributed.Client(self.address, set_as_default=False, timeout=60) as client:
            client.wait_for_workers(len(self.workers), timeout=180)

    def send(self, how: signal.Signals, *processes: subprocess.Popen[bytes]) -> None:
        for process in processes:
            process.send_signal(how)

    def _start(
        self, module: str, *words: str, more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{module}", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | dict(more or {}),
        )
