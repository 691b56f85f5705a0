"""The search, its baselines and jobs on small wafers, and the command line."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from atoll.base.errors import AtollError, InfeasibleError
from atoll.base.stopping import StoppedError
from atoll.cli import app
from atoll.fabric.digits import digit_systems
from atoll.fabric.mesh import snake
from atoll.hardware.accelerator import MIB
from atoll.hardware.template.stalls import NO_STALLS
from atoll.hardware.wafer_files import load_wafer
from atoll.questions import WaferQuestion
from atoll.questions.ask import load_job
from atoll.step.states import STATES
from atoll.wafer.baselines import (
    NAMES,
    SOURCES,
    TYPES,
    _cheapest_types,
    _volume_within,
    run_baseline,
    volume_between,
)
from atoll.wafer.encoding.block_parts import HOMES
from atoll.wafer.encoding.mapping import problems
from atoll.wafer.estimate import estimate_wafer
from atoll.wafer.evaluate import evaluate, head_codes
from atoll.wafer.run import search_wafer
from atoll.wafer.search import WaferSearch
from atoll.wafer.staging.planner import Planner, WaferOptions, rough
from atoll.wafer.wafer_space import explore_wafers, pareto_rows
from oracles.wafer_mutations import mutate

from .wafer_cases import small_block, small_file, small_model, small_wafer

EXAMPLES = Path(__file__).parents[2] / "examples"


def search(
    wafer=None, *, model=None, batch=16, options=None, microbatches=(1, 2), accept=None,
    progress=None,
):  # fmt: skip
    return WaferSearch(
        wafer or small_wafer(2, 4), model or small_model(), batch, 24, options, microbatches,
        progress, accept=accept,
    )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_baseline_ends_when_the_search_has_to(name):
    with pytest.raises(StoppedError):
        run_baseline(name, small_wafer(2, 4), small_model(), 16, 24, stop=lambda: True)


def test_listing_candidates_ends_when_the_search_has_to():
    stopped = WaferSearch(small_wafer(2, 4), small_model(), 16, 24, stop=lambda: True)
    with pytest.raises(StoppedError):
        stopped.candidates()


def test_a_large_wafer_has_an_answer_before_the_bounds_of_large_stages():
    stopped = WaferSearch(
        small_wafer(12, 12), small_model(), 8, 64, None, (1,), stop=lambda: bool(stopped._pool)
    )
    found = stopped.run()
    assert found.stopped and found.solved == 0 and found.best.fits
    assert problems(found.best.mapping, 12, 12) == []
    assert 0.0 < found.bound_s < found.best.step_s


def test_stages_of_a_large_wafer_grow_until_they_fit():
    roomy, scarce = (small_wafer(12, 12, memory_bytes=size) for size in (64 * MIB, 50_000))
    assert _stage_dies(_first_mapping(roomy)) <= 8 < _stage_dies(_first_mapping(scarce))


def _first_mapping(wafer):
    stopped = WaferSearch(
        wafer, small_model(), 8, 64, None, (1,), stop=lambda: bool(stopped._pool)
    )  # fmt: skip
    return stopped.run().best


def _stage_dies(cost):
    return max(len(tuple(stage.rectangle.dies())) for stage in cost.mapping.stages)


def test_the_answer_fits_is_legal_and_no_faster_than_its_bound():
    found = search().run()
    best = found.best
    assert best.fits
    assert problems(best.mapping, 2, 4) == []
    assert found.bound_s <= best.step_s
    assert evaluate(small_wafer(2, 4), best.mapping).step_s == pytest.approx(best.step_s)


def test_the_search_equals_solving_every_candidate():
    whole = search()
    best = whole.run().best
    other = search()
    steps = [
        found.step_s
        for candidate in other.candidates()
        if (
            found := other.pieces.plan(
                other._rectangles(candidate), candidate.microbatch, float("inf")
            )
        )
        is not None
    ]
    assert best.step_s == pytest.approx(min(steps), rel=2e-3)


def test_a_search_leaves_nothing_behind():
    one = search()
    one.run()
    parts = [
        weakref.ref(part) for part in (one, one.planner, one.bounds.layers, one.pieces._bounds)
    ]
    del one
    gc.collect()
    assert [part() for part in parts] == [None] * len(parts)


def test_a_block_is_solved_below_a_cap_or_not_at_all():
    infinity = float("inf")

    def solved(limit, cap_s=infinity):
        planner = Planner(small_wafer(2, 2), small_model(), 16, 24, rough(WaferOptions()))
        return planner.block((2, 2), 2, 4, 4, limit, cap_s=cap_s)

    room = 0.9 * solved(infinity).solved.cost.memory_bytes(4, 4)
    for limit in (infinity, room):
        time_s = solved(limit).solved.cost.time_s
        assert solved(limit, time_s * 1.01).solved.cost.time_s == pytest.approx(time_s, rel=1e-3)
        assert solved(limit, time_s * 0.99) is None


def test_the_same_job_gives_the_same_answer_twice():
    a, b = (search().run() for _ in range(2))
    assert a.best.mapping == b.best.mapping
    assert a.best.step_s == b.best.step_s


def test_progress_shows_the_bound_of_the_certificate_not_that_of_the_next_candidate():
    shown = []
    found = search(
        progress=lambda phase, left, total, best, bound: shown.append(1.0 - best / bound)
    ).run()
    assert shown and all(gap >= found.gap * (1 - 1e-9) for gap in shown)
    assert shown[-1] == pytest.approx(found.gap, rel=1e-9, abs=1e-12)
    quiet = search().run()
    assert (quiet.best.step_s, quiet.bound_s) == (found.best.step_s, found.bound_s)


def test_less_memory_never_helps_and_recomputation_does():
    model = small_model(layers=8)
    times = []
    for memory in (64 * MIB, MIB, 768 * 1024, 640 * 1024):
        wafer = small_wafer(2, 2, memory_bytes=memory)
        try:
            times.append(search(wafer, model=model).run().best.step_s)
        except InfeasibleError:
            times.append(np.inf)
    assert times == sorted(times)
    wafer = small_wafer(2, 2, memory_bytes=640 * 1024)
    with_it = search(wafer, model=model)
    without = search(wafer, model=model, options=WaferOptions(recompute=False))
    try:
        slower = without.run().best.step_s
    except InfeasibleError:
        slower = np.inf
    try:
        faster = with_it.run().best.step_s
    except InfeasibleError:
        faster = np.inf
    assert faster <= slower


def test_a_mapping_is_found_where_there_is_just_the_memory_that_it_takes(tmp_path):
    """Of the head as it is, not of the largest one; its vocabulary is cut here."""
    config = json.loads(Path(small_model(layers=2)).read_text()) | {"vocab_size": 4096}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    rectangles = snake(2, 2, 2, 2, 1)
    roomy = Planner(small_wafer(memory_bytes=64 * MIB), str(path), 4, 64).best(rectangles, 1)
    assert roomy.mapping.stages[0].head == "nn"
    scarce = small_wafer(memory_bytes=int(roomy.memory_bytes) + 1)
    found = Planner(scarce, str(path), 4, 64).best(rectangles, 1)
    assert found.step_s == pytest.approx(roomy.step_s, rel=1e-3)


def test_a_model_larger_than_the_wafer_is_one_sentence():
    wafer = small_wafer(2, 2, memory_bytes=64 * 1024)
    with pytest.raises(InfeasibleError, match="even with full recomputation it does not fit"):
        search(wafer).run()


@pytest.mark.slow
def test_ablations_never_beat_the_whole_space():
    whole = search().run().best.step_s
    for options in (
        WaferOptions(streaming=False),
        WaferOptions(single_axis=True),
        WaferOptions(recompute=False),
    ):
        assert search(options=options).run().best.step_s >= whole * (1 - 2e-3)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    grid=st.sampled_from([(2, 2), (2, 3), (2, 4)]),
    link=st.sampled_from([2e9, 50e9]),
    memory=st.sampled_from([64 * MIB, MIB]),
    batch=st.sampled_from([2, 16]),
    stages=st.sampled_from([(1,), (2,), (3, 4)]),
    microbatches=st.sampled_from([(1, 2), (2,)]),
    recompute=st.booleans(),
)
def test_a_search_never_loses_to_its_own_restriction(
    grid, link, memory, batch, stages, microbatches, recompute
):
    wafer = small_wafer(*grid, link_Bps=link, memory_bytes=memory)
    try:
        part = search(
            wafer, batch=batch, options=WaferOptions(recompute=recompute),
            microbatches=microbatches, accept=lambda candidate: candidate.stages in stages,
        ).run()  # fmt: skip
    except InfeasibleError:
        return
    assert search(wafer, batch=batch).run().best.step_s <= part.best.step_s * 1.001


def test_unequal_stages_are_tried_with_every_microbatch_that_may_win():
    """The bound over all microbatches is attained by one group of dies with 16 samples."""
    wafer = replace(load_wafer("default"), rows=1, columns=4, stated_link_Bps=102e9)
    wafer = replace(wafer, core=replace(wafer.core, stalls=NO_STALLS))
    whole, part = (
        WaferSearch(wafer, "llama2-7b", 16, 4096, microbatches=sizes).run()
        for sizes in ((1, 2, 16), (1,))
    )
    assert [stage.rectangle.size for stage in part.best.mapping.stages] == [2, 1, 1]
    assert whole.best.step_s <= part.best.step_s * 1.001


def test_small_stages_are_compared_with_every_variable_free(monkeypatch):
    """Three stages with two samples have the best bound, but memory slows them down; on a large
    wafer the numbers of stages alone use up the candidates that are solved before others come.
    """
    wafer = small_wafer(2, 3, link_Bps=5e9, memory_bytes=1400 * 1024)
    monkeypatch.setattr("atoll.wafer.search.MOST_SOLVED", 13)
    asked = {"model": small_model(layers=12), "microbatches": (1, 2, 4)}
    found = search(wafer, **asked).run().best
    assert found.mapping.microbatch == 1
    part = search(wafer, **asked | {"microbatches": (1,)}).run().best
    assert found.step_s <= part.step_s * 1.001


def test_zero_bubble_is_planned_in_its_own_memory():
    """What weight passes hold that are put off is not made less by computing tensors again: where
    it was taken for tensors in flight, stages came out that do not fit under zb-h1.
    """
    laid = snake(2, 4, 1, 2, 4)
    roomy = Planner(small_wafer(2, 4), small_model(layers=8), 16, 24).best(laid, 2)
    assert roomy.mapping.schedule == "zb-h1"
    for share in (0.95, 0.9, 0.85):
        wafer = small_wafer(2, 4, memory_bytes=int(share * roomy.memory_bytes))
        found = Planner(wafer, small_model(layers=8), 16, 24).best(laid, 2)
        assert found.fits and found.mapping.schedule == "zb-h1"


def test_baselines_are_legal_mappings_of_the_same_encoding():
    wafer = small_wafer(2, 4)
    found = {n: run_baseline(n, wafer, small_model(heads=8), 8, 24) for n in NAMES}
    assert set(found) == set(NAMES)
    for name, baseline in found.items():
        assert baseline is not None, name
        assert problems(baseline.evaluation.mapping, 2, 4) == []
        assert baseline.samples_per_s is not None
    tried = (1, 2, 4, 8)
    best = search(wafer, model=small_model(heads=8), batch=8, microbatches=tried).run().best
    for name in ("accpar", "deepspeed", "megatron"):
        assert found[name].samples_per_s <= best.samples_per_s * 1.001


def test_known_mappings_are_answers_only_of_the_space_that_is_asked_for(tmp_path):
    """DeepSpeed's many samples at once are faster; who asks for single ones does not get them."""
    asked = {"wafer": str(small_file(tmp_path)), "model": small_model(), "batch": 16}
    job = WaferQuestion.of(sequence=256, microbatch=(1,), **asked)
    found, alone = search_wafer(job), search_wafer(job, baselines=False)
    assert found.baselines["deepspeed"].samples_per_s > found.certificate.bound
    assert found.best.mapping.microbatch == 1
    assert found.best.step_s == alone.best.step_s
    assert found.certificate.subject == "all mappings with microbatches of 1 on this wafer"
    with pytest.raises(AtollError, match="microbatch: 32 is larger than the batch of 16"):
        search_wafer(job, microbatch=(32,))


