"""Banks and ports of the shared buffer as variables: what they serve, take and are worth."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_power_limit import BATCH, TOLERANCE, exhaustive_step_s
from tiny import tiny_setting, tiny_variants

import atoll
from atoll.answers.search import SearchAnswer
from atoll.cost.chips import chips_of_space
from atoll.explore.explain.neighbours import Neighbours
from atoll.explore.pricing.energy import energy_of_chip
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.pricing.layouts import PowerLimit
from atoll.explore.proof import reserve
from atoll.explore.proof.branch_and_bound import Search, SearchOutcome
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.objective import Objective
from atoll.explore.robust import constants_that_matter, space_under
from atoll.hardware import product_space as products
from atoll.hardware.accelerator import MIB, Hbm
from atoll.hardware.device import TemplateChip, chip_yaml, load_device
from atoll.hardware.physical.banks import WORD_BYTES, words_served
from atoll.hardware.physical.constants import at_ends, constants
from atoll.hardware.product_space import ProductSpace
from atoll.hardware.silicon.chip import rebanked
from atoll.hardware.silicon.physical import BANKED, PROCESSES_NM, redrawn
from atoll.hardware.silicon.systolic import TEMPLATES
from atoll.hardware.space import (
    DEFAULT_GLB,
    DesignAxes,
    DesignLimits,
    DesignSpace,
)
from atoll.hardware.spacefile import read_space
from atoll.hardware.template.parameter import Columns
from atoll.hardware.template.template import ChipTemplate
from atoll.profiles import DEFAULT
from atoll.questions import SearchQuestion
from atoll.report.folder import open_folder

SPACE = """name: small
template: physical-banks
node: 7
banks: {banks}
ports: {ports}
tensor_cores: [1, 2, 4, 8]
vector_cores: [4]
width: [64, 128]
depth: [128]
vector_width: [512]
glb: [16 MiB]
clock: [0.7 GHz, 1.4 GHz]
hbm: [hbm2e]
"""
BANKS, PORTS = (2, 8, 64), (1, 2)
JOB = {"model": "bert-large", "devices": 4, "batch": 32, "microbatch": [4], "tp": [1]}


def written(folder: Path, banks: tuple[int, ...] = BANKS, ports: tuple[int, ...] = PORTS) -> Path:
    path = folder / f"{'-'.join(map(str, (*banks, 'by', *ports)))}.yaml"
    path.write_text(SPACE.format(banks=list(banks), ports=list(ports)))
    return path


def search(space: Path, **asked: object) -> atoll.SearchResult:
    return atoll.search(**JOB, space=space, baselines=False, **asked)  # type: ignore[arg-type]


def served(asked: int, banks: int, ports: int) -> float:
    words = words_served(*(np.array([float(n)]) for n in (asked, banks, ports)))
    return float(words[0])


@pytest.mark.parametrize(("asked", "banks"), [(1, 1), (1, 4), (3, 1), (2, 2), (4, 3), (5, 4)])
def test_words_served_are_the_mean_of_every_way_to_ask(asked: int, banks: int) -> None:
    ways = list(product(range(banks), repeat=asked))
    for ports in PORTS:
        each = [sum(min(ports, way.count(bank)) for bank in range(banks)) for way in ways]
        assert served(asked, banks, ports) == pytest.approx(np.mean(each), rel=1e-12)


@given(st.integers(1, 5000), st.integers(1, 1024), st.sampled_from(PORTS))
def test_more_banks_ports_or_words_never_serve_less(asked: int, banks: int, ports: int) -> None:
    found = served(asked, banks, ports)
    assert found <= min(asked, banks * ports) * (1 + 1e-9)
    least = found * (1 - 1e-9)
    assert served(asked, banks + 1, ports) >= least
    assert served(asked, banks, 2) >= least
    # More cores get no less together, and none of them more than before.
    more = served(asked + 1, banks, ports)
    assert more >= least and more / (asked + 1) <= found / asked * (1 + 1e-9)


DESIGNS: dict[str, st.SearchStrategy[float]] = {
    "process_nm": st.sampled_from(PROCESSES_NM),
    "tensor_cores": st.integers(1, 64),
    "vector_cores": st.integers(1, 64),
    "width": st.sampled_from((32, 64, 128, 256)),
    "depth": st.sampled_from((32, 64, 128, 256)),
    "vector_width": st.sampled_from((64, 128, 512, 2048)),
    "glb_bytes": st.integers(1, 256).map(lambda size: size * MIB),
    "clock_Hz": st.sampled_from((0.7e9, 1.4e9)),
    "banks": st.integers(1, 512),
    "ports": st.sampled_from(PORTS),
}
GROWING = [name for name in DESIGNS if name != "process_nm"]
ENDS = [redrawn(BANKED, end) for one in constants() for end in at_ends(one)]


def figures(values: Columns, template: ChipTemplate = BANKED) -> np.ndarray:
    """Area, rating and bandwidth of the shared buffer."""
    columns = {name: np.atleast_1d(np.asarray(value)) for name, value in values.items()}
    machine = ProductSpace("one", DesignAxes({}, template), (Hbm(1 << 34, 4e11),))
    space = machine.machines(columns)
    power = space.peak_power_with(space.hbm_options[0])
    return np.array([space.area_mm2[0], power[0], space.glb_bandwidth_Bpc[0]])


@settings(max_examples=60)
@given(st.fixed_dictionaries(DESIGNS), st.sampled_from([BANKED, *ENDS]), st.sampled_from(GROWING))
def test_area_power_and_bandwidth_grow_with_everything(
    values: dict[str, float], template: ChipTemplate, name: str
) -> None:
    """Under the constants as they are and at every end of their ranges: boxes need it."""
    more = 2 if name == "ports" else values[name] * 2
    less, grown = figures(values, template), figures(values | {name: more}, template)
    assert (grown >= less * (1 - 1e-9)).all()
    if name in ("banks", "ports") and more > values[name]:
        assert (grown[:2] > less[:2]).all()


def test_banks_of_a_mebibyte_are_the_buffers_of_other_templates() -> None:
    """The same area and rating; of its bandwidth, conflicts leave a part."""
    values = {
        "tensor_cores": 8, "vector_cores": 4, "width": 128, "depth": 128, "vector_width": 512,
        "glb_bytes": 48 * MIB, "clock_Hz": 1e9,
    }  # fmt: skip
    for node in (28, 7, 3):
        ours = figures(values | {"process_nm": node, "banks": 48, "ports": 1})
        usual = figures(values, TEMPLATES[f"physical-{node}nm"])
        np.testing.assert_allclose(ours[:2], usual[:2], rtol=1e-12)
        assert usual[2] == 48 * WORD_BYTES
        # 8 cores ask for 2 words, 4 for 8.
        assert ours[2] == pytest.approx(48 * (1 - (47 / 48) ** 48) * WORD_BYTES)
        assert ours[2] < usual[2]


def test_energy_of_a_byte_follows_its_bank(tmp_path: Path) -> None:
    space = read_space(written(tmp_path, (2, 16, 64))).build()
    chips = chips_of_space(space, DEFAULT)
    clock, banks, ports = (space.columns[n][chips.design] for n in ("clock_Hz", "banks", "ports"))
    each = np.array([energy_of_chip(chips, i).glb_J_per_byte for i in range(len(chips))])
    slow = clock == clock.min()
    small, usual, large = (each[slow & (ports == 1) & (banks == n)] for n in (64, 16, 2))
    assert small.max() < usual.min() <= usual.max() < large.min()
    assert (each[slow & (ports == 2) & (banks == 16)] > usual[0]).all()
    # Banks of 1 MiB and one port are those of the energy model.
    seven = read_space(_plain(tmp_path)).build()
    plain = chips_of_space(seven, DEFAULT)
    at = int(np.flatnonzero(plain.clock_Hz == clock.min())[0])
    assert usual[0] == pytest.approx(energy_of_chip(plain, at).glb_J_per_byte, rel=1e-12)


def _plain(folder: Path) -> Path:
    lines = SPACE.replace("physical-banks", "physical-7nm").splitlines()
    path = folder / "plain.yaml"
    path.write_text("\n".join(own for own in lines if own[:4] not in ("node", "bank", "port")))
    return path


def tiny_space() -> ProductSpace:
    axes = DesignAxes.with_defaults(
        BANKED, process_nm=(7,), banks=(1, 2, 8, 32), ports=(1, 2), tensor_cores=(1, 4, 8),
        vector_cores=(1, 4), width=(32,), depth=(16, 32), glb_bytes=(1 * MIB, 8 * MIB),
        vector_width=(64,), clock_Hz=(1e9,),
    )  # fmt: skip
    memory = (Hbm(1 << 34, 400e9),)
    return ProductSpace("tiny", axes, memory, DEFAULT_GLB, DesignLimits(max_area_mm2=151.0))


def test_everything_tried_is_no_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chip and layout priced by itself, with the space in memory and in boxes."""
    variants = tiny_variants(DEFAULT, 4, layers=2, sequence=256)
    setting, whole = tiny_setting(DEFAULT, 4), tiny_space()
    space = whole.build()
    assert 30 < len(space) < len(whole)
    truth_s, each_s = exhaustive_step_s(space, variants, setting, PowerLimit())
    # With more banks or ports on the same chip no operator takes longer.
    free = PricedChips.of(chips_of_space(space, DEFAULT, True), variants, setting)
    operators_s = [free.operators_s(chip, variants.variants[0]) for chip in range(len(space))]
    others = [name for name in whole.axes.names if name not in ("banks", "ports")]
    same = np.column_stack([space.columns[name] for name in others])
    for a, b in product(range(len(space)), repeat=2):
        more = space.banks[a] <= space.banks[b] and space.ports[a] <= space.ports[b]
        if more and (same[a] == same[b]).all():
            assert (operators_s[b] <= operators_s[a] * (1 + 1e-9)).all()
    fastest_s = each_s.min(axis=1)
    by_banks = [float(fastest_s[space.banks == n].min()) for n in (1, 8)]
    assert by_banks[1] < 0.97 * by_banks[0]  # it matters
    monkeypatch.setattr(reserve, "PIECE_BOXES", 4)

    def searched(candidates: DesignSpace | ProductSpace) -> SearchOutcome:
        search = Search(candidates, variants, setting, Objective.single(BATCH), TOLERANCE)
        return exact_search(search)

    # Schedules of the oracle are quick ones, of a search those that a proof needs.
    alone = max(searched(space.subset([chip])).score for chip in range(len(space)))
    assert alone >= BATCH / truth_s * (1 - TOLERANCE)
    for candidates in (space, whole):
        found = searched(candidates)
        assert found.best is not None
        assert found.score == pytest.approx(alone, rel=TOLERANCE)
        assert alone * (1 - 1e-9) <= found.bound <= found.score * (1 + TOLERANCE)


