"""Benchmarks remember: `--json FILE` of each writes its figures with commit, date and machine.

    python benchmarks/record.py [NAME ...]     runs again what is on record, and prints ratios
    python benchmarks/record.py --keep NAME [ARGUMENT ...]     runs one twice, keeps the second

Records lie in benchmarks/results; tables of the docs are written from them
(`python tests/docs/records.py`). Ratios are this run over the last recorded one: seconds of the
processor and the figures that a benchmark names. Machines differ and are shared, so that no ratio
is a failure; what a benchmark itself asserts is.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
FAST_S = 25.0
"""Records of more processor time are not run again, unless they are named."""
_FIGURES: dict[str, float] = {}


def figure(name: str, value: float) -> None:
    """A figure of the benchmark that runs, by which later runs are compared with it."""
    _FIGURES[name] = float(value)


def recorded(main: Callable[[], int | None]) -> int:
    """Run a benchmark's main function; under `--json FILE` write what it found as well."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--json", type=Path)
    given, arguments = parser.parse_known_args()
    if given.json is None:
        return main() or 0
    from atoll.commands.environment import environment

    told = environment()
    sys.argv[1:] = arguments
    said = Tee(sys.stdout)
    began, used_s = time.perf_counter(), processor_s()
    with contextlib.redirect_stdout(said):
        code = main() or 0
    record = {
        "benchmark": Path(sys.argv[0]).stem,
        "arguments": arguments,
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {n: words for n, words in told.items() if n not in ("system", "kernel cache")},
        "wall_s": round(time.perf_counter() - began, 2),
        "processor_s": round(processor_s() - used_s, 2),
        "exit_code": code,
        "figures": _FIGURES,
        "tables": list(tables(said.text)),
    }
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return code


class Tee(io.TextIOBase):
    """What is printed, shown and kept."""

    def __init__(self, shown: Any) -> None:
        self._shown, self.text = shown, ""

    def write(self, text: str) -> int:
        self.text += text
        return int(self._shown.write(text))

    def flush(self) -> None:
        self._shown.flush()


def tables(text: str) -> Iterator[list[str]]:
    """The Markdown tables of a text, each as its lines."""
    found: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            found.append(line)
        elif found:
            yield found
            found = []


def processor_s() -> float:
    """Of this process and those that it waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


def commit() -> str:
    """Of the repository, marked where files other than records differ; nothing outside of one."""

    def git(*words: str) -> str:
        asked = ["git", "-C", str(FOLDER), *words]
        return subprocess.run(asked, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "-uno", "--", ":/", ":(exclude)results")
    return git("rev-parse", "--short=10", "HEAD") + ("-dirty" if changed else "")


def read(name: str) -> dict[str, Any]:
    """The record of a benchmark."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def run(name: str, arguments: list[str], path: Path) -> int:
    script = str(FOLDER / f"{name}.py")
    asked = [sys.executable, script, *arguments, "--json", str(path)]
    return subprocess.run(asked, stdout=subprocess.DEVNULL).returncode


def compared(name: str) -> int:
    """Run a benchmark as its record did, and print both."""
    before = read(name)
    away = [
        word
        for word in before["arguments"]
        if word.endswith((".csv", ".csv.gz")) and not Path(word).exists()
    ]
    if away:
        print(f"{name}: not run again, {away[0]} is not here")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "now.json"
        code = run(before["benchmark"], before["arguments"], path)
        if code or not path.exists():
            print(f"{name}: failed with {code}")
            return code or 1
        now = json.loads(path.read_text(encoding="utf-8"))
    pairs = {"processor s": (before["processor_s"], now["processor_s"])}
    pairs |= {each: (old, now["figures"].get(each)) for each, old in before["figures"].items()}
    for each, (old, new) in pairs.items():
        ratio = f"{new / old:6.2f}x" if new is not None and old else "   gone"
        print(f"{name:20} {each:32} {old:>12,.4g} {new or 0.0:>12,.4g} {ratio}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare benchmarks with their records.")
    parser.add_argument("--keep", metavar="NAME", help="run this one and keep it on record")
    parser.add_argument("names", nargs="*", help="benchmarks on record, or arguments of --keep")
    given, more = parser.parse_known_args()
    if given.keep:
        asked = given.keep, [*given.names, *more], RESULTS / f"{given.keep}.json"
        return run(*asked) or run(*asked)  # the first may compile kernels
    known = sorted(path.stem for path in RESULTS.glob("*.json"))
    names = given.names or [name for name in known if read(name)["processor_s"] <= FAST_S]
    print(f"{'benchmark':20} {'figure':32} {'on record':>12} {'now':>12}   ratio")
    return max(map(compared, names), default=0)


if __name__ == "__main__":
    sys.exit(main())
