"""A step runs every sample that it is credited with: microbatches and replicas divide the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import NETWORK, random_space, tiny_config, tiny_setting

from atoll.base.errors import AtollError
from atoll.cost.chips import chips_of_space
from atoll.explore.pricing.bounds import chip_rates, roofline_bounds
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.pricing.layouts import SearchSetting, list_layouts
from atoll.explore.pricing.operator_work import operator_work
from atoll.explore.pricing.workloads import Variants, Workload, make_variants
from atoll.explore.run import run_search
from atoll.fabric.network import FabricLevel, Network
from atoll.profile import Profile
from atoll.profiles import DEFAULT, PHAZE
from atoll.questions import SearchQuestion
from atoll.step.states import load_states

TINY = Path(__file__).parents[2] / "examples" / "spaces" / "tiny.yaml"


def variants_of(
    batch: int, microbatches: tuple[int, ...], devices: int = 8, profile: Profile = DEFAULT
) -> Variants:
    workload = Workload("tiny", tiny_config(4, 256, 4), 128, batch)
    return make_variants([workload], microbatches, (1,), devices, "optimal", profile)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 100), st.sets(st.integers(1, 20), min_size=1, max_size=3))
def test_a_variant_runs_the_whole_batch_or_is_none(batch: int, sizes: set[int]) -> None:
    dividing = {size for size in sizes if batch % size == 0}
    if not dividing:
        with pytest.raises(AtollError, match=f"divides a batch of {batch}; take a batch of"):
            variants_of(batch, tuple(sizes))
        return
    variants = variants_of(batch, tuple(sizes)).variants
    assert {variant.microbatch for variant in variants} == dividing
    assert all(variant.microbatch * variant.microbatches == batch for variant in variants)


@pytest.mark.parametrize(
    ("batch", "sizes", "way_out"),
    [
        (31, (16,), "take a batch of 32, or a microbatch of 1."),
        (1000, (16, 32), "take a batch of 992, or a microbatch of 25."),
        (12, (8, 16), "take a batch of 8, or a microbatch of 12."),
        (3, (16,), "take a batch of 16, or a microbatch of 3."),
    ],
)
def test_a_batch_that_nothing_divides_is_refused_with_the_way_out(
    batch: int, sizes: tuple[int, ...], way_out: str
) -> None:
    with pytest.raises(AtollError) as refused:
        variants_of(batch, sizes)
    assert str(refused.value).endswith(way_out)


@pytest.mark.parametrize("batch", [15, 31, 36])
def test_throughput_counts_the_samples_that_the_placement_runs(batch: int) -> None:
    job = SearchQuestion.of(
        model="bert-large",
        devices=12,
        batch=batch,
        microbatch=(1, 2, 4),
        tp=(1,),
        space=str(TINY),
        baselines=False,
    )
    result = run_search(job)
    for design in (result.best, *result.runners_up):
        placement = design.plans[0].placement
        assert placement.microbatch * placement.microbatches * placement.data == batch
        assert design.plans[0].mfu < 1.0


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 60), st.integers(2, 24), st.sampled_from([24, 64, 16 * 1024]))
def test_bounds_of_batches_with_odd_divisors_stay_below_every_placement(
    batch: int, devices: int, memory_mib: int
) -> None:
    space = random_space(batch, 6, hbm_bytes=(memory_mib * 2**20,))
    variants = variants_of(batch, (1, 2, 3), devices)
    setting = tiny_setting(DEFAULT, devices)
    chips = chips_of_space(space, DEFAULT)
    work = operator_work(variants.passes.keys, setting.network, DEFAULT.name)
    memory_bytes = float(chips.hbm_capacity_bytes.max())
    _, bounds_s = roofline_bounds(chip_rates(chips), memory_bytes, variants, setting, work)
    priced = PricedChips.of(chips, variants, setting)
    for chip in range(len(chips)):
        for number, variant in enumerate(variants.variants):
            _, upper = priced.schedule_bounds(np.array([chip]), np.array([number]))
            placed = priced.place(chip, variant, upper[0])
            if placed is not None:
                assert bounds_s[chip, number] <= placed.step_time_s * (1 + 1e-12)


def test_phaze_keeps_replicas_that_run_a_microbatch_less() -> None:
    """As published: ceil(microbatches / replicas) rounds, for any number of replicas."""
    network = Network("flat", (FabricLevel("all", 1 << 20, 4e9, 0.0),))
    layouts = {}
    for profile, where in ((DEFAULT, NETWORK), (PHAZE, network)):
        setting = SearchSetting(
            network=where,
            profile=profile,
            states=load_states(profile.optimizer),
            devices=4,
            recompute="optimal",
        )
        variant = variants_of(10, (1,), 4, profile).variants[0]
        slow = [np.ones(variant.layers)]
        layouts[profile.name] = list_layouts([variant], setting, 80e9, 1e12, slow).floors
    # Four devices: two replicas of five microbatches; or four of at most three.
    one_stage = {name: rows.loads[rows.stages == 1].min() for name, rows in layouts.items()}
    assert one_stage == {"default": 5.0, "phaze": 3.0}


def test_baselines_of_models_whose_batches_share_no_microbatch() -> None:
    job = SearchQuestion.of(
        model=({"name": "bert-large", "batch": 4}, {"name": "opt-350m", "batch": 9}),
        devices=2,
        microbatch=(2, 3),
        tp=(1,),
        space=str(TINY),
    )
    assert run_search(job).baselines["spotlight"] is not None
