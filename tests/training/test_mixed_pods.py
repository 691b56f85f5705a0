"""Pods of different devices: the best of brute force, equal pods as one, parts and slower links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest
from training_cases import GB, GIB, all_layouts, dense, flat, gpu, grouped, network, small_run

from atoll.api import plan as ask_plan
from atoll.base.errors import AtollError, InfeasibleError
from atoll.base.stopping import Stop
from atoll.fabric.nested import all_to_all_s, collective_s
from atoll.fabric.network import FabricLevel
from atoll.step.stages import even_sizes
from atoll.step.states import STATES
from atoll.training.mixed.estimate import PodEstimator, PodPlacement
from atoll.training.mixed.plan import MixedPlan, plan_mixed
from atoll.training.mixed.pod_sums import blocks_per_chunk
from atoll.training.mixed.pods import Pods
from atoll.training.mixed.search import PipelineAcrossPods, PodUse, ReplicasPerPod
from atoll.training.planner.plan import plan
from atoll.training.planner.space import Axes
from atoll.training.run import Run
from atoll.workload import load_config

SMALL = Axes(
    tp=(1,),
    cp=(1,),
    vpp=(1,),
    microbatch=(1, 2, 3),
    zero=(1,),
    hsdp=(1,),
    recompute=("none",),
    schedule=("1f1b",),
)
SLOW = FabricLevel("link", 0, 2 * GB, 50e-6)


def run_on(name: str, devices: int, hbm_bytes: float | None = None, **changes: object) -> Run:
    device = gpu(name)
    if hbm_bytes is not None:
        device = replace(device, hbm_bytes=int(hbm_bytes))
    run = small_run(grouped(6), devices, 16, gpu=device, network=network(device.network))
    return replace(run, **changes)  # type: ignore[arg-type]


def two(second: str = "a100-80", link: FabricLevel | None = None, **changes: object) -> Pods:
    return Pods((run_on("h100", 4, **changes), run_on(second, 4, **changes)), link)  # type: ignore[arg-type]


def best_s(pods: Pods, axes: Axes = SMALL) -> float:
    return plan_mixed(pods, axes, runners_up=0).best.time_s


def every_placement(pods: Pods, axes: Axes) -> Iterator[PodPlacement]:
    """Every layout of the space on two pods, written down without bounds or arrays."""
    sizes = [run.devices for run in pods.runs]
    total = replace(pods.runs[0], devices=sum(sizes))
    for order in permutations(range(2)):
        for layout in all_layouts(total, axes):
            width = layout.tp * layout.cp * layout.dp
            if layout.pp == 1 or layout.blocks or any(n % width for n in sizes):
                continue
            if layout.schedule == "dualpipe":
                continue
            where = [pod for pod in range(2) for _ in range(sizes[order[pod]] // width)]
            for first in range(total.model.layers + 1):
                shares = first, total.model.layers - first
                blocks = blocks_per_chunk(layout.schedule, tuple(where), layout.vpp, shares)
                if min(blocks) > 0:
                    yield PodPlacement(replace(layout, blocks=blocks), order, "stages")
    batch = total.global_batch
    for own in (replace(total, global_batch=layouts) for layouts in range(1, batch + 1)):
        for layout in all_layouts(own, replace(axes, microbatch=(1,))):
            per = layout.tp * layout.cp * layout.pp
            if any(n % per for n in sizes) or own.global_batch % layout.dp:
                continue
            m = own.global_batch // layout.dp
            for each in product(range(1, batch + 1), repeat=2):
                if m * sum(n // per * x for n, x in zip(sizes, each, strict=True)) == batch:
                    yield PodPlacement(
                        replace(layout, microbatch=each[0]), (0, 1), "replicas", each
                    )


def test_the_plan_is_the_best_of_brute_force() -> None:
    axes = replace(SMALL, microbatch=(), recompute=("none", "full"))
    a, b = (
        run_on(name, 2, 3.77 * GIB, global_batch=6, model=dense(5)) for name in ("h100", "a100-80")
    )
    pods = Pods((a, b), SLOW)
    placer = PodEstimator(pods)
    every = [placer.estimate(placed) for placed in every_placement(pods, axes)]
    fitting = [found.time_s for found in every if found.fits]
    assert 0 < len(fitting) < len(every)
    fitting += [plan(run, axes).best.step.time_s for run in pods.runs]
    found = plan_mixed(pods, axes)
    assert found.best.time_s == pytest.approx(min(fitting), rel=1e-9)
    assert found.certificate.proven
    assert [x.time_s for x in found.runners_up] == pytest.approx(sorted(fitting)[1:5], rel=1e-9)


@pytest.mark.parametrize("link", [None, FabricLevel("link", 0, 50 * GB, 9.6e-6)])
@pytest.mark.parametrize("hbm_bytes", [80 * GIB, 4.4 * GIB])
def test_equal_pods_on_their_own_network_are_one_cluster(
    link: FabricLevel | None, hbm_bytes: float
) -> None:
    run = run_on("h100", 8, hbm_bytes, global_batch=64)
    axes = Axes(tp=(1, 2), cp=(1,), vpp=(1, 2), microbatch=(1, 2), recompute=("none", "full"))
    found = plan_mixed(Pods((run, run), link), axes, runners_up=0)
    both = plan(replace(run, devices=16), axes).best, plan(run, axes).best
    one = min(both, key=lambda best: best.step.time_s)
    assert found.best.time_s == pytest.approx(one.step.time_s, rel=1e-9)
    assert found.best.placed.layout == one.layout


@pytest.mark.parametrize("hbm_bytes", [80 * GIB, 24 * GIB])
def test_equal_pods_have_balanced_stages_as_one_cluster_has(hbm_bytes: float) -> None:
    model = grouped(10, hidden=2048, heads=16, head_dim=128, ffn=8192, vocab=131072)
    run = run_on("h100", 4, hbm_bytes, global_batch=32, model=model)
    axes = replace(SMALL, pp=(4, 8), vpp=(1, 2), microbatch=(1, 2))
    found = plan_mixed(Pods((run, run), None), axes, runners_up=0)
    both = plan(replace(run, devices=8), axes).best, plan(run, axes).best
    one = min(both, key=lambda best: best.step.time_s)
    assert one.layout.blocks
    assert found.best.time_s == pytest.approx(one.step.time_s, rel=1e-9)
    assert found.best.placed.layout == one.layout


def test_no_pod_alone_is_faster_than_all() -> None:
    for link in (None, SLOW, FabricLevel("link", 0, 0.01 * GB, 1.0)):
        pods = two(link=link)
        parts_s = [plan(run, SMALL).best.step.time_s for run in pods.runs]
        assert best_s(pods) <= min(parts_s) * (1 + 1e-9)


@pytest.mark.slow
def test_a_slower_link_never_helps() -> None:
    for second in ("h100", "a100-80"):
        rates = (1000, 10, 1)
        times_s = [best_s(two(second))]  # its own network
        times_s += [best_s(two(second, FabricLevel("link", 0, rate * GB, 20e-6))) for rate in rates]
        assert times_s == sorted(times_s)
    late = [best_s(two(link=FabricLevel("link", 0, 20 * GB, s))) for s in (0.0, 1e-3)]
    assert late == sorted(late)


def test_a_faster_second_pod_never_hurts() -> None:
    slow = run_on("h100", 4)

    def faster(times: float) -> Run:
        old = gpu("h100")
        more = replace(old, bf16_flops=old.bf16_flops * times, hbm_Bps=old.hbm_Bps * times)
        return replace(slow, gpu=more)

    times_s = [best_s(Pods((slow, faster(x)), SLOW)) for x in (1.0, 1.25, 2.0)]
    assert times_s == sorted(times_s, reverse=True)
    assert times_s[-1] < times_s[0]


def test_the_faster_pod_has_more_blocks_and_each_its_own_memory() -> None:
    axes = replace(SMALL, pp=(4,), recompute=("none", "full"))
    model = load_config("llama2-7b")
    runs = [run_on(name, 2, model=model, states=STATES["bf16"]) for name in ("a100-80", "h100")]
    pods = Pods(tuple(runs), None)
    found = plan_mixed(pods, axes).best
    blocks = [sum(x.blocks for x in found.stages if x.pod == pod) for pod in range(2)]
    assert blocks[1] > 1.5 * blocks[0]
    # What the faster one holds no longer fits it: the other takes blocks over.
    most = max(stage.memory.needed for stage in found.stages if stage.pod == 1)
    small = replace(pods.runs[1], gpu=replace(pods.runs[1].gpu, hbm_bytes=int(0.8 * most)))
    less = plan_mixed(Pods((pods.runs[0], small), None), axes).best
    assert less.fits
    assert less.time_s > found.time_s
    assert all(x.memory.needed <= small.capacity_bytes for x in less.stages if x.pod == 1)


def test_replicas_share_the_batch_by_speed() -> None:
    pods = two(global_batch=32, model=load_config("gpt2-xl"))
    found = plan_mixed(pods, replace(SMALL, pp=(1,), microbatch=(2, 6))).best
    assert found.placed.by == "replicas"
    first, second = found.placed.microbatches
    assert first > second
    assert "microbatches of" in " ".join(found.sentences())


@pytest.mark.parametrize("link", [None, SLOW])
def test_arrays_and_bounds_agree_with_the_readable_estimate(link: FabricLevel | None) -> None:
    axes = Axes(tp=(1, 2), cp=(1,), zero=(0, 1, 3), recompute=("none", "full", "optimal"))
    pods = Pods((run_on("h100", 4, 5 * GIB), run_on("a100-80", 4, 6 * GIB)), link)
    placer = PodEstimator(pods)
    ways: list[PodUse] = [
        PipelineAcrossPods(placer, axes, (1, 0)),
        ReplicasPerPod(placer, axes, (0, 1)),
    ]
    seen = 0
    for way in ways:
        for group in list(way.groups())[:: 3 if isinstance(way, PipelineAcrossPods) else 9]:
            loose_s, tight_s = (way.bound_s(group.block, priced=x) for x in (False, True))
            items = np.flatnonzero(~np.isnan(tight_s))[::37][:2]
            if not items.size:
                continue
            times_s = way.times_s(group.block, items, axes.recompute, np.inf)
            for row, column in np.ndindex(*times_s.shape):
                name = axes.recompute[column]
                (placed,) = way.placed(group.block, items[row : row + 1], name)
                found = placer.estimate(placed)
                assert found.fits == np.isfinite(times_s[row, column])
                if found.fits:
                    seen += 1
                    bound_s = loose_s[items[row]], tight_s[items[row]]
                    assert max(bound_s) <= found.time_s * (1 + 1e-9)
                    assert times_s[row, column] == pytest.approx(found.time_s, rel=3e-9)
    assert seen > 20


def test_chunks_of_pods_together_are_the_even_split() -> None:
    for order, vpp in (("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zb-v", 1)):
        for layers in range(12, 40):
            where = (0, 0, 1, 1)
            chunks = 4 * (2 if order == "zb-v" else vpp)
            even = even_sizes(layers, chunks)
            held = [
                where[min(i % 8, 7 - i % 8) if order == "zb-v" else i % 4] for i in range(chunks)
            ]
            shares = tuple(
                sum(n for n, pod in zip(even, held, strict=True) if pod == x) for x in (0, 1)
            )
            assert blocks_per_chunk(order, where, vpp, shares) == even


def test_a_link_that_joins_pods_is_crossed_beside_their_network() -> None:
    own = network()
    outer = own.levels[-1]
    for rate, latency_s in ((outer.bandwidth_Bps, 0.0), (GB, 0.0), (GB, 1e-3)):
        link = FabricLevel("link", 128, rate, latency_s, across=64)
        joined = replace(own, levels=(*own.levels, link))
        for kind in ("all_reduce", "all_gather"):
            inside = collective_s(own, kind, GB, 64), collective_s(joined, kind, GB, 64)
            assert inside[0] == inside[1]
            before_s, after_s = (collective_s(x, kind, GB, 128) for x in (own, joined))
            assert after_s == before_s if rate == outer.bandwidth_Bps else after_s > before_s
        assert all_to_all_s(joined, GB, 128) >= all_to_all_s(own, GB, 128)


def test_three_pods() -> None:
    axes = replace(SMALL, microbatch=(1, 2))
    runs = tuple(run_on(name, 2) for name in ("h100", "a100-80", "h200"))
    found = plan_mixed(Pods(runs, SLOW), axes)
    pairs = [Pods((runs[i], runs[j]), SLOW) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert found.best.time_s <= min(best_s(pair, axes) for pair in pairs) * (1 + 1e-9)
    assert found.certificate.proven


def test_what_cannot_be_is_a_sentence() -> None:
    tiny = [run_on(name, 4, 1e6, network=flat(devices=8)) for name in ("h100", "a100-80")]
    with pytest.raises(InfeasibleError, match="does not fit 4 h100 \\+ 4 a100-80"):
        plan_mixed(Pods(tuple(tiny), None), SMALL)


def test_a_search_that_has_to_end_says_how_far_it_is() -> None:
    class Soon(Stop):
        """Lets the pods alone be planned, and some of what follows."""

        asked = 0

        def __call__(self) -> bool:
            Soon.asked += 1
            return Soon.asked > 8

    found = plan_mixed(two(), SMALL, stop=Soon())
    assert found.unseen
    assert "not proven" in found.proof()


CLUSTER = """
pods:
  - {device: h100, devices: 8}
  - {device: a100-80, devices: 8}
