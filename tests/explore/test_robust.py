"""The answer under draws of the physical constants, against every chip tried under every draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.answers.search import Robustness
from atoll.base.errors import AtollError
from atoll.explore.prepare import make_objective, prepare_search
from atoll.explore.pricing.price import price_of
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.robust import (
    LOSS_TOLERANCE,
    TOLERANCE,
    Draws,
    SharedSearch,
    _with_a_chip,
    constants_that_matter,
    robustness,
    space_under,
)
from atoll.hardware.accelerator import Accelerator
from atoll.hardware.physical.constants import (
    PUBLISHED,
    Constant,
    at_ends,
    constants,
    drawn,
    triangular,
)
from atoll.hardware.physical.price import ownership_usd
from atoll.hardware.silicon.chip import accelerator_area_mm2, accelerator_usd, peak_power_W
from atoll.hardware.silicon.physical import redrawn
from atoll.hardware.space import DesignLimits
from atoll.hardware.spacefile import read_space
from atoll.questions import SearchQuestion

SPACE = """name: small
template: physical-7nm
tensor_cores: [2, 4, 6, 8]
vector_cores: [4]
width: [64, 128]
depth: [128]
vector_width: [512]
glb: [16 MiB]
clock: [0.7 GHz, 1.05 GHz, 1.4 GHz]
hbm:
  - {stacks: 2, capacity: 16 GiB, bandwidth: 410 GB/s, area: 15 mm2, power: 38 W}
