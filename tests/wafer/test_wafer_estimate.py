"""`atoll estimate` on wafers: one mapping, given whole or by its stages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atoll.base.errors import AtollError, InfeasibleError
from atoll.cli import app
from atoll.files.atomic_file import write_folder
from atoll.wafer.answer.result import wafer_files
from atoll.wafer.encoding.mapping import problems
from atoll.wafer.estimate import estimate_wafer
from atoll.wafer.run import search_wafer

from .wafer_cases import small_file, small_model


@pytest.fixture
def job(tmp_path):
    """Writes a job on the small wafer with more lines."""
    small_file(tmp_path)

    def write(*lines: str):
        path = tmp_path / "job.yaml"
        head = ["wafer: wafer.yaml", f"model: {small_model(heads=8)}", "batch: 8", "sequence: 64"]
        path.write_text("\n".join([*head, *lines]) + "\n")
        return path

    return write


def run(*arguments: object):
    return CliRunner().invoke(app, ["estimate", *map(str, arguments)], catch_exceptions=False)


def test_a_layout_is_priced_with_the_best_block_on_its_stages(job):
    found = estimate_wafer(job("layout: { rectangle: [2, 2], stages: 2, microbatch: 2 }"))
    mapping = found.evaluation.mapping
    assert [s.rectangle.size for s in mapping.stages] == [4, 4]
    assert mapping.microbatch == 2
    assert problems(mapping, 2, 4) == []
    assert found.evaluation.fits


def test_weights_of_a_layout_live_where_those_of_a_search_do(job, tmp_path):
    """Not in SRAM, where a wafer has no DRAM."""
    text = (tmp_path / "wafer.yaml").read_text() + "sram_memory: true\nparameter_store: true\n"
    lines = [line for line in text.splitlines() if not line.startswith("dram")]
    (tmp_path / "wafer.yaml").write_text("\n".join(lines))
    layout = "layout: { rectangle: [4, 2], stages: 1, microbatch: 2 }"
    found = estimate_wafer(job(layout)).evaluation
    assert {home for stage in found.mapping.stages for home in stage.block.homes} == {"external"}
    assert search_wafer(job(layout)).throughput_samples_per_s >= found.samples_per_s


def test_dies_are_busy_at_least_as_long_as_the_model_keeps_them(job, tmp_path):
    """Whatever a head takes of a step: watts do not fall where it is most of it."""
    text = Path(small_model(hidden=256, ffn=512, layers=2)).read_text()
    for vocabulary in (128, 32000):
        (tmp_path / "config.json").write_text(text.replace("128,", f"{vocabulary},"))
        path = job("layout: { rectangle: [4, 2], stages: 1, microbatch: 8 }")
        path.write_text(re.sub("model: .*", "model: config.json", path.read_text()))
        found = estimate_wafer(path)
        static_W = found.wafer.power_parts_W["static"]
        busy = (found.power_W - static_W) / (found.wafer.peak_power_W - static_W)
        assert found.mfu < busy <= 1.0


def test_no_layout_beats_the_search_and_the_search_starts_from_it(job):
    layout = "layout: { rectangle: [1, 2], stages: 4 }"
    given = estimate_wafer(job(layout)).evaluation.samples_per_s
    best = search_wafer(job(layout, "baselines: false")).throughput_samples_per_s
    assert best >= given


def test_a_mapping_file_gives_the_figures_of_the_search_that_wrote_it(job, tmp_path):
    result = search_wafer(job("baselines: false"))
    write_folder(tmp_path / "run", wafer_files(result))
    again = run(job("mapping: run/mapping.json"), "--json")
    assert again.exit_code == 0
    shown = json.loads(again.stdout)
    assert shown["samples_per_s"] == pytest.approx(result.throughput_samples_per_s)
    assert shown["fits"]
    text = run("--wafer", tmp_path / "wafer.yaml", "--mapping", tmp_path / "run" / "mapping.json")
    assert "samples/s" in text.stdout


def test_a_mapping_that_does_not_fit_is_priced_and_said_so(job, tmp_path):
    write_folder(tmp_path / "run", wafer_files(search_wafer(job("baselines: false"))))
    wafer = tmp_path / "wafer.yaml"
    poor = tmp_path / "poor.yaml"
    poor.write_text(wafer.read_text().replace("capacity: 1 GiB", "capacity: 1 MiB"))
    assert poor.read_text() != wafer.read_text()
    found = estimate_wafer(wafer=poor, mapping=tmp_path / "run" / "mapping.json")
    assert not found.evaluation.fits


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("seed: 1", "prices one mapping"),
        ("layout: { rectangle: [3, 2], stages: 2 }", "do not fit a wafer of 4 x 2"),
        ("layout: { rectangle: [2, 2], stages: 2, microbatch: 9 }", "larger than the batch"),
        ("layout: { rectangle: [0, 2], stages: 2 }", "layout.rectangle"),
        ("mapping: nowhere.json", "no such file"),
    ],
)
def test_a_job_that_cannot_be_priced_is_one_sentence(job, line, words):
    with pytest.raises(AtollError, match=words):
        estimate_wafer(job(line))


def test_a_layout_without_room_says_the_way_out(job, tmp_path):
    path = job("layout: { rectangle: [2, 2], stages: 1 }")
    wafer = tmp_path / "wafer.yaml"
    wafer.write_text(wafer.read_text().replace("capacity: 1 GiB", "capacity: 1 MiB"))
    path.write_text(path.read_text().replace("sequence: 64", "sequence: 8192"))
    with pytest.raises(InfeasibleError, match="larger rectangles"):
        estimate_wafer(path)


def test_a_mapping_of_another_model_is_refused(job, tmp_path):
    write_folder(tmp_path / "run", wafer_files(search_wafer(job("baselines: false"))))
    path = job("mapping: run/mapping.json")
    path.write_text(path.read_text().replace("batch: 8", "batch: 16"))
    with pytest.raises(AtollError, match="its batch is 8, but the job's is 16"):
        estimate_wafer(path)


def test_options_of_clusters_are_refused_by_name(job):
    with pytest.raises(AtollError, match=r"--tp: this is for devices; .* takes --wafer"):
        run(job("layout: { rectangle: [2, 2], stages: 2 }"), "--tp", 2)


def test_without_a_model_or_a_job_the_sentence_names_what_is_missing():
    with pytest.raises(AtollError, match="--model: missing"):
        run("--device", "h100")
