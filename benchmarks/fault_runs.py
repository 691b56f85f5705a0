"""Commands that `faults.py` starts and harms, how they ended, and what is on record then."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fault_forks import Forked, Server, serve

ROOT = Path(__file__).parent.parent
LIMIT_S = 480.0
"""Of one command, on a machine that others use as well."""
TIMES = ("wall_time_s", "phases_s", "bounded_per_s", "seconds", "executor", "workers", "at")
"""What an answer says of the run that found it."""
KEYS = {"bounds": 2, "evaluations": 4, "notes": 1}
"""Tables of a store whose records are never computed twice, and the columns of their keys."""


@dataclass(frozen=True)
class End:
    """How a command ended."""

    code: int | None
    """None: not within the limit."""
    out: str
    said: str
    redone: int = 0

    @property
    def word(self) -> str:
        """Its kind; "answer" where it printed one."""
        if self.code is None:
            return "hang"
        if self.code == -signal.SIGKILL:
            return "killed"
        if "Traceback" in self.said:
            return "traceback"
        # Ctrl-C after the answer, while Python leaves, is its usual death by SIGINT
        if self.out.strip() and self.code in (0, 130, -signal.SIGINT):
            return "answer"
        return "sentence" if "atoll: " in self.said and self.code else "silent"


@dataclass(frozen=True)
class Question:
    """One that is asked under faults."""

    name: str
    words: Sequence[str]

    @property
    def warm(self) -> Sequence[str]:
        """Another question that needs the same kernels."""
        return (*self.words, "--batch", "256", "--workers", "0", "--json")


def questions(folder: Path) -> list[Question]:
    """Small ones, whose files lie in a folder; each takes a few seconds."""
    job = str(ROOT / "examples" / "jobs" / "tiny.yaml")
    wafer, model = folder / "wafer.yaml", folder / "model" / "config.json"
    wafer.write_text(
        "name: little\nusable_area: 5000 mm2\ngrid: [2, 4]\n"
        "die: {tensor_cores: 16, vector_cores: 16, width: 16, depth: 16, sram: 8 MiB,"
        " clock: 1 GHz}\n"
        "dram: {stacks: 1, capacity: 1 GiB, bandwidth: 200 GB/s}\n"
        "link: {bandwidth: 100 GB/s, latency: 50 ns}\nio_bandwidth: 50 GB/s\n",
        encoding="utf-8",
    )
    model.parent.mkdir()
    sizes = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 128,
        "max_position_embeddings": 4096,
    }  # fmt: skip
    told = {"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, **sizes}
    model.write_text(json.dumps(told), encoding="utf-8")
    small = ("--model", str(model), "--batch", "8", "--sequence", "64", "--microbatch", "1")
    plan = ("--model", "gpt2-xl", "--device", "h100", "--devices", "16", "--batch", "64")
    return [
        Question("search", ("search", job, "--no-baselines")),
        Question("pareto", ("search", job, "--pareto", "--no-baselines")),
        Question("evolve", ("search", job, "--strategy", "evolve", "--evaluations", "12")),
        Question("wafer", ("search", "--wafer", str(wafer), *small)),
        Question("plan", ("plan", *plan)),
    ]


# --- One command ----------------------------------------------------------------------------------


class Asked:
    """A question's command, under way in a process group of its own."""

    server: ClassVar[Server | None] = None
    """Forks commands, which saves their start."""
    process: subprocess.Popen[bytes] | Forked

    def __init__(
        self, question: Question, out: Path, *more: str,
        trouble: str = "", redirect: str = "", encoding: str = "", fresh: bool = False,
    ) -> None:  # fmt: skip
        """`trouble`: see `child`. `redirect`: of the shell. `encoding`: of a readable answer.
        `fresh`: with an interpreter of its own, as where output is redirected.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="atoll-fault-"))
        words = [*question.words, "--out", str(out), *([] if encoding else ["--json"]), *more]
        command = [sys.executable, __file__, str(self._folder), trouble, *words]
        self._said = (self._folder / "said").open("w+", encoding="utf-8", errors="replace")
        self._out = (self._folder / "out").open("w+", encoding="utf-8", errors="replace")
        self.began = time.monotonic()
        if self.server is not None and not (redirect or encoding or fresh):
            self.process = self.server.start(self._folder, trouble, words)
            return
        self.process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" {redirect}', "sh", *command],
            stdout=self._out,
            stderr=self._said,
            start_new_session=True,
            env=os.environ | ({"PYTHONIOENCODING": encoding} if encoding else {}),
        )

    def end(self, limit_s: float = LIMIT_S) -> End:
        """Wait for it; whatever is left of its group goes with it."""
        code: int | None
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        texts = []
        for file in (self._out, self._said):
            file.seek(0)
            texts.append(file.read())
            file.close()
        counted = self._folder / "redone"
        redone = int(counted.read_text()) if counted.exists() else 0
        shutil.rmtree(self._folder)
        return End(code, texts[0], texts[1], redone)

    def wait_until(self, ready: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
        """Until something is so, or the command is over; what was found."""
        while self.process.poll() is None and time.monotonic() - self.began < limit_s:
            if found := ready():
                return found
            time.sleep(0.02)
        return ready()


def child_processes(parent: int) -> list[int]:
    """Processes that a process started."""
    children = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = path.read_text().rpartition(")")[2].split()
            if int(words[1]) == parent:
                children.append(int(path.parent.name))
    return sorted(children)


def child(folder: Path, trouble: str, words: Sequence[str]) -> None:
    """The command line itself; counts records that are computed although they are there.

    `trouble`: "" or "clock SEED" (time jumps), "no locks" or "all locks" (of the file system).
    """
    from atoll.base.streams import prepare_streams

    prepare_streams()
    import atoll.cli
    from atoll.store import RunStore

    kind, _, rest = trouble.partition(" ")
    if kind == "clock":
        jumping(int(rest))
    elif rest == "locks":
        without_locks(granted=kind == "all")
    redone = 0
    puts = {name: getattr(RunStore, name) for name in ("put_bounds", "put_evaluation", "put_note")}

    def put_bounds(store: Any, batch: int, rows: Any) -> None:
        nonlocal redone
        held = list(rows)
        there = store.bounds(batch)
        redone += sum(chip in there for chip, _, _ in held)
        puts["put_bounds"](store, batch, held)

    def put_evaluation(store: Any, row: Any, design: Any) -> None:
        nonlocal redone
        redone += store.evaluation(row.phase, row.chip, row.variant, row.effort) is not None
        puts["put_evaluation"](store, row, design)

    def put_note(store: Any, key: str, value: Any) -> None:
        nonlocal redone
        redone += key != "result" and store.note(key) is not None
        puts["put_note"](store, key, value)

    for put in (put_bounds, put_evaluation, put_note):
        setattr(RunStore, put.__name__, put)
    sys.argv[1:] = words
    try:
        atoll.cli.main()
    finally:
        if folder.is_dir():
            (folder / "redone").write_text(str(redone))


def jumping(seed: int) -> None:
    """From now on the time of day jumps by hours, to and fro."""
    draw = random.Random(seed)
    true = time.time
    offset = 0.0

    def now() -> float:
        nonlocal offset
        if draw.random() < 0.05:
            offset = draw.uniform(-1e5, 1e5)
        return true() + offset

    time.time = now


def without_locks(granted: bool) -> None:
    """From now on locks are refused, or granted to all, as network file systems do."""
    import fcntl

    def flock(file: int, operation: int) -> None:
        if not granted:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    fcntl.flock = flock


# --- What is compared -----------------------------------------------------------------------------


def answer(text: str) -> Any:
    """An answer without what it says of the run that found it."""

    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: bare(inner) for name, inner in value.items() if name not in TIMES}
        return [bare(inner) for inner in value] if isinstance(value, list) else value

    return bare(json.loads(text))


def records(folder: Path) -> dict[tuple[Any, ...], int]:
    """Checksums of the records in a folder's store by their keys, read from a copy."""
    found: dict[tuple[Any, ...], int] = {}
    if not (folder / "search.sqlite").exists():
        return found
    with tempfile.TemporaryDirectory() as copied:
        for path in folder.glob("search.sqlite*"):
            with contextlib.suppress(FileNotFoundError):  # a journal comes and goes
                shutil.copy(path, copied)
        with contextlib.closing(sqlite3.connect(Path(copied) / "search.sqlite")) as store:
            for table, columns in KEYS.items():
                with contextlib.suppress(sqlite3.OperationalError):  # killed before there was one
                    for row in store.execute(f"SELECT * FROM {table}"):
                        found[table, *row[:columns]] = row[-1]
    return {key: crc for key, crc in found.items() if key != ("notes", "result")}


