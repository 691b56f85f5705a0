"""A limit on what passes draw: the best under it is the best of everything tried alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_per import search
from tiny import random_space, tiny_setting, tiny_variants

from atoll.base.errors import InfeasibleError
from atoll.cost.chips import chips_of_space
from atoll.explore.pricing.energy import operator_repeats
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.pricing.layouts import PowerLimit, SearchSetting
from atoll.explore.pricing.limit import resting_W, step_floors_s
from atoll.explore.pricing.workloads import Variant, Variants
from atoll.explore.proof import reserve
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.objective import Objective
from atoll.hardware import product_space
from atoll.hardware.energy import core_buffer_bytes_per_mac, template_energy
from atoll.hardware.silicon.systolic import TEMPLATES
from atoll.hardware.space import DesignLimits, DesignSpace, allowed_options
from atoll.profiles import DEFAULT
from oracles.planned_step import least_step_s

BATCH, TOLERANCE = 16, 1e-3


def joules_of(priced: PricedChips, chip: int, operator: int) -> float:
    """One operator's energy, event by event."""
    chips, costs, work = priced.chips, priced.costs, priced.work
    each, voltage = template_energy(chips.template), chips.template.voltage
    at = chips.clock_Hz[chip], chips.process_nm[chip]
    square = 1.0 if voltage is None else float(voltage(*at)) ** 2
    configs = chips.tensor_configs
    first, widest = (
        chips.tensor_config[chip][i] for i in (0, (costs.tensor_count > 0)[chip].sum() - 1)
    )
    per_mac = float(core_buffer_bytes_per_mac(configs.width[first], configs.depth[first]))
    hbm = glb = float(work.bytes[operator])
    if work.macs[operator] > 0:
        hbm, glb = costs.hbm_bytes[operator, widest], costs.glb_bytes[operator, widest]
    elif work.link_bytes[operator] > 0:
        glb = 0.0
    logic = work.macs[operator] * (each.mac_J + per_mac * each.core_buffer_J_per_byte)
    logic += work.vector_ops[operator] * each.vector_op_J + glb * each.glb_J_per_byte
    moved = hbm * each.hbm_J_per_byte + work.link_bytes[operator] * each.link_J_per_byte
    return float(square * logic + moved)


def limited_times(
    free: PricedChips, chip: int, number: int, variant: Variant, limit: PowerLimit
) -> tuple[np.ndarray, np.ndarray]:
    """Layers and the block's operators, each no shorter than its energy over what is left."""
    most_W = min(limit.W, limit.W_per_mm2 * float(free.chips.area_mm2[chip]))
    left_W = most_W - float(resting_W(free.chips)[chip])
    if left_W <= 0:
        return np.full(variant.layers, np.inf), np.full(variant.facts.operator_count, np.inf)
    _, upper = free.schedule_bounds(np.array([chip]), np.array([number]))
    ptr, op = free.passes.arrays.ptr, free.passes.arrays.op

    def energies(index: int) -> list[float]:
        return [joules_of(free, chip, int(row)) for row in op[ptr[index] : ptr[index + 1]]]

    first = 2 * variant.first_layer
    pass_s = [
        [max(upper[0, k, p], sum(energies(first + 2 * k + p)) / left_W) for p in range(2)]
        for k in range(len(variant.passes))
    ]
    each = np.array(energies(first + 2 * variant.facts.blocks[0].layer)) / left_W
    return np.array(pass_s), np.maximum(free.operators_s(chip, variant), each)


def exhaustive_step_s(
    space: DesignSpace, variants: Variants, setting: SearchSetting, limit: PowerLimit
) -> tuple[float, np.ndarray]:
    """Every chip, memory, variant and layout: the least step of all, and of each
    chip and variant."""
    chips = chips_of_space(space, setting.profile, True)
    free = PricedChips.of(chips, variants, setting)
    least = np.full((len(chips), len(variants.variants)), np.inf)
    for chip in range(len(chips)):
        for number, variant in enumerate(variants.variants):
            pass_s, each_s = limited_times(free, chip, number, variant, limit)
            if not np.isfinite(pass_s).all():
                continue
            times = free.times(chip, variant, pass_s)._replace(forward_s=each_s)
            problem = free.placement_problem(chip, variant)
            least[chip, number] = least_step_s(problem, times)
    return float(least.min()), least


