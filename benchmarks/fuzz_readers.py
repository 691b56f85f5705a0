"""Every reader against broken files: sentences, tracebacks, hangs and nonsense, counted.

    python benchmarks/fuzz_readers.py [--inputs 5000] [--seed 0] [--reader job ...] [--keep DIR]

Files of every kind that Atoll reads (its own examples, catalogue and answers) are changed with
their structure in mind (values of other kinds, fields dropped, doubled, misspelt, numbers out of
all bounds, nesting, aliases) or blindly (bits, truncation, other encodings), and given to what
reads them. A child process reads one input after the other, with an address space of 3 GiB more
than it has at the start; the parent ends it when it has computed for 10 s without an answer (or
waited for two minutes). Counted by reader:

accepted   an answer whose numbers are all finite, and none that cannot be is negative
refused    an AtollError (command line: exit code 2)
traceback  any other exception
hang       no answer within 10 s of the processor
memory     the address space is used up, or the process is gone
nonsense   an answer with NaN, infinity, or a negative number where there is none
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import atoll
from atoll.errors import AtollError
from fuzz_changes import Seed, changed
from fuzz_seeds import COMMANDS, NCCL_LOG, SITE, measured_runs, profiled_steps, stored_model
from record import figure, recorded

ROOT = Path(__file__).parent.parent
OUTCOMES = ("accepted", "refused", "traceback", "hang", "memory", "nonsense")
HANG_S = 10.0
WAIT_S = 120.0
ROUNDING = 1e-12
"""Differences of equal times come out this little below zero."""
MEMORY_BYTES = 3 * 2**30
MAY_BE_NEGATIVE = re.compile(
    r"error|bias|gain|slack|regret|change|difference|saved|worth|shift|^x$|^y$|^id$|^nodes$|source|target"
)


@dataclass(frozen=True)
class Reader:
    """What reads a kind of file; a seed is a file's content, or a folder's by name."""

    name: str
    form: str
    """How the file is written: yaml, json, csv, binary, sqlite or words."""
    file: str
    seeds: Sequence[Seed]
    read: Callable[[Path], Any]


# --- Readers --------------------------------------------------------------------------------------


def _files(*patterns: str) -> list[bytes]:
    return [path.read_bytes() for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def _folder(path: Path, *names: str) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in names if (path / name).exists()}


@contextlib.contextmanager
def made_answers() -> Iterator[Path]:
    """Answers of the programs themselves, to be changed."""
    from atoll.report.folder import write_plan

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        atoll.search(ROOT / "examples" / "jobs" / "tiny.yaml", pareto=True, out=folder / "search")
        few = [1, 2]
        plan = atoll.plan("gpt2-xl", "h100", 16, batch=64, tp=few, pp=few, microbatch=few)
        write_plan(plan, folder / "plan")
        yield folder


def readers(made: Path) -> list[Reader]:
    """All of them, with their seeds."""
    from atoll.calibrate import calibrate
    from atoll.hardware.wafer_files import load_wafer
    from atoll.wafer.encoding.mapping import problems, read_mapping

    def estimated(**given: Any) -> Any:
        usual = {
            "model": "bert-large",
            "device": "h100",
            "devices": 16,
            "batch": 64,
            "tp": 2,
        }
        return atoll.estimate(**{**usual, **given}).to_dict()  # type: ignore[arg-type]

    def network(path: Path) -> Any:
        return atoll.describe_hardware(str(path)), estimated(network=str(path))

    def device(path: Path) -> Any:
        return atoll.describe_hardware(str(path)), estimated(device=str(path))

    def config(path: Path) -> Any:
        return atoll.describe_model(str(path)), atoll.describe_model(str(path), tp=2)

    def mapping(path: Path) -> Any:
        wafer = load_wafer("default")
        found = read_mapping(path)
        return problems(found, wafer.rows, wafer.columns) or found.to_dict()

    small = (ROOT / "src/atoll/data/h200_ops.csv").read_bytes().splitlines(keepends=True)
    operators = b"".join(small[:1] + small[1::40])
    steps = b"".join((ROOT / "src/atoll/data/h200_steps.csv").read_bytes().splitlines(True)[:6])
    runs = measured_runs()
    catalog = "src/atoll/hardware/catalog"
    stored = _folder(made / "search", "result.json", "search.sqlite")
    planned = _folder(made / "plan", "plan.json")
    summed = [
        found | _folder(made / kind, "SHA256SUMS")
        for found, kind in ((stored, "search"), (planned, "plan"))
    ]
    return [
        Reader("job", "yaml", "job.yaml", _files("examples/jobs/*.yaml"), _job),
        Reader("wafer job", "yaml", "job.yaml", _files("examples/wafer-jobs/*.yaml"), _job),
        Reader("space", "yaml", "a.yaml", _files("examples/spaces/*.yaml"), _hardware),
        Reader(
            "wafer",
            "yaml",
            "a.yaml",
            _files("examples/wafers/*.yaml", f"{catalog}/wafers/*.yaml"),
            _hardware,
        ),
        Reader(
            "device",
            "yaml",
            "a.yaml",
            _files(f"{catalog}/gpus/[a-b]*.yaml", f"{catalog}/gpus/h*.yaml"),
            device,
        ),
        Reader(
            "chip",
            "yaml",
            "a.yaml",
            [
                *_files(f"{catalog}/accelerators/*.yaml"),
                *_folder(made / "search", "chip.yaml").values(),
            ],
            device,
        ),
        Reader(
            "calibration",
            "yaml",
            "a.yaml",
            _files(f"{catalog}/gpus/calibration*.yaml"),
            _calibrated,
        ),
        Reader("network", "yaml", "a.yaml", _files(f"{catalog}/networks/*.yaml"), network),
        Reader(
            "config",
            "json",
            "config.json",
            _files("tests/workload/configs/*.json", "src/atoll/workload/zoo/*.json"),
            config,
        ),
        Reader("atoll-model", "json", "m.json", [stored_model()], config),
        Reader(
            "place",
            "json",
            "t.json",
            _files("tests/data/phaze_dp_cases/1*.in.json", "tests/data/phaze_dp_cases/20*.in.json"),
            _place,
        ),
        Reader("mapping", "json", "m.json", [_mapping()], mapping),
        Reader("site", "yaml", "a.yaml", [SITE], lambda path: estimated(site=str(path))),
        Reader("trace", "json", "t.json", [profiled_steps()], _profiled),
        Reader("nccl-tests", "binary", "n.log", [NCCL_LOG], _logged),
        Reader("operators", "csv", "o.csv", [operators], atoll.validate),
        Reader("operators.gz", "csv", "o.csv.gz", [gzip.compress(operators, 1)], atoll.validate),
        Reader("calibrate", "csv", "o.csv", [b"".join(small[:30])], calibrate),
        Reader("steps", "csv", "s.csv", [steps], atoll.validate),
        Reader("runs", "csv", "r.csv", [runs], _runs),
        Reader("runs.gz", "csv", "r.csv.gz", [gzip.compress(runs, 1)], _runs),
        Reader("onnx", "binary", "m.onnx", _files("tests/tracing/onnx_files/*-script.onnx"), _onnx),
        Reader("search folder", "folder", "run", [stored, summed[0]], _search_folder),
        Reader("store", "folder", "run", [stored, summed[0]], _store),
        Reader(
            "wafer folder",
            "folder",
            "run",
            [{"result.json": f} for f in _files("tests/data/report/wafer-result.json")],
            _wafer_folder,
        ),
        Reader("plan folder", "folder", "run", [planned, summed[1]], _plan_folder),
        Reader("serve", "folder", "run", [stored, planned, *summed], _serve),
        Reader("command line", "words", "words", COMMANDS, _command),
    ]


def _job(path: Path) -> Any:
    from atoll.explore.answer.scope import open_space
    from atoll.questions import JOBS, SearchQuestion
    from atoll.questions.ask import load_job

    job = load_job(path, JOBS)
    return job.to_dict(), len(open_space(job)[0]) if isinstance(job, SearchQuestion) else 0


def _hardware(path: Path) -> Any:
    return atoll.describe_hardware(str(path))


def _calibrated(path: Path) -> Any:
    from atoll.calibrate import validate_operators
    from atoll.hardware.gpu import load_gpu

    return atoll.describe_hardware(str(path)), validate_operators(gpu=load_gpu("h200", path))


def _profiled(path: Path) -> Any:
    from atoll.calibrate.site import calibrate_site

    return calibrate_site(trace=path)


def _logged(path: Path) -> Any:
    from atoll.calibrate.site import calibrate_site

    return calibrate_site(nccl_tests=[path], device="a100-80")


def _place(path: Path) -> Any:
    return atoll.place(path).to_dict()


def _runs(path: Path) -> Any:
    return atoll.validate(path, out=path.parent / "out.csv")


def _onnx(path: Path) -> Any:
    from atoll.tracing.from_onnx.read import read_graph

    return len(read_graph(path).nodes)


def _search_folder(path: Path) -> Any:
    from atoll.explore.answer.why import explain_result
    from atoll.report import open_folder, search_trace, write_report

    write_report(path)
    found: Any = open_folder(path).answer
    return explain_result(found), len(search_trace(found))


def _wafer_folder(path: Path) -> Any:
    from atoll.report import open_folder, write_report
    from atoll.wafer.answer.explain import explain_wafer_result

    write_report(path)
    found: Any = open_folder(path).answer
    return explain_wafer_result(found)


def _plan_folder(path: Path) -> Any:
    from atoll.report import open_folder, plan_trace, write_report

    write_report(path)
    found: Any = open_folder(path).answer
    return len(plan_trace(found))


def _store(path: Path) -> Any:
    from atoll.store import RunReader

    with RunReader(path) as run:
        rows = run.designs(limit=5)
        shown = [asdict(point) for point in (run.status(), *run.progress(), *run.incumbents())]
        run.job(), run.result(), run.front(), run.designs({"width": 64}, sort="power_W")
        sizes = len(list(run.batches())), len(list(run.since(0.0))), len(run.bound_scores())
        return rows, shown, sizes, [run.design(row["chip"]) for row in rows]


def _serve(path: Path) -> Any:
    """All that the explorer asks for; an answer other than 200 is a sentence."""
    from atoll.serve.app import App
    from atoll.serve.guard import Guard
    from atoll.serve.runs import SearchRun, open_runs
    from atoll.store import RunReader

    runs, _ = open_runs([path])
    for run in runs.values():
        if isinstance(run, SearchRun):
            with RunReader(run.folder) as reader:
                run.look(reader)
    app = App(runs, Guard("127.0.0.1", 8737))
    inside = ("", "progress", "summary", "scatter", "table", "result.json", "whatif?chip=0",
              "whatif/options?chip=0")  # fmt: skip
    for target in ("", *(f"/{name}/{what}" for name in runs for what in inside)):
        answer = app.respond("GET", f"/api/runs{target}", {"host": "localhost:8737"})
        if answer.status == 500:
            raise RuntimeError(answer.body)
    return list(runs)


def _command(path: Path) -> Any:
    from atoll.cli import app

    words = path.read_text(encoding="utf-8").split("\n")
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            app(args=[*words, "--json"], standalone_mode=True)
    except SystemExit as end:
        if end.code == 2:
            raise AtollError("a usage error") from None
        if end.code:
            raise
    return json.loads(out.getvalue())


def _mapping() -> bytes:
    """That of the wafer's answer."""
    (answer,) = _files("tests/data/report/wafer-result.json")
    return json.dumps(json.loads(answer)["best"]["mapping"]).encode()


