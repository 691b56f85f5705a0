"""Sweeps and comparisons as tables and charts, which notebooks show."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

import atoll

SVG = "{http://www.w3.org/2000/svg}"
SHARED = {"model": "gpt2-xl", "device": "h100"}


def drawn(svg: str, kind: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(svg).findall(f"{SVG}{kind}")


def test_a_sweep_is_drawn_as_a_line_for_each_value_of_its_other_axes(tmp_path: Path) -> None:
    swept = atoll.sweep(atoll.EstimateQuestion, **SHARED, devices=[8, 16, 32], batch=[64, 128])
    chart = swept.chart("step s")
    assert len(drawn(chart.svg, "circle")) == len(swept.to_dataframe()) == 6
    words = [text.text for text in drawn(chart.svg, "text")]
    assert {"step s", "devices", "8", "16", "32", "batch 64", "batch 128"} <= set(words)
    assert chart.save(tmp_path / "steps.svg").read_text(encoding="utf-8").startswith("<svg")
    html = swept._repr_html_()
    assert "6 runs over devices, batch" in html and "<svg" in html


def test_values_that_are_no_numbers_are_bars_and_runs_without_an_answer_a_gap() -> None:
    devices = ["h100", "a100-80", "rtx-9000"]
    swept = atoll.sweep(
        atoll.EstimateQuestion, model="gpt2-xl", devices=8, batch=64, device=devices
    )
    assert len(drawn(swept.chart().svg, "rect")) == 1 + 2  # background and bars
    assert "no answer for 1 of " in dict(swept.summary())["Note"]


def test_results_are_compared_without_files() -> None:
    runs = [atoll.estimate("gpt2-xl", "h100", devices, batch=64) for devices in (8, 16)]
    compared = atoll.compare(*runs)
    assert compared.to_dataframe().loc["devices"].tolist() == [8, 16]
    assert len(drawn(compared.chart("MFU %").svg, "rect")) == 1 + 2
    assert "devices: 8 | 16 (2x)" in compared._repr_html_()


@pytest.mark.parametrize("figure", ["time", "layout"])
def test_a_figure_that_is_no_number_is_refused_with_those_that_are(figure: str) -> None:
    swept = atoll.sweep(atoll.EstimateQuestion, **SHARED, batch=64, devices=[8, 16])
    with pytest.raises(atoll.AtollError, match=f"^figure: no number is called '{figure}'.*step s"):
        swept.chart(figure)
