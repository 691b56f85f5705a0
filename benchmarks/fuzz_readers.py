"""Every reader against broken files: sentences, tracebacks, hangs and nonsense, counted.

    python benchmarks/fuzz_readers.py [--inputs 5000] [--seed 0] [--reader job ...] [--keep DIR]

Files of every kind that Atoll reads (its own examples, catalogue and answers) are changed with
their structure in mind (values of other kinds, fields dropped, doubled, misspelt, numbers out of
all bounds, nesting, aliases) or blindly (bits, truncation, other encodings), and given to what
reads them. One in 25 is a device, a pipe, a file of 1 TiB or a packed one of 8 GiB instead, and one
in 25 of YAML files has a quantity that nothing has. A child process reads one input after the
other, with an address space of 3 GiB more than it has at the start; the parent ends it when it has
computed for 10 s without an answer (or waited for two minutes). Counted by reader:

accepted   an answer whose numbers are all finite, and none that cannot be is negative
refused    an AtollError (command line: exit code 2)
traceback  any other exception
hang       no answer within 10 s of the processor
memory     the address space is used up, or the process is gone
nonsense   an answer with NaN, infinity, or a negative number where there is none
accepted!  an answer although a number of the input is beyond all that exists
large      more than 1 GiB more resident memory than at the start
"""

from __future__ import annotations

import argparse
import gzip
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, is_dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from atoll.answers.plan import Gain
from atoll.base.errors import AtollError
from fuzz_changes import Seed, changed
from fuzz_kinds import Reader, made_answers, readers
from record import figure, recorded

OUTCOMES = (
    "accepted", "refused", "traceback", "hang", "memory", "nonsense", "accepted!", "large",
)  # fmt: skip
HANG_S = 10.0
WAIT_S = 120.0
ROUNDING = 1e-12
"""Differences of equal times come out this little below zero."""
MEMORY_BYTES = 3 * 2**30
MOST_RESIDENT_BYTES = 2**30
SPECIAL = ("zero", "pipe", "long", "bomb")
"""In place of a file: /dev/zero, a pipe, 1 TiB of nothing, 8 GiB of zeros packed."""
QUANTITY = re.compile(
    rb"(?m)^\s*[\w-]+: ([0-9.]+) (?:[KMGTP]i?B(?:/s)?|[GM]Hz|[TP]FLOP/s|W|mm2|[nu]s)\b"
)
IMPLAUSIBLE = b"\n# implausible\n"
"""Ends a file with a quantity that nothing has."""
BOMB = gzip.compress(bytes(2**20), 1) * 2**13
SHARE = 0.04
"""Of inputs that are special, and of those with an implausible number."""
MAY_BE_NEGATIVE = re.compile(
    r"error|bias|gain|slack|regret|change|difference|saved|worth|shift|^x$|^y$|^id$|^nodes$|source|target"
    r"|^slower$"  # the fastest, beside the simplest of those that take as long
)


def nonsense(value: Any, name: str = "") -> str:
    """The first number of an answer that none can be; nothing where there is none."""
    if isinstance(value, Gain):  # differences, with either sign
        value = [abs(v) for v in astuple(value) if isinstance(v, float)]
    if is_dataclass(value) and not isinstance(value, type):
        value = {field: getattr(value, field) for field in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        items = [(str(key), inner) for key, inner in value.items()]
    elif isinstance(value, list | tuple):
        items = [(name, inner) for inner in value]
    elif isinstance(value, float | int) and not isinstance(value, bool):
        if isinstance(value, int) and abs(value) > 10**300:
            return f"{name} is beyond all numbers"
        wrong = not math.isfinite(value) or (value < -ROUNDING and not MAY_BE_NEGATIVE.search(name))
        return f"{name} is {value}" if wrong else ""
    else:
        return ""
    return next(filter(None, (nonsense(inner, key) for key, inner in items)), "")


def changed_input(reader: Reader, seed: int, number: int) -> Seed:
    """One input of the campaign, the same on every machine; special ones by their word."""
    draw = random.Random(f"{seed} {reader.name} {number}")
    if reader.reads_files and draw.random() < SHARE:
        return draw.choice(SPECIAL).encode()
    content = draw.choice(reader.seeds)
    if reader.form == "yaml" and draw.random() < SHARE:
        assert isinstance(content, bytes)
        return implausible(draw, content)
    return changed(draw, content, reader.form)


def implausible(draw: random.Random, content: bytes) -> bytes:
    """One quantity of a file, 1e18 or 1e-30 times as large; the file as it is without any.

    A quantity of zero is the same at any scale.
    """
    found = [match for match in QUANTITY.finditer(content) if float(match[1])]
    if not found:
        return content
    at = draw.choice(found)
    number = float(at[1]) * draw.choice((1e18, 1e-30))
    return content[: at.start(1)] + repr(number).encode() + content[at.end(1) :] + IMPLAUSIBLE


def outcome(reader: Reader, path: Path) -> tuple[str, str]:
    """What reading gave, and a word on it."""
    try:
        found = reader.read(path)
        wrong = nonsense(found)
    except AtollError as error:
        return "refused", str(error)
    except MemoryError:
        return "memory", ""
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        ours = [f for f in traceback.extract_tb(error.__traceback__) if "atoll" in f.filename]
        where = f"{Path((ours or [frame])[-1].filename).name}:{(ours or [frame])[-1].lineno}"
        return "traceback", f"{type(error).__name__} at {where}: {str(error)[:100]}"
    return ("nonsense", wrong) if wrong else ("accepted", "")


def place_input(reader: Reader, content: Seed, folder: Path) -> Path:
    """The input where it is read."""
    shutil.rmtree(folder, ignore_errors=True)
    path = folder / reader.file
    path.parent.mkdir(parents=True)
    if content == b"zero":
        path.symlink_to("/dev/zero")
    elif content == b"pipe":
        os.mkfifo(path)
    elif content == b"long":
        path.touch()
        os.truncate(path, 2**40)
    elif content == b"bomb":
        path.write_bytes(BOMB)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    if isinstance(content, bytes):
        return path
    path.mkdir()
    for name, inner in content.items():
        (path / name).write_bytes(inner)
    return path


def _child(pipe: Connection, reader: Reader, folder: Path) -> None:
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES, size + MEMORY_BYTES))
    most = _resident_bytes() + MOST_RESIDENT_BYTES
    while True:
        content = pipe.recv()
        word, words = outcome(reader, place_input(reader, content, folder))
        if word == "accepted" and isinstance(content, bytes) and content.endswith(IMPLAUSIBLE):
            word, words = "accepted!", content.decode()
        pipe.send(("large", word) if _resident_bytes() > most else (word, words))


