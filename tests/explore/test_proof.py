"""The proof is real: branch and bound finds what trying everything finds.

Small models of every family on random chips, networks and memories, so that cores, buffer, HBM,
links, rounds or memory may bind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from tiny import DrawnJob, drawn_job, random_space, tiny_setting, tiny_variants

from atoll.cost.chips import chips_of_space
from atoll.explore.pricing import bounds
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.workloads import Variants
from atoll.explore.proof.bound_checks import ROUNDING
from atoll.explore.proof.branch_and_bound import Search, SearchOutcome
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.objective import Objective
from atoll.hardware.silicon.systolic import TEMPLATES
from atoll.hardware.space import DesignSpace
from atoll.hardware.template.stalls import STALLS, Stalls
from atoll.profile import Profile
from atoll.profiles import DEFAULT, PHAZE
from oracles.planned_step import least_step_s

BATCH = 16
TOLERANCE = 1e-3
DRAWN = range(20)
FEW_AND_MORE = [*DRAWN[:4], *(pytest.param(seed, marks=pytest.mark.campaign) for seed in DRAWN[4:])]


def exhaustive_step_s(space: DesignSpace, variants: Variants, setting: SearchSetting) -> float:
    """Every chip, every variant, every layout: the least step."""
    chips = chips_of_space(space, setting.profile)
    priced = PricedChips.of(chips, variants, setting)
    best = np.inf
    for chip in range(len(chips)):
        for number, variant in enumerate(variants.variants):
            _, upper = priced.schedule_bounds(np.array([chip]), np.array([number]))
            if setting.profile is PHAZE:
                placed = priced.place(chip, variant, upper[0])
                best = min(best, np.inf if placed is None else placed.step_time_s)
                continue
            problem = priced.placement_problem(chip, variant)
            best = min(best, least_step_s(problem, priced.times(chip, variant, upper[0])))
    return best


def run(space: DesignSpace, variants: Variants, setting: SearchSetting) -> SearchOutcome:
    return exact_search(Search(space, variants, setting, Objective.single(BATCH), TOLERANCE))


@dataclass(frozen=True)
class Tried:
    """A small search, and the best of all that it can find."""

    space: DesignSpace
    variants: Variants
    setting: SearchSetting
    truth: float


def tried(space: DesignSpace, profile: Profile, devices: int, **model: int) -> Tried:
    variants = tiny_variants(profile, devices, **model)
    setting = tiny_setting(profile, devices)
    return Tried(space, variants, setting, BATCH / exhaustive_step_s(space, variants, setting))


@cache
def random_small(seed: int) -> Tried:
    return tried(random_space(seed, 40), DEFAULT, devices=3 + seed % 3, layers=2)


def assert_optimal(job: Tried) -> None:
    outcome = run(job.space, job.variants, job.setting)
    truth = job.truth
    assert outcome.score >= truth * (1 - TOLERANCE - 1e-9), "a better design was missed"
    assert outcome.bound >= truth * (1 - 1e-9), "the bound is below the optimum"


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(1, 6))]
)
def test_finds_the_optimum_of_random_small_spaces(seed: int) -> None:
    assert_optimal(random_small(seed))


@pytest.mark.parametrize("seed", range(3))
def test_finds_the_optimum_under_phazes_assumptions(seed: int) -> None:
    assert_optimal(tried(random_space(seed, 100), PHAZE, devices=6, layers=2))


@pytest.mark.parametrize(
    "memory_mib", [64, *(pytest.param(mib, marks=pytest.mark.campaign) for mib in (24, 40))]
)
def test_finds_the_optimum_where_memory_forces_stages_and_recomputation(memory_mib: int) -> None:
    space = random_space(11, 20, hbm_bytes=(memory_mib * 2**20,))
    assert_optimal(tried(space, DEFAULT, devices=6, layers=3, sequence=512))


def steps_s(job: DrawnJob) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bound without a schedule, placed bound and step of every node: each (chips, variants)."""
    chips = chips_of_space(job.space, job.setting.profile)
    priced = PricedChips.of(chips, job.variants, job.setting)
    rates, memory_bytes = bounds.chip_rates(chips), float(chips.hbm_capacity_bytes.max())
    layouts, roofline = bounds.roofline_bounds(
        rates, memory_bytes, job.variants, job.setting, priced.work
    )
    every = len(job.variants.variants)
    node_chip = np.repeat(np.arange(len(chips)), every)
    node_variant = np.tile(np.arange(every), len(chips))
    lower, upper = priced.schedule_bounds(node_chip, node_variant)
    floors = priced.floors(node_chip, node_variant)
    assert (floors <= lower * (1.0 + 1e-12)).all(), "a layer's floor is above its bound"
    unmapped = PricedChips.of(chips, job.variants, job.setting, floors=True)
    assert (unmapped.floors(node_chip, node_variant) <= floors * (1.0 + 1e-12)).all()
    early = layouts.step_s(lower, node_variant).reshape(roofline.shape)
    placed = [np.full(roofline.shape, np.inf) for _ in range(2)]
    for node, (chip, v) in enumerate(zip(node_chip, node_variant, strict=True)):
        variant, most_s = job.variants.variants[v], upper[node]
        plans = (
            priced.place(int(chip), variant, lower[node], most_s=most_s),
            priced.place(int(chip), variant, most_s),
        )
        for steps, plan in zip(placed, plans, strict=True):
            steps[chip, v] = np.inf if plan is None else plan.step_time_s
    return np.maximum(roofline, early), placed[0], placed[1]


