"""What `import atoll` offers: described in full, with examples that run, and nothing beside it."""

from __future__ import annotations

import ast
import doctest
import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import atoll
import atoll.plugins
import atoll.testing
import surface
from atoll.questions import COMMANDS
from atoll.questions.texts import question_fields
from calibrate.test_site_of_runs import runs
from docs import api_pages
from launch.test_check import SCRIPT
from wafer.wafer_cases import small_file, small_model

ROOT = Path(__file__).parents[1]
OFFERED = (atoll, atoll.answers, atoll.plugins, atoll.testing)
DOCUMENTED = (atoll, atoll.answers)
"""The modules whose functions, classes and methods have all sections of a docstring."""


def members() -> Iterator[tuple[str, Any]]:
    """Public functions and classes, and what these define or inherit from ours."""
    for module in DOCUMENTED:
        for name in module.__all__:
            found = getattr(module, name)
            if isinstance(found, FunctionType):
                yield f"{module.__name__}.{name}", found
            elif isinstance(found, type):
                yield f"{module.__name__}.{name}", found
                for part, value in inspect.getmembers(found):
                    value = getattr(value, "fget", value)
                    ours = getattr(value, "__module__", None) or ""
                    if not part.startswith("_") and inspect.isroutine(value) and "atoll" in ours:
                        yield f"{module.__name__}.{name}.{part}", getattr(found, part)


MEMBERS = {getattr(v, "__func__", v): (n, v) for n, v in reversed([*members()])}.values()
"""Each once, though several classes inherit it."""


def text_of(found: Any) -> str:
    return inspect.getdoc(found) or ""


@pytest.mark.parametrize(("name", "found"), MEMBERS, ids=[name for name, _ in MEMBERS])
def test_everything_public_is_described(name: str, found: Any) -> None:
    text = text_of(found)
    assert text.split("\n")[0].rstrip().endswith((".", ":")) or "\n" in text, "no sentence"
    if not inspect.isroutine(found):
        return
    signature = inspect.signature(found)
    taken = [p for p in signature.parameters if p not in ("self", "cls")]
    described = re.findall(r"^    (\w+): ", text.partition("Args:")[2].partition("\n\n")[0], re.M)
    assert set(taken) <= set(described), "Args"
    if signature.return_annotation not in (None, "None"):
        assert "\nReturns:\n" in text
    assert "\nExamples:\n    >>> " in text


@pytest.mark.parametrize("command", ["search", "plan", "estimate", "check", "place", "validate"])
def test_keywords_are_described_by_the_fields_of_their_questions(command: str) -> None:
    text = text_of(getattr(atoll, command))
    for name, info in question_fields(*COMMANDS[command]).items():
        assert f"\n    {name}: {info.description} " in text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that examples of docstrings name."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copy(ROOT / "examples" / "spaces" / "tiny.yaml", folder)
    small_file(folder).rename(folder / "small.yaml")
    shutil.copytree(Path(small_model(heads=8)).parent, folder / "small")
    (folder / "wafer-job.yaml").write_text(
        "kind: wafer\nwafer: small.yaml\nmodel: small\nbatch: 8\nsequence: 64\n"
        "microbatch: [1]\nbaselines: false\n"
    )
    (folder / "pods.yaml").write_text(
        "pods: [{device: h100, devices: 4}, {device: a100-80, devices: 4}]\n"
    )
    (folder / "pretrain.sh").write_text(SCRIPT.replace("${GPUS}", "8"))
    runs(folder / "runs.csv")
    table = sorted((ROOT / "tests" / "data" / "phaze_dp_cases").glob("*.in.json"))[0]
    shutil.copy(table, folder / "layers.json")
    return folder


EXAMPLES = [
    example
    for name, found in [*MEMBERS, *((m.__name__, m) for m in (atoll, atoll.api, atoll.plugins))]
    for example in doctest.DocTestFinder(recurse=False).find(found, name)
    if example.examples
]


SEARCHED: dict[str, Any] = {}


def search_once(*job: Any, **fields: Any) -> Any:
    """Most examples begin with the same search."""
    asked = repr((job, fields))
    if asked not in SEARCHED:
        SEARCHED[asked] = atoll.api.search(*job, **fields)
    return SEARCHED[asked]