def begun(folder: Path) -> bool:
    """Whether a run has put something on record; a copy of what is being written may be torn."""
    try:
        return bool(records(folder))
    except sqlite3.DatabaseError:
        return False


def seen(folder: Path) -> dict[str, Any]:
    """What each reader of a folder finds; "sentence" or "traceback: ..." in place of it."""
    from atoll.base.errors import AtollError
    from atoll.explore.explain import explanation
    from atoll.report.folder import open_folder
    from atoll.report.page import write_report
    from atoll.store import RunReader

    explanation.STEPS_S = 0.0  # neighbours of a chip are in no file

    def designs() -> Any:
        with RunReader(folder) as run:
            rows = [list(row) for piece in run.since(0.0) for row in piece]
            return rows, run.designs(limit=9), answer(json.dumps(run.result().to_dict()))

    def loaded() -> Any:
        return answer(json.dumps(open_folder(folder).answer.to_dict()))

    def report() -> Any:
        write_report(folder)
        return True

    found: dict[str, Any] = {}
    for read in (designs, loaded, report):
        try:
            found[read.__name__] = read()
        except AtollError:
            found[read.__name__] = "sentence"
        except Exception as error:
            found[read.__name__] = f"traceback: {type(error).__name__}: {error}"
    return found


class Tally:
    """Counts of one kind of fault."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def add(self, end: End, peace: Any, where: str) -> str:
        """Count an end; its word."""
        word = end.word
        if word == "answer":
            word = "equal" if answer(end.out) == peace else "other"
        self.counts[word] += 1
        self.counts["redone"] += end.redone
        if word in ("other", "silent", "traceback", "hang") or end.redone:
            self.wrong.append(f"{where}: {word}, {end.redone} redone: {end.said[-600:]}")
        return word

    def compare(self, before: Mapping[Any, int], folder: Path, where: str) -> None:
        """Count records that are gone or changed."""
        now = records(folder)
        gone = [key for key, crc in before.items() if now.get(key) != crc]
        self.counts["lost"] += len(gone)
        if gone:
            self.wrong.append(f"{where}: lost {gone[:3]}")


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(child)
    else:
        child(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
