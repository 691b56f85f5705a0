"""The proof is real: branch and bound finds what trying everything finds."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from tiny import random_space, tiny_setting, tiny_variants

from atoll.cost.chips import chips_of_space
from atoll.explore import bounds
from atoll.explore.branch_and_bound import Outcome, Search
from atoll.explore.evaluate import Priced
from atoll.explore.layouts import Setting
from atoll.explore.objective import Objective
from atoll.explore.workloads import Variants
from atoll.hardware import Space
from atoll.placement.chain import make_chain
from atoll.placement.fixed import step_time_of
from atoll.profile import DEFAULT, PHAZE, Profile

BATCH = 16
TOLERANCE = 1e-3


def exhaustive_step_s(space: Space, variants: Variants, setting: Setting) -> float:
    """Every chip, every variant, every division into stages, every data degree: the least step."""
    chips = chips_of_space(space, setting.profile)
    priced = Priced.of(chips, variants, setting)
    best = np.inf
    for chip in range(len(chips)):
        for number, variant in enumerate(variants.variants):
            _, upper = priced.schedule_bounds(np.array([chip]), np.array([number]))
            if setting.profile.whole_stage_recompute:
                placed = priced.place(chip, variant, upper[0])
                best = min(best, np.inf if placed is None else placed[0])
                continue
            times = upper[0][: variant.layers].sum(axis=1)
            chain = make_chain(variant.facts, times, priced.operators_s(chip, variant))
            system = setting.system(
                variant, float(chips.hbm_capacity_bytes[chip]), float(chips.hbm_Bps[chip])
            )
            layers = len(variant.facts.kind)
            for stages in range(1, min(layers, setting.devices // variant.tensor) + 1):
                for cuts in combinations(range(1, layers), stages - 1):
                    most = min(
                        setting.devices // (stages * variant.tensor), variant.microbatches
                    )
                    for data in range(1, most + 1):
                        step = step_time_of(chain, system, (0, *cuts), data)
                        best = min(best, step)
    return best


def run(space: Space, variants: Variants, setting: Setting) -> Outcome:
    return Search(space, variants, setting, Objective.single(BATCH), TOLERANCE).run()


def assert_optimal(space: Space, profile: Profile, devices: int, **model: int) -> None:
    variants = tiny_variants(profile, devices, **model)
    setting = tiny_setting(profile, devices)
    truth = BATCH / exhaustive_step_s(space, variants, setting)
    outcome = run(space, variants, setting)
    assert outcome.score >= truth * (1 - TOLERANCE - 1e-9), "a better design was missed"
    assert outcome.bound >= truth * (1 - 1e-9), "the bound is below the optimum"


@pytest.mark.parametrize("seed", range(6))
def test_finds_the_optimum_of_random_small_spaces(seed: int) -> None:
    assert_optimal(random_space(seed, 150), DEFAULT, devices=3 + seed % 3, layers=2)


@pytest.mark.parametrize("seed", range(3))
def test_finds_the_optimum_under_the_seeds_assumptions(seed: int) -> None:
    assert_optimal(random_space(seed, 100), PHAZE, devices=6, layers=2)


@pytest.mark.parametrize("memory_mib", [24, 40, 64])
def test_finds_the_optimum_where_memory_forces_stages_and_recomputation(memory_mib: int) -> None:
    space = random_space(11, 20, hbm_bytes=(memory_mib * 2**20,))
    assert_optimal(space, DEFAULT, devices=6, layers=3, sequence=512)


def test_a_broken_bound_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that is too strict by a half rules the optimum out, and the check above sees it."""
    honest = bounds.layout_bounds

    def broken(start: int, stop: int, *arguments: np.ndarray) -> None:
        honest(start, stop, *arguments)
        # Strict against every second node only, as a mistake in one case would be.
        result = arguments[-1]
        result[start:stop] *= 1.0 + 0.5 * (np.arange(start, stop) % 2)

    monkeypatch.setattr(bounds, "layout_bounds", broken)
    with pytest.raises(AssertionError):
        for seed in range(6):
            assert_optimal(random_space(seed, 150), DEFAULT, devices=3 + seed % 3, layers=2)


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