def test_microbatches_that_only_a_known_mapping_has_are_searched_and_bounded():
    seed = Planner(small_wafer(2, 4), small_model(), 16, 24).best(snake(2, 4, 1, 2, 4), 5)
    found = search(microbatches=(1,)).run([seed])
    alone = search(microbatches=(5,)).run()
    assert alone.best.step_s < seed.step_s
    assert found.best.step_s <= alone.best.step_s * (1 + 1e-3)
    assert found.bound_s <= alone.best.step_s


def test_a_head_cuts_vocabulary_on_some_digits_and_samples_on_others():
    block, digits = small_block(2), digit_systems(2, 2)[0]
    assert head_codes(block, digits, "bc") == ("nn", "bn")  # vocabulary first, samples last
    assert head_codes(block, digits, "bs") == ("nn", "ns", "bn", "bs")


def test_beside_its_best_setting_a_baseline_has_the_one_that_its_paper_fixes():
    wafer, model = small_wafer(2, 8), small_model(heads=8)
    accpar, deepspeed, megatron, streamed = (
        run_baseline(name, wafer, model, batch, 24)
        for name, batch in (("accpar", 6), ("deepspeed", 6), ("megatron", 8), (NAMES[-1], 8))
    )
    assert "microbatch 6" in accpar.fixed.setting  # the whole batch at once
    assert deepspeed.fixed.setting.startswith("ZeRO-2, data 6 x pipeline 1")  # a die per sample
    assert "tensor 8 x pipeline 1 x data 2" in megatron.fixed.setting
    assert "full recomputation" in megatron.fixed.setting
    assert streamed.fixed is None
    for each in (accpar, deepspeed, megatron):
        assert each.fixed.samples_per_s <= each.samples_per_s
        assert each.answer().as_fixed.source == SOURCES[each.name]


