"""Energy and power of a step: every part that peak power has, and joules over tokens."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from some_job import some_job
from tiny import random_space, tiny_setting, tiny_variants

from atoll.cost.chips import chips_of_space
from atoll.explore.pricing.energy import (
    VariantWork,
    energy_of_work,
    energy_per_token_J,
    operator_repeats,
    variant_traffic,
)
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.run import run_search
from atoll.hardware.accelerator import Accelerator
from atoll.hardware.catalog import load_accelerator
from atoll.hardware.energy import core_buffer_bytes_per_mac
from atoll.hardware.silicon.chip import accelerator_area_mm2, peak_power_W
from atoll.profiles import DEFAULT

TINY = Path(__file__).parents[2] / "examples" / "spaces" / "tiny.yaml"


def busy_second(chip: Accelerator) -> VariantWork:
    """What a chip does in a second with every unit busy in every clock."""
    macs = chip.peak_flops / 2.0
    return VariantWork(
        macs=macs,
        vector_ops=chip.vector_cores * chip.vector_width * chip.clock_Hz,
        core_buffer_bytes=macs * float(core_buffer_bytes_per_mac(chip.width, chip.depth)),
        hbm_bytes=chip.hbm.bandwidth_Bps,
        glb_bytes=chip.glb_bandwidth_Bpc * chip.clock_Hz,
        link_bytes=0.0,
    )


@pytest.mark.parametrize("shape", [(128, 128), (128, 8), (8, 256)])
def test_a_second_with_every_unit_busy_takes_the_peak_power(shape: tuple[int, int]) -> None:
    chip = replace(load_accelerator("phaze-tpuv4"), width=shape[0], depth=shape[1])
    variant = tiny_variants(DEFAULT, 1, batch=1).variants[0]
    assert (variant.tp, variant.microbatches) == (1, 1)
    step = energy_of_work(
        busy_second(chip),
        variant,
        area_mm2=accelerator_area_mm2(chip),
        step_time_s=1.0,
        devices=1,
    )
    assert step.power_W == pytest.approx(peak_power_W(chip))
    assert step.parts_J["core buffers"] > 0.0


def test_core_buffers_move_an_operand_a_row_and_a_sum_a_column_each_clock() -> None:
    assert core_buffer_bytes_per_mac(width=128, depth=8) == (2 * 8 + 4 * 128) / (128 * 8)
    # The same products on square arrays move eleven times less.
    ratio = core_buffer_bytes_per_mac(128, 8) / core_buffer_bytes_per_mac(128, 128)
    assert ratio == pytest.approx(11.0)


@pytest.mark.parametrize("profile", ["default", "phaze"])
def test_the_list_of_designs_has_the_same_energy_as_the_answer(profile: str) -> None:
    # Stages recompute, and some devices stay idle.
    changes = {"devices": 31, "batch": 4, "recompute": "full", "space": str(TINY)}
    result = run_search(some_job(profile=profile, **changes))
    plan, row = result.best.plans[0], result.designs[0]
    assert plan.placement.recompute_share > 0.0
    assert plan.placement.devices < 31
    assert row["power_W"] == row["bert-large: power_W"] == pytest.approx(plan.power_W)
    assert row["energy_per_token_J"] == pytest.approx(plan.energy_per_token_J)


def test_several_models_share_one_figure_of_joules_over_tokens() -> None:
    names = ("bert-large", "gpt2-xl")
    models = [{"name": name, "batch": 64, "sequence": 512} for name in names]
    result = run_search(some_job(model=models, pareto=True, space=str(TINY)))
    tokens = 64 * 512
    for row in result.designs:
        own = [row[f"{name}: energy_per_token_J"] for name in names]
        both = sum(joules * tokens for joules in own) / (len(own) * tokens)
        assert row["energy_per_token_J"] == pytest.approx(both)
        assert min(own) <= row["energy_per_token_J"] <= max(own)
    front = result.pareto["energy_per_token_J"].designs
    costs = [row["energy_per_token_J"] for row in front]
    assert costs == sorted(costs, reverse=True)


def test_a_larger_step_weighs_more() -> None:
    variant = tiny_variants(DEFAULT, 1, batch=1).variants[0]
    work = busy_second(load_accelerator("phaze-tpuv4"))
    one = energy_of_work(work, variant, area_mm2=100.0, step_time_s=1.0, devices=1)
    three = replace(one, tokens=3 * one.tokens)
    assert math.isclose(energy_per_token_J([one, three]), one.total_J / (2 * one.tokens))


def test_collectives_read_and_write_hbm_and_pass_the_buffer_by() -> None:
    variants, setting = tiny_variants(DEFAULT, 8), tiny_setting(DEFAULT, 8)
    priced = PricedChips.of(chips_of_space(random_space(0, 3), DEFAULT), variants, setting)
    hbm, glb = variant_traffic(priced, operator_repeats(variants))
    for v, variant in enumerate(variants.variants):
        collectives = sum(
            repeat * layer.traffic_bytes(op)
            for layer, repeat in variant.model.layers
            for op in (*layer.forward, *layer.backward)
            if op.collective is not None
        )
        assert (collectives > 0) == (variant.tp > 1)
        # Beside products, what passes HBM and not the buffer is what collectives move.
        products = priced.work.macs > 0.0
        costs = priced.costs
        widest = costs.tensor_config[0][costs.tensor_count[0] > 0][-1]
        repeats = operator_repeats(variants)[v]
        plain = [
            float(moved[0, v] - repeats[products] @ bytes_[products, widest])
            for moved, bytes_ in ((hbm, costs.hbm_bytes), (glb, costs.glb_bytes))
        ]
        assert plain[0] - plain[1] == pytest.approx(collectives, rel=1e-9, abs=1e-3)
        assert np.all(hbm[:, v] >= plain[0])
