"""Chips that differ in their clock alone are told apart wherever they are listed."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from typer.testing import CliRunner

import atoll
from atoll.cli import app

SPACE = """
name: four
template: physical-7nm
tensor_cores: 8
vector_cores: [8, 16]
width: 128
depth: 64
vector_width: 256
glb: 16 MiB
clock: [700 MHz, 1.05 GHz]
hbm: [{capacity: 32 GiB, bandwidth: 1.2 TB/s}]
"""
CHIP = ("tensor_cores", "vector_cores", "width", "depth", "vector_width", "glb_bytes")


def asked(folder: Path, space: str) -> list[str]:
    file = folder / "space.yaml"
    file.write_text(space)
    options = "--model bert-large --devices 4 --batch 16 --microbatch 4 --tp 1 --no-baselines"
    return ["search", "--space", str(file), *options.split(), "--pareto"]


def test_every_list_of_chips_has_the_clock_where_it_varies(tmp_path: Path) -> None:
    words, out = asked(tmp_path, SPACE), tmp_path / "run"
    printed = CliRunner().invoke(app, [*words, "--out", str(out)]).stdout
    with (out / "designs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {float(row["clock_Hz"]) for row in rows} == {0.7e9, 1.05e9}
    assert len({tuple(row[name] for name in (*CHIP, "clock_Hz")) for row in rows}) == len(rows)
    fronts = json.loads((out / "result.json").read_text())["pareto"]
    told = [row for front in fronts.values() for row in front["designs"]]
    assert all(row["clock_Hz"] in (0.7e9, 1.05e9) for row in told)
    by_power = printed[printed.index("throughput against power_W") :].splitlines()
    assert "clock" in by_power[1] and "GHz" in by_power[2]
    listed = CliRunner().invoke(app, ["designs", str(out)]).stdout.splitlines()
    assert "clock" in listed[1] and "0.7 GHz" in listed[-1]
    explained = atoll.load(out / "result.json").explain()
    assert any("clock_GHz" in other.differs for other in explained.runners_up)


def test_one_clock_takes_no_column(tmp_path: Path) -> None:
    words = asked(tmp_path, SPACE.replace("[700 MHz, 1.05 GHz]", "1.05 GHz"))
    printed = CliRunner().invoke(app, words).stdout
    by_power = printed[printed.index("throughput against power_W") :].splitlines()
    assert "vector cores" in by_power[1] and "clock" not in by_power[1]
