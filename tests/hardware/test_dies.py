"""Dies of a package: yield with spare cores, reticle, links between dies, price per good die."""

from __future__ import annotations

from dataclasses import replace
from math import comb, exp
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.base.errors import AtollError
from atoll.explore.proof import reserve
from atoll.hardware import product_space
from atoll.hardware.accelerator import MIB
from atoll.hardware.catalog import load_accelerator
from atoll.hardware.physical.constants import PUBLISHED
from atoll.hardware.physical.die import DieCores, die_usd, die_yield
from atoll.hardware.physical.nodes import RETICLE_MM2
from atoll.hardware.physical.price import USUAL_PRICES, device_usd
from atoll.hardware.silicon.chip import accelerator_area_mm2, accelerator_usd, area_parts
from atoll.hardware.silicon.physical import IN_DIES
from atoll.hardware.space import DesignSpace
from atoll.hardware.spacefile import read_space
from atoll.testing import check_chip_template

SHIPPED = Path(__file__).parents[2] / "examples/spaces/b200-budget.yaml"
SPACE = """name: small
template: physical-dies
node: [7, 5]
dies: {dies}
die_links: [1 TB/s, 8 TB/s]
spare_cores: {spares}
tensor_cores: {cores}
vector_cores: [4]
width: [64, 128]
depth: [128]
vector_width: [128]
glb: [16 MiB, 64 MiB]
clock: [0.7 GHz, 1.4 GHz]
hbm: [{{generation: hbm2e, stacks: 4}}]
"""
JOB = {"model": "bert-large", "devices": 4, "batch": 32, "microbatch": [4], "tp": [1]}


def described(folder: Path, text: str = SPACE, **lists: str) -> Path:
    lists = {"dies": "[1, 2, 4]", "spares": "[0]", "cores": "[4, 8]"} | lists
    file = folder / "space.yaml"
    file.write_text(text.format(**lists))
    return file


def space_of(folder: Path, text: str = SPACE, **lists: str) -> DesignSpace:
    return read_space(described(folder, text, **lists)).build()


# --- Yield ----------------------------------------------------------------------------------------


def test_without_spare_cores_a_die_must_be_flawless() -> None:
    """(1 + 6 cm2 x 0.09 / 10)^-10 = 0.591 at 7 nm."""
    every = DieCores(built=16, enabled=16, core_mm2=20.0)
    assert die_yield(600, 7, cores=every) == die_yield(600, 7) == pytest.approx(0.5910, abs=1e-4)


def test_spare_cores_follow_a_binomial_where_defects_do_not_cluster() -> None:
    """17 cores of 20 mm2 of which 16 must be good, and 260 mm2 that must be flawless, at a density
    of 0.1 per cm2: e^-0.26 (p^17 + 17 p^16 (1 - p)) with p = e^-0.02."""
    good = exp(-0.02)
    expected = exp(-0.26) * sum(comb(17, k) * good**k * (1 - good) ** (17 - k) for k in (16, 17))
    poisson = replace(PUBLISHED, defects_alpha=150.0)  # a gamma factor of little spread
    cores = DieCores(built=17, enabled=16, core_mm2=20.0)
    assert die_yield(600, 7, poisson, cores, ((7, 0.1),)) == pytest.approx(expected, rel=5e-3)


def test_clustered_defects_average_the_binomial_over_their_density() -> None:
    """By drawing 200,000 densities from the gamma distribution."""
    cores = DieCores(built=18, enabled=16, core_mm2=25.0)
    random = np.random.default_rng(0)
    density = 0.11 / 100 * random.gamma(10.0, 1 / 10.0, 200_000)
    bad = random.binomial(18, 1 - np.exp(-density * 25.0))
    good = np.mean((bad <= 2) * np.exp(-density * (700 - 18 * 25.0)))
    assert die_yield(700, 5, cores=cores) == pytest.approx(good, rel=5e-3)


@given(
    st.floats(50, 400), st.floats(1, 1.5), st.integers(1, 40), st.integers(0, 6), st.floats(3, 10)
)
def test_yield_falls_with_area_and_cores_and_grows_with_spares(
    rest: float, larger: float, enabled: int, spare: int, alpha: float
) -> None:
    physics = replace(PUBLISHED, defects_alpha=alpha)

    def good(rest: float, enabled: int, core_mm2: float) -> float:
        cores = DieCores(enabled + spare, enabled, core_mm2)
        return float(die_yield(rest + (enabled + spare) * core_mm2, 5, physics, cores))

    usual = good(rest, enabled, 10.0)
    assert good(rest * larger, enabled, 10.0) <= usual * (1 + 1e-9)
    assert good(rest, enabled + 1, 10.0) <= usual * (1 + 1e-9)
    assert good(rest, enabled, 10.0 * larger) <= usual * (1 + 1e-9)
    more = DieCores(enabled + spare + 1, enabled, 10.0)
    assert die_yield(rest + (enabled + spare + 1) * 10.0, 5, physics, more) >= usual * (1 - 1e-9)


