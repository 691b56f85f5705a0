"""Links and topology as variables: the best of all networks is the best of each alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from test_power_limit import BATCH, TOLERANCE, exhaustive_step_s
from tiny import tiny_setting, tiny_variants

import atoll
from atoll.explore.network_search import search_networks
from atoll.explore.pricing.layouts import PowerLimit
from atoll.explore.proof import reserve
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.objective import Objective
from atoll.fabric.topology import parse_topology
from atoll.hardware import product_space as products
from atoll.hardware.accelerator import MIB, GlbBandwidth, Hbm
from atoll.hardware.catalog import load_network
from atoll.hardware.physical.constants import PUBLISHED
from atoll.hardware.physical.price import USUAL_PRICES, ownership_usd, with_links
from atoll.hardware.product_space import ProductSpace
from atoll.hardware.silicon.physical import LINKED, physical_memories
from atoll.hardware.space import DesignAxes, DesignLimits, DesignSpace
from atoll.hardware.spacefile import read_space
from atoll.profiles import DEFAULT

SPACE = """name: small
template: physical-links
node: 7
links: [20 GB/s, 100 GB/s, 900 GB/s]
topology: [torus, fat-tree]
tensor_cores: [1, 2, 4, 8]
vector_cores: [4]
width: [64, 128]
depth: [128]
vector_width: [512]
glb: [16 MiB]
clock: [0.7 GHz, 1.4 GHz]
hbm: [hbm2e]
"""
JOB = {"model": "bert-large", "devices": 16, "batch": 64, "microbatch": [4], "tp": [1, 2]}
LINKS, TOPOLOGIES = (20e9, 100e9, 900e9), ("torus", "fat-tree")


def search(folder: Path, **asked: object) -> atoll.SearchResult:
    path = folder / "links.yaml"
    path.write_text(SPACE)
    return atoll.search(**JOB, space=path, baselines=False, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"max_area": "255 mm2", "max_power": "220 W"}, marks=pytest.mark.slow),
        {"per": "tco", "max_area": "300 mm2"},
    ],
    ids=["throughput", "tco"],
)
def test_the_best_of_all_is_the_best_of_each_alone(
    asked: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = search(tmp_path, **asked)
    alone = {}
    for link_Bps, topology in product(LINKS, map(parse_topology, TOPOLOGIES)):
        name = topology.named(link_Bps)
        try:
            alone[name] = search(tmp_path, network=name, **asked)
        except atoll.AtollError as error:
            assert "no design" in str(error) or "empty" in str(error)
    scores = {name: one.score for name, one in alone.items()}
    assert found.certificate.proven and len(scores) > 3
    assert found.score == pytest.approx(max(scores.values()), rel=2e-3)
    assert scores[found.network] == pytest.approx(found.score, rel=2e-3)
    assert max(scores.values()) > 1.05 * min(scores.values())  # it matters
    counts = [one.certificate.items for one in alone.values()]
    assert found.certificate.items == sum(counts) == found.scope.designs  # type: ignore[union-attr]
    proof = found.certificate
    assert proof.evaluated + sum(proof.ruled_out.values()) == proof.items
    monkeypatch.setattr(products, "RESIDENT_POINTS", 2)
    monkeypatch.setattr(reserve, "PIECE_BOXES", 4)
    boxed = search(tmp_path, **asked)
    assert boxed.certificate.proven and boxed.score == pytest.approx(found.score, rel=2e-3)


def space_of(link_Bps: float, max_area_mm2: float) -> DesignSpace:
    axes = DesignAxes.with_defaults(
        LINKED, process_nm=(7,), link_Bps=(link_Bps,), tensor_cores=(1, 4), vector_cores=(1, 4),
        width=(8, 32), depth=(16,), glb_bytes=(1 * MIB, 8 * MIB), vector_width=(64,),
        clock_Hz=(1e9,),
    )  # fmt: skip
    memory = (Hbm(1 << 34, 200e9),)
    limits = DesignLimits(max_area_mm2=max_area_mm2)
    return ProductSpace("tiny", axes, memory, GlbBandwidth(per_mib_Bpc=128.0), limits).build()


def test_everything_tried_on_every_network_is_no_better() -> None:
    """Each chip, layout and network priced by itself, the area by its parts."""
    variants = tiny_variants(DEFAULT, 4, layers=2, sequence=256)
    free, budget_mm2, least_s, searches = tiny_setting(DEFAULT, 4), 160.0, {}, []
    for link_Bps, name in product((1e9, 40e9, 400e9), ("switch-2", "fat-tree")):
        topology = parse_topology(name)
        known = load_network("dgx-a100")
        setting = replace(free, network=topology.network(link_Bps, known).cut(4))
        space = space_of(link_Bps, budget_mm2)
        serdes_mm2 = LINKED.area_parts(space.columns)["links_mm2"]
        np.testing.assert_allclose(serdes_mm2, link_Bps / 1e9 * PUBLISHED.serdes_mm2_per_GBps)
        every = space_of(link_Bps, 1e9)
        parts = sum(LINKED.area_parts(every.columns).values())
        assert len(space) == int((parts <= budget_mm2).sum())
        least_s[len(searches)] = exhaustive_step_s(space, variants, setting, PowerLimit())[0]
        searches.append(Search(space, variants, setting, Objective.single(BATCH), TOLERANCE))
    found, truth_s = search_networks(searches), min(least_s.values())
    assert found is not None
    score = found[1].score
    assert score >= BATCH / truth_s * (1 - TOLERANCE - 1e-9)
    # Schedules of the oracle are quick ones, of the search those that a proof needs.
    assert score <= BATCH / truth_s * (1 + TOLERANCE)
    bounds = [one.bound() for one in searches]
    for number, bound in enumerate(bounds):
        assert bound >= BATCH / least_s[number] * (1 - 1e-9), "a bound below what exists"
    assert max(bounds) <= score * (1 + TOLERANCE)
    assert sum(one.best is None for one in searches) > 0  # some never beat what was known


def test_links_take_area_edge_power_and_money(tmp_path: Path) -> None:
    path = tmp_path / "links.yaml"
    path.write_text(SPACE)
    space = read_space(path).build()
    slow, fast = (space.subset(space.link_Bps == link) for link in (20e9, 900e9))
    hbm = physical_memories()[0]
    wider = PUBLISHED.serdes_mm2_per_GBps * 880
    assert fast.area_mm2.min() - slow.area_mm2.min() == pytest.approx(wider, rel=1e-9)
    drawn_W = 880e9 * 2 * 8 * PUBLISHED.link_pJ_per_bit * 1e-12 * PUBLISHED.link_share
    more_W = fast.peak_power_with(hbm).min() - slow.peak_power_with(hbm).min()
    assert more_W == pytest.approx(drawn_W + wider * PUBLISHED.static_W_per_mm2, rel=1e-6)
    # Two stacks of HBM4 leave a small die of 250 mm2 some 48 mm, six only 23.
    whole = replace(read_space(path), hbm_options=physical_memories("hbm4"))
    built = whole.build()
    for design, option in product(range(len(built)), range(3)):
        own, area = built.hbm_options[option], built.area_mm2[design]
        left_mm = 4 * np.sqrt(area + own.area_mm2) - own.edge_mm
        needed_mm = built.link_Bps[design] / 1e9 / PUBLISHED.serdes_GBps_per_mm
        assert bool(built.hbm_allowed[design, option]) == (left_mm >= needed_mm)
    free = replace(whole, limits=replace(whole.limits, edge=False)).build()
    assert not built.hbm_allowed.all() and free.hbm_allowed.all()


@pytest.mark.parametrize("devices", [72, 576])
def test_a_domain_may_be_as_large_as_a_rack_or_eight(devices: int) -> None:
    domain, outside = load_network(f"switch-{devices}@900GB/s").levels
    assert (domain.devices, domain.bandwidth_Bps) == (devices, 900e9)
    assert outside.devices % devices == 0
    topology = parse_topology(f"switch-{devices}")
    assert topology.joins_all(devices) and not topology.joins_all(devices + 1)
    assert topology.layers(devices) == 2, "more than the 64 ports of one switch"


def test_networks_of_links() -> None:
    same, known = load_network("switch-8@300GB/s"), load_network("dgx-a100")
    assert same.levels[0] == replace(known.levels[0], name="switch")
    assert same.levels[1:] == known.levels[1:]
    torus, tpu = load_network("torus@270 GB/s"), load_network("tpu-v4")
    assert torus.levels == (replace(tpu.levels[0], name="torus"), *tpu.levels[1:])
    small, large = parse_topology("switch-8"), parse_topology("fat-tree")
    assert (small.layers(1024), large.layers(64), large.layers(65), large.layers(2049)) == (
        1, 1, 2, 3,
    )  # fmt: skip
    # Three layers at 50 GB/s are what a network of 400 Gb/s costs, first cables in copper.
    copper = USUAL_PRICES.optics_usd_per_GBps - USUAL_PRICES.copper_usd_per_GBps
    usual = USUAL_PRICES.network_usd - 50 * copper
    tall = with_links(USUAL_PRICES, large, 50e9, 65536)
    assert tall.network_usd == pytest.approx(usual, rel=5e-3)
    first_W = 50 * USUAL_PRICES.optics_W_per_GBps
    assert tall.network_W == pytest.approx(USUAL_PRICES.network_W - first_W, rel=0.05)
    few, many = (with_links(USUAL_PRICES, small, 50e9, devices) for devices in (8, 16))
    assert few.network_usd < many.network_usd and few.network_W == pytest.approx(7.5)
    assert many.network_W == pytest.approx(7.5 + USUAL_PRICES.network_W)
    ring = with_links(USUAL_PRICES, parse_topology("torus"), 50e9, 64)
    assert 0 < ring.network_W < few.network_W  # a torus has no switches
    saved = float(ownership_usd(500.0, 300.0, few) - ownership_usd(500.0, 300.0, ring))
    energy = (few.network_W - ring.network_W) / 1000 * 8766 * 5 * 1.2 * 0.08
    assert saved == pytest.approx(few.network_usd - ring.network_usd + energy)
    assert "among all devices" in load_network("fat-tree@100GB/s").sentence(1024)


def test_what_is_refused(tmp_path: Path) -> None:
    for asked, why in (
        ({"robust": 4}, "not over several networks"),
        ({"network": "dgx-a100"}, "name a topology"),
        ({"network": "ring@3GB/s"}, "not known"),
        ({"network": "torus@3 W"}, "bandwidth"),
    ):
        with pytest.raises(atoll.AtollError, match=why):
            search(tmp_path, **asked)
    other = tmp_path / "other.yaml"
    other.write_text(SPACE.replace("physical-links", "physical").replace("links: [", "# ["))
    with pytest.raises(atoll.AtollError, match="only chips of template physical-links"):
        read_space(other)
    shipped = Path(__file__).parents[2] / "examples/spaces/links.yaml"
    assert read_space(shipped).topologies == ("switch-8", "switch-64", "torus", "fat-tree")


def test_an_interrupted_choice_of_networks_goes_on(tmp_path: Path) -> None:
    first = search(tmp_path, out=tmp_path / "run")
    again = search(tmp_path, out=tmp_path / "run")
    assert (again.score, again.network) == (first.score, first.network)
    assert again.certificate == first.certificate
