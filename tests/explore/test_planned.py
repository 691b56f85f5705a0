"""A searched chip has the planner's layouts, and each takes the same step there and here."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.base.errors import AtollError
from atoll.cost.chips import chips_of_accelerator
from atoll.explore.pricing.bound_kernels import floors_s
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.planned import layout_prices as planned
from atoll.explore.pricing.planned.layout_prices import PlannedLayouts
from atoll.explore.pricing.workloads import Spreads, make_variants, make_workload
from atoll.hardware.catalog import load_accelerator, load_network
from atoll.placement.chain import Division, PlacementProblem, VariantTimes
from atoll.placement.replay import replay_difference
from atoll.profiles import DEFAULT
from atoll.schedule.chip import EFFORT
from atoll.step.layout import ZERO_STAGES
from atoll.step.orders import ORDERS
from atoll.step.states import load_states
from atoll.training.batch.choices import best_choices
from atoll.training.batch.sums import Sums
from atoll.training.estimate import Estimator
from atoll.training.request import make_run
from contract.questions import SPACE
from drawn import examples
from workload.small_families import given as given_family

REL = 1e-9
CHIP, NETWORK, DEVICES, BATCH, SEQUENCE = "phaze-tpuv4", "dgx-a100", 16, 16, 256


@dataclass(frozen=True)
class Node:
    """A chip with one variant of a model."""

    others: PlannedLayouts
    problem: PlacementProblem
    times: VariantTimes


def node(
    model: str, recompute: str = "none", hsdp: tuple[int, ...] = (), **spread: tuple[int, ...]
) -> Node:
    setting = SearchSetting(
        network=load_network(NETWORK), profile=DEFAULT, states=load_states("mixed"),
        devices=DEVICES, recompute=recompute, zero=ZERO_STAGES, orders=ORDERS, hsdp=hsdp,
    )  # fmt: skip
    variants = make_variants(
        [make_workload(model, BATCH, SEQUENCE)], [1], [2], DEVICES, recompute, DEFAULT,
        spreads=Spreads(apart=True, **spread),
    )  # fmt: skip
    priced = PricedChips.of(
        chips_of_accelerator(load_accelerator(CHIP), DEFAULT), variants, setting
    )
    variant = variants.variants[0]
    schedules = priced.schedules(0, variant, EFFORT, 1e-3)
    pass_s = np.array([one.makespan_s for one in schedules]).reshape(-1, 2)
    problem = priced.placement_problem(0, variant, 1e15)
    assert isinstance(problem.layouts, PlannedLayouts)
    return Node(problem.layouts, problem, priced.times(0, variant, pass_s))


def steps(one: Node, times: VariantTimes, memory_bytes: float = 1e15) -> np.ndarray:
    """Seconds of every layout with the best recomputation of its stages that fits."""
    problem = replace(one.problem, memory_bytes=memory_bytes)
    tables = one.others.timed(problem, times, one.others.chosen(times))
    slower = times.most and one.others.timed(problem, times.most, one.others.chosen(times))
    return best_choices(Sums(tables, tables.rows, slower), np.inf)[0]


def small_model(folder: Path, name: str, **changes: object) -> str:
    """The file of a small model with attention heads for two devices and more."""
    wide = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}
    path = folder / "config.json"
    fields = given_family(name, **{**wide, "num_key_value_heads": 4, **changes})
    path.write_text(json.dumps(fields), encoding="utf-8")
    return str(path)


def compare_with_planner(one: Node, model: str) -> None:
    """Every layout takes the planner's step and needs the planner's bytes, stage by stage."""
    run = make_run(
        model, CHIP, DEVICES, batch=BATCH, sequence=SEQUENCE, network=NETWORK, optimizer="mixed"
    )
    planner, time_s = Estimator(run), steps(one, one.times)
    for layout, step_s in zip(one.others.layouts, time_s, strict=True):
        found = planner.estimate(replace(layout, recompute="none"))
        assert found.step.time_s == pytest.approx(step_s, rel=REL), layout
        division = Division(
            step_s, layout.pp, layout.dp, (), layout=layout, choices=(0,) * layout.pp
        )
        described = one.others.describe(one.problem, one.times, division)
        assert described.step_time_s == pytest.approx(step_s, rel=REL)
        assert sum(described.time_parts_s.values()) == pytest.approx(step_s, rel=REL)
        for stage, memory in zip(described.stages, found.memory, strict=True):
            assert stage.total_memory_bytes == pytest.approx(memory.allocated, rel=REL)


@pytest.mark.parametrize(
    "model, spread",
    [
        ("bert-large", {}),
        ("opt-350m", {"cp": (2,)}),
        ("mixtral-8x7b", {"ep": (4,)}),
        ("mixtral-8x7b", {"cp": (2,), "ep": (2,), "etp": (1,)}),
        pytest.param("t5-large", {}, marks=pytest.mark.slow),
    ],
    ids=["dense", "context", "experts", "folded", "encoder and decoder"],
)
def test_every_layout_of_a_search_is_the_planners(model: str, spread) -> None:
    one = node(model, hsdp=(1, 2), **spread)
    assert {x.schedule for x in one.others.layouts} == set(ORDERS)
    assert {x.zero for x in one.others.layouts} == set(ZERO_STAGES)
    assert {x.hsdp for x in one.others.layouts} == {1, 2}
    assert any(x.blocks for x in one.others.layouts) == ("mixtral" not in model)
    compare_with_planner(one, model)


@pytest.mark.parametrize(
    "family, spread, changes",
    [
        ("modernbert", {"cp": (2,)}, {"num_hidden_layers": 6}),
        ("gpt_oss", {"ep": (8,)}, {"head_dim": 32}),
        pytest.param("gemma3_text", {}, {"head_dim": 32}, marks=pytest.mark.slow),
        pytest.param("llama4_text", {"ep": (2,)}, {"head_dim": 32}, marks=pytest.mark.slow),
        pytest.param(
            "qwen3_next",
            {},
            {"num_hidden_layers": 8, "head_dim": 32, "linear_num_value_heads": 8},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "bamba",
            {},
            {"num_hidden_layers": 6, "attn_layer_indices": [1, 4], "mamba_d_head": 64},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_blocks_that_alternate_are_cut_and_priced_as_the_planner_does(
    family: str, spread, changes, tmp_path: Path
) -> None:
    model = small_model(tmp_path, family, **changes)
    one = node(model, **spread)
    assert len(one.others.facts.blocks) > 1
    compare_with_planner(one, model)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt_oss", "olmo2"])
def test_stages_recompute_what_a_plan_would(family: str, tmp_path: Path) -> None:
    """Under every memory the same layouts fit, and take the same step."""
    model = small_model(tmp_path, family, head_dim=32)
    one = node(model, "optimal")
    run = make_run(
        model, CHIP, DEVICES, batch=BATCH, sequence=SEQUENCE, network=NETWORK, optimizer="mixed"
    )
    needed, recomputing = one.others.needed, 0
    for memory_bytes in np.quantile(needed, (0.1, 0.3, 0.5, 0.9)).astype(int).tolist():
        planner = Estimator(replace(run, gpu=run.gpu.with_hbm(memory_bytes)))
        time_s = steps(one, one.times, memory_bytes)
        nearly = np.argsort(np.abs(needed - 0.9 * memory_bytes))[:30]
        for layout, step_s in ((one.others.layouts[i], time_s[i]) for i in nearly.tolist()):
            found = planner.estimate(replace(layout, recompute="optimal"))
            assert found.fits == np.isfinite(step_s), (layout, memory_bytes)
            if found.fits:
                assert found.step.time_s == pytest.approx(step_s, rel=REL), layout
                recomputing += found.step.recompute_s > 0
    assert recomputing > 10


@pytest.fixture(scope="module")
def recomputing() -> Node:
    return node("bert-large", "optimal")


@pytest.mark.parametrize("memory_bytes", [1e9, 2e9, 4e9, 8e9, 1e15])
def test_the_fastest_is_the_best_of_all_that_fit(recomputing: Node, memory_bytes: float) -> None:
    one = recomputing
    problem = replace(one.problem, memory_bytes=memory_bytes)
    found = one.others.fastest(problem, one.times, np.inf)
    least_s = steps(one, one.times, memory_bytes).min()
    if found is None:
        assert least_s == np.inf
        return
    assert found.step_time_s == pytest.approx(least_s, rel=REL)
    assert one.others.fastest(problem, one.times, found.step_time_s) is None
    described = one.others.describe(problem, one.times, found)
    assert described.step_time_s == pytest.approx(least_s, rel=REL)
    assert described.recompute_share == pytest.approx(found.recompute_share, abs=1e-12)
    for stage in described.stages:
        assert stage.total_memory_bytes <= memory_bytes * (1 + REL)


def test_replicas_that_bring_nothing_are_left_out(
    recomputing: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        planned, "_without_useless_replicas", lambda tables, layouts: list(range(len(layouts)))
    )
    every = node("bert-large", "optimal", hsdp=(1, 2, 4, 8))
    monkeypatch.undo()
    asked = node("bert-large", "optimal", hsdp=(1, 2, 4, 8))
    assert len(recomputing.others.layouts) < len(asked.others.layouts) < len(every.others.layouts)
    for memory_bytes in np.geomspace(1e9, 1e11, 9):
        all_s, some_s = (steps(x, x.times, memory_bytes) for x in (every, asked))
        assert some_s.min() == all_s.min()
        by_shape = {}
        for layout, step_s in zip(asked.others.layouts, some_s, strict=True):
            shape = replace(layout, hsdp=1)
            by_shape[shape] = min(step_s, by_shape.get(shape, np.inf))
        for layout, step_s in zip(every.others.layouts, all_s, strict=True):
            assert by_shape[replace(layout, hsdp=1)] <= step_s


@pytest.mark.slow
@examples(20, 100)
@given(st.lists(st.floats(1.0, 3.0), min_size=12, max_size=12), st.floats(0.0, 1.0))
def test_what_bounds_the_times_bounds_the_steps(recomputing: Node, longer, share: float) -> None:
    one = recomputing
    factors = np.array(longer).reshape(6, 2)
    kinds = len(one.times.pass_s)
    lower = one.times
    upper = lower._replace(
        pass_s=lower.pass_s * factors[:kinds], halves_s=lower.halves_s * factors[-kinds:]
    )
    # Data gradients and weight gradients apart take no less than the backward pass at once.
    joint_s = np.minimum(upper.pass_s[:, 1], upper.halves_s.sum(axis=1))
    upper = upper._replace(pass_s=np.column_stack([upper.pass_s[:, 0], joint_s]))
    between = lower._replace(
        pass_s=lower.pass_s + share * (upper.pass_s - lower.pass_s),
        halves_s=lower.halves_s + share * (upper.halves_s - lower.halves_s),
    )
    for memory_bytes in (2e9, 1e15):
        least_s = steps(one, lower._replace(most=upper), memory_bytes)
        for times in (lower, upper, between):
            assert (least_s <= steps(one, times, memory_bytes) * (1 + REL)).all()
        same_s = steps(one, upper._replace(most=upper), memory_bytes)
        assert same_s == pytest.approx(steps(one, upper, memory_bytes), rel=REL)


def test_floors_lie_below_the_steps(recomputing: Node) -> None:
    one = recomputing
    floor_s = np.empty(len(one.others.layouts))
    pass_s = np.concatenate([one.times.pass_s, one.times.halves_s])
    others = one.others
    floors_s(others._steps(one.problem), pass_s, others.facts.repeats, others.is_block, floor_s)
    assert (floor_s <= steps(one, one.times._replace(most=one.times)) * (1 + REL)).all()
    assert (floor_s <= steps(one, one.times) * (1 + REL)).all()


def loads_below_the_steps(one: Node) -> None:
    """Under any memory, and between bounds on the times. With one stage they are the step."""
    alone = np.array([x.pp == 1 and x.zero < 3 for x in one.others.layouts])
    slower = one.times._replace(pass_s=1.2 * one.times.pass_s, halves_s=1.1 * one.times.halves_s)
    for memory_bytes in (*np.quantile(one.others.needed, (0.1, 0.3, 0.5, 0.9)), 1e15):
        problem = replace(one.problem, memory_bytes=float(int(memory_bytes)))
        choices = one.others.chosen(one.times)
        every = np.arange(len(one.others.layouts))
        bound_s = one.others.loads.step_s(problem, one.times, choices, every)
        odd_s = one.others.loads.step_s(problem, one.times, choices, every[1::2])
        assert (odd_s == bound_s[1::2]).all()
        for most in (None, one.times, slower):
            times = one.times._replace(most=most)
            step_s = steps(one, times, problem.memory_bytes)
            assert (bound_s <= step_s * (1 + REL)).all()
            assert most is slower or bound_s[alone] == pytest.approx(step_s[alone], rel=REL)


def test_loads_with_what_must_be_recomputed_lie_below_the_steps(recomputing: Node) -> None:
    loads_below_the_steps(recomputing)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt_oss", "olmo2"])
def test_loads_lie_below_the_steps_of_other_blocks(family: str, tmp_path: Path) -> None:
    loads_below_the_steps(node(small_model(tmp_path, family, head_dim=32), "optimal"))


def test_the_step_of_a_layout_is_its_replay(recomputing: Node) -> None:
    one = recomputing
    found = one.others.fastest(one.problem, one.times, np.inf)
    assert found is not None
    placement = one.others.describe(one.problem, one.times, found)
    assert abs(replay_difference(placement)) < 1e-3


def test_a_search_takes_what_any_of_its_axes_gives() -> None:
    """The whole space is no worse than a part of it, and its degrees fill the devices."""
    asked = {
        "model": "bert-large", "devices": 8, "batch": 32, "microbatch": (1, 2), "tp": (1, 2),
        "space": SPACE, "baselines": False,
    }  # fmt: skip
    whole = atoll.search(**asked)
    for part in ({"order": "1f1b", "zero": 1, "cp": 1}, {"order": "interleaved"}, {"zero": 3}):
        assert atoll.search(**asked, **part).score <= whole.score * (1 + 1e-3)
    where = whole.best.plans[0].placement
    assert 8 % (where.pipeline * where.tensor * where.cp) == 0


def test_models_that_share_a_chip_stand_beside_their_own_best() -> None:
    models = ("bert-large", "gpt2-xl")
    found = atoll.search(
        model=models, devices=8, batch=32, microbatch=1, tp=1, space=SPACE, baselines=False
    )
    assert [own.model for own in found.alone] == list(models)
    for own, plan in zip(found.alone, found.best.plans, strict=True):
        single = atoll.search(
            model=own.model, devices=8, batch=32, microbatch=1, tp=1, space=SPACE, baselines=False
        )
        assert own.samples_per_s == pytest.approx(single.score, rel=2e-3)
        assert own.cost == pytest.approx(
            max(0.0, 1 - plan.samples_per_s / own.samples_per_s), abs=1e-12
        )
        assert plan.samples_per_s <= own.bound_samples_per_s * (1 + 1e-9)


def test_degrees_that_a_model_cannot_have_are_refused_in_a_sentence() -> None:
    asked = {"devices": 8, "batch": 8, "space": SPACE, "baselines": False}
    with pytest.raises(AtollError, match=r"no cp of 7 can be had on 8 devices.*cp 1 always can"):
        atoll.search(model="bert-large", cp=7, **asked)
    with pytest.raises(AtollError, match=r"no ep of 3 can be had.*divide its experts"):
        atoll.search(model="mixtral-8x7b", ep=3, **asked)


def test_a_layout_without_stages_is_tried_under_every_order() -> None:
    asked = {"model": "bert-large", "devices": 1, "batch": 4, "microbatch": 1, "tp": 1, "cp": 1}
    asked |= {"space": SPACE, "baselines": False}
    both = [atoll.search(**asked, order=order).score for order in ("1f1b", "interleaved")]
    assert both[0] == pytest.approx(both[1], rel=2e-3)
