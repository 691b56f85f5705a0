"""The proof of a plan: its best is the best of all layouts, one by one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from training_cases import (
    GIB,
    dense,
    estimates,
    grouped,
    mixture,
    random_runs,
    restricted,
    small_run,
    with_memory,
)

from atoll.base.errors import AtollError, InfeasibleError
from atoll.base.units import format_slower
from atoll.hardware.device import load_device
from atoll.step.layout import RECOMPUTE, Layout
from atoll.step.orders import ORDERS
from atoll.tools.registry import ANY_LAYOUT, TOOLS
from atoll.tools.stack import STACKS
from atoll.training.batch.estimates import LayoutSequence, batch_estimates
from atoll.training.estimate import Estimate, Estimator, estimate
from atoll.training.operators.layers import recompute_choices
from atoll.training.planner.bounds.family_bounds import FamilyBounds
from atoll.training.planner.bounds.recompute_curve import points_of
from atoll.training.planner.plan import LEAST_GAIN, plan
from atoll.training.planner.space import Axes, LayoutColumns, block_of, families
from atoll.training.replay import replay_estimate
from atoll.training.request import make_run
from atoll.training.run import Run
from drawn import examples

SMALL = Axes(
    cp=(1, 2),
    microbatch=(1, 2),
    sp=(True,),
    hsdp=(1,),
    zero=(0, 1, 3),
    recompute=("none", "selective", "full"),
    schedule=("1f1b", "zb-h1"),
)
TURNED = replace(SMALL, hsdp=(1, 2), schedule=("1f1b", "zb-v", "dualpipe"))
CASES = {
    "dense": small_run(dense(6), devices=8, global_batch=16),
    "large vocabulary": small_run(grouped(4, vocab=262144), devices=8, global_batch=16),
    "experts": small_run(mixture(5), devices=16, global_batch=32),
    "folded experts": small_run(mixture(3, shared_ffn=512), devices=8, global_batch=16),
    "encoder": small_run(dense(4, causal=False), devices=4, global_batch=8),
    "eager": small_run(dense(4), devices=8, global_batch=16, stack=STACKS["eager"]),
    "chip": small_run(mixture(4), devices=4, global_batch=16, gpu=load_device("phaze-tpuv4")),
    "fully sharded": small_run(grouped(4), devices=12, global_batch=24, stack=STACKS["fsdp"]),
}


@cache
def known_estimates(name: str, axes: Axes) -> list[Estimate]:
    return estimates(CASES[name], axes)


def axes_of(name: str) -> Axes:
    """Of the many layouts of experts, those of one order."""
    if name.startswith("folded"):
        return replace(SMALL, etp=(1, 2), schedule=("1f1b",))
    return replace(SMALL, schedule=("1f1b",)) if name == "experts" else SMALL


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        *((name, axes_of(name)) for name in CASES),
        ("dense", TURNED),
        pytest.param("experts", TURNED, marks=pytest.mark.campaign),
        pytest.param("experts", SMALL, marks=pytest.mark.campaign),
    ],
)
@pytest.mark.parametrize("share", [0.35, 1.0])
def test_the_plan_is_the_best_of_all_layouts(name: str, axes: Axes, share: float) -> None:
    """Also where memory leaves only some of them: at a share of what the layouts need."""
    run, known = CASES[name], known_estimates(name, axes)
    least = min(e.worst.needed for e in known)
    most = max(e.worst.needed for e in known)
    run = with_memory(run, least + share * (most - least) + 1)
    times = sorted(e.step.time_s for e in known if e.worst.needed <= run.gpu.hbm_bytes)
    found = plan(run, axes, runners_up=3)
    ranked = [found.best, *found.runners_up]
    assert [e.step.time_s for e in ranked] == times[:4]
    assert len({str(e.layout) for e in ranked}) == len(ranked)
    proof = found.certificate
    assert proof.proven
    assert proof.items == len(known)
    assert sum(proof.ruled_out.values()) + proof.evaluated == proof.items
    assert proof.score == pytest.approx(run.global_batch / found.best.step.time_s)
    assert proof.bound >= proof.score
    assert proof.gap == 1 - proof.score / proof.bound <= proof.tolerance


@pytest.mark.slow
@examples(4, 12)
@given(random_runs(), st.randoms(use_true_random=False), st.floats(0.02, 1.0))
def test_the_plan_is_the_best_of_random_spaces(run: Run, random: Random, share: float) -> None:
    """With recomputation by operator, at any memory, whatever the schedules."""
    run = replace(run, devices=min(run.devices, 8))
    axes = Axes(
        tp=(1, 2),
        cp=(1, 2),
        vpp=(1, 2),
        microbatch=(1, 2),
        zero=tuple(random.sample((0, 1, 2, 3), 2)),
        hsdp=random.choice(((1,), (1, 2))),
        recompute=("none", random.choice(("selective", "alternate", "full")), "optimal"),
        schedule=tuple(random.sample([s for s in ORDERS if s != "interleaved"], 2)),
    )
    needs = [e.worst.needed for e in estimates(run, replace(axes, recompute=("none", "full")))]
    if not needs:
        return
    run = with_memory(run, min(needs) + share * (max(needs) - min(needs)) + 1)
    fitting = [e.step.time_s for e in estimates(run, axes) if e.fits]
    found = plan(run, axes, runners_up=1)
    assert found.best.step.time_s == min(fitting)
    assert found.certificate.proven


@pytest.mark.campaign
def test_llama3_8b_on_64_h100_is_the_best_of_its_whole_space() -> None:
    """No bound, no order: every layout that the answer counts is estimated, in arrays; of the
    fastest and of some others the readable estimate says the same. Small twins are above.
    """
    run = make_run("llama3-8b", "h100", 64, batch=256, sequence=8192, tool="none")
    estimator, axes, random = Estimator(run), Axes(), Random(0)
    known: list[tuple[float, float, Layout]] = []
    for family in families(run, axes):
        block = block_of(run, axes, family)
        for size in np.unique(block.microbatch):
            layouts = block.layouts(np.flatnonzero(block.microbatch == size), "optimal")
            choices = recompute_choices(estimator.costs(layouts[0]), "optimal")
            time_s, needed = batch_estimates(estimator, LayoutSequence(layouts), choices)
            for policy in axes.recompute:
                at = len(choices) if policy == "optimal" else choices.index(policy)
                named = (replace(layout, recompute=policy) for layout in layouts)
                known += zip(time_s[:, at].tolist(), needed[:, at].tolist(), named, strict=True)
    found = plan(run, runners_up=9)
    assert found.certificate.proven
    assert found.certificate.items == len(known) == 636_280
    fitting = sorted((k for k in known if k[1] <= run.capacity_bytes), key=lambda k: k[:2])
    # Recomputation by operator that comes to a named policy is that.
    once = {(replace(k[2], recompute="none"), k[:2]): k[0] for k in fitting}
    ranked = [e.step.time_s for e in (found.best, *found.runners_up)]
    assert ranked == pytest.approx(list(once.values())[:10], rel=1e-12)
    for time_s, needed, layout in (*fitting[:50], *random.sample(known, 200)):
        one = estimator.estimate(layout)
        assert (one.step.time_s, one.worst.needed) == pytest.approx((time_s, needed), rel=1e-9)


@pytest.mark.parametrize("name", ["megatron", "xla"])
def test_a_heavy_head_leaves_its_stage_fewer_blocks(name: str) -> None:
    """Where the stack can say it; the proof is of all stages that are tried."""
    model, stack = grouped(12, hidden=2048, heads=16, ffn=8192, vocab=131072), STACKS[name]
    run = small_run(model, devices=8, global_batch=64, stack=stack)
    axes = replace(SMALL, tp=(1,), pp=(4,), cp=(1,), schedule=("1f1b",))
    found, known = plan(run, axes), estimates(run, axes)
    assert found.best.step.time_s == min(e.step.time_s for e in known)
    assert found.certificate.items == len(known)
    even_s = plan(replace(run, stack=replace(stack, balances=False)), axes).best.step.time_s
    blocks = found.best.layout.blocks
    if stack.balances:
        assert sum(blocks) == 12 and blocks[-1] == min(blocks) < max(blocks)
        assert found.best.step.time_s < 0.97 * even_s
        layout = found.export("megatron").text
        assert f"t*{blocks[-1]}L" in layout
    else:
        assert not blocks and found.best.step.time_s == even_s
        assert found.excluded[-1] == "pipeline stages uneven in blocks"


def test_a_bound_below_the_plan_is_no_proof() -> None:
    proof = plan(CASES["dense"], SMALL).certificate
    doubted = replace(proof, bound=1.25 * proof.score)
    assert doubted.gap == pytest.approx(0.2)
    assert not doubted.proven
    assert doubted.sentence().startswith("not proven optimal")


def test_all_zero_stages_and_recomputation_by_operator_are_tried_by_default() -> None:
    run = with_memory(small_run(grouped(8), devices=4, global_batch=64), 6 * GIB)
    found = plan(run)
    wider = replace(Axes(), zero=(3, 2, 1, 0), recompute=RECOMPUTE[::-1])
    assert found.best.step.time_s == plan(run, wider).best.step.time_s
    assert not any(words.startswith("zero") for words in found.excluded)


@pytest.mark.slow
def test_what_is_left_out_is_said() -> None:
    run = CASES["experts"]
    assert plan(run).left_out() == (
        "not searched: tp above 8; cp above 8; etp other than 1 and tp; pipeline stages equal "
        "neither in blocks nor in work"
    )
    assert plan(replace(run, stack=STACKS["xla"])).excluded[-2:] == (
        "schedule zb-h1, zb-h2, zb-v, dualpipe",
        "pipeline stages uneven in blocks",
    )
    narrow = replace(SMALL, tp=(1, 2), zero=(1,))
    assert plan(run, narrow).excluded == (
        "tp other than 1, 2",
        "cp other than 1, 2",
        "etp other than 1 and tp",
        "microbatch other than 1, 2",
        "hsdp other than 1",
        "sp off",
        "zero 0, 2, 3",
        "recompute alternate, optimal",
        "schedule zb-h2, zb-v, dualpipe",
        "pipeline stages equal neither in blocks nor in work",
    )


def test_recomputation_by_operator_that_comes_to_a_named_policy_is_that() -> None:
    found = plan(CASES["dense"], replace(SMALL, recompute=("optimal", "none", "full")))
    ranked = [found.best, *found.runners_up]
    assert found.best.layout.recompute == "none"
    bases = [(replace(e.layout, recompute=""), e.step.time_s) for e in ranked]
    assert len(set(bases)) == len(bases)


@pytest.mark.slow
@examples(4, 12)
@given(random_runs(), st.randoms(use_true_random=False))
def test_no_part_of_a_space_beats_the_whole(run: Run, random: Random) -> None:
    """Fewer values on any axis, also on those that all take their default: schedules of pipelines
    alone leave what has no pipeline.
    """
    part = restricted(run, Axes(), random)
    try:
        narrow = plan(run, part, runners_up=0)
    except AtollError:
        return
    whole = plan(run, runners_up=0)
    assert whole.best.step.time_s <= narrow.best.step.time_s
    assert whole.certificate.bound >= narrow.certificate.bound * (1 - 1e-9)


@pytest.mark.slow
@examples(12, 40)
@given(random_runs(), st.randoms(use_true_random=False))
def test_no_layout_is_below_its_bounds(run: Run, random: Random) -> None:
    """Bounds before estimates, of any family, under any policy, with recomputation by operator."""
    hold_bounds(run, random)


@pytest.mark.parametrize("layers", [5, 9])
def test_no_balanced_layout_is_below_its_bounds(layers: int) -> None:
    hold_bounds(small_run(grouped(layers, vocab=50257), devices=32), Random(layers))


def hold_bounds(run: Run, random: Random) -> None:
    run = replace(run, stack=replace(run.stack, orders=ORDERS))
    estimator, axes = Estimator(run), replace(Axes(), schedule=ORDERS)
    floor = FamilyBounds(estimator)
    listed = [b for f in families(run, axes) if len(b := block_of(run, axes, f))]
    for block in random.sample(listed, min(3, len(listed))):
        step_s, needed, _ = floor.bounds(block)
        size = random.choice(block.microbatch.tolist())
        rows = np.flatnonzero(block.microbatch == size)
        layouts = block.layouts(rows, "optimal")
        choices = recompute_choices(estimator.costs(layouts[0]), "optimal")
        exact_s, bytes_ = batch_estimates(estimator, LayoutSequence(layouts), choices)
        for bound, exact in ((step_s[rows], exact_s), (needed[rows], bytes_)):
            above = bound / exact.min(axis=1)
            assert above.max() <= 1 + 1e-9, layouts[above.argmax()]
        hold_bounds_within(run, block, rows, random.uniform(bytes_.min(), bytes_.max()))


def hold_bounds_within(
    run: Run, block: LayoutColumns, rows: NDArray[np.intp], capacity: float
) -> None:
    """With so much memory, where layouts that keep less run again what they do not keep."""
    run = with_memory(run, capacity)
    estimator = Estimator(run)
    step_s, _, named_s = FamilyBounds(estimator).bounds(block, capacity)
    layouts = block.layouts(rows, "optimal")
    choices = recompute_choices(estimator.costs(layouts[0]), "optimal")
    exact_s, bytes_ = batch_estimates(estimator, LayoutSequence(layouts), choices)
    exact_s = np.where(bytes_ <= capacity, exact_s, np.inf)
    policies = [name for name in RECOMPUTE if name != "optimal"]
    each_s = exact_s[:, [choices.index(name) for name in policies]]
    selective_s, *_ = FamilyBounds(estimator, ["selective"]).bounds(block, capacity)
    for bounds_s, fastest_s in (
        (step_s, exact_s.min(axis=1)),
        (named_s, each_s.min(axis=1)),
        (selective_s, each_s[:, policies.index("selective")]),
    ):
        for bound_s, seconds, layout in zip(bounds_s[rows], fastest_s, layouts, strict=True):
            assert bound_s <= seconds * (1 + 1e-9), layout


def test_policies_that_keep_more_and_take_longer_bound_nothing() -> None:
    """A policy is no less than the one that keeps less and is faster, alone or among others."""
    points = {
        "none": (10.0, 0.0),
        "selective": (12.0, 1.0),
        "alternate": (5.0, 3.0),
        "full": (1.0, 4.0),
    }
    for names, kept, seconds in (
        (("none", "selective", "full"), 20.0, 0.0),
        (("selective", "alternate"), 20.0, 1.0),
        (("selective", "alternate"), 8.5, 2.0),
        (("alternate",), 20.0, 3.0),
        (("full@3",), 5.5, 2.0),  # mixes all
    ):
        assert np.interp(kept, *points_of(points, names)) == pytest.approx(seconds)


def test_a_stage_of_dualpipe_has_the_mean_of_its_two_chunks() -> None:
    """33 blocks on 32 stages: one has two of them one way and one the other, and none has two."""
    run = make_run("llama2-7b", "h100", 32, batch=512)
    run = replace(run, model=replace(run.model, layers=33, vocab=512))
    axes = Axes(tp=(1,), pp=(32,), cp=(1,), microbatch=(1,), hsdp=(1,), schedule=("dualpipe",))
    estimator = Estimator(run)
    (family,) = families(run, axes)
    block = block_of(run, axes, family)
    least_s, _, _ = FamilyBounds(estimator).bounds(block)
    for bound_s, layout in zip(least_s, block.layouts(np.arange(len(block)), "none"), strict=True):
        assert bound_s <= estimator.estimate(layout).step.time_s


def test_the_first_stage_may_have_fewest_parameters() -> None:
    """Experts on the later stages lift the mean of all stages' states above the first's, which
    holds the most activations: mean states and first activations together would be no bound.
    """
    lean = replace(STACKS["megatron"], workspaces=0, expert_workspaces=0)
    model = mixture(16, dense_layers=(0, 1), vocab=1024)
    run = small_run(model, devices=2, global_batch=64, stack=lean)
    axes = Axes(
        tp=(1,), pp=(2,), cp=(1,), ep=(1,), vpp=(1,), microbatch=(2,), zero=(1,),
        recompute=("none",), schedule=("1f1b",),
    )  # fmt: skip
    best = next(estimate for estimate in estimates(run, axes) if not estimate.layout.blocks)
    first, last = best.memory
    states = [m.weights + m.gradients + m.optimizer for m in (first, last)]
    assert sum(states) / 2 + first.activations > best.worst.allocated
    exact = with_memory(run, best.worst.needed + 1)
    fitting = [e.step.time_s for e in estimates(exact, axes) if e.fits]
    assert plan(exact, axes).best.step.time_s == min(fitting)


def test_the_same_run_gives_the_same_plan() -> None:
    run = CASES["dense"]
    first, second = plan(run, SMALL), plan(run, SMALL)
    assert first.best == second.best
    assert first.runners_up == second.runners_up
    assert first.certificate == second.certificate


def test_most_layouts_are_never_estimated() -> None:
    run = small_run(dense(12, hidden=2048, heads=16, kv_heads=16, ffn=8192), devices=16)
    found = plan(run)
    assert found.certificate.evaluated < 20
    assert len(found.space.rows) < len(found.space.slot) / 2


def test_nothing_fits_names_the_part_the_excess_and_what_would_do() -> None:
    run = with_memory(small_run(grouped(8), devices=2, global_batch=64), 3.8e9)
    with pytest.raises(InfeasibleError) as caught:
        plan(run)
    sentence = str(caught.value)
    assert "small-gqa does not fit 2 h100: the layout that needs least" in sentence
    assert "too much, most of it" in sentence
    assert "devices are enough, as" in sentence
    devices = int(sentence.split("; ")[1].split()[0])
    assert plan(replace(run, devices=devices), Axes(microbatch=(1,))).best.fits


def test_nothing_fits_names_the_devices_that_states_alone_need() -> None:
    """Without a look at layouts of fewer."""
    run = with_memory(small_run(grouped(8), devices=1, global_batch=64), 4e6)
    with pytest.raises(
        InfeasibleError, match=r"use at least [0-9,]+ devices, over which its states"
    ):
        plan(run)


def test_nothing_fits_names_a_layout_outside_the_values_tried() -> None:
    run = with_memory(small_run(grouped(8), devices=8, global_batch=64), 5 * GIB)
    narrow = Axes(tp=(1,), pp=(1,), cp=(1,), zero=(0,), recompute=("none",), microbatch=(8,))
    with pytest.raises(InfeasibleError, match="does fit: allow its values"):
        plan(run, narrow)


def test_nothing_divides() -> None:
    run = small_run(dense(4), devices=7, global_batch=5)
    with pytest.raises(AtollError, match="no layout divides devices, heads, layers and batch"):
        plan(run, Axes(pp=(1,)))


@pytest.mark.parametrize("name", CASES)
def test_the_reason_is_the_best_layout_with_another_value(name: str) -> None:
    """All other axes free, so that no sentence contradicts a runner-up."""
    run, known = CASES[name], known_estimates(name, axes_of(name))
    found = plan(run, axes_of(name))
    best_s = found.best.step.time_s
    why = {reason.axis: reason.why for reason in found.reasons}
    assert {"tp", "microbatch", "zero", "recompute"} <= why.keys()
    for axis, sentence in why.items():
        if axis == "schedule":
            continue
        chosen = getattr(found.best.layout, axis)
        others = [e for e in known if getattr(e.layout, axis) != chosen and e.fits]
        slower = min(e.step.time_s for e in others) / best_s - 1
        assert sentence.startswith(f"{axis} {chosen}: {axis} ")
        assert not sentence.startswith(f"{axis} {chosen}: {axis} {chosen} ")
        assert f" is {format_slower(slower, 1)} with tp" in sentence
        for other in found.runners_up:
            if getattr(other.layout, axis) != chosen:
                assert slower <= other.step.time_s / best_s - 1


def test_a_reason_says_what_memory_is_missing() -> None:
    run = small_run(grouped(8, vocab=131072), devices=4, global_batch=64)
    axes = replace(SMALL, pp=(1, 4), tp=(1,), cp=(1,), zero=(0,), schedule=("1f1b",))
    known = estimates(run, axes)
    least = min(e.worst.needed for e in known if e.layout.pp == 1)
    run = with_memory(run, least - 0.1 * GIB)
    why = {r.axis: r.why for r in plan(run, axes).reasons}
    assert "pp 4: no other fits, pp 1 needs 102.4 MiB more memory than there is" in why["pp"]


def test_an_axis_without_another_value_has_no_reason() -> None:
    found = plan(CASES["dense"], replace(SMALL, tp=(1,), pp=(1,), schedule=("1f1b",)))
    assert not {"tp", "pp", "vpp", "ep", "sp", "schedule"} & {r.axis for r in found.reasons}


def test_gpt3_on_a_thousand_devices_is_at_least_as_good_as_published() -> None:
    """The layout of NVIDIA's dgxc-benchmarking, under our own model."""
    run = make_run("gpt3-175b", "h100", 1024, batch=2048)
    published = Layout(dp=32, tp=4, pp=8, vpp=12, schedule="interleaved")
    found = plan(run)
    assert found.certificate.proven
    assert found.certificate.items > 900_000
    assert found.best.fits
    assert found.best.step.time_s <= estimate(run, published).step.time_s
    assert abs(replay_estimate(found.best).difference) < 0.03


def test_numbers_of_devices_that_fill_no_whole_nodes_can_be_planned() -> None:
    found = plan(small_run(dense(6), devices=12, global_batch=48), SMALL)
    assert found.best.fits


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_an_unrestricted_runtime_reaches_the_best_of_all_layouts(share: float) -> None:
    run = replace(CASES["large vocabulary"], tool=TOOLS["megatron-lm"])
    if share:  # of the memory that its best layout needs
        run = with_memory(run, share * plan(run).best.worst.needed)
    by_tool = plan(run, Axes(**run.tool.axes))
    free = plan(replace(run, tool=ANY_LAYOUT)).best.step.time_s
    if free >= by_tool.fastest.step.time_s * (1 - LEAST_GAIN):
        assert by_tool.unrestricted is None
    else:
        assert by_tool.unrestricted is not None
        assert by_tool.unrestricted.step_time_s == pytest.approx(free, rel=1e-12)