link: {total: 100 GB/s, latency: 50 us}
"""


def cluster(folder: Path, text: str = CLUSTER) -> str:
    file = folder / "pods.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def asked(folder: Path, text: str = CLUSTER, **fields: object) -> MixedPlan:
    given = {"batch": 16, "tp": [1], "cp": [1], "zero": [1], "hsdp": [1], "vpp": [1], **fields}
    given |= {"recompute": ["none"], "order": ["1f1b"]}
    found = ask_plan("gpt2-xl", pods=cluster(folder, text), **given)  # type: ignore[arg-type]
    assert isinstance(found, MixedPlan)
    return found


def test_the_answer_as_data(tmp_path: Path) -> None:
    found = asked(tmp_path)
    told = found.to_dict()
    assert told["kind"] == "mixed-plan"
    assert [pod["device"] for pod in told["pods"]] == ["h100", "a100-80"]
    assert told["step_time_s"] == found.best.time_s <= told["alone"][0]["step_time_s"]
    assert found.answer.load(found.save(tmp_path / "plan.json")) == found.answer


def test_a_batch_of_tokens_is_a_batch_on_pods_too(tmp_path: Path) -> None:
    found = asked(tmp_path, batch=None, batch_tokens="32k", sequence="1k", pp=[1])
    assert found.pods.runs[0].global_batch == 32
    with pytest.raises(AtollError, match="batch_tokens: the batch is given already"):
        asked(tmp_path, batch=16, batch_tokens="32k", sequence="1k", pp=[1])


def test_launch_files_have_uneven_stages_or_are_refused(tmp_path: Path) -> None:
    stages = asked(tmp_path, pp=[16])
    assert stages.best.placed.by == "stages"
    made = stages.export("megatron")
    assert "--pipeline-model-parallel-layout" in made.text
    assert any("in this order" in note for note in made.notes)
    shares = asked(tmp_path, pp=[1], batch=64, tool="none")
    assert len(set(shares.best.placed.microbatches)) == 2
    with pytest.raises(AtollError, match="one size for all ranks"):
        shares.export("megatron")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pods: [{device: h100, devices: 8}]", "pods"),
        ("pods: [{device: h100, devices: 8}, {device: h100, devices: 8}]\nlink: {}", "either"),
        ("pods: [{device: h100, devices: 8}, {device: tpu-v5p, devices: 8}]", "torus"),
        ("pods: [{device: h100, devices: 8}, {device: nothing, devices: 8}]", "nothing"),
        (
            "pods: [{device: h100, devices: 8}, {device: tpu-v5p, devices: 8, network: dgx-h100}]",
            "--stack",
        ),
    ],
)
def test_files_that_cannot_be(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(AtollError, match=words):
        asked(tmp_path, text)


def test_what_a_uniform_cluster_is_asked_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="the file of pods says"):
        asked(tmp_path, device="h200")
    with pytest.raises(AtollError, match="fp8"):
        asked(tmp_path, precision="fp8")