# --- The campaign ---------------------------------------------------------------------------------


def nonsense(value: Any, name: str = "") -> str:
    """The first number of an answer that none can be; nothing where there is none."""
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
    """One input of the campaign, the same on every machine."""
    draw = random.Random(f"{seed} {reader.name} {number}")
    return changed(draw, draw.choice(reader.seeds), reader.form)


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
    if isinstance(content, bytes):
        path.write_bytes(content)
        return path
    path.mkdir()
    for name, inner in content.items():
        (path / name).write_bytes(inner)
    return path


def _child(pipe: Connection, reader: Reader, folder: Path) -> None:
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES, size + MEMORY_BYTES))
    while True:
        pipe.send(outcome(reader, place_input(reader, pipe.recv(), folder)))


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
        if found in ("hang", "memory"):
            child.kill()
            child.join()
            child = None
    if child is not None:
        child.kill()
        child.join()
    return counts, faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--inputs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", nargs="*")
    parser.add_argument("--keep", type=Path, help="leave inputs that were not read well here")
    given = parser.parse_args()
    with made_answers() as made, tempfile.TemporaryDirectory() as folder:
        chosen = [r for r in readers(made) if not given.reader or r.name in given.reader]
        total: Counter[str] = Counter()
        print(f"| reader | inputs | {' | '.join(OUTCOMES)} |")
        print("|---|" + "---:|" * (1 + len(OUTCOMES)))
        for number, reader in enumerate(chosen):
            share = (given.inputs + number) // len(chosen)
            counts, faults = campaign(reader, share, given.seed, Path(folder) / "in", given.keep)
            total += counts
            cells = " | ".join(str(counts[name]) for name in OUTCOMES)
            print(f"| {reader.name} | {share} | {cells} |", flush=True)
            for words, often in faults.most_common():
                print(f"{often:8d} x {words}", file=sys.stderr, flush=True)
        cells = " | ".join(str(total[name]) for name in OUTCOMES)
        print(f"| all | {total.total()} | {cells} |")
    for name in OUTCOMES:
        figure(name, total[name])
    return int(total.total() > total["accepted"] + total["refused"])


if __name__ == "__main__":
    sys.exit(recorded(main))