def test_stated_defects_replace_those_of_their_node(tmp_path: Path) -> None:
    assert die_yield(600, 7, stated=((7, 0.2),)) == pytest.approx((1 + 6 * 0.2 / 10) ** -10)
    assert die_yield(600, 7, stated=((5, 0.2),)) == die_yield(600, 7)
    usual, stated = (
        space_of(tmp_path, SPACE + more, dies="[1]", cores="[8]")
        for more in ("", "defects: {{5: 0.3}}\n")
    )
    for index in range(len(usual)):
        dollars = [accelerator_usd(space.accelerator(index)) or 0.0 for space in (usual, stated)]
        assert (dollars[1] > dollars[0]) == (usual.columns["process_nm"][index] == 5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SPACE + "defects: {{6: 0.1}}\n", "6 nm is not known"),
        (SPACE + "defects: 0\n", "defects"),
        (SPACE + "glb_bandwidth: {{fixed: 4096}}\n", "it follows from dies and die_links"),
    ],
)
def test_refused_space_files(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(AtollError, match=words):
        read_space(described(tmp_path, text))


def test_defects_need_a_price(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    lists = "tensor_cores: 1\nvector_cores: 1\nwidth: 64\ndepth: 64\nglb: 8 MiB\n"
    hbm = "hbm: [{capacity: 16 GiB, bandwidth: 1 TB/s}]\n"
    file.write_text(f"name: a\n{lists}{hbm}defects: 0.1\n")
    with pytest.raises(AtollError, match="no price per good die; take one of the physical model"):
        read_space(file)


# --- Reticle --------------------------------------------------------------------------------------

CHIP = """name: large
template: physical-dies
own: {{process_nm: 4, dies: {dies}, die_link_Bps: 10.e+12, spare_cores: 0}}
tensor_cores: {cores}
width: {width}
depth: {depth}
vector_cores: {cores}
vector_width: {lanes}
glb: 126 MiB
clock: 1.86 GHz
hbm: {{generation: hbm3e, stacks: 8}}
"""


def chip_file(folder: Path, more: str = "", **numbers: int) -> Path:
    usual = {"dies": 1, "cores": 48, "width": 256, "depth": 128, "lanes": 512}
    file = folder / "chip.yaml"
    file.write_text(CHIP.format(**usual | numbers) + more)
    return file


def test_a_die_that_no_reticle_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match=r"1 die of 1,\d+ mm2 each: a reticle holds at most 858"):
        load_accelerator(chip_file(tmp_path))
    divided = load_accelerator(chip_file(tmp_path, dies=2))
    assert RETICLE_MM2 < accelerator_area_mm2(divided) < 2 * RETICLE_MM2


def test_a_published_die_beyond_a_reticle_is_refused(tmp_path: Path) -> None:
    published = "published: {{area: {} mm2, power: 1000 W}}\n"
    load_accelerator(chip_file(tmp_path, published.format(1628), dies=2))
    with pytest.raises(AtollError, match="2 dies of 900 mm2 each"):
        load_accelerator(chip_file(tmp_path, published.format(1800), dies=2))


def test_a_space_has_dies_within_a_reticle_and_equal_shares(tmp_path: Path) -> None:
    space = space_of(tmp_path, dies="[1, 2, 4]", cores="[6, 64, 128]")
    dies, area = space.columns["dies"], space.area_with(space.hbm_options[0])
    assert (area / dies <= RETICLE_MM2).all() and (area > RETICLE_MM2).any()
    assert (space.columns["tensor_cores"] % dies == 0).all()
    assert set(dies[space.columns["tensor_cores"] == 6]) == {1, 2}


def test_a_space_beyond_the_reticle_says_so(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match=r"is empty: a reticle \(26 mm x 33 mm\) of 858 mm2"):
        space_of(tmp_path, dies="[1]", cores="[2048]")


# --- Links between dies ---------------------------------------------------------------------------


def test_the_template_keeps_the_contract_of_templates() -> None:
    check_chip_template(IN_DIES)


def test_what_links_of_dies_carry_limits_the_shared_buffer(tmp_path: Path) -> None:
    """Half of what two dies take from the buffer crosses, three quarters of what four take."""
    space = space_of(tmp_path)
    served_Bps = space.glb_bandwidth_Bpc * space.columns["clock_Hz"]
    on_one_die_Bps = 128 * space.columns["glb_bytes"] / MIB * space.columns["clock_Hz"]
    links_Bps, dies = space.columns["die_link_Bps"], space.columns["dies"]
    crossing = {1: 0.0, 2: 0.5, 4: 0.75}
    for index in range(len(space)):
        share = crossing[int(dies[index])]
        most_Bps = links_Bps[index] / share if share else np.inf
        assert served_Bps[index] == pytest.approx(min(on_one_die_Bps[index], most_Bps))


def test_b200_is_two_dies_with_ten_terabytes_per_second_between_them(tmp_path: Path) -> None:
    """148 of 160 multiprocessors, 126 MiB, eight stacks: its size is not published, two dies near
    the reticle. Links of 10 TB/s take 30 mm2 (15 to 110)."""
    threads = "kind: cached\ncore_buffer: 484 KiB\ncores_on_die: 160\n"
    file = chip_file(tmp_path, threads, dies=2, cores=148, width=128, depth=32, lanes=128)
    chip = load_accelerator(file)
    assert chip.peak_flops == pytest.approx(2250e12, rel=0.01)
    assert 700 < accelerator_area_mm2(chip) / 2 < RETICLE_MM2
    one = replace(chip, more=tuple((p, 1.0 if p.name == "dies" else v) for p, v in chip.more))
    further = {name: mm2 - area_parts(one)[name] for name, mm2 in area_parts(chip).items()}
    assert further["links_mm2"] == pytest.approx(10_000 * 0.003)
    assert further["uncore_mm2"] == pytest.approx(PUBLISHED.further_die * PUBLISHED.uncore_mm2)
    assert chip.glb_bandwidth_Bpc * chip.clock_Hz == pytest.approx(20e12)


# --- Price ----------------------------------------------------------------------------------------


def test_price_of_a_package_of_good_dies(tmp_path: Path) -> None:
    """Two dies of half the area each, bonded with 0.95 and 0.98."""
    chip = space_of(tmp_path, dies="[2]").accelerator(0)
    area_mm2 = accelerator_area_mm2(chip)
    silicon_usd = 2 * float(die_usd(area_mm2 / 2, 7))
    usd = float(device_usd(silicon_usd, area_mm2, chip.hbm.capacity_bytes, dies=2))
    assert accelerator_usd(chip) == pytest.approx(usd)
    single = float(device_usd(silicon_usd, area_mm2, chip.hbm.capacity_bytes))
    assert usd == pytest.approx(single / USUAL_PRICES.further_bond_yield)


def test_one_spare_core_makes_large_dies_cheaper(tmp_path: Path) -> None:
    space = space_of(tmp_path, dies="[1]", spares="[0, 1, 8]", cores="[24]")
    chips = [space.accelerator(index) for index in range(len(space))]
    spares, node = space.columns["spare_cores"], space.columns["process_nm"]
    usd = np.array([accelerator_usd(chip) for chip in chips])
    large = (node == 5) & (space.columns["width"] == 128)
    none, single, many = (usd[large & (spares == count)] for count in (0, 1, 8))
    assert (single < none).all() and (single < many).all()
    mm2 = np.array([accelerator_area_mm2(chip) for chip in chips])
    assert (mm2[large & (spares == 1)] > mm2[large & (spares == 0)]).all()


# --- Search ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("per", [None, "dollar"])
def test_a_search_over_dies_and_spare_cores_is_that_of_every_chip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, per: str | None
) -> None:
    """In memory, and by boxes; spare cores are worth dollars only."""
    file = described(tmp_path, spares="[0, 1, 2]", cores="[4, 8, 16]")
    job = {**JOB, "space": file, "baselines": False} | ({"per": per} if per else {})
    built = atoll.search(**job)
    monkeypatch.setattr(product_space, "RESIDENT_POINTS", 2)
    monkeypatch.setattr(reserve, "PIECE_BOXES", 4)
    boxes = atoll.search(**job)
    assert built.certificate.proven and boxes.certificate.proven
    assert boxes.score == pytest.approx(built.score, rel=2e-3)
    assert (built.best.accelerator.more[3][1] > 0) == (per == "dollar")
