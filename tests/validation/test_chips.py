"""Published chips: words become units, and the model holds them with their family left out."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from atoll.api import validate
from atoll.base.errors import AtollError
from atoll.files.csvfile import write_csv
from atoll.hardware.physical.constants import constants
from atoll.validation.chip_rows import ChipRow, read_chips
from atoll.validation.chips import fit_physics, validate_chips

CHIPS = Path(__file__).parents[1] / "data" / "chips.csv"


@pytest.fixture(scope="module")
def rows() -> dict[str, ChipRow]:
    found, skipped = read_chips(CHIPS)
    assert not skipped
    return {row.name: row for row in found}


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("A100 SXM", 432 * 256 * 2 * 1.41e-3),
        ("H100 SXM", 528 * 512 * 2 * 1.83e-3),
        ("MI300X", 1216 * 256 * 2 * 2.1e-3),
        ("Gaudi 3", 8 * 256**2 * 2 * 1.6e-3),
        ("TPU v5e", 4 * 128**2 * 2 * 1.5e-3),
        ("D1", 354 * 4 * 64 * 2 * 2.0e-3),
        ("GroqChip1", 4 * 320**2 * 2 * 0.9e-3),
        ("Ascend 910", 32 * 16**3 * 2 * 1.0e-3),
        ("WSE-2", 850e3 * 4 * 2 * 1.1e-3),
    ],
)
def test_peak_is_units_times_width_times_two_times_clock(
    rows: dict[str, ChipRow], name: str, tera: float
) -> None:
    row = rows[name]
    assert row.constructed_flops == pytest.approx(tera * 1e12)
    assert row.peak_flops is not None
    assert row.constructed_flops == pytest.approx(row.peak_flops, rel=0.025)


def test_words_say_how_units_are_grouped(rows: dict[str, ChipRow]) -> None:
    told = {name: row.chip for name, row in rows.items()}
    assert [told[n].unit_cells for n in ("A100 SXM", "Gaudi 3", "D1", "WSE-2")] == [
        256,
        65536,
        64,
        4,
    ]
    assert told["A100 SXM"].lanes == 108 * 64
    assert told["TPU v4i"].lanes == 2048
    assert told["D1"].lanes == 354 * 16
    assert told["Ascend 910"].lanes == 32 * 64
    assert told["GroqChip1"].lanes == 5120
    assert told["WSE-2"].lanes == 0 and told["WSE-2"].cores == 850e3
    assert told["A100 SXM"].spare == pytest.approx(128 / 108)
    assert told["MI300X"].dies == 12 and told["Ascend 910"].dies == 1
    assert told["D1"].on_wafer and told["WSE-2"].on_wafer and not told["Gaudi 3"].on_wafer
    assert told["TPU v5e"].stacks == 2
    assert [n for n, chip in told.items() if chip.threaded] == [
        "A100 SXM", "H100 SXM", "MI300X", "Ascend 910",
    ]  # fmt: skip


def test_only_published_figures_count(rows: dict[str, ChipRow]) -> None:
    assert {n for n, row in rows.items() if not row.area_counts} == {
        "MI300X", "Gaudi 3", "TPU v5e", "GroqChip1",
    }  # fmt: skip
    assert {n for n, row in rows.items() if not row.power_counts} == {
        "TPU v5e", "GroqChip1", "WSE-2",
    }  # fmt: skip


def test_a_family_left_out_is_predicted_from_the_others() -> None:
    answer = validate_chips(CHIPS)
    assert answer.rows == answer.predicted == 10
    assert answer.area.rows == 6 and answer.power.rows == 7
    assert answer.area.mean_ape is not None and answer.area.mean_ape < 0.15
    assert answer.power.mean_ape is not None and answer.power.mean_ape < 0.15
    assert answer.peak.mean_ape is not None and answer.peak.mean_ape < 0.01
    nvidia = next(line for line in answer.chips if line.chip == "H100 SXM")
    assert sum(nvidia.area_parts_mm2.values()) == pytest.approx(nvidia.area_mm2.left_out)


def test_a_family_says_nothing_of_its_own_prediction(tmp_path: Path) -> None:
    """A vendor's published area, changed, moves others' predictions and not its own."""
    with CHIPS.open(newline="") as file:
        table = list(csv.DictReader(file))
    for row in table:
        if row["chip"] == "D1":
            row["silicon_mm2"], row["tdp_W"] = "900", "700"
    changed = tmp_path / "chips.csv"
    with changed.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    before, after = (
        {line.chip: line for line in validate_chips(path).chips} for path in (CHIPS, changed)
    )
    for figure in ("area_mm2", "power_W"):
        mine, others = getattr(after["D1"], figure), getattr(after["WSE-2"], figure)
        assert mine.left_out == pytest.approx(getattr(before["D1"], figure).left_out, rel=1e-9)
        assert others.left_out != pytest.approx(getattr(before["WSE-2"], figure).left_out, rel=1e-4)


def test_a_fit_stays_within_the_ranges_of_its_sources(rows: dict[str, ChipRow]) -> None:
    for one in constants(fit_physics(list(rows.values()))):
        assert one.low * (1 - 1e-9) <= one.value <= one.high * (1 + 1e-9), one.name


def test_one_line_a_chip_is_written(tmp_path: Path) -> None:
    out = tmp_path / "lines.csv"
    validate(chips=CHIPS, out=out)
    with out.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["chip"] for line in lines][:2] == ["A100 SXM", "H100 SXM"]
    assert float(lines[0]["network_mm2"]) > 0 and float(lines[0]["dram_W"]) > 0


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ("432 TC x 256", "0 TC"),
        ("108 SM (128", "0 SM (128"),
        ("432 TC x 256", "9" * 400),
        ("2020,7,826", "2020,0,826"),
        ("2020,7,826", "9999,7,826"),
        (",300,CoWoS-S", ",1e308,CoWoS-S"),
    ],
)
def test_a_chip_of_no_units_or_beyond_all_numbers_is_left_out(
    given: str, instead: str, tmp_path: Path
) -> None:
    table = tmp_path / "chips.csv"
    first, second, *more = CHIPS.read_text().splitlines()
    assert given in second
    table.write_text("\n".join([first, second.replace(given, instead), *more]))
    found, skipped = read_chips(table)
    assert len(found) == 9 and len(skipped) == 1


def test_tables_that_are_none_and_rows_that_cannot_be_read_say_so(tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("chip,year\nA,2020\n")
    with pytest.raises(AtollError, match="the columns vendor, process_nm, bf16_TFLOPs"):
        validate(chips=other)
    text = CHIPS.read_text().replace("A100 SXM,NVIDIA,2020,7,826", "A100 SXM,NVIDIA,2020,7,large")
    other.write_text(text)
    answer = validate_chips(other)
    assert answer.rows == 10 and answer.predicted == 9
    assert list(answer.skipped) == ["line 2: silicon_mm2 is 'large', expected a number"]
    with pytest.raises(AtollError, match="judged alone"):
        validate(CHIPS, chips=CHIPS)


def changed_table(tmp_path: Path, **changes: str) -> tuple[list[ChipRow], dict[str, int]]:
    """The table with H100's cells changed."""
    with CHIPS.open() as file:
        table = list(csv.DictReader(file))
    next(row for row in table if row["chip"] == "H100 SXM").update(changes)
    path = tmp_path / "changed.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0])
        writer.writeheader()
        writer.writerows(table)
    return read_chips(path)