@pytest.mark.parametrize(
    "asked",
    [
        {"max_area": "250 mm2", "max_power": "200 W"},
        {"per": "tco", "max_power": "250 W"},
        {"power": "sustained", "max_power": "150 W", "max_area": "300 mm2"},
    ],
    ids=["throughput", "tco", "sustained"],
)
def test_the_best_of_all_is_the_best_of_each_alone(
    asked: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = search(written(tmp_path), **asked)
    alone = {}
    for banks, ports in product(BANKS, PORTS):
        try:
            own = search(written(tmp_path, (banks,), (ports,)), **asked)
        except atoll.AtollError as error:  # nothing fits
            assert "no design" in str(error)
            continue
        alone[banks, ports] = own.score
    assert found.certificate.proven
    assert found.score == pytest.approx(max(alone.values()), rel=2e-3)
    assert max(alone.values()) > 1.05 * min(alone.values())  # it matters
    monkeypatch.setattr(products, "RESIDENT_POINTS", 2)
    monkeypatch.setattr(reserve, "PIECE_BOXES", 4)
    boxed = search(written(tmp_path), **asked)
    assert boxed.certificate.proven
    assert boxed.score == pytest.approx(found.score, rel=2e-3)


def test_a_chip_with_banks_is_itself_everywhere(tmp_path: Path) -> None:
    """As a file, as a device of a plan, beside its neighbours, and under other constants."""
    path = written(tmp_path, (8, 16))
    space = read_space(path).build()
    chip = space.accelerator(3)
    file = tmp_path / "chip.yaml"
    file.write_text(chip_yaml(chip, "own", "dgx-a100"))
    device = load_device(file)
    assert isinstance(device, TemplateChip)
    assert device.accelerator.glb_bandwidth_Bpc == chip.glb_bandwidth_Bpc
    lines = [own for own in file.read_text().splitlines() if "fixed" not in own]
    file.write_text("\n".join(own for own in lines if "glb_bandwidth" not in own))
    again = load_device(file)
    assert isinstance(again, TemplateChip) and again.accelerator == device.accelerator
    assert rebanked(replace(chip, tensor_cores=64)).glb_bandwidth_Bpc > chip.glb_bandwidth_Bpc
    varied = {one.name for one in constants_that_matter(space)}
    assert {"bank_periphery", "second_port", "bank_energy", "scratchpad"} <= varied
    other = space_under(space, at_ends(next(c for c in constants() if c.name == "second_port"))[1])
    assert (other.area_mm2 > space.area_mm2)[space.ports == 2].all()
    assert (other.area_mm2 == space.area_mm2)[space.ports == 1].all()


def test_neighbours_of_the_best_chip_have_other_banks(tmp_path: Path) -> None:
    search(written(tmp_path, (8, 16), (1,)), out=tmp_path / "run")
    told = open_folder(tmp_path / "run").answer
    assert isinstance(told, SearchAnswer)
    steps = Neighbours.of(told.best.accelerator, SearchQuestion.from_dict(told.job)).steps()
    rows = {row.what: row for row in steps}
    assert "ports" not in rows
    assert rows["banks"].more.area_mm2 > 0 and (rows["banks"].more.gain or 0.0) >= -1e-3


def test_what_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, ports=(3,))
    with pytest.raises(atoll.AtollError, match="a bank has 1 or 2"):
        read_space(path)
    path.write_text(written(tmp_path).read_text() + "glb_bandwidth: {per_mib: 64}\n")
    with pytest.raises(atoll.AtollError, match="follows from banks and ports"):
        read_space(path)
    shipped = Path(__file__).parents[2] / "examples/spaces/banks.yaml"
    assert read_space(shipped).template is BANKED