def test_the_setting_of_a_paper_goes_on_where_memory_asks_for_it():
    """A pipeline no longer than needed, and weights divided only where the rest does not fit."""
    model = small_model(heads=8, layers=8)
    for name, batch, more, less in (
        ("megatron", 2, "pipeline 1", "pipeline 2"),
        ("deepspeed", 16, "ZeRO-2", "ZeRO-3"),
    ):
        found = run_baseline(name, small_wafer(2, 8), model, batch, 24).fixed
        assert more in found.setting
        while more in found.setting:
            wafer = small_wafer(2, 8, memory_bytes=int(found.needed_bytes * 0.99))
            found = run_baseline(name, wafer, model, batch, 24).fixed
        assert less in found.setting and found.fits_as_published


@pytest.mark.slow
def test_a_baseline_that_does_not_fit_is_said_so_and_tried_with_recomputation():
    model = small_model(heads=8, layers=8)
    roomy = run_baseline("deepspeed", small_wafer(2, 4), model, 16, 512)
    assert roomy.fits_as_published
    tight = roomy.needed_bytes
    while True:
        # Less and less memory, until no setting of the method fits as published.
        tight *= 0.85
        wafer = small_wafer(2, 4, memory_bytes=int(tight))
        found = run_baseline("deepspeed", wafer, model, 16, 512)
        if not found.fits_as_published:
            break
    assert found.needed_bytes > tight
    assert found.samples_per_s is not None
    assert "least recomputation" in found.setting
    assert found.evaluation.memory_bytes <= tight
    assert found.samples_per_s <= roomy.samples_per_s


