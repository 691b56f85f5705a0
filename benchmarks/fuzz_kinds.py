"""What reads each kind of file, with files to be changed for `fuzz_readers.py`."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import atoll
from atoll.base.errors import AtollError
from fuzz_changes import Seed
from fuzz_launch import LAUNCHES, LOGS, PASTED
from fuzz_seeds import (
    COMMANDS,
    MESHES,
    NCCL_LOG,
    SITE,
    TIMED,
    measured_runs,
    profiled_steps,
    stored_model,
)

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Reader:
    """What reads a kind of file; a seed is a file's content, or a folder's by name."""

    name: str
    form: str
    """How the file is written: yaml, json, csv, text, binary or words."""
    file: str
    seeds: Sequence[Seed]
    read: Callable[[Path], Any]

    @property
    def reads_files(self) -> bool:
        """Whether it opens the file itself: not a folder, words, or what was pasted."""
        return self.form not in ("folder", "words") and not self.name.startswith("pasted")


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
        tiny = ROOT / "examples" / "jobs" / "tiny.yaml"
        atoll.search(tiny, devices=8, batch=64, pareto=True, out=folder / "search")
        few = [1, 2]
        plan = atoll.plan("gpt2-xl", "h100", 16, batch=64, tp=few, pp=few, microbatch=few)
        write_plan(plan, folder / "plan")
        yield folder


def readers(made: Path) -> list[Reader]:
    """All of them, with their seeds."""
    from atoll.calibration.fit import calibrate
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
    chips = (ROOT / "tests/data/chips.csv").read_bytes().splitlines(keepends=True)
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
        Reader("nccl-tests", "text", "n.log", [NCCL_LOG], _logged),
        *(Reader(f"{kind} launch", *launch, _launch) for kind, launch in LAUNCHES.items()),
        Reader("run log", "text", "run.log", LOGS, _run_log),
        Reader("run log.gz", "binary", "run.log.gz", [gzip.compress(LOGS[0], 1)], _run_log),
        Reader("pasted launch", "json", "body.json", [PASTED], _pasted),
        Reader("chips", "csv", "c.csv", [b"".join(chips[:4])], _chips),
        Reader("wafer runs", "csv", "r.csv", [MESHES], _meshes),
        Reader("devices' operators", "csv", "o.csv", [TIMED], atoll.validate),
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
    from atoll.questions import PlanQuestion, PodsQuestion, SearchQuestion, WaferQuestion
    from atoll.questions.ask import load_job

    kinds: dict[str, Any] = {"chips": SearchQuestion, "devices": PlanQuestion}
    kinds |= {"pods": PodsQuestion, "wafer": WaferQuestion}
    job = load_job(path, kinds)
    return job.to_dict(), len(open_space(job)[0]) if isinstance(job, SearchQuestion) else 0


def _hardware(path: Path) -> Any:
    return atoll.describe_hardware(str(path))


def _calibrated(path: Path) -> Any:
    from atoll.calibration.validate import validate_operators
    from atoll.hardware.gpu import load_gpu

    return atoll.describe_hardware(str(path)), validate_operators(gpu=load_gpu("h200", path))


def _profiled(path: Path) -> Any:
    from atoll.calibration.site import calibrate_site

    return calibrate_site(trace=path)


def _logged(path: Path) -> Any:
    from atoll.calibration.site import calibrate_site

    return calibrate_site(nccl_tests=[path], device="a100-80")


def _launch(path: Path) -> Any:
    """Read and priced; no time is left for better layouts."""
    given = {"model": "llama3-8b", "vocab": 128256, "set": ["GPUS=8"]}
    given |= {} if path.suffix == ".sh" else {"devices": 16}
    return atoll.check(path, device="h100", time_limit=1e-6, **given).to_dict()


def _run_log(path: Path) -> Any:
    job = ROOT / "examples" / "check" / "qwen3-1.7b.toml"
    return atoll.check(job, device="h200", devices=1, log=path, time_limit=1e-6).to_dict()


def _pasted(path: Path) -> Any:
    """Read and priced; little time is left for better layouts."""
    from atoll.serve import pasted_file

    pasted_file.LIMIT_S = 0.01
    found = pasted_file.check_pasted(path.read_bytes())
    return found.check.to_dict()


def _chips(path: Path) -> Any:
    return atoll.validate(chips=path)


def _meshes(path: Path) -> Any:
    return atoll.validate(wafer=path)


def _place(path: Path) -> Any:
    return atoll.place(path).to_dict()


def _runs(path: Path) -> Any:
    return atoll.validate(path, out=path.parent / "out.csv")


def _onnx(path: Path) -> Any:
    from atoll.tracing.from_onnx.read import read_graph

    return len(read_graph(path).nodes)


def _search_folder(path: Path) -> Any:
    """Drawn and explained; little time is left for the neighbours of its chip."""
    from atoll.explore.explain import explanation
    from atoll.report.folder import open_folder
    from atoll.report.page import write_report
    from atoll.report.trace import search_trace

    explanation.STEPS_S = 0.1
    write_report(path)
    found: Any = open_folder(path).answer
    return found.explain(), len(search_trace(found))


def _wafer_folder(path: Path) -> Any:
    from atoll.report.folder import open_folder
    from atoll.report.page import write_report
    from atoll.wafer.answer.explain import explain_wafer_result

    write_report(path)
    found: Any = open_folder(path).answer
    return explain_wafer_result(found)


def _plan_folder(path: Path) -> Any:
    from atoll.report.folder import open_folder
    from atoll.report.page import write_report
    from atoll.report.trace import plan_trace

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