@pytest.mark.parametrize(
    ("seed", "memory_mib", "dense"),
    [
        (2, 64, False),
        (3, 16384, True),
        pytest.param(0, 16384, False, marks=pytest.mark.campaign),
        pytest.param(1, 40, False, marks=pytest.mark.campaign),
    ],
)
def test_the_best_under_a_limit_is_the_best_of_everything_tried(
    seed: int, memory_mib: int, dense: bool
) -> None:
    """Also where memory forces recomputation, which takes its energy too."""
    template = TEMPLATES["physical-7nm"]
    space = random_space(seed, 25, hbm_bytes=(memory_mib * 2**20,), template=template)
    variants = tiny_variants(DEFAULT, 4, layers=2, sequence=256)
    free = tiny_setting(DEFAULT, 4)
    chips = chips_of_space(space, DEFAULT, True)
    # Below what most of these chips would draw, above what most take at rest.
    limit = PowerLimit(float(np.quantile(resting_W(chips), 0.6)) + 1.0)
    if dense:
        limit = PowerLimit(W_per_mm2=1.02 * float(np.median(resting_W(chips) / chips.area_mm2)))
    setting = replace(free, limit=limit)
    truth_s, every_s = exhaustive_step_s(space, variants, free, limit)
    outcome = exact_search(Search(space, variants, setting, Objective.single(BATCH), TOLERANCE))
    assert outcome.score >= BATCH / truth_s * (1 - TOLERANCE - 1e-9), "a better design was missed"
    assert outcome.bound >= BATCH / truth_s * (1 - 1e-9), "the bound is below the optimum"
    assert outcome.score <= BATCH / truth_s * (1 + 1e-9), "a step above the limit"
    unlimited = exact_search(Search(space, variants, free, Objective.single(BATCH), TOLERANCE))
    assert unlimited.score > outcome.score * 1.01  # the limit is felt
    work, repeats = PricedChips.of(chips, variants, setting).work, operator_repeats(variants)
    floors_s = step_floors_s(chips, variants, setting, work, repeats)
    assert (floors_s <= every_s * (1 + 1e-9)).all() and (floors_s > 0).all()


@pytest.mark.parametrize("limit", ["110 W", "150 W"])
def test_boxes_prove_the_same_and_no_pass_draws_more(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"max_power": limit, "power": "sustained"}
    whole = search(tmp_path, **asked)
    plan = whole.best.plans[0]
    assert whole.certificate.proven and plan.power_W <= float(limit.split()[0])
    assert whole.best.peak_power_W > plan.power_W
    assert whole.score > search(tmp_path, max_power=limit).score  # ratings are stricter
    assert whole.scope is not None and f"at most {limit} in a pass" in whole.scope.sentence()
    monkeypatch.setattr(product_space, "RESIDENT_POINTS", 2)
    monkeypatch.setattr(reserve, "PIECE_BOXES", 4)
    part = search(tmp_path, **asked)
    assert part.certificate.proven
    assert part.score == pytest.approx(whole.score, rel=2e-3)


@pytest.mark.parametrize("power", ["rated", "sustained"])
def test_no_chip_is_denser_than_it_can_be_cooled(
    power: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"cooling": "0.6 W/mm2", "power": power}
    whole, free = search(tmp_path, **asked), search(tmp_path)
    assert whole.certificate.proven and whole.score < free.score
    drawn_W = whole.best.peak_power_W if power == "rated" else whole.best.plans[0].power_W
    assert drawn_W <= 0.6 * whole.best.area_mm2
    assert whole.scope is not None and "at most 0.6 W/mm2" in whole.scope.sentence()
    with pytest.raises(InfeasibleError, match="W/mm2"):
        search(tmp_path, cooling=0.01, power=power)
    monkeypatch.setattr(product_space, "RESIDENT_POINTS", 2)
    monkeypatch.setattr(reserve, "PIECE_BOXES", 4)
    part = search(tmp_path, **asked)
    assert part.certificate.proven
    assert part.score == pytest.approx(whole.score, rel=2e-3)


def test_the_best_that_can_be_cooled_is_the_best_of_those_that_keep_to_it() -> None:
    space = random_space(5, 30, template=TEMPLATES["physical-7nm"])
    variants, setting = tiny_variants(DEFAULT, 4, layers=2, sequence=256), tiny_setting(DEFAULT, 4)
    objective = Objective.single(BATCH)
    every = Search(space, variants, setting, objective, TOLERANCE)
    hbm = space.hbm_options[0]
    dense = space.peak_power_with(hbm) / space.area_with(hbm)
    limit = float(np.median(dense))
    scores = every.evaluate_all(np.arange(len(space)))[np.argsort(every.frontier.chips.design)]
    kept = allowed_options(space, DesignLimits(max_W_per_mm2=limit))[:, 0]
    assert kept.tolist() == (dense <= limit).tolist() and 0 < kept.sum() < len(space)
    outcome = exact_search(Search(space.subset(kept), variants, setting, objective, TOLERANCE))
    assert outcome.score == pytest.approx(scores[dense <= limit].max(), rel=2 * TOLERANCE)


def test_a_limit_that_nothing_reaches_changes_nothing(tmp_path: Path) -> None:
    free = search(tmp_path)
    held = search(tmp_path, max_power="9 kW", power="sustained")
    assert held.score == pytest.approx(free.score, rel=1e-9)


def test_limits_below_rest_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleError, match="at rest"):
        search(tmp_path, max_power="20 W", power="sustained")
