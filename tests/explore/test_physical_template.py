"""Searches over chips of the physical model: believable silicon, and the best is the best."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.cost.chips import chips_of_accelerator
from atoll.explore.baselines import reference_space
from atoll.explore.pricing.energy import energy_of_chip
from atoll.hardware.accelerator import GIB, Accelerator
from atoll.hardware.catalog import load_accelerator, load_accelerator_file
from atoll.hardware.physical.constants import PUBLISHED
from atoll.hardware.silicon.chip import accelerator_area_mm2, area_parts, peak_power_W
from atoll.hardware.silicon.physical import physical_memories
from atoll.hardware.silicon.systolic import TEMPLATES
from atoll.hardware.spacefile import read_space
from atoll.profiles import DEFAULT
from atoll.testing import check_chip_template

ROOT = Path(__file__).parents[2]
SEVEN = TEMPLATES["physical-7nm"]
SPACE = """name: small
template: physical-7nm
tensor_cores: {cores}
vector_cores: [4]
width: [64, 128]
depth: [128]
vector_width: [512]
glb: [16 MiB]
clock: {clocks}
hbm:
  - {{stacks: 2, capacity: 16 GiB, bandwidth: 410 GB/s, area: 15 mm2, power: 38 W}}
"""


def like_tpu_v4(**changes: float) -> Accelerator:
    """Eight arrays of 128 x 128 and 4,096 lanes, 128 MiB, four stacks."""
    known = load_accelerator("phaze-tpuv4")
    chip = replace(known, template=SEVEN, vector_width=2048, hbm=physical_memories()[1])
    return replace(chip, **changes)


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name.startswith("physical")])
def test_templates_of_every_process_keep_the_contract(name: str) -> None:
    check_chip_template(TEMPLATES[name])


def test_tpu_v4_in_the_template_is_within_its_published_bounds() -> None:
    """Less than 600 mm2; with all parts and four stacks of HBM2e busy more than any of its loads
    (192 W) and than a rating by the same constants (318 W), docs/chips.md.
    """
    chip = like_tpu_v4()
    assert 480 < accelerator_area_mm2(chip) < 600
    assert 320 < peak_power_W(chip) < 420
    parts = area_parts(chip)
    assert sum(parts.values()) == pytest.approx(accelerator_area_mm2(chip))
    assert min(parts["network_mm2"], parts["uncore_mm2"], parts["hbm_mm2"], parts["links_mm2"]) > 10


def test_bandwidth_of_the_shared_buffer_takes_area_and_power() -> None:
    narrow, wide = (like_tpu_v4(glb_bandwidth_Bpc=b) for b in (4096.0, 32768.0))
    assert accelerator_area_mm2(narrow) < accelerator_area_mm2(wide)
    assert peak_power_W(narrow) < peak_power_W(wide)


def test_many_small_cores_take_more_than_few_large_ones() -> None:
    few, many = like_tpu_v4(), like_tpu_v4(tensor_cores=1024, width=32, depth=4)
    assert few.peak_flops == many.peak_flops
    assert accelerator_area_mm2(many) > accelerator_area_mm2(few) + 50


def test_a_slower_clock_takes_less_energy_for_the_same_work() -> None:
    slow, fast = (
        energy_of_chip(chips_of_accelerator(like_tpu_v4(clock_Hz=hz), DEFAULT, 500.0), 0)
        for hz in (1.0e9, 2.0e9)
    )
    assert slow.mac_J / fast.mac_J == pytest.approx(PUBLISHED.least_voltage**2)
    assert slow.hbm_J_per_byte == fast.hbm_J_per_byte
    rest = SEVEN.energy
    assert rest is not None
    assert slow.static_W_per_mm2 == pytest.approx(rest.static_W_per_mm2 + 4 * 30.0 / 500.0)


def _search(folder: Path, cores: list[int], clocks: list[float], **more: str) -> atoll.SearchResult:
    path = folder / f"space-{len(cores)}-{cores[0]}-{len(clocks)}-{clocks[0]}.yaml"
    hertz = [f"{clock} GHz" for clock in clocks]
    path.write_text(SPACE.format(cores=cores, clocks=hertz))
    return atoll.search(
        model="bert-large", devices=4, batch=32, microbatch=[4], tp=[1], space=path, **more
    )


def _rate(result: atoll.SearchResult) -> float:
    return result.best.plans[0].samples_per_s


@pytest.mark.slow
def test_the_best_chip_is_the_best_of_all_searched_alone(tmp_path: Path) -> None:
    cores, clocks = [2, 4, 8], [0.7, 1.05, 1.4]
    together = _search(tmp_path, cores, clocks)
    alone = {(c, f): _search(tmp_path, [c], [f]) for c in cores for f in clocks}
    assert together.certificate.proven
    best = max(_rate(result) for result in alone.values())
    assert _rate(together) == pytest.approx(best, rel=1e-3)


def test_the_reference_chip_is_tpu_v4_as_published(tmp_path: Path) -> None:
    """Its own memory in whatever space, and its maker's area and power beside the search's."""
    path = tmp_path / "space.yaml"
    path.write_text(SPACE.format(cores=[8], clocks=["1.05 GHz"]))
    reference = reference_space(read_space(path))
    assert reference.template is SEVEN
    (memory,) = reference.hbm_options
    assert (memory.capacity_bytes, memory.bandwidth_Bps) == (32 * GIB, 1.2e12)
    assert load_accelerator_file(SEVEN.reference).area_and_power() == (600.0, 192.0)


def test_under_a_limit_on_power_the_clock_gives_way(tmp_path: Path) -> None:
    free = _search(tmp_path, [8], [0.7, 1.05, 1.4]).best
    limit = free.peak_power_W - 1
    held = _search(tmp_path, [8], [0.7, 1.05, 1.4], max_power=f"{limit} W").best
    assert held.peak_power_W <= limit
    assert held.accelerator.clock_Hz < free.accelerator.clock_Hz
    assert np.isclose(held.accelerator.tensor_cores, 8)
