"""Answers from arrays are those of the store itself, and of counting one by one."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serve_runs import JOB, design, loaded, open_store, random_designs, write_designs

from atoll.base.errors import AtollError
from atoll.serve.columns import Columns, Gatherer
from atoll.serve.query import (
    CELLS,
    Filters,
    csv_lines,
    front,
    histograms,
    json_lines,
    ordered,
    page,
    parse_filters,
    passing_mask,
    scatter,
)
from atoll.serve.runs import SearchRun
from atoll.store import DesignRow, RunReader
from atoll.store.schema import design_columns, job_parameters

NAMES = design_columns([parameter.name for parameter in job_parameters(JOB)])


def columns_of(rows: list[DesignRow]) -> Columns:
    """As if read from a store, without one."""
    gathered = Gatherer(NAMES)
    if rows:
        gathered.add(
            [
                tuple(
                    (
                        {"chip": d.chip, "design": d.design, "phase": d.phase, "at": 0.0}
                        | dict(d.figures) | dict(d.parameters) | dict(d.plan)
                    )[name]
                    for name in NAMES
                )
                for d in rows
            ]
        )  # fmt: skip
    return gathered.joined(Columns.empty(NAMES))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [*random_designs(300), design(99_999, None, 150.0), design(99_998, 50.0, 150.0)]
    return write_designs(tmp_path_factory.mktemp("serve") / "some", rows)


@pytest.mark.parametrize("sort", ["score", "area_mm2", "width", "chip", "model", "pipeline"])
@pytest.mark.parametrize("descending", [True, False])
def test_pages_are_those_of_the_store(folder: Path, sort: str, descending: bool) -> None:
    columns = loaded(SearchRun("some", folder)).columns
    filters = {"area_mm2": (120.0, 250.0), "width": (16, None), "score": (0, None)}
    parsed = parse_filters({"area_mm2": ["120..250"], "width": ["16.."], "score": ["0.."]}, NAMES)
    mask = passing_mask(columns, parsed)
    rows = page(columns, ordered(columns, mask, sort, descending), 20, 30)
    with RunReader(folder) as reader:
        assert int(mask.sum()) == reader.count(filters)
        expected = reader.designs(filters, sort=sort, descending=descending, limit=30, offset=20)
    assert rows == expected


def test_designs_without_a_value_come_last_and_pass_no_range(folder: Path) -> None:
    columns = loaded(SearchRun("some", folder)).columns
    everything = passing_mask(columns, Filters())
    for descending in (True, False):
        last = ordered(columns, everything, "score", descending)[-1]
        assert columns.row(int(last))["chip"] == 99_999
    assert columns.row(int(last))["score"] is None
    assert passing_mask(columns, parse_filters({"score": [".."]}, NAMES)).sum() == len(columns) - 1


POINTS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(POINTS)
def test_the_front_is_what_comparing_all_pairs_gives(points: list[tuple[int, int]]) -> None:
    columns = columns_of([design(i, float(s), float(a)) for i, (s, a) in enumerate(points)])
    expected = {
        (s, a)
        for s, a in points
        if not any((t >= s and b < a) or (t > s and b <= a) for t, b in points)
    }
    everything = passing_mask(columns, Filters())
    found = front(columns, everything, "area_mm2", "score")
    score, area = columns.numbers["score"], columns.numbers["area_mm2"]
    assert [(score[i], area[i]) for i in found] == sorted(expected, reverse=True)
    turned = front(columns, everything, "score", "area_mm2")
    assert {(score[i], area[i]) for i in turned} == expected


RANGES = st.tuples(st.integers(1, 9), st.integers(0, 9)).map(lambda r: (r[0], r[0] + r[1]))


@settings(max_examples=60, deadline=None)
@given(POINTS, RANGES, RANGES)
def test_bars_count_designs_that_pass_the_other_columns_filters(
    points: list[tuple[int, int]], scores: tuple[int, int], areas: tuple[int, int]
) -> None:
    columns = columns_of([design(i, float(s), float(a)) for i, (s, a) in enumerate(points)])
    filters = Filters((("score", *scores), ("area_mm2", *areas)))
    passed, bars = histograms(columns, filters)
    in_score = [scores[0] <= s <= scores[1] for s, _ in points]
    in_area = [areas[0] <= a <= areas[1] for _, a in points]
    assert passed == sum(s and a for s, a in zip(in_score, in_area, strict=True))
    totals = {bar.column: sum(bar.counts) for bar in bars}
    assert totals["score"] == sum(in_area)
    assert totals["area_mm2"] == sum(in_score)
    assert all(n == passed for name, n in totals.items() if name not in ("score", "area_mm2"))


def test_every_design_is_in_the_bar_that_holds_its_value() -> None:
    columns = columns_of([design(i, 10.0 ** (i % 7), 100.0 + i, 2 ** (i % 5)) for i in range(99)])
    for at, name in enumerate(columns.bins):
        bins, values = columns.bins[name], columns.numbers[name]
        for code, value in zip(columns.codes[at], values, strict=True):
            if bins.exact:
                assert bins.values[code] == value
            else:
                assert bins.values[code] <= value * (1 + 1e-12)
                assert value <= bins.values[code + 1] * (1 + 1e-12)
    assert columns.bins["width"].exact
    assert columns.bins["score"].logarithmic
    assert not columns.bins["area_mm2"].logarithmic


def test_few_designs_are_points_and_many_are_cells_that_add_up() -> None:
    few = columns_of(random_designs(200))
    found = scatter(few, passing_mask(few, Filters()), "area_mm2", "score")
    assert (found.mode, len(found.points), found.shown) == ("points", 200, 200)
    many = columns_of(random_designs(4000))
    mask = passing_mask(many, parse_filters({"area_mm2": ["..250"]}, NAMES))
    found = scatter(many, mask, "area_mm2", "score")
    assert found.mode == "cells"
    assert sum(cell[2] for cell in found.cells) == found.shown == mask.sum() > 1500
    (x0, x1), (y0, y1) = found.domain
    wide, high = CELLS
    score, area = many.numbers["score"], many.numbers["area_mm2"]
    for ix, iy, count, chip in found.cells:
        inside = np.flatnonzero(
            mask
            & (np.minimum((area - x0) / (x1 - x0) * wide, wide - 1).astype(int) == ix)
            & (np.minimum((score - y0) / (y1 - y0) * high, high - 1).astype(int) == iy)
        )
        assert len(inside) == count
        assert many.numbers["chip"][inside[np.argmax(score[inside])]] == chip


def test_nothing_to_show_is_an_answer_too() -> None:
    empty = Columns.empty()
    nobody = passing_mask(empty, Filters())
    assert scatter(empty, nobody, "area_mm2", "score").shown == 0
    assert histograms(empty, Filters()) == (0, [])
    assert b"".join(json_lines(empty, ordered(empty, nobody, "score", True))) == b"[\n]\n"


def test_what_the_search_writes_later_is_taken_in(tmp_path: Path) -> None:
    with open_store(tmp_path / "run") as store:
        store.put_designs(random_designs(20))
        run = SearchRun("run", tmp_path / "run")
        with RunReader(run.folder) as reader:
            run.look(reader)
            assert len(run.columns) == 20
            first = run.columns
            run.look(reader)
            assert run.columns is first
            store.put_designs([design(3, 500.0, 90.0), design(7000, 1.0, 1.0)])
            store.put_designs([design(3, 600.0, 90.0)])
            run.look(reader)
            assert run.summary()["state"] == "running"
        with RunReader(run.folder) as reader:
            expected = reader.designs(sort="chip", limit=100)
        rows = page(run.columns, run.columns.order("chip"), 0, 100)
        assert rows == expected
        assert run.columns.version == 2
    assert run.columns.position(3) is not None
    assert run.columns.position(4_000_000) is None


def test_downloads_hold_every_design_that_passes(folder: Path) -> None:
    columns = loaded(SearchRun("some", folder)).columns
    positions = ordered(columns, passing_mask(columns, Filters()), "score", True)
    table = list(csv.DictReader(io.StringIO(b"".join(csv_lines(columns, positions)).decode())))
    objects = json.loads(b"".join(json_lines(columns, positions)))
    assert len(table) == len(objects) == len(columns)
    assert [float(row["area_mm2"]) for row in table] == [row["area_mm2"] for row in objects]
    assert table[-1]["score"] == ""


@pytest.mark.parametrize("text", ["a..b", "nan", "1..2..3", "x"])
def test_a_filter_that_is_no_range_is_named(text: str) -> None:
    with pytest.raises(AtollError, match=r"area_mm2: expected a number or a range"):
        parse_filters({"area_mm2": [text]}, NAMES)
