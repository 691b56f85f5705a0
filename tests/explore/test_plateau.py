"""The answer among designs as good: the proof covers it, area, power and cost break ties."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from some_job import answer, some_job, undisturbed
from tiny import random_space, tiny_config, tiny_setting

import atoll
from atoll.answers.design import SizedChip
from atoll.base.stopping import Stop
from atoll.explore.answer.plateau import SHARES, ChipSize, choose, evaluate_plateau, plateau
from atoll.explore.pricing.workloads import Workload, make_variants
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.objective import Objective
from atoll.explore.run import run_search
from atoll.printing.search import print_result
from atoll.profiles import DEFAULT
from atoll.several.comparison import KINDS_DIFFER, compare_answers

SEEDS = (1, 2, 5, 11)
BATCH = 16


def make_search(seed: int, tolerance: float = 1e-3) -> Search:
    workload = Workload("tiny", tiny_config(2, 256, 4), 128, BATCH)
    variants = make_variants([workload], (1, 2, 4), (1,), 4, "optimal", DEFAULT)
    setting = tiny_setting(DEFAULT, 4)
    return Search(random_space(seed, 120), variants, setting, Objective.single(BATCH), tolerance)


def all_scores(search: Search) -> Any:
    return search.evaluate_all(np.arange(len(search.frontier.chips)))


def sizes_of(search: Search) -> Callable[[int], ChipSize]:
    """Size of each chip, so that there is something to break ties by: a few areas, many powers."""
    chips, space = search.frontier.chips, search.space
    hbm = space.hbm_options[0]
    areas, watts = space.area_with(hbm), space.peak_power_with(hbm)

    def size(chip: int) -> ChipSize:
        design = chips.design[chip]
        return ChipSize(round(float(areas[design]), -1), float(watts[design]), 0.0)

    return size


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tolerance", [0.0, 1e-3, 0.05])
def test_the_answer_is_the_smallest_chip_that_its_proof_allows(seed: int, tolerance: float) -> None:
    search = make_search(seed, tolerance=tolerance / 2.0)
    exact_search(search)
    evaluate_plateau(search, tolerance)
    size_of = sizes_of(search)
    chosen = choose(search, search.bound(), tolerance, size_of)
    score = search.evaluated_score(chosen)
    truth = all_scores(make_search(seed))
    # The statement: no design is better by more than the tolerance.
    assert search.bound() <= score * (1.0 + tolerance) * (1 + 1e-9)
    assert truth.max() <= score * (1.0 + tolerance) * (1 + 1e-9)
    covered = [c for c in search.frontier.plans if search.evaluated_score(c) >= score]
    assert size_of(chosen) == min(size_of(c) for c in covered)
    if tolerance == 0.0:
        assert score >= max(search.evaluated_score(c) for c in search.frontier.plans)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_plateau_counts_every_design_of_the_space_that_is_as_near(seed: int) -> None:
    search = make_search(seed, tolerance=5e-4)
    exact_search(search)
    above = evaluate_plateau(search, 1e-3)
    size_of = sizes_of(search)
    chosen = choose(search, search.bound(), 1e-3, size_of)

    def chip_of(chip: int) -> SizedChip:
        space, size = search.space, size_of(chip)
        accelerator = space.accelerator(search.frontier.chips.design[chip], space.hbm_options[0])
        return SizedChip.of(accelerator, area_mm2=size.area_mm2, peak_power_W=size.peak_power_W)

    rows = plateau(search, chosen, above, size_of, chip_of)
    score, truth = search.evaluated_score(chosen), all_scores(make_search(seed))
    for row, share in zip(rows, SHARES, strict=True):
        near = set(np.flatnonzero(truth >= score / (1.0 + share)).tolist()) - {chosen}
        assert row.complete and row.others == len(near)
        watts = [size_of(chip).peak_power_W for chip in near]
        if row.least_power is not None:
            least = ChipSize(row.least_power.area_mm2, row.least_power.peak_power_W, 0.0)
            assert least.peak_power_W == min(watts) < size_of(chosen).peak_power_W
            assert -1e-3 <= row.least_power.slower_by <= share
            unlike = row.least_power.slower_by > 0.0 or least > size_of(chosen)
            assert unlike, "else it were the answer"
        else:
            assert min(watts, default=np.inf) >= size_of(chosen).peak_power_W


def test_a_search_that_was_stopped_does_not_claim_to_have_seen_the_plateau() -> None:
    search = make_search(2)
    exact_search(search)
    search.stop.limit(0.0)
    assert evaluate_plateau(search, 1e-3) == np.inf


def test_the_answer_says_what_else_comes_close(capsys: pytest.CaptureFixture[str]) -> None:
    result = undisturbed(some_job(tolerance=1e-3))
    shown = json.loads(json.dumps(result.to_dict(), allow_nan=False))["plateau"]
    assert [row["share"] for row in shown] == list(SHARES)
    print_result(result, explain=True)
    assert re.search(r"Near +(no other|\d+ others?) within 0.5%, ", capsys.readouterr().out)
    scores = [row["bert-large: samples_per_s"] for row in result.designs]
    near = [score for score in scores if score >= result.score / 1.01]
    assert shown[1]["others"] <= len(near) - 1 and shown[1]["complete"]


def test_tight_memory_is_said_with_its_chance_and_where_roomier_layouts_are_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = undisturbed(some_job(tolerance=1e-3))
    best, (plan,) = result.best, result.best.plans
    needed = max(stage.total_memory_bytes for stage in plan.placement.stages)
    assert best.out_of_memory(plan) is None and "to spare" in dict(result.summary())["Memory"]
    hbm = replace(best.accelerator.hbm, capacity_bytes=int(1.001 * needed))
    tight = replace(best, accelerator=replace(best.accelerator, hbm=hbm))
    assert tight.out_of_memory(plan) == pytest.approx(0.5, abs=0.06)
    print_result(replace(result, best=tight))
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert re.search(r"fits, but tight: .* to spare, 5\d% chance of running out of memory", shown)
    assert "searches more layouts on the chip, also roomier ones" in shown


def test_the_proof_names_the_template_and_a_comparison_warns_of_two_kinds_of_chips() -> None:
    result = undisturbed(some_job(tolerance=1e-3))
    assert result.certificate.over.endswith(" of template systolic (no other searched)")
    other = result.answer
    chip = replace(other.best.accelerator, template="gpu-like-4nm")
    gpu = replace(other, best=replace(other.best, accelerator=chip))
    assert not compare_answers(["a", "b"], [gpu, gpu]).notes
    assert compare_answers(["a", "b"], [other, gpu]).notes == (KINDS_DIFFER,)


@pytest.mark.slow
def test_no_design_is_both_faster_and_smaller_than_the_answer() -> None:
    """With a wide tolerance many are as good; the one of least power may be a large slow one."""
    for tolerance in (1e-3, 0.02, 0.2):
        result = undisturbed(some_job(tolerance=tolerance))
        area_mm2, score = result.best.area_mm2, result.score
        for row in result.designs:
            faster = row["bert-large: samples_per_s"] > score * (1 + 1e-9)
            assert not (faster and row["area_mm2"] < area_mm2 - 1e-6), row
        assert result.certificate.bound <= score * (1 + tolerance) * (1 + 1e-9)


@pytest.mark.slow
def test_a_faster_runner_up_is_not_called_slower() -> None:
    """Within the tolerance a larger chip may be faster than the answer."""
    asked = {"model": "bert-large", "devices": 16, "batch": 256, "microbatch": [16], "tp": [1]}
    found = atoll.search(**asked, max_area="858 mm2", tolerance=0.05, baselines=False)
    text, explained = str(found.explain()), found.explain()
    shares = [reason.slower_by for other in explained.runners_up for reason in other.reasons]
    assert min(shares) < -5e-5
    assert "% faster" in text and not re.search(r"-\d+\.\d+% (slower|faster)", text)


class Recorder:
    """Keeps what is reported; stops the search where it is told to."""

    def __init__(self, stop: Stop, at: str = "") -> None:
        self.seen: list[tuple[str, int]] = []
        self._stop, self._at = stop, at

    def __call__(self, phase: str, left: int, total: int, best: float, bound: float) -> None:
        self.seen.append((phase, left))
        assert self._at == "" or best > 0.0 or phase == "bounding"
        if phase == self._at:
            self._stop.limit(0.0)


@pytest.mark.parametrize("pareto", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_progress_counts_the_chips_that_the_certificate_counts(pareto: bool) -> None:
    """Not each of them once for every HBM."""
    seen: list[tuple[str, int, int]] = []
    job = some_job(pareto=pareto, few=True)
    result = run_search(job, lambda phase, left, total, *_: seen.append((phase, left, total)))
    phase, left, total = seen[0]
    assert (phase, left, total) == ("bounding", result.certificate.items, result.certificate.items)
    assert all(total == result.certificate.items >= left > 0 for _, left, total in seen)
    assert {"front"} <= {phase for phase, _, _ in seen} or not pareto


@pytest.mark.slow
def test_a_limit_that_stops_the_front_leaves_the_proof_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = undisturbed(some_job(pareto=True))
    stop = Stop()
    part = run_search(some_job(pareto=True), Recorder(stop, "front"), stop=stop)
    assert part.certificate.status == "optimal" and part.score == whole.score
    assert part.stopped == "" and part.front_stopped == "time limit"
    assert all((front.proven_within or 1.0) > 0.01 for front in part.pareto.values())
    print_result(part)
    out = capsys.readouterr().out
    assert "time limit: left out or not complete: fronts" in out and "proven optimal" in out
    assert "best design so far" not in out


@pytest.mark.slow
def test_progress_moves_while_the_front_is_proven() -> None:
    stop = Stop()
    recorder = Recorder(stop)
    run_search(some_job(pareto=True), recorder, stop=stop)
    left = [count for phase, count in recorder.seen if phase == "front"]
    assert len(set(left)) > 5 and left[-1] < left[0] and min(left) >= 1


@pytest.mark.slow
def test_no_baseline_in_the_space_beats_the_answer_without_a_word() -> None:
    """With a wide tolerance the search ends early: drawn chips are often better."""
    for tolerance in (0.02, 0.3):
        result = undisturbed(some_job(tolerance=tolerance, baselines=True))
        best = max(row["bert-large: samples_per_s"] for row in result.designs)
        assert result.certificate.gap <= tolerance
        for name, score in result.baselines.items():
            remark = result.baseline_remarks.get(name, "")
            if score is None or "space" in remark or "limit" in remark:
                continue
            assert score <= best * (1 + 1e-9), "it was offered"
            assert score <= result.score * (1 + 1e-9) or "within the tolerance" in remark


def test_a_plan_from_elsewhere_becomes_the_answer_if_it_is_better() -> None:
    search, other = make_search(3, tolerance=0.3), make_search(3, tolerance=0.0)
    exact_search(search)
    exact_search(other)
    assert other.best is not None
    worse = dict(search.frontier.plans[search.best or 0])
    search.adopt(other.best, other.frontier.plans[other.best])
    assert search.best == other.best and search.score == other.score
    search.adopt(other.best, worse)
    assert search.score == other.score


def test_a_baseline_over_a_limit_gets_a_remark(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_search(some_job(baselines=True, max_area=100.0, max_power=150.0))
    for name in ("tpuv4-expert", "tpuv4-placed"):
        assert "278.8 mm2: over the limit of 100 mm2" in result.baseline_remarks[name]
        assert "W at peak: over the limit of 150 W" in result.baseline_remarks[name]
    assert set(result.baseline_remarks) <= {"tpuv4-expert", "tpuv4-placed"}
    print_result(result, explain=True)
    shown: Any = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "over the limit of 100 mm2" in shown
    words = dict(result.summary())["Baselines"]
    assert words.startswith("of this chip's score: tpuv4-expert ")
    assert words.count("x over the limits") == 2


@pytest.mark.slow
def test_a_search_continued_after_its_baselines_ends_the_same(tmp_path: Path) -> None:
    job = some_job(tolerance=0.3, baselines=True)
    first = run_search(job, out=tmp_path / "run")
    again = run_search(job, out=tmp_path / "run")
    assert answer(again) == answer(first) == answer(undisturbed(job))


def test_the_schedules_of_an_answer_have_the_bounds_of_its_proof() -> None:
    """A quick schedule may be the best one while more effort went into its proof."""
    asked = {"model": "bert-large", "devices": 16, "batch": 256, "microbatch": [16], "tp": [1]}
    found = atoll.search(**asked, max_power="300 W", tolerance=2e-4, baselines=False)
    (plan,) = found.best.plans
    assert plan.placement.schedule == "1f1b" and found.certificate.tightened > 0
    whole_s = sum(entry.repeat * entry.makespan_s for entry in plan.layers)
    least_s = sum(entry.repeat * entry.lower_bound_s for entry in plan.layers)
    assert least_s <= whole_s <= least_s * (1 + 2e-4)
