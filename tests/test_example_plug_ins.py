"""The packages of examples/: installed as a user would, found by entry point, run to a proof."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
PACKAGES = ("atoll-two-level-buffer", "atoll-zigzag")
JOB = ("--devices", "4", "--batch", "16", "--microbatch", "4", "--tp", "1", "--zero", "0")
MODEL = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 512,
         "vocab_size": 512, "max_position_embeddings": 128}  # fmt: skip
QUICK = (*JOB, "--order", "1f1b", "--no-baselines", "--workers", "0", "--json")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a machine that has both packages."""
    folder = tmp_path_factory.mktemp("plug-ins")
    for package in PACKAGES:  # pip builds in the package's own folder
        shutil.copytree(EXAMPLES / package, folder / package)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    pip += ["--no-build-isolation", "--disable-pip-version-check", "--target", str(folder / "site")]
    subprocess.run([*pip, *(folder / package for package in PACKAGES)], check=True)
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(folder / "site"))))
    return dict(os.environ) | {"PYTHONPATH": path}


def atoll(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "atoll", *arguments],
        env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_its_tests(environment: dict[str, str], package: str) -> None:
    """The plug-in's own tests, which hold it to the contract of `atoll.testing`."""
    tests = str(EXAMPLES / package / "tests")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", tests],
        env=environment, capture_output=True, text=True, timeout=900, cwd=EXAMPLES / package,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_catalogue_help_and_schema_name_them(installed: dict[str, str]) -> None:
    listed = json.loads(atoll(installed, "hardware", "--json"))
    assert "two-level-buffer" in listed["chip_templates"]
    assert "zigzag" in listed["cost_models"]
    words = atoll(installed, "search", "--help")
    assert "two-level-buffer" in words and "zigzag" in words
    assert "zigzag" in atoll(installed, "schema", "search")
    shown = json.loads(atoll(installed, "hardware", "two-level-buffer", "--json"))
    assert "Second buffer" in {parameter["label"] for parameter in shown["parameters"]}


@pytest.mark.slow
def test_a_search_over_the_second_template_is_proven_and_stored(
    installed: dict[str, str], tmp_path: Path
) -> None:
    space = str(EXAMPLES / "atoll-two-level-buffer" / "space.yaml")
    out = str(tmp_path / "run")
    search = ("search", "--model", "bert-large", "--space", space, *QUICK, "--out", out)
    found = json.loads(atoll(installed, *search))
    assert found["certificate"]["status"] == "optimal"
    assert found["best"]["accelerator"]["own"]["l2_bytes"] in (32 * 2**20, 128 * 2**20)
    again = json.loads(atoll(installed, *search))  # from the store
    assert again["best"] == found["best"]
    rows = json.loads(atoll(installed, "designs", out, "--sort", "l2_bytes", "--json"))
    assert rows["designs"][0]["l2_bytes"] > 0
    table = atoll(installed, "designs", out)
    assert "second buffer" in table and " MiB" in table
    assert "second buffer" in atoll(installed, "explain", out)
    atoll(installed, "report", out)
    assert "Second buffer" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_second_template_keeps_the_contract(installed: dict[str, str]) -> None:
    run_its_tests(installed, "atoll-two-level-buffer")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("zigzag") is None, reason="ZigZag (zigzag-dse) is not installed")
def test_zigzag_keeps_the_contract_and_its_table_proves_an_answer(
    installed: dict[str, str], tmp_path: Path
) -> None:
    run_its_tests(installed, "atoll-zigzag")
    space = str(EXAMPLES / "atoll-zigzag" / "space.yaml")
    model = tmp_path / "small.json"
    model.write_text(json.dumps(MODEL))
    given = ("--model", str(model), "--space", space, "--cost-model", "zigzag", *QUICK)
    found = json.loads(atoll(installed, "search", *given))
    assert found["certificate"]["status"] == "optimal"
    ours = json.loads(atoll(installed, "search", *given, "--cost-model", "mapper"))
    assert found["score"] != ours["score"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("zigzag") is not None, reason="ZigZag is installed")
def test_a_cost_model_without_its_package_is_one_sentence(installed: dict[str, str]) -> None:
    space = str(EXAMPLES / "atoll-zigzag" / "space.yaml")
    given = ("--model", "bert-large", "--space", space, "--cost-model", "zigzag", *QUICK)
    done = subprocess.run(
        [sys.executable, "-m", "atoll", "search", *given],
        env=installed, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 2
    assert "cost model zigzag needs ZigZag" in done.stderr