def volume(types, weights, x, y) -> float:
    """Of one bipartition, counted pair by pair."""
    total = sum(_volume_within(k, w, a, b) for k, w, a, b in zip(types, weights, x, y, strict=True))
    pairs = zip(types, (*types[1:], types[0]), (*x[1:], x[0]), strict=True)
    return total + sum(volume_between(a, b, f, f) for a, b, f in pairs)


@given(sizes=st.lists(st.tuples(*[st.floats(1, 100)] * 3), min_size=2, max_size=4))
def test_accpar_types_have_the_least_volume(sizes):
    weights, x, y = (list(column) for column in zip(*sizes, strict=True))
    types = _cheapest_types(weights, x, y)
    assert set(types) <= set(TYPES)
    least = min(volume(t, weights, x, y) for t in product(TYPES, repeat=len(weights)))
    assert volume(types, weights, x, y) == pytest.approx(least)


def test_a_stage_whose_head_is_heavy_may_have_a_single_layer(tmp_path):
    """However layers are handed out: no other division of them is faster."""
    config = json.loads(Path(small_model(layers=6)).read_text()) | {"vocab_size": 4096}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    wafer, stages = small_wafer(2, 4), snake(2, 4, 2, 2, 2)
    found = Planner(wafer, str(path), 8, 64, rough(WaferOptions(zero_bubble=False))).best(stages, 1)
    assert [stage.layers for stage in found.mapping.stages] == [5, 1]
    for first in range(1, 6):
        sizes = zip(found.mapping.stages, (first, 6 - first), strict=True)
        other = tuple(replace(stage, layers=layers) for stage, layers in sizes)
        assert evaluate(wafer, replace(found.mapping, stages=other)).step_s >= found.step_s