def _resident_bytes() -> int:
    """The most that this process has had in memory."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _answers(pipe: Connection, child: int) -> bool:
    """Whether a child answers before it has computed for too long; other processes may, too."""
    began, used_s = time.monotonic(), _processor_s(child)
    while not pipe.poll(0.2):
        if _processor_s(child) - used_s > HANG_S or time.monotonic() - began > WAIT_S:
            return False
    return True


def _processor_s(process: int) -> float:
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def campaign(
    reader: Reader, inputs: int, seed: int, folder: Path, keep: Path | None = None
) -> tuple[Counter[str], Counter[str]]:
    """Outcomes of so many changed files, and what was wrong in words."""
    context = multiprocessing.get_context("fork")
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    # Unchanged first: everything is compiled before the clock runs.
    outcome(reader, place_input(reader, reader.seeds[0], folder))
    child, pipe = None, None
    for number in range(inputs):
        content = changed_input(reader, seed, number)
        if child is None or pipe is None:
            pipe, other = context.Pipe()
            child = context.Process(target=_child, args=(other, reader, folder), daemon=True)
            child.start()
            other.close()
        try:
            pipe.send(content)
            found, words = pipe.recv() if _answers(pipe, child.pid or 0) else ("hang", "")
        except (EOFError, OSError):
            found, words = "memory", "the process is gone"
        counts[found] += 1
        if found not in ("accepted", "refused"):
            faults[f"{found}: {words}"] += 1
            if keep is not None:
                place_input(reader, content, keep / f"{reader.name}-{number}-{found}")
        if found in ("hang", "memory", "large"):
            child.kill()
            child.join()
            child = None
    if child is not None:
        child.kill()
        child.join()
    return counts, faults


_CHOSEN: list[tuple[Sequence[Reader], argparse.Namespace]] = []
"""Readers and options of a process; readers are functions that no process can send."""


def _prepare(chosen: Sequence[Reader], given: argparse.Namespace) -> None:
    _CHOSEN.append((chosen, given))


def _campaign(number: int) -> tuple[Counter[str], Counter[str]]:
    """The campaign of one reader, with its share of the inputs."""
    chosen, given = _CHOSEN[0]
    share = (given.inputs + number) // len(chosen)
    with tempfile.TemporaryDirectory() as folder:
        return campaign(chosen[number], share, given.seed, Path(folder) / "in", given.keep)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--inputs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", nargs="*")
    parser.add_argument("--keep", type=Path, help="leave inputs that were not read well here")
    parser.add_argument("--jobs", type=int, default=1, help="readers at once")
    given = parser.parse_args()
    with made_answers() as made:
        chosen = [r for r in readers(made) if not given.reader or r.name in given.reader]
        total: Counter[str] = Counter()

        def campaigns() -> Iterator[tuple[Counter[str], Counter[str]]]:
            context = multiprocessing.get_context("fork")
            with ProcessPoolExecutor(given.jobs, context, _prepare, (chosen, given)) as pool:
                yield from pool.map(_campaign, range(len(chosen)))

        print(f"| reader | inputs | {' | '.join(OUTCOMES)} |")
        print("|---|" + "---:|" * (1 + len(OUTCOMES)))
        for reader, (counts, faults) in zip(chosen, campaigns(), strict=True):
            total += counts
            cells = " | ".join(str(counts[name]) for name in OUTCOMES)
            print(f"| {reader.name} | {counts.total()} | {cells} |", flush=True)
            for words, often in faults.most_common():
                print(f"{often:8d} x {words}", file=sys.stderr, flush=True)
        cells = " | ".join(str(total[name]) for name in OUTCOMES)
        print(f"| all | {total.total()} | {cells} |")
    for name in OUTCOMES:
        figure(name, total[name])
    return int(total.total() > total["accepted"] + total["refused"])


if __name__ == "__main__":
    sys.exit(recorded(main))
