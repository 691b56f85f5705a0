"""A searched chip takes the same step, by part and by byte, from the search and from the planner.

The search places layers on chips of a template, the planner lays runs out on devices by name: for
the same chip, network, states and layout both must say the same.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.answers.design import PlacementAnswer
from atoll.base.errors import AtollError
from atoll.cost.chips import chips_of_accelerator
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.workloads import make_variants, make_workload
from atoll.hardware.catalog import load_accelerator, load_network
from atoll.hardware.device import TemplateChip, chip_yaml, load_device
from atoll.profiles import DEFAULT
from atoll.schedule.chip import EFFORT
from atoll.step.layout import Layout
from atoll.step.states import load_states
from atoll.training.estimate import Estimate, Estimator
from atoll.training.planner.existing_device import plan_on_device
from atoll.training.request import make_run

from .questions import SMALL, SPACE

REL = 1e-9
CHIP = "phaze-tpuv4"
BATCH, SEQUENCE = 16, 256


def searched(
    model: str, layout: Layout, network: str, states: str, precision: str
) -> PlacementAnswer:
    """The layout as the search prices it, on a chip whose memory holds anything."""
    chip = load_accelerator(CHIP)
    setting = SearchSetting(
        network=load_network(network),
        profile=DEFAULT,
        states=load_states(states),
        devices=layout.devices,
        recompute=layout.recompute,
        zero=(layout.zero,),
    )
    variants = make_variants(
        [make_workload(model, BATCH, SEQUENCE, precision)], [layout.microbatch], [layout.tp],
        layout.devices, layout.recompute, DEFAULT,
    )  # fmt: skip
    priced = PricedChips.of(chips_of_accelerator(chip, DEFAULT), variants, setting)
    variant = variants.variants[0]
    schedules = priced.schedules(0, variant, EFFORT, 1e-3)
    pass_s = np.array([one.makespan_s for one in schedules]).reshape(-1, 2)
    problem, times = priced.placement_problem(0, variant, 1e15), priced.times(0, variant, pass_s)
    division = problem.fastest(times, even_stages=layout.pp)
    assert division is not None and problem.layouts is not None
    return problem.layouts.describe(problem, times, division)


def planned(model: str, layout: Layout, network: str, states: str, precision: str) -> Estimate:
    run = make_run(
        model, CHIP, layout.devices, batch=BATCH, sequence=SEQUENCE, network=network,
        optimizer=states, precision=precision,
    )  # fmt: skip
    return Estimator(run).estimate(layout)


LAYOUTS = (
    Layout(dp=4, zero=0),
    Layout(dp=2, tp=2, zero=0, microbatch=2),
    Layout(dp=2, pp=2, zero=0),
    Layout(dp=2, tp=2, pp=2, zero=0, microbatch=4),
    Layout(dp=1, tp=1, pp=4, zero=0, microbatch=2),
    Layout(dp=4, zero=1),
    Layout(dp=2, tp=2, pp=2, zero=1),
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "model, network, states, precision",
    [
        (SMALL, "dgx-a100", "mixed", "bf16"),
        ("mixtral-8x7b", "dgx-h100", "mixed16", "bf16"),
        ("mixtral-8x7b", "dgx-h100", "mixed16", "fp8"),
        ("opt-350m", "dgx-a100", "mixed", "bf16"),
    ],
    ids=["dense", "experts", "fp8", "tied"],
)
def test_search_and_planner_price_a_layout_alike(
    model: str, network: str, states: str, precision: str, layout: Layout
) -> None:
    one, two = (price(model, layout, network, states, precision) for price in (searched, planned))
    assert two.step.time_s == pytest.approx(one.step_time_s, rel=REL)
    parts = two.step.breakdown()
    for name in ("compute", "gradient_reduction", "optimizer"):
        assert parts[name] == pytest.approx(one.time_parts_s[name], rel=REL, abs=1e-15)
    for stage, memory in zip(one.stages, two.memory, strict=True):
        assert memory.allocated == pytest.approx(stage.total_memory_bytes, rel=REL)


SLOW = "switch-64@80GB/s"
"""A network on which pipelines are faster than replicas."""


def test_balanced_stages_are_estimated_as_they_were_searched(tmp_path: Path) -> None:
    """With the head on fewer blocks than other stages have."""
    found = atoll.search(
        model="bert-large", devices=8, batch=64, microbatch=(2,), tp=(1,), cp=(1,), order="zb-h2",
        space=SPACE, recompute="none", zero=1, baselines=False, out=tmp_path,
        network=SLOW,
    )  # fmt: skip
    where = found.best.plans[0].placement
    held = [name.rpartition(" x") for stage in where.stages for name in stage.layers]
    blocks = tuple(int(times) for name, _, times in held if name == "block")
    assert len(blocks) == where.pipeline > 1 and blocks[-1] < blocks[0]
    estimate = atoll.estimate(
        "bert-large", str(tmp_path / "chip.yaml"), where.devices, batch=64, pp=where.pipeline,
        microbatch=2, zero=1, hsdp=where.hsdp, order="zb-h2", blocks=blocks, optimizer="mixed",
        network=SLOW,
    )  # fmt: skip
    assert estimate.step.time_s == pytest.approx(where.step_time_s, rel=1e-3)
    assert f"blocks-{blocks[0]}" in str(estimate.layout)
    planned = atoll.plan(
        "bert-large", str(tmp_path / "chip.yaml"), where.devices, batch=64, tp=[1], cp=[1],
        microbatch=[2], zero=[1], order=["zb-h2"], recompute=["none"], optimizer="mixed",
        network=SLOW,
    )  # fmt: skip
    assert planned.best.step.time_s <= where.step_time_s * (1 + 1e-3)


def test_a_chip_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    chip = load_accelerator(CHIP)
    path = tmp_path / "chip.yaml"
    path.write_text(chip_yaml(chip, CHIP, "dgx-h100"), encoding="utf-8")
    assert load_device(path) == TemplateChip(chip, "dgx-h100")


def test_the_chip_that_a_search_writes_is_planned_at_its_step(tmp_path: Path) -> None:
    found = atoll.search(
        model=SMALL, devices=4, batch=BATCH, sequence=SEQUENCE, tp=(1, 2),
        microbatch=(1, 2), space=SPACE, optimizer="mixed", baselines=False, out=tmp_path,
    )  # fmt: skip
    where = found.best.plans[0].placement
    estimate = atoll.estimate(
        SMALL, str(tmp_path / "chip.yaml"), where.devices, batch=BATCH, sequence=SEQUENCE,
        tp=where.tensor, pp=where.pipeline, microbatch=where.microbatch, zero=where.zero,
        cp=where.cp, vpp=where.vpp, hsdp=where.hsdp,
        order=where.schedule if where.vpp == 1 else None,
    )  # fmt: skip
    assert estimate.step.time_s == pytest.approx(where.step_time_s, rel=1e-3)
    planned = atoll.plan(
        SMALL, str(tmp_path / "chip.yaml"), where.devices, batch=BATCH, sequence=SEQUENCE,
        tp=[1, 2], microbatch=[1, 2],
    )  # fmt: skip
    assert planned.best.layout == planned.fastest.layout
    assert planned.best.step.time_s <= where.step_time_s * (1 + 1e-3)


def test_devices_beside_a_searched_chip_are_planned_for_its_job() -> None:
    asked = {"batch": BATCH, "sequence": SEQUENCE}
    found = atoll.search(
        model=SMALL, devices=4, **asked, tp=(1,), microbatch=(1,), space=SPACE,
        baselines=False, beside=("h100", "tpu-v5e"),
    )  # fmt: skip
    planned = atoll.plan(SMALL, "h100", 4, **asked).fastest.step.time_s
    told = found.to_dict()
    assert told["best"]["step_time_s"] == found.best.plans[0].placement.step_time_s
    assert list(told["beside"]) == ["h100", "tpu-v5e"]
    h100 = told["beside"]["h100"]
    assert h100["fits"] and h100["step_time_s"] == planned
    assert h100["throughput_samples_per_s"] == pytest.approx(BATCH / planned)
    low_s, high_s = h100["step_time_interval_s"]
    assert low_s < planned < high_s
    low_s, high_s = told["step_time_interval_s"]
    assert low_s < told["best"]["step_time_s"] < high_s
    # Without host time and measured kernels, at the clock of long products.
    assert 0.0 < h100["template_step_time_s"] < planned
    assert h100["template_clock_GHz"] < h100["nominal_clock_GHz"]
    chip = told["beside"]["tpu-v5e"]
    assert chip["template_clock_GHz"] == chip["nominal_clock_GHz"]


def test_a_device_that_nobody_knows_ends_a_search_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("atoll.explore.run.prepare_search", lambda *_, **__: pytest.fail("began"))
    with pytest.raises(AtollError, match="h1000"):
        atoll.search(model=SMALL, devices=4, beside=("h100", "h1000"))


@pytest.mark.slow
def test_a_device_that_holds_no_layout_stands_beside_with_the_reason() -> None:
    none = plan_on_device("v100-16", make_run("llama3-405b", "v100-16", 1, batch=1))
    assert not none.fits and none.step_time_s is None
    assert "does not fit" in none.reason
