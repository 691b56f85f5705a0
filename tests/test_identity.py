"""One identity of the code: any source or data file that can change an answer changes it."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml

import atoll
from atoll.base.identity import VERSION, code_words, sources_digest, this_code

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


def test_the_version_is_said_once_and_the_citation_repeats_it() -> None:
    assert atoll.__version__ == VERSION == this_code()["version"]
    project = Path(__file__).parent.parent / "pyproject.toml"
    told = tomllib.loads(project.read_text())
    assert "version" in told["project"]["dynamic"]
    assert told["tool"]["hatch"]["version"]["path"] == "src/atoll/base/identity.py"
    citation = yaml.safe_load((project.parent / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == VERSION


def test_the_last_release_of_the_changelog_is_this_version_or_one_before() -> None:
    text = (Path(__file__).parent.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d+)\.(\d+)\.(\d+)\] - \d{4}-\d\d-\d\d$", text, re.M)
    newest = max((tuple(map(int, each)) for each in released), default=(0, 0, 0))
    assert newest <= tuple(map(int, VERSION.split(".")))
    assert text.count("\n## [") == len(released) + text.count("\n## [Unreleased]\n")


def test_words_for_a_code_that_did_not_say_what_it_is() -> None:
    assert code_words({"version": "0.0.9"}) == "atoll 0.0.9 (sources unknown)"
