"""Every reader refuses devices, pipes and files beyond its limit before it reads them."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.base.errors import AtollError
from atoll.calibration.nccl import read_log
from atoll.files import csvfile, jsonfile
from atoll.files.csvfile import read_csv
from atoll.files.inputs import read_input
from atoll.phaze.layer_table import read_table
from atoll.tools.files.logs import read_run_log
from atoll.validation.kineto import read_trace

RUN: dict[str, Any] = {"model": "gpt2-xl", "device": "h100", "devices": 8, "batch": 8}
READERS: dict[str, Callable[[Path], Any]] = {
    "job": atoll.search,
    "space": lambda path: atoll.search(model="gpt2-xl", devices=1, batch=4, space=str(path)),
    "site": lambda path: atoll.estimate(**RUN, site=str(path)),
    "pods": lambda path: atoll.plan(model="gpt2-xl", batch=8, pods=str(path)),
    "launch file": lambda path: atoll.plan(from_=str(path), device="h100"),
    "runs": atoll.validate,
    "chips": lambda path: atoll.validate(chips=path),
    "trace": read_trace,
    "nccl-tests": read_log,
    "run log": read_run_log,
    "layer table": read_table,
}
"""What `--space`, jobs, `--site`, `--pods`, `--from`, tables, `--trace` and logs are read by."""


@pytest.fixture(scope="module")
def special(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    pipe = tmp_path_factory.mktemp("special") / "pipe.yaml"
    os.mkfifo(pipe)
    link = pipe.with_name("link.yaml")
    link.symlink_to("/dev/zero")
    return pipe, link, Path("/dev/zero")


@pytest.mark.parametrize("name", READERS)
def test_devices_and_pipes_are_refused_unread(name: str, special: tuple[Path, ...]) -> None:
    for path in special:
        with pytest.raises(AtollError, match="a device or a pipe; give a regular file"):
            READERS[name](path)


@pytest.mark.parametrize("name", ["job", "space", "site", "pods", "launch file"])
def test_long_files_are_refused_unread(name: str, tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    with path.open("wb") as file:
        file.truncate(2**40)  # no block of it is on disk
    with pytest.raises(AtollError, match=r"1,099,511,627,776 bytes, but at most [\d,]+ are read"):
        READERS[name](path)


def test_packed_files_are_limited_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(10_000)))
    assert read_input(path, 10_000) == bytes(10_000)
    with pytest.raises(AtollError, match="more than 9,999 bytes"):
        read_input(path, 9_999)


def test_a_name_with_a_nul_is_a_sentence() -> None:
    with pytest.raises(AtollError, match="not the name of a file"):
        read_csv("a\0b")


def test_tables_have_limits_of_columns_and_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "wide.csv"
    path.write_text(",".join(f"c{i}" for i in range(100_000)) + "\n", encoding="utf-8")
    with pytest.raises(AtollError, match="100,000 columns, but at most 1,000 are read"):
        read_csv(path)
    monkeypatch.setattr(csvfile, "MOST_CELLS", 4)
    path.write_text("a,b\n1,2\n3,4\n5,6\n", encoding="utf-8")
    with pytest.raises(AtollError, match="more than 4 cells; divide the table"):
        read_csv(path)


def test_a_packed_json_object_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}'))
    assert jsonfile.read_object(path) == {"a": 1}