def test_a_product_with_its_result_behind_it_counts_once(tmp_path: Path) -> None:
    """20,480 lanes, not 160 x 128 x 20,480, which were 8,754,021 mm2."""
    words = "160 SM x 128 fp32 = 20,480 (full implementation)"
    rows, skipped = changed_table(tmp_path, vector_units=words)
    chip = next(row.chip for row in rows if row.name == "H100 SXM")
    assert not skipped and (chip.lanes, chip.cores) == (20480, 528)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vector_units": "160 SM x 128 fp32 = 40,960"}, "the product is 20,480, not 40,960"),
        ({"vector_units": "132 SM x 128 x 20,480 fp32"}, r"look at vector_units"),
        ({"hbm_gen": "DDR5 (pool)", "hbm_TBps": "110"}, "are 2,500 channels of 64 bits, and no"),
        (
            {"hbm_gen": "HBM3", "hbm_TBps": "900"},
            "18 W/mm2 would be .* most are dram: look at hbm_gen",
        ),
        ({"onchip_sram_MiB": "116000"}, "look at onchip_sram_MiB"),
        ({"clock_GHz": "1830"}, "clock_GHz is '1830', expected 0.01 to 10"),
        ({"process_nm": "28", "bf16_TFLOPs": "9890"}, r"more than 1 die can have \(858\)"),
    ],
)
def test_cells_that_no_chip_can_have_are_refused(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    rows, skipped = changed_table(tmp_path, **changes)
    assert len(rows) == 9 and "H100 SXM" not in {row.name for row in rows}
    (why,) = skipped
    assert why.startswith("line 3: ") and re.search(reason, why), why


IMPLAUSIBLE = (("l2_MiB", "40000000", "0 to 1e+06 MiB"), ("process_nm", "0.001", "0.5 to 10000 nm"),
               ("dies", "-3", "1 to 10,000"), ("tdp_W", "1e8", "0 to 1e+06 W"))  # fmt: skip


@pytest.mark.parametrize(("column", "cell", "limits"), IMPLAUSIBLE)
def test_a_cell_that_no_chip_has_is_skipped_with_its_range(
    tmp_path: Path, column: str, cell: str, limits: str
) -> None:
    with CHIPS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))[:3]
    rows[1][column] = cell
    path = tmp_path / "chips.csv"
    write_csv(path, list(rows[0]), [list(row.values()) for row in rows])
    chips, skipped = read_chips(path)
    assert [chip.line for chip in chips] == [2, 4]
    assert list(skipped) == [f"line 3: {column} is {cell!r}, expected {limits}"]
