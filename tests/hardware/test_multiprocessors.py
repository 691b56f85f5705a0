"""Chips of multiprocessors: sized as published GPUs, searched with proof, compared with GPUs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import atoll
from atoll.explore.explain.device_comparison import described_device
from atoll.hardware.catalog import load_accelerator, load_accelerator_file
from atoll.hardware.device import load_device
from atoll.hardware.silicon.chip import accelerator_area_mm2, peak_power_W, rated_power_W
from atoll.hardware.silicon.physical import GPU_NM, redrawn
from atoll.hardware.silicon.systolic import TEMPLATES
from atoll.hardware.template.stalls import CACHED
from atoll.testing import check_chip_template

EXISTING = Path(__file__).parents[2] / "examples/devices/existing"
SPACE = """name: small
template: gpu-like-4nm
tensor_cores: {cores}
width: 128
depth: {depths}
vector_width: 128
core_buffer: {buffers}
glb: 48 MiB
clock: 1.4 GHz
hbm: [{{generation: hbm3, stacks: 4}}]
"""
LISTS = {"cores": [48, 96, 144], "depths": [8, 16], "buffers": ["128 KiB", "228 KiB"]}


@pytest.mark.parametrize("process_nm", GPU_NM)
def test_templates_of_multiprocessors_keep_the_contract(process_nm: float) -> None:
    template = TEMPLATES[f"gpu-like-{process_nm}nm"]
    assert template.stalls == CACHED
    assert redrawn(template).name == template.name
    check_chip_template(template)


@pytest.mark.parametrize("name", ["a100", "h100", "h200"])
def test_gpus_have_about_their_published_area(name: str) -> None:
    file = load_accelerator_file(EXISTING / f"{name}.yaml")
    chip = file.accelerator()
    assert file.published is not None
    assert accelerator_area_mm2(chip) == pytest.approx(file.published.area, rel=0.15)
    assert rated_power_W(chip) == pytest.approx(file.published.power, rel=0.2)
    assert peak_power_W(chip) > rated_power_W(chip)


def test_more_registers_and_shared_memory_take_area() -> None:
    chip = load_accelerator(EXISTING / "h100.yaml")
    for name in ("core_buffer_bytes", "register_bytes"):
        more = tuple((p, 2 * value if p.name == name else value) for p, value in chip.more)
        assert accelerator_area_mm2(replace(chip, more=more)) > accelerator_area_mm2(chip) + 5


def searched(folder: Path, **lists: list[object]) -> atoll.SearchResult:
    path = folder / "space.yaml"
    path.write_text(SPACE.format(**lists), encoding="utf-8")
    return atoll.search(
        model="bert-large", devices=8, batch=32, microbatch=4, tp=1, space=str(path),
        baselines=False,
    )  # fmt: skip


def test_a_search_of_multiprocessors_finds_the_best_of_all(tmp_path: Path) -> None:
    best = searched(tmp_path, **LISTS)
    scores = [
        searched(tmp_path, **{name: [value] for name, value in zip(LISTS, values, strict=True)})
        for values in product(*LISTS.values())
    ]
    assert best.score >= max(single.score for single in scores) * (1 - 1e-3)
    assert best.answer.best.accelerator.tensor_cores == best.answer.best.accelerator.vector_cores


def test_a_device_is_described_as_multiprocessors() -> None:
    by_hand = load_accelerator(EXISTING / "h100.yaml")
    chip = described_device(load_device("h100"), by_hand)
    for field in ("tensor_cores", "width", "depth", "vector_width", "core_buffer_bytes", "more"):
        assert getattr(chip, field) == getattr(by_hand, field)