@pytest.mark.parametrize("example", EXAMPLES, ids=[e.name for e in EXAMPLES])
def test_examples_run(
    example: doctest.DocTest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(atoll, "search", search_once)
    if "import atoll, torch" in (example.docstring or ""):
        pytest.importorskip("torch")
    told: list[str] = []
    example.globs = {}
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=told.append)
    assert not result.failed, "".join(told)


def test_what_users_hold_on_to_is_as_written_down() -> None:
    """A change of it: python tests/surface.py, and a line in CHANGELOG.md that says so."""
    kept, now = surface.KEPT.read_text(encoding="utf-8").splitlines(), [*surface.lines()]
    assert [line for line in kept if line not in now] == [], "gone"
    assert [line for line in now if line not in kept] == [], "new"
    assert kept == now


# --- Nothing beside it ----------------------------------------------------------------------------


def imports(source: str) -> set[tuple[str, str]]:
    """Module and name of all that a program imports from atoll."""
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {(node.module, alias.name) for alias in node.names}
    return {(m, n) for m, n in found if m == "atoll" or m.startswith("atoll.")}


def programs() -> Iterator[tuple[str, str]]:
    """Python that users read: examples, notebooks, blocks of the docs."""
    for path in (ROOT / "examples").rglob("*.py"):
        yield path.name, path.read_text(encoding="utf-8")
    for path in (ROOT / "examples").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        yield path.name, "\n".join(code)
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            yield path.name, block


def test_examples_import_public_names_only() -> None:
    known = {module.__name__: module for module in OFFERED}
    seen = 0
    for where, source in programs():
        for module, name in imports(source):
            assert module in known, f"{where}: {module}"
            assert not name or name in known[module].__all__, f"{where}: {module}.{name}"
            seen += 1
    assert seen > 15


def test_public_names_are_there() -> None:
    for module in OFFERED:
        assert [*module.__all__] == sorted(module.__all__, key=lambda n: (not n.isupper(), n))
        for name in module.__all__:
            assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Plam'"):
        _ = atoll.Plam
    with pytest.raises(AttributeError, match="has no attribute 'PlamAnswer'"):
        _ = atoll.answers.PlamAnswer


def test_the_python_reference_has_a_page_for_every_public_name() -> None:
    """After a change: python tests/docs/api_pages.py"""
    written = {
        path.relative_to(api_pages.API).as_posix(): path.read_text(encoding="utf-8")
        for path in api_pages.API.rglob("*.md")
    }
    assert written == api_pages.pages()


def test_no_package_takes_the_name_of_a_function() -> None:
    """An import of `atoll.calibrate` once put the package where the function was."""
    inside = {path.stem for path in (ROOT / "src/atoll").iterdir()}
    assert inside & set(atoll.__all__) == {"answers"}


ASKED = {"model": "gpt2-xl", "device": "h100", "devices": 8, "batch": 64}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: atoll.search(5), "job: expected a job file, or a question about chips or wafer"),
        (lambda: atoll.search({"model": "bert-large"}), "job: expected a job file, or a question"),
        (lambda: atoll.search(atoll.PlanQuestion.of(**ASKED)), "job: expected a job file, or a"),
        (lambda: atoll.plan(job=3), "job: expected .* about devices or pods, got 3"),
        (lambda: atoll.plan(atoll.PlanQuestion.of(**ASKED)), "model: .*give a question as job="),
        (lambda: atoll.estimate(job=atoll.PlanQuestion.of(**ASKED)), "job: expected a job file"),
        (lambda: atoll.sweep(None, devices=[8]), "sweep: expected one of PlanQuestion"),
        (lambda: atoll.load(None), "path: expected text or a path, got None"),
        (lambda: atoll.compare(3, 4), "runs: expected text or a path, got 3"),
        (lambda: atoll.describe_model(None), "model: expected text or a path, got None"),
        (lambda: atoll.describe_hardware(3), "name: expected text or a path, got 3"),
        (lambda: atoll.check(3, device="h100"), "file: expected text or a path, got 3"),
        (lambda: atoll.validate(3), "data: expected text or a path, got 3"),
    ],
)
def test_a_wrong_first_argument_is_one_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(atoll.AtollError, match=sentence) as raised:
        call()
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_a_users_script_is_checked_by_mypy_in_strict_mode() -> None:
    """Results have one type each, and an option that is misspelled is an error."""
    mypy = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-pretty"]
    script = ROOT / "tests" / "typed_script.py"
    ended = subprocess.run([*mypy, str(script)], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
