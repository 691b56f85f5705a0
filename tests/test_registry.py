"""Doors for plug-ins: found by entry point, given as objects, refused with a sentence."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.answers import LaunchFile
from atoll.base import registry
from atoll.base.errors import AtollError
from atoll.explore.proof.objective import AIMS, Aim
from atoll.explore.run import run_search
from atoll.explore.strategies import STRATEGIES, Strategy
from atoll.profiles import DEFAULT, PROFILES
from atoll.questions import PlanQuestion, SearchQuestion
from atoll.questions.texts import help_words, schema
from atoll.tools.registry import TOOLS
from atoll.tools.stack import STACKS
from atoll.tools.tool import Tool
from atoll.workload import load_model

Install = Callable[[str, str, str], None]
RUN = {"model": "gpt2-xl", "device": "h100", "devices": 8, "batch": 32}


def forget() -> None:
    registry._plug_ins.cache_clear()
    registry._installed.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package of one module with these entry points."""
    monkeypatch.syspath_prepend(tmp_path)

    def add(package: str, module: str, points: str) -> None:
        (tmp_path / f"{package}.py").write_text(module)
        facts = tmp_path / f"{package}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text(points)
        forget()

    yield add
    forget()
    for name in [
        name
        for name, module in sys.modules.items()
        if (file := getattr(module, "__file__", None)) and Path(file).parent == tmp_path
    ]:
        del sys.modules[name]  # fmt: skip


def test_an_installed_stack_is_listed_and_used(install: Install) -> None:
    install(
        "quick_stack",
        "from dataclasses import replace\nfrom atoll.tools.stack import MEGATRON\n"
        "QUICK = replace(MEGATRON, name='quick', step_s=0.0)\n",
        "[atoll.stacks]\nquick = quick_stack:QUICK\n",
    )
    info = PlanQuestion.model_fields["stack"]
    assert "quick" in help_words("stack", info)
    assert "quick" in str(schema("plan"))
    assert STACKS.origin("quick").startswith("quick_stack")
    ours = atoll.estimate(**RUN, stack="megatron")
    theirs = atoll.estimate(**RUN, stack="quick")
    assert theirs.step.time_s == pytest.approx(ours.step.time_s - 5e-3 * ours.run.slack)


def test_an_installed_family_reads_its_configurations(install: Install, tmp_path: Path) -> None:
    install(
        "nova_family",
        "from atoll.workload.families import Family\n"
        "NOVA = Family(types=('nova',), about='Llama with biases', fixed={'mlp_bias': True})\n",
        "[atoll.families]\nnova = nova_family:NOVA\n",
    )
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "nova", "hidden_size": 64, "num_hidden_layers": 2, '
        '"num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128, '
        '"vocab_size": 256, "max_position_embeddings": 128, "rms_norm_eps": 1e-5}'
    )
    assert load_model(str(config)).mlp_bias


def test_a_broken_plug_in_is_one_sentence_and_stops_nothing_else(install: Install) -> None:
    install("hollow", "import no_such_module\n", "[atoll.stacks]\nhollow = hollow:STACK\n")
    with pytest.raises(AtollError) as caught:
        atoll.estimate(**RUN, stack="hollow")
    assert "stack 'hollow' of package hollow cannot be imported" in str(caught.value)
    assert "ModuleNotFoundError" in str(caught.value)
    assert atoll.estimate(**RUN, stack="megatron").step.time_s > 0


@pytest.mark.parametrize(
    ("module", "points", "words"),
    [
        ("X = 3\n", "odd = odd:X", "odd:X is a int, but should be an object of atoll's Stack"),
        ("from atoll.tools.stack import NEMO as X\n", "odd = odd:X", "calls itself nemo"),
        ("X = 3\n", "nemo = odd:X", "stack 'nemo' is offered by atoll and by odd; uninstall one"),
    ],
)
def test_what_does_not_go_through_the_door(
    install: Install, module: str, points: str, words: str
) -> None:
    install("odd", module, f"[atoll.stacks]\n{points}\n")
    with pytest.raises(AtollError) as caught:
        STACKS[points.partition(" ")[0]]
    assert words in str(caught.value)


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    for package in ("first", "second"):
        install(package, "", f"[atoll.tools]\nslurm = {package}:X\n")
    with pytest.raises(AtollError, match=r"'slurm' is offered by .* and by .*; uninstall one"):
        TOOLS["slurm"]


