"""One identity of the code: any source or data file that can change an answer changes it."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

import atoll
from atoll.identity import VERSION, code_words, sources_digest, this_code

PACKAGE = Path(atoll.__file__).parent


@pytest.mark.parametrize(
    "name",
    ["placement/chain.py", "cost/gemm_kernels.py", "hardware/catalog/networks/dgx-h100.yaml"],
)
def test_an_edit_of_any_source_is_another_identity(tmp_path: Path, name: str) -> None:
    copy = tmp_path / "atoll"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert sources_digest(copy) == this_code()["sources"]
    with (copy / name).open("a", encoding="utf-8") as file:
        file.write("# edited\n")
    assert sources_digest(copy) != this_code()["sources"]


def test_a_file_that_moved_is_another_identity(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    before = sources_digest(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert sources_digest(tmp_path) != before


def test_the_version_is_said_once() -> None:
    assert atoll.__version__ == VERSION == this_code()["version"]
    project = Path(__file__).parent.parent / "pyproject.toml"
    told = tomllib.loads(project.read_text())
    assert "version" in told["project"]["dynamic"]
    assert told["tool"]["hatch"]["version"]["path"] == "src/atoll/identity.py"


def test_words_for_a_code_that_did_not_say_what_it_is() -> None:
    assert code_words({"version": "0.0.9"}) == "atoll 0.0.9 (sources unknown)"
