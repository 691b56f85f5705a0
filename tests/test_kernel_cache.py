"""Compiled kernels are code: they are kept only where nobody else can put theirs."""

from __future__ import annotations

import atexit
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.base import kernel_cache

NAME = f"kernels-{kernel_cache.kernels_digest()}"


def test_every_installation_has_a_cache_of_its_own(tmp_path: Path) -> None:
    """Numba compiles for each anew, which a first run does on all cores."""
    found = []
    for name in ("one", "other"):
        package = tmp_path / name
        (package / "base").mkdir(parents=True)
        for source in ("base/jit.py", "some_kernels.py"):
            (package / source).write_text("same")
            os.utime(package / source, (1e9, 1e9))
        found += [kernel_cache.kernels_digest(package), kernel_cache.kernels_digest(package)]
    os.utime(package / "some_kernels.py", (2e9, 2e9))  # installed again
    found.append(kernel_cache.kernels_digest(package))
    assert found[0] == found[1] and found[2] == found[3]
    assert len(set(found)) == 3


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the user's own; the shared temporary directory lies beside it."""
    if not kernel_cache._out_of_reach(tmp_path):
        pytest.skip("others can write where this test keeps its files")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(kernel_cache, "_fresh", False)
    monkeypatch.setattr(kernel_cache, "_helpers", {})
    return tmp_path / "cache"


@pytest.fixture
def shared(home: Path) -> Path:
    """The shared temporary directory, where the home cannot be written."""
    home.write_text("not a folder")
    return home.parent / "shared"


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    calls: list[Callable[[], Any]] = []
    monkeypatch.setattr(atexit, "register", lambda call, *args: calls.append(lambda: call(*args)))
    return calls


def chosen() -> Path:
    kernel_cache.use_kernel_cache()
    return Path(os.environ["NUMBA_CACHE_DIR"])


def test_the_cache_lies_in_the_home_and_is_closed_to_others(home: Path) -> None:
    assert chosen() == home / "atoll" / NAME
    assert kernel_cache.compiling()
    assert [mode(home / "atoll"), mode(home / "atoll" / NAME)] == [0o700, 0o700]


def test_a_cache_that_is_there_is_used_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = chosen()
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    assert chosen() == first
    assert not kernel_cache.compiling()


def test_without_a_home_the_shared_folder_is_private_and_kept(shared: Path) -> None:
    folder = shared / f"atoll-{os.geteuid()}"
    assert chosen() == folder / NAME
    assert [mode(folder), mode(folder / NAME)] == [0o700, 0o700]


def open_folder(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


def open_link(place: Path) -> None:
    target = place.parent / "elsewhere"
    open_folder(target)
    place.symlink_to(target)


def open_cache(place: Path) -> None:
    place.mkdir(0o755)
    open_folder(place / NAME)


def linked_cache(place: Path) -> None:
    place.mkdir(0o755)
    (place / "elsewhere").mkdir(0o700)
    (place / NAME).symlink_to("elsewhere")


def sticky_folder(place: Path) -> None:
    place.mkdir()
    place.chmod(0o1777)
    (place / NAME).mkdir(0o755)


def circle(place: Path) -> None:
    place.symlink_to(place)


@pytest.mark.parametrize(
    "plant", [open_folder, open_link, open_cache, linked_cache, sticky_folder, circle]
)
def test_a_planted_folder_is_not_used(
    shared: Path, plant: Callable[[Path], None], at_exit: list[Callable[[], Any]]
) -> None:
    planted = shared / f"atoll-{os.geteuid()}"
    plant(planted)
    folder = chosen()
    assert folder.parent == shared
    assert folder.name.startswith("atoll-kernels-")
    assert mode(folder) == 0o700
    assert not list(folder.iterdir())
    assert kernel_cache.compiling()
    (folder / "index").write_text("of this process")
    for call in at_exit:
        call()
    assert not folder.exists(), "a folder of this process alone goes with it"


def test_a_folder_of_another_user_is_not_used(
    shared: Path, monkeypatch: pytest.MonkeyPatch, at_exit: list[Callable[[], Any]]
) -> None:
    other = os.geteuid() + 4242  # as whom we look at what is there
    monkeypatch.setattr(os, "geteuid", lambda: other)
    (shared / f"atoll-{other}" / NAME).mkdir(0o700, parents=True)
    assert chosen().name.startswith("atoll-kernels-")
    assert len(at_exit) == 1


@pytest.mark.parametrize("bits", [0o775, 0o757])
def test_a_home_that_others_can_write_is_not_trusted(home: Path, bits: int) -> None:
    home.mkdir()
    home.chmod(bits)
    folder = chosen()
    assert folder == home.parent / "shared" / f"atoll-{os.geteuid()}" / NAME
    assert not list(home.iterdir()), "nothing is left in a place that is not used"


def test_a_relative_cache_home_is_ignored_as_the_standard_says(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(home.parent))
    assert chosen() == home.parent / ".cache" / "atoll" / NAME


def test_kernels_that_nobody_used_for_a_month_are_removed(home: Path) -> None:
    for name, age_s in (("old", 40 * 86400), ("recent", 86400)):
        folder = home / "atoll" / f"kernels-{name}"
        folder.mkdir(0o700, parents=True)
        os.utime(folder, times=(0, time.time() - age_s))
    kernel_cache.use_kernel_cache()
    assert sorted(path.name for path in (home / "atoll").iterdir()) == sorted(
        ["kernels-recent", NAME]
    )


def test_a_folder_that_the_user_chose_is_left_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/chosen")
    assert chosen() == Path("/chosen")
    assert not home.exists()


def test_an_empty_folder_that_the_user_chose_is_a_first_run(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    assert chosen() == folder
    assert kernel_cache.compiling()
    (folder / "kernel.nbi").touch()
    kernel_cache.use_kernel_cache()
    assert not kernel_cache.compiling()


def test_systems_without_user_numbers_keep_the_home(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "geteuid")
    assert chosen() == home / "atoll" / NAME


@pytest.mark.skipif(sys.platform != "linux", reason="begins anew elsewhere")
def test_a_copy_of_the_process_compiles_and_ends_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def run_module(name: str, run_name: str) -> None:
        print("heard by nobody")
        (tmp_path / "said").write_text(f"{name} {sys.argv[1]}")
        raise OSError("not shown either")

    monkeypatch.setattr("runpy.run_module", run_module)
    helper = kernel_cache._started("bounds")
    helper.join()
    assert (tmp_path / "said").read_text() == "atoll.warm bounds"
    assert capfd.readouterr() == ("", "")