"""
JOB = {"model": "bert-large", "devices": 4, "batch": 32, "microbatch": [4], "tp": [1]}
LIMITS = DesignLimits(max_area_mm2=300.0, max_power_W=230.0)
KNOWN = {one.name: one for one in constants()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("robust") / "small.yaml"
    path.write_text(SPACE)
    return path


def test_a_constant_is_triangular_around_its_value() -> None:
    one = Constant("some", 2.0, 1.0, 5.0, "")
    chance = np.linspace(0, 1, 100_001)
    values = triangular(one, chance)
    assert values[0] == 1.0 and values[-1] == 5.0 and (np.diff(values) >= 0).all()
    assert triangular(one, np.array([0.25]))[0] == pytest.approx(2.0)  # (2 - 1) / (5 - 1)
    assert values.mean() == pytest.approx((1 + 2 + 5) / 3, rel=1e-4)


def test_draws_cover_every_range_and_repeat_with_their_seed() -> None:
    varied = [KNOWN["cell_um2"], KNOWN["mac_pJ"]]
    draws = drawn(varied, 20, seed=3)
    assert draws == drawn(varied, 20, seed=3) != drawn(varied, 20, seed=4)
    for one in varied:
        values = np.sort([getattr(draw, one.name) for draw in draws])
        edges = triangular(one, np.arange(21) / 20)
        assert (values >= edges[:-1]).all() and (values <= edges[1:]).all()
    assert all(draw.uncore_mm2 == PUBLISHED.uncore_mm2 for draw in draws)
    low, high = at_ends(KNOWN["cell_um2"])
    assert (low.cell_um2, high.cell_um2) == (400.0, 900.0)


def usd(chip: Accelerator) -> float:
    return accelerator_usd(chip) or 0.0


@pytest.mark.parametrize(
    ("seed", "per", "price"),
    [
        (0, None, lambda chip: 1.0),
        (1, None, lambda chip: 1.0),
        (0, "dollar", usd),
        (1, "watt", peak_power_W),
        (2, "tco", lambda chip: float(ownership_usd(usd(chip), peak_power_W(chip)))),
    ],
)
def test_losses_are_those_of_every_chip_tried_under_every_draw(
    folder: Path, seed: int, per: str | None, price: Callable[[Accelerator], float]
) -> None:
    whole = read_space(folder).build()
    job = SearchQuestion.of(**JOB)
    setting, variants = prepare_search(job)
    draws = Draws.of(whole, LIMITS, 6, seed, price_of(SearchQuestion.of(**JOB, per=per)))
    objective = make_objective(job, whole, setting, variants)
    search = Search(draws.space, variants, setting, objective, 1e-4)
    chips = search.frontier.chips
    usual = search.evaluate_all(np.arange(len(chips)))

    def chip(number: int) -> Accelerator:
        design = int(chips.design[number])
        options = [o for o in draws.space.hbm_options if o.bandwidth_Bps == chips.hbm_Bps[number]]
        return draws.space.accelerator(design, options[0])

    def score(number: int, physics: object) -> float:
        """At the fastest clock within the limits, one chip at a time."""
        own = chip(number)
        best = 0.0
        for other in range(len(chips)):
            slow = chip(other)
            if replace(slow, clock_Hz=own.clock_Hz, name="") != replace(own, name=""):
                continue
            redrawn_chip = replace(slow, template=redrawn(whole.template, physics))  # type: ignore[arg-type]
            within = (
                slow.clock_Hz <= own.clock_Hz
                and accelerator_area_mm2(redrawn_chip) <= 300.0
                and peak_power_W(redrawn_chip) <= 230.0
            )
            best = max(best, usual[other] / price(redrawn_chip) if within else 0.0)
        return best

    table = np.array([[score(n, physics) for n in range(len(chips))] for physics in draws.draws])
    best = table.max(axis=1)
    assert (best > 0).all()
    losses = 1.0 - table / best[:, None]
    fresh = Search(draws.space, variants, setting, objective, 1e-4)
    winner = int(np.argmax(np.where(np.isin(chips.design, draws.usual), usual, 0.0)))
    stages: list[str] = []
    found = robustness(fresh, draws, winner, lambda stage, _: stages.append(stage))
    assert stages[:6] == [f"draw {number} of 6" for number in range(1, 7)]
    assert stages[6] == f"range of {draws.varied[0].name}"
    assert found.draws == 6 and found.without_a_chip == 0
    assert found.loss_mean == pytest.approx(losses[:, winner].mean(), abs=2 * TOLERANCE)
    least = losses.mean(axis=0).min()
    assert found.steadiest.loss_mean <= least + LOSS_TOLERANCE + 2 * TOLERANCE
    assert found.least_loss <= least + 2 * TOLERANCE
    assert found.steadiest.loss_mean <= found.loss_mean


def test_ends_of_a_range_say_which_constant_moves_the_best(folder: Path) -> None:
    whole = read_space(folder).build()
    job = SearchQuestion.of(**JOB)
    setting, variants = prepare_search(job)
    objective = make_objective(job, whole, setting, variants)

    def shares(limits: DesignLimits) -> dict[str, float]:
        draws = Draws.of(whole, limits, 2, 0)
        search = Search(draws.space, variants, setting, objective, 1e-3)
        found = robustness(search, draws, 0, lambda *_: None)
        return {one.name: one.share for one in found.constants}

    assert not any(shares(DesignLimits(max_area_mm2=5000.0)).values())  # everything fits, always
    by_area = shares(DesignLimits(max_area_mm2=300.0))
    assert sum(by_area.values()) == pytest.approx(1.0)
    assert by_area["mac_pJ"] == 0.0 and by_area["uncore_mm2"] > 0.2
    assert shares(DesignLimits(max_power_W=170.0))["mac_pJ"] > 0.2


def test_a_chip_that_is_too_hot_runs_slower_and_one_that_is_too_large_is_lost(
    folder: Path,
) -> None:
    whole = read_space(folder).build()
    job = SearchQuestion.of(**JOB)
    setting, variants = prepare_search(job)
    objective = make_objective(job, whole, setting, variants)
    draws = Draws.of(whole, LIMITS, 2, 0)
    held = SharedSearch(Search(draws.space, variants, setting, objective, 1e-3), draws)
    chips = held.search.frontier.chips
    scores = chips.peak_flops.copy()
    fastest = np.flatnonzero(chips.clock_Hz == chips.clock_Hz.max())
    held.feasible[0] = chips.clock_Hz < 1e9
    assert held.scores_at_best_clock(0, scores)[fastest] == pytest.approx(scores[fastest] / 2)
    held.feasible[0] = np.zeros(len(chips), np.bool_)
    assert not held.scores_at_best_clock(0, scores).any()


def test_a_search_says_it_in_one_line_and_in_json(folder: Path) -> None:
    result = atoll.search(
        **JOB, space=folder, max_area="300 mm2", max_power="230 W", robust=5, baselines=False,
        beside=["a100-80"],
    )  # fmt: skip
    found = result.robustness
    assert isinstance(found, Robustness) and found.draws == 5
    (device,) = result.beside
    rate = device.throughput_samples_per_s
    assert rate is not None and len(found.scores) == 5
    assert max(found.scores) <= result.throughput_samples_per_s * (1 + 1e-9)
    count = sum(score > rate for score in found.scores)
    assert f"faster than a100-80 in {count} of the draws" in str(result)
    told = result.to_dict()["robustness"]
    assert {"draws", "loss_mean", "loss_p95", "steadiest", "constants"} <= told.keys()
    assert {"chip", "loss_mean", "loss_p95"} <= told["steadiest"].keys()
    words = found.words()
    assert f"in {round(5 * found.fits)} of 5 draws it keeps to the limits at its clock" in words
    assert f"the best chip of each draw (of {found.designs:,} that" in words
    mixed = replace(found, draws=4, fits=0.25, scores=(9.0, 5.0, 0.0, 0.0)).words()
    assert "in 1 of 4 draws it keeps to the limits at its clock, in 1 it needs a lower" in mixed
    assert "in 2 it is too large or too hot (a loss of 100%)" in mixed
    assert told["constants"][0].keys() == {"name", "share"}


def test_draws_change_prices_too(folder: Path) -> None:
    """A winner per dollar without limits loses only as prices move."""
    result = atoll.search(**JOB, space=folder, robust=4, per="dollar", baselines=False)
    found = result.robustness
    assert found is not None and found.fits == 1.0 and 0.0 <= found.loss_mean < 0.2
    assert {one.name for one in found.constants if one.share > 0.0} >= {"uncore_mm2"}
    assert found.steadiest.loss_mean <= found.loss_mean


def test_losses_under_a_limit_on_passes_are_those_of_every_chip_tried(folder: Path) -> None:
    asked = {"max_area": 300.0, "max_power": 130.0, "power": "sustained"}
    result = atoll.search(**JOB, space=folder, robust=3, seed=1, baselines=False, **asked)
    found = result.robustness
    assert found is not None and found.draws == 3 and found.proven_within <= TOLERANCE * 1.001
    job = SearchQuestion.of(**JOB, space=str(folder), **asked)
    whole, (setting, variants) = read_space(folder).build(), prepare_search(job)
    varied = constants_that_matter(whole, energies=True)
    assert {"link_pJ_per_bit", "mac_pJ", "uncore_mm2"} <= {one.name for one in varied}
    hbm, table = whole.hbm_options[0], []
    for physics in drawn(varied, 3, 1):
        space = space_under(whole, physics)
        search = Search(space, variants, setting, make_objective(job, space, setting, variants), 1)
        scores = search.evaluate_all(np.arange(len(space)))[search.frontier.chips.design.argsort()]
        scores = np.where(space.area_with(hbm) <= 300.0, np.maximum(scores, 0.0), 0.0)
        others = [name for name in space.columns if name != "clock_Hz"]
        slower = np.all([space.columns[n][:, None] == space.columns[n] for n in others], axis=0)
        slower &= space.clock_Hz[:, None] >= space.clock_Hz
        table.append(np.where(slower, scores, 0.0).max(axis=1))
    losses = 1.0 - np.array(table) / np.max(table, axis=1)[:, None]
    names = [whole.accelerator(i) for i in range(len(whole))]
    words = [f"{one.describe()} at {one.clock_Hz / 1e9:g} GHz" for one in names]
    for told in (found, found.steadiest):
        mean = losses[:, words.index(told.chip)].mean()
        assert told.loss_mean == pytest.approx(mean, abs=2 * TOLERANCE)
    assert found.steadiest.loss_mean <= found.loss_mean
    assert sum(one.share for one in found.constants) == pytest.approx(1.0)


def test_spaces_whose_constants_have_no_ranges_are_refused() -> None:
    with pytest.raises(atoll.AtollError, match="no ranges"):
        atoll.search(model="bert-large", space="phaze", robust=5)


def test_draws_that_leave_no_chip_at_all_are_said() -> None:
    with pytest.raises(AtollError, match="no chip keeps to the limits under any of 3 draws"):
        _with_a_chip([0.0, 0.0, 0.0])
    assert _with_a_chip([0.0, 2.0]) == [1]