def searched(job: DrawnJob, chips: np.ndarray | None = None) -> SearchOutcome:
    space = job.space if chips is None else job.space.subset(chips)
    objective = Objective.single(job.batch)
    return exact_search(Search(space, job.variants, job.setting, objective, TOLERANCE))


@pytest.mark.parametrize("wide", [False, True], ids=["divisions", "all axes"])
@pytest.mark.parametrize("seed", FEW_AND_MORE)
def test_every_bound_is_below_what_it_bounds_and_the_optimum_is_found(
    seed: int, wide: bool
) -> None:
    job = drawn_job(seed, 10 if wide else 25, DEFAULT, wide=wide)
    early, lower, upper = steps_s(job)
    assert (early <= lower * (1.0 + ROUNDING)).all(), "a bound is above the placed bound"
    assert (lower <= upper * (1.0 + ROUNDING)).all(), "a placed bound is above the step"
    truth = job.batch / upper.min()
    outcome = searched(job)
    assert outcome.score >= truth * (1.0 - TOLERANCE - ROUNDING), "a better design was missed"
    assert outcome.bound >= truth * (1.0 - ROUNDING), "the bound is below the optimum"


@pytest.mark.parametrize("seed", range(3))
def test_every_bound_is_below_what_it_bounds_under_phazes_assumptions(seed: int) -> None:
    early, lower, upper = steps_s(drawn_job(seed, 25, PHAZE))
    assert (early <= lower * (1.0 + ROUNDING)).all()
    assert (lower <= upper * (1.0 + ROUNDING)).all()


@pytest.mark.parametrize("stalls", STALLS.values(), ids=list(STALLS))
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in (1, 2))]
)
def test_every_bound_is_below_what_it_bounds_where_chips_lose(seed: int, stalls: Stalls) -> None:
    """Small models take microseconds: the starts and the ways of operands are cut to their size."""
    small = replace(stalls, start_s=stalls.start_s / 20, fill_s=stalls.fill_s / 20, mask_rows=32)
    for lost in (stalls, small):
        job = drawn_job(seed, 10, DEFAULT, replace(TEMPLATES["physical-7nm"], stalls=lost))
        early, lower, upper = steps_s(job)
        assert (early <= lower * (1.0 + ROUNDING)).all()
        assert (lower <= upper * (1.0 + ROUNDING)).all()
        assert searched(job).bound >= job.batch / upper.min() * (1.0 - ROUNDING)


@pytest.mark.parametrize("seed", DRAWN[1::3])
def test_no_part_of_a_space_beats_the_whole(seed: int) -> None:
    job = drawn_job(seed, 25, DEFAULT)
    whole = searched(job)
    rng = np.random.default_rng(seed)
    for _ in range(4):
        part = searched(job, rng.permutation(len(job.space))[: int(rng.integers(1, 20))])
        assert part.score <= whole.score * (1.0 + TOLERANCE + ROUNDING)
        assert part.score <= whole.bound * (1.0 + ROUNDING)


def test_a_bound_above_a_step_that_exists_stops_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No answer with a false proof: the chip and the variant are named instead."""
    honest = bounds.roofline

    def broken(start: int, stop: int, *arguments: np.ndarray) -> None:
        honest(start, stop, *arguments)
        arguments[-1][start:stop] *= 10.0

    monkeypatch.setattr(bounds, "roofline", broken)
    with pytest.raises(ArithmeticError, match=r"design \d+ .* tiny at microbatch \d+"):
        run(random_space(0, 150), tiny_variants(DEFAULT, 8), tiny_setting(DEFAULT, 8))


@pytest.mark.slow
def test_a_broken_bound_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that is too strict by a half rules the optimum out, and the checks above see it."""
    honest = bounds.layout_bounds

    def broken(start: int, stop: int, *arguments: np.ndarray) -> None:
        honest(start, stop, *arguments)
        # Strict against about every second node only, as a mistake in one case would be.
        struck = np.random.default_rng(0).random(stop)[start:] < 0.5
        arguments[-1][start:stop] *= 1.0 + 0.5 * struck

    monkeypatch.setattr(bounds, "layout_bounds", broken)
    with pytest.raises((AssertionError, ArithmeticError)):
        for seed in range(6):
            assert_optimal(random_small(seed))


def test_the_answer_does_not_depend_on_the_order_of_the_space() -> None:
    space = random_space(3, 100)
    variants, setting = tiny_variants(DEFAULT, 8), tiny_setting(DEFAULT, 8)
    forward = run(space, variants, setting)
    backward = run(space.subset(np.arange(len(space))[::-1]), variants, setting)
    assert forward.score == pytest.approx(backward.score, rel=TOLERANCE)


def test_the_same_job_gives_the_same_answer_twice() -> None:
    space = random_space(5, 100)
    variants, setting = tiny_variants(DEFAULT, 8), tiny_setting(DEFAULT, 8)
    first, second = run(space, variants, setting), run(space, variants, setting)
    assert (first.best, first.score, first.bound) == (second.best, second.score, second.bound)
