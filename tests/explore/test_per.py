"""Throughput per dollar, per watt and per dollar of ownership: the best is the best of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.explore.proof import reserve
from atoll.hardware import product_space
from atoll.hardware.accelerator import GIB, Accelerator
from atoll.hardware.physical.constants import constants
from atoll.hardware.physical.die import die_usd
from atoll.hardware.physical.price import USUAL_PRICES, device_usd, ownership_usd
from atoll.hardware.silicon.chip import accelerator_usd, peak_power_W

SPACE = """name: small
template: physical-7nm
tensor_cores: {cores}
vector_cores: [4]
width: [64, 128]
depth: [128]
vector_width: [512]
glb: [16 MiB]
clock: {clocks}
hbm: {hbm}
"""
MEMORIES = (
    "{capacity: 16 GiB, bandwidth: 820 GB/s, area: 30 mm2, power: 60 W}",
    "{capacity: 64 GiB, bandwidth: 820 GB/s, area: 30 mm2, power: 76 W}",
    "{capacity: 64 GiB, bandwidth: 1640 GB/s, area: 60 mm2, power: 152 W}",
)
CORES, CLOCKS = ("[1, 2, 4, 8]", "[0.7 GHz, 1.4 GHz]")
JOB = {"model": "bert-large", "devices": 4, "batch": 32, "microbatch": [4], "tp": [1]}


def _usd(chip: Accelerator) -> float:
    return accelerator_usd(chip) or 0.0


PRICES: dict[str, Callable[[Accelerator], float]] = {
    "dollar": _usd,
    "watt": peak_power_W,
    "tco": lambda chip: float(ownership_usd(_usd(chip), peak_power_W(chip))),
}


def search(
    folder: Path, cores: str = CORES, clocks: str = CLOCKS,
    memories: tuple[str, ...] = MEMORIES, **more: object,
) -> atoll.SearchResult:  # fmt: skip
    path = folder / f"{abs(hash((cores, clocks, memories)))}.yaml"
    path.write_text(SPACE.format(cores=cores, clocks=clocks, hbm=f"[{', '.join(memories)}]"))
    return atoll.search(**JOB, space=path, baselines=False, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Accelerator, float]]:
    """Every chip with every memory, searched alone for throughput."""
    folder = tmp_path_factory.mktemp("alone")
    found = []
    for cores in (1, 2, 4, 8):
        for clock in ("0.7 GHz", "1.4 GHz"):
            for memory in MEMORIES:
                result = search(folder, f"[{cores}]", f"[{clock}]", (memory,), tolerance=1e-4)
                for design in (result.best, *result.runners_up):
                    found.append((design.accelerator, design.plans[0].samples_per_s))
    return found


@pytest.mark.parametrize("per", PRICES)
def test_the_best_per_price_is_the_best_of_all_chips_alone(
    rates: list[tuple[Accelerator, float]], per: str, tmp_path: Path
) -> None:
    scores = [rate / (4 * PRICES[per](chip)) for chip, rate in rates]
    result = search(tmp_path, per=per)
    assert result.certificate.proven
    assert result.score == pytest.approx(max(scores), rel=2e-3)
    chip = result.best.accelerator
    assert result.price_per_device == pytest.approx(PRICES[per](chip))
    own = result.best.plans[0].samples_per_s / (4 * PRICES[per](chip))
    assert result.score == pytest.approx(own, rel=1e-9)
    assert f"{result.score:.4g} samples/s per" in str(result)


@pytest.mark.parametrize("per", PRICES)
def test_boxes_of_a_space_outside_memory_prove_the_same(
    per: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = search(tmp_path, per=per)
    monkeypatch.setattr(product_space, "RESIDENT_POINTS", 2)
    monkeypatch.setattr(reserve, "PIECE_BOXES", 4)
    part = search(tmp_path, per=per)
    assert part.certificate.proven
    assert part.score == pytest.approx(whole.score, rel=2e-3)


def test_prices_differ_in_what_they_choose(tmp_path: Path) -> None:
    fast, cheap = search(tmp_path), search(tmp_path, per="dollar")
    assert cheap.best.accelerator.hbm.capacity_bytes == 16 * GIB
    assert _usd(cheap.best.accelerator) < _usd(fast.best.accelerator)
    assert cheap.best.plans[0].samples_per_s <= fast.best.plans[0].samples_per_s
    frugal = search(tmp_path, per="watt").best
    assert frugal.peak_power_W < fast.best.peak_power_W
    per_W = [d.plans[0].samples_per_s / d.peak_power_W for d in (frugal, fast.best, cheap.best)]
    assert per_W[0] == max(per_W)
    dear = search(tmp_path, per="tco", kwh_price=20.0, network_price=1.0).best
    assert dear.peak_power_W <= fast.best.peak_power_W  # energy is all that counts


def test_every_price_lies_in_its_range_and_has_a_source() -> None:
    for one in constants(USUAL_PRICES):
        assert 0 < one.low <= one.value <= one.high, one.name
        assert len(one.source) > 10, one.name


@given(st.floats(50, 850), st.floats(1, 1.5), st.floats(0, 200), st.floats(1, 2))
def test_prices_grow_with_area_memory_and_power(
    area: float, larger: float, memory_GiB: float, more: float
) -> None:
    least = device_usd(die_usd(area, 7.0), area, memory_GiB * GIB)
    large = device_usd(die_usd(area * larger, 7.0), area * larger, memory_GiB * more * GIB)
    assert large >= least
    assert ownership_usd(least, 300 * more) >= ownership_usd(least, 300)


def test_what_is_in_a_price() -> None:
    usd = float(device_usd(die_usd(600.0, 7.0), 600.0, 32 * GIB))
    package = (600 + 32 * 7.6) * 0.0274
    assert usd == pytest.approx((float(die_usd(600.0, 7.0)) + 32 * 12 + package) / 0.95)
    free = replace(USUAL_PRICES, network_usd=1e-9, years=1.0, usd_per_kWh=0.1, pue=1.5, drawn=1.0)
    # Switches draw what they do whatever a chip draws of its peak.
    assert ownership_usd(0.0, 1000.0, free) == pytest.approx(8766 * 0.1 * 1.5 * 1.08)
    half = replace(free, drawn=0.5)
    assert ownership_usd(0.0, 1000.0, half) == pytest.approx(8766 * 0.1 * 1.5 * 0.58)
    assert np.isfinite(usd)


@pytest.mark.slow
def test_chips_without_a_process_have_no_price() -> None:
    with pytest.raises(atoll.AtollError, match="no price"):
        atoll.search(model="bert-large", space="phaze", per="dollar")
    with pytest.raises(atoll.AtollError, match="without per"):
        atoll.search(model="bert-large", per="watt", pareto=True)