def test_stages_follow_each_other_as_neighbours():
    rectangles = snake(6, 8, 2, 3, 8)
    for a, b in pairwise(rectangles):
        assert abs(a.x - b.x) // 2 + abs(a.y - b.y) // 3 == 1
    assert snake(6, 8, 4, 4, 3) is None


# --- architectures --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_front_of_wafers_is_what_solving_all_gives():
    wafers = [
        replace(small_wafer(2, 2), name="small"),
        replace(small_wafer(2, 4), name="wide"),
        replace(small_wafer(2, 4, link_Bps=1e9), name="wide, slow links"),
        replace(small_wafer(2, 2, memory_bytes=1024), name="no memory"),
    ]
    explored = explore_wafers([search(w) for w in wafers], front=True)
    names = {w.name for w, _ in pareto_rows(explored)}
    assert "no memory" not in {w.name for w, _ in explored.solved}
    assert "wide" in names and "small" in names
    best_only = explore_wafers([search(w) for w in wafers], front=False)
    assert best_only.solved[0][0].name == explored.solved[0][0].name


# --- jobs and the command line --------------------------------------------------------------------


def test_search_on_the_command_line_has_the_keys_of_a_cluster_search(tmp_path):
    run = CliRunner().invoke(
        app,
        ["search", "--wafer", str(small_file(tmp_path)), "--model", small_model(heads=8), "--batch",
         "8", "--sequence", "64", "--json", "--out", str(tmp_path / "run")],
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    shown = json.loads(run.stdout)
    for key in ("best", "throughput_samples_per_s", "score", "certificate", "baselines",
                "wall_time_s", "runners_up", "pareto", "job", "wafer"):  # fmt: skip
        assert key in shown
    assert set(shown["baselines"]) == set(NAMES)
    assert 0 <= shown["certificate"]["gap"] < 1
    assert len(shown["wafer"]["dies"]) == 8
    best = shown["best"]
    assert best["placement"]["step_time_s"] == pytest.approx(8 / shown["throughput_samples_per_s"])
    parts = best["placement"]["time_parts_s"]
    assert sum(parts.values()) == pytest.approx(best["placement"]["step_time_s"], rel=1e-6)
    again = estimate_wafer(
        wafer=small_file(tmp_path), mapping=tmp_path / "run" / "mapping.json"
    ).to_dict()
    assert again["samples_per_s"] == pytest.approx(shown["throughput_samples_per_s"])


def test_job_files_and_faults(tmp_path):
    small_file(tmp_path)
    job = tmp_path / "job.yaml"
    job.write_text(
        f"wafer: wafer.yaml\nmodel: {small_model(heads=8)}\nbatch: 8\nsequence: 64\n"
        "dead_dies: [[1, 1]]\nsamples: 3\ndead_share: 0.1\nbaselines: false\n"
    )
    result = search_wafer(job)
    assert result.faults.samples == 3
    assert 0 < result.faults.kept <= 1
    assert (1, 1) not in result.best.mapping.dies
    assert "#" in result.text_map()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("wafer: default\nmodel: llama2-70b\ndead_dies: [[9, 0]]\n", "is not on the wafer"),
        ("wafer: default\nmodel: llama2-70b\ndead_links: [[[0, 0], [2, 0]]]\n", "not neighbours"),
        ("wafer: default\nablations: [everything]\n", "expected 'no-recompute'"),
        ("wafer: default\nmodle: llama2-70b\n", "did you mean model"),
        ("wafer: nowhere\nmodel: llama2-70b\n", "not in the catalogue"),
        ("wafer: default\nmodel: vit-b16\n", "image patches"),
        ("wafer: default\nmodel: deepseek-v3\n", "latent attention"),
        ("wafer: dojo-tile\nmodel: llama2-70b\nbaselines: false\n", "does not fit"),
    ],
)
def test_a_bad_job_is_one_sentence_and_exit_code_2(tmp_path, text, words):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(AtollError) as caught:
        search_wafer(path)
    assert words in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_cluster_options_are_refused_with_a_wafer():
    with pytest.raises(AtollError, match="--devices: this is for chips"):
        CliRunner().invoke(
            app, ["search", "--wafer", "default", "--devices", "8"], catch_exceptions=False
        )


