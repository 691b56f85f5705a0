"""The wheel and the sdist: what they contain, and that an installed wheel answers."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from atoll.base.identity import VERSION

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "atoll"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with wheel and sdist, built by the backend itself: nothing is downloaded."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, check=True, cwd=ROOT, capture_output=True)
    return folder


def test_the_wheel_has_all_of_the_package_and_nothing_else(built: Path) -> None:
    names = set(zipfile.ZipFile(built / f"atoll-{VERSION}-py3-none-any.whl").namelist())
    sources = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    metadata = {name for name in names if name.startswith(f"atoll-{VERSION}.dist-info/")}
    assert names - metadata == sources
    assert {"atoll/py.typed", "atoll/data/h200_ops.csv"} <= names
    assert f"atoll-{VERSION}.dist-info/licenses/LICENSE" in metadata


def test_the_sdist_has_sources_and_examples_without_tests(built: Path) -> None:
    with tarfile.open(built / f"atoll-{VERSION}.tar.gz") as archive:
        names = [name.split("/", 1)[1] for name in archive.getnames()]
    assert {name.split("/")[0] for name in names} == {
        "src", "examples", "CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO", "README.md",
        "SECURITY.md", "pyproject.toml", ".gitignore",
    }  # fmt: skip
    assert not [name for name in names if "tests/" in name]


def test_an_installed_wheel_answers(built: Path, tmp_path: Path) -> None:
    """`.ci/full` installs it with its dependencies into a fresh environment."""
    wheel = built / f"atoll-{VERSION}-py3-none-any.whl"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(tmp_path / "site"), str(wheel)], check=True)
    ask = "import atoll as a; print(a.__file__, a.plan('gpt2-xl', 'h100', 8, batch=64).best.fits)"
    ended = subprocess.run(
        [sys.executable, "-c", ask], env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ended.stdout.split() == [str(tmp_path / "site" / "atoll" / "__init__.py"), "True"]