def test_near_names_are_suggested() -> None:
    with pytest.raises(AtollError, match="strategy 'exat' is not known, did you mean exact"):
        STRATEGIES["exat"]
    with pytest.raises(AtollError, match="profile 'x' is not known, known are default, phaze"):
        PROFILES["x"]


def test_objects_are_taken_for_their_names() -> None:
    quiet = replace(STACKS["megatron"], name="quiet", slack=1.5)
    found = atoll.estimate(**RUN, stack=quiet)
    assert found.run.stack == quiet
    with pytest.raises(AtollError, match="stack 'nemo' is known already; give yours another name"):
        atoll.estimate(**RUN, stack=replace(quiet, name="nemo"))
    with pytest.raises(AtollError, match="3 is no stack"):
        PlanQuestion.of(**RUN, stack=3)


def test_a_plan_holds_only_layouts_that_a_given_tool_runs() -> None:
    def write(plan: object) -> LaunchFile:
        layout = plan.layout  # type: ignore[attr-defined]
        if layout.pp > 1:
            raise AtollError("pipelines are not for this tool")
        return LaunchFile(target="plain", file="run.sh", text=f"run --tp {layout.tp}\n")

    plain = Tool("plain", "Plain", "megatron", axes={"vpp": (1,)}, write=write)
    found = atoll.plan(**RUN, export=plain, pp=(1, 2), tp=(1, 2))
    assert found.best.layout.pp == 1


def _harmonic(samples: np.ndarray, weights: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.asarray(weights.sum() / (weights / samples).sum(axis=1))


def test_a_search_takes_an_objective_a_strategy_and_a_profile(tmp_path: Path) -> None:
    few = {"devices": 4, "batch": 64, "microbatch": 4, "tp": 1, "zero": 0, "order": "1f1b",
           "space": "examples/spaces/tiny.yaml", "baselines": False}  # fmt: skip
    both = [{"name": "bert-large"}, {"name": "gpt2-xl", "weight": 2.0}]
    harmonic = Aim("harmonic", _harmonic, relative=False)
    exact = run_search(SearchQuestion.of(model=both, objective=harmonic, **few))
    speeds = np.array([[plan.samples_per_s for plan in exact.best.plans]])
    assert exact.certificate.status == "optimal"
    assert exact.score == pytest.approx(_harmonic(speeds, np.array([1.0, 2.0]))[0])

    def first(search, job):  # type: ignore[no-untyped-def]
        search.accept(0, float(search.evaluate_all(np.array([0]))[0]))
        return search.outcome()

    quick = replace(DEFAULT, name="one-slot", tensor_slots=1)
    job = SearchQuestion.of(
        model="bert-large", strategy=Strategy("first", first), profile=quick, **few
    )
    found = run_search(job, out=tmp_path / "run")
    assert found.certificate.evaluated == 1
    assert (job.strategy, job.profile) == ("first", "one-slot")
    assert "harmonic" in AIMS and "harmonic" not in tuple(AIMS)


def test_the_programs_of_the_page_run() -> None:
    page = Path(__file__).parents[1] / "docs" / "extending.md"
    programs = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        exec(compile(program, str(page), "exec"), {})


def test_the_standard_library_is_asked_wherever_a_package_may_bring_a_plug_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", [PathFinder])
    # importlib_metadata, once any test has imported it, takes this from the standard finder
    monkeypatch.setattr(PathFinder, "find_distributions", lambda *_: (), raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "nowhere")])
    facts = tmp_path / "other-1.0.dist-info"
    facts.mkdir()
    (facts / "entry_points.txt").write_text("[console_scripts]\natoll.other = other:main\n")
    assert not registry._any_offers()
    archive = tmp_path / "packages.zip"
    archive.write_bytes(b"")
    monkeypatch.setattr(sys, "path", [str(archive)])
    assert registry._any_offers()
    monkeypatch.setattr(sys, "path", [])

    class Finder:
        find_distributions = find_spec = None

    monkeypatch.setattr(sys, "meta_path", [PathFinder, Finder])
    assert registry._any_offers()