def test_every_example_job_can_be_read():
    jobs = sorted((EXAMPLES / "wafer-jobs").glob("*.yaml"))
    assert len(jobs) >= 8
    for path in jobs:
        assert isinstance(load_job(path, {"wafer": WaferQuestion}), WaferQuestion)


@pytest.mark.slow
def test_states_are_chosen_by_name():
    wafer = Path(__file__).parents[1] / "contract" / "files" / "wafer.yaml"
    job = WaferQuestion.of(
        wafer=str(wafer), model=small_model(), batch=4, sequence=24, stage_counts=1
    )
    found = search_wafer(job, optimizer="fp32", baselines=False)
    assert found.best.mapping.optimizer == "fp32"
    less = search_wafer(job, optimizer="sgd", baselines=False)
    assert less.best.samples_per_s > found.best.samples_per_s
    with pytest.raises(AtollError, match="states 'adamm' are not known"):
        search_wafer(job, optimizer="adamm")


@pytest.mark.parametrize("states", STATES)
def test_states_by_part_add_up_to_what_the_compiled_evaluator_counts(states):
    wafer = small_wafer(2, 2)
    random = np.random.default_rng(5)
    mapping = Planner(wafer, small_model(), 8, 24, WaferOptions(states=STATES[states])).plan(
        snake(2, 2, 2, 1, 2), 1
    )
    assert mapping.optimizer == states
    for _ in range(20):
        mapping = mutate(mapping, random, HOMES)
        for stage, cost in zip(mapping.stages, evaluate(wafer, mapping).stages, strict=True):
            told = sum(cost.memory_bytes[name] for name in ("weights", "gradients", "optimizer"))
            counted = stage.layers * cost.block.state_bytes + sum(cost.ends.states)
            assert told == pytest.approx(counted, rel=1e-12)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_plan_costs_what_its_blocks_were_solved_for(streaming):
    """Operators keep their way of collectives whatever the head's is."""
    wafer = small_wafer(2, 4)
    options = WaferOptions(streaming=streaming, mixed_streaming=False, passes=False, offload=False)
    planner = Planner(wafer, small_model(), 16, 24, options)
    mapping = planner.plan(snake(2, 4, 2, 2, 2), 1)
    for stage, cost in zip(mapping.stages, evaluate(wafer, mapping).stages, strict=True):
        assert {streams for streams, _ in stage.block.collectives} == {streaming}
        in_flight = 2 if stage is mapping.stages[0] else 1
        limit = wafer.memory_bytes - cost.ends.bytes
        solved = planner.block((2, 2), 1, stage.layers, in_flight, limit)
        assert cost.block.time_s == pytest.approx(solved.solved.cost.time_s)
