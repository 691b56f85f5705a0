"""Process and generation of HBM as variables: the best is the best of each choice by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.cost.chips import chips_of_space
from atoll.explore.pricing.energy import energy_of_chip
from atoll.explore.proof import reserve
from atoll.hardware import product_space
from atoll.hardware.physical.memories import HBM
from atoll.hardware.silicon.physical import physical_memories
from atoll.hardware.spacefile import load_space, read_space
from atoll.profiles import DEFAULT

SPACE = """name: small
{template}
tensor_cores: [1, 2, 4, 8]
vector_cores: [4]
width: [64, 128]
depth: [128]
vector_width: [512]
glb: [16 MiB]
clock: [0.7 GHz, 1.4 GHz]
hbm: {hbm}
"""
NODES, MEMORIES = (16, 7, 3), ("hbm2e", "hbm4")
JOB = {"model": "bert-large", "devices": 4, "batch": 32, "microbatch": [4], "tp": [1]}


def written(folder: Path, template: str, memories: tuple[str, ...]) -> Path:
    path = folder / f"{abs(hash((template, memories)))}.yaml"
    path.write_text(SPACE.format(template=template, hbm=f"[{', '.join(memories)}]"))
    return path


def search(space: Path, **asked: object) -> atoll.SearchResult:
    return atoll.search(**JOB, space=space, baselines=False, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "asked",
    [
        {"max_area": "250 mm2", "max_power": "200 W"},
        {"per": "dollar", "max_area": "300 mm2"},
        {"per": "tco", "max_power": "250 W"},
        {"power": "sustained", "max_power": "150 W", "max_area": "300 mm2"},
    ],
    ids=["throughput", "dollar", "tco", "sustained"],
)
def test_the_best_of_all_is_the_best_of_each_alone(
    asked: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = written(tmp_path, f"template: physical\nnode: {list(NODES)}", MEMORIES)
    found = search(every, **asked)
    alone = []
    for node in NODES:
        for memory in MEMORIES:
            try:
                own = search(written(tmp_path, f"template: physical-{node}nm", (memory,)), **asked)
            except atoll.AtollError as error:  # nothing fits
                assert "no design" in str(error)
                continue
            alone.append(own.score)
    assert found.certificate.proven and len(alone) > 1
    assert found.score == pytest.approx(max(alone), rel=2e-3)
    monkeypatch.setattr(product_space, "RESIDENT_POINTS", 2)
    monkeypatch.setattr(reserve, "PIECE_BOXES", 4)
    boxed = search(every, **asked)
    assert boxed.certificate.proven
    assert boxed.score == pytest.approx(found.score, rel=2e-3)


def test_chips_of_a_process_are_those_of_its_own_template(tmp_path: Path) -> None:
    every = load_space(written(tmp_path, "template: physical\nnode: [7, 3]", MEMORIES))
    for node in (7, 3):
        own = load_space(written(tmp_path, f"template: physical-{node}nm", MEMORIES))
        same = every.subset(every.process_nm == node)
        np.testing.assert_allclose(same.area_mm2, own.area_mm2, rtol=1e-12)
        for hbm in own.hbm_options:
            ours, theirs = same.peak_power_with(hbm), own.peak_power_with(hbm)
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_energy_of_a_step_follows_process_and_memory(tmp_path: Path) -> None:
    def parts(template: str) -> dict[str, float]:
        return dict(search(written(tmp_path, template, ("hbm4",))).best.plans[0].energy_parts_J)

    three_nm = parts("template: physical\nnode: 3")
    assert three_nm == pytest.approx(parts("template: physical-3nm"), rel=1e-9)
    seven = parts("template: physical\nnode: 7")
    assert three_nm["multiply-add"] == pytest.approx(0.48 * seven["multiply-add"], rel=1e-6)
    space = load_space(written(tmp_path, "template: physical\nnode: [7, 3]", MEMORIES))
    chips = chips_of_space(space, DEFAULT)
    each = {energy_of_chip(chips, i).hbm_J_per_byte for i in range(len(chips))}
    assert min(each) == pytest.approx(0.75 * max(each)) and len(each) == 2


def test_what_a_file_may_name(tmp_path: Path) -> None:
    named = read_space(written(tmp_path, "template: physical-7nm", ("hbm3e",))).hbm_options
    assert named == physical_memories(HBM["hbm3e"])
    with pytest.raises(atoll.AtollError, match="node: 10 nm is not known"):
        read_space(written(tmp_path, "template: physical\nnode: [7, 10]", MEMORIES))
    with pytest.raises(atoll.AtollError, match="hbm"):
        read_space(written(tmp_path, "template: physical", ("hbm9", "hbm3")))
    shipped = Path(__file__).parents[2] / "examples/spaces/processes.yaml"
    assert read_space(shipped).template.name == "physical"
