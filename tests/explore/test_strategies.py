"""Objectives, PHAZE's stop rule, the front and the baselines, on small spaces."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from tiny import random_space, tiny_setting, tiny_variants

from atoll.base.errors import AtollError
from atoll.base.stopping import Stop
from atoll.explore.baselines import GaussianProcess
from atoll.explore.pareto import TOLERANCE, CheaperChips, fronts, known_costs, prove_fronts
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.objective import AIMS, Objective
from atoll.explore.proof.tasks import solve_node
from atoll.phaze.strategy import visit_buckets
from atoll.profiles import DEFAULT

BATCH = 16


def make_search(
    seed: int = 0, chips: int = 120, tolerance: float = 1e-3, stop: Stop | None = None
) -> Search:
    return Search(
        random_space(seed, chips),
        tiny_variants(DEFAULT, 4, layers=2),
        tiny_setting(DEFAULT, 4),
        Objective.single(BATCH),
        tolerance,
        stop=stop,
    )


def all_scores(search: Search) -> np.ndarray:
    return search.evaluate_all(np.arange(len(search.frontier.chips)))


class TestObjective:
    times = np.array([[1.0, 4.0], [2.0, 2.0]])

    def test_mean_is_of_samples_per_second(self) -> None:
        objective = Objective(AIMS["mean"], (8, 16), (1.0, 1.0), (1.0, 1.0))
        assert objective.scores(self.times).tolist() == [6.0, 6.0]

    def test_worst_is_the_least_gain_over_the_reference(self) -> None:
        objective = Objective(AIMS["worst"], (8, 16), (1.0, 1.0), (2.0, 4.0))
        assert objective.scores(self.times).tolist() == [1.0, 2.0]

    def test_weights_count_relative_gains(self) -> None:
        objective = Objective(AIMS["weighted"], (8, 16), (3.0, 1.0), (2.0, 4.0))
        assert objective.scores(self.times).tolist() == [3.25, 2.0]

    def test_a_model_that_does_not_fit_scores_nothing(self) -> None:
        objective = Objective(AIMS["worst"], (8, 16), (1.0, 1.0), (2.0, 4.0))
        assert objective.scores(np.array([[1.0, np.inf]])).tolist() == [0.0]

    def test_an_unknown_kind_is_refused(self) -> None:
        with pytest.raises(AtollError, match=r"objective 'best' is not known.*mean"):
            AIMS["best"]

    @given(
        st.sampled_from(["mean", "weighted", "worst"]),
        st.lists(st.floats(0.1, 10), min_size=2, max_size=2),
        st.lists(st.floats(1.0, 3.0), min_size=2, max_size=2),
    )
    def test_a_faster_chip_never_scores_lower(
        self, kind: str, times: list[float], slower: list[float]
    ) -> None:
        objective = Objective(AIMS[kind], (8, 16), (1.0, 2.0), (2.0, 4.0))
        fast = np.array([times])
        assert objective.scores(fast) >= objective.scores(fast * np.array(slower))


def test_phazes_rule_stops_early_and_says_what_it_does_not_know() -> None:
    search = make_search(1, 150)
    best = all_scores(make_search(1, 150)).max()
    chips = search.frontier.chips
    search.forget(visit_buckets(chips.area_mm2, search.evaluate_all, search.accept))
    outcome = search.outcome()
    visited = len(outcome.frontier.plans)
    assert 0 < visited < 150
    assert outcome.score <= best * (1 + 1e-9)
    assert outcome.bound >= best * (1 - 1e-9)


def true_scores(search: Search) -> np.ndarray:
    """Return the best score of every chip, from good schedules, chip by chip."""
    context, scores = search.context, []
    for chip in range(len(search.frontier.chips)):
        single = search.frontier.chips.subset(np.array([chip]))
        steps_s = [
            np.inf if node.division is None else node.division.step_time_s
            for v in range(len(search.variants.variants))
            for node in [solve_node(context, single, v, "linear", np.inf)]
        ]
        scores.append(BATCH / min(steps_s))
    return np.array(scores)


@pytest.mark.parametrize(
    "seed", [3, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in (2, 5))]
)
def test_no_chip_beats_the_fronts_chips_that_cost_no_more(seed: int) -> None:
    search = make_search(seed, 30)
    exact_search(search)
    traced, stopped = fronts(search)
    scores = true_scores(make_search(seed, 30))
    assert stopped == "" and {"area_mm2", "peak_power_W"} <= known_costs(search).keys()
    for name, costs in known_costs(search).items():
        front = traced[name]
        assert front.proven_within == TOLERANCE
        reached = [search.evaluated_score(chip) for chip in front.chips]
        assert reached == sorted(reached, reverse=True)
        for chip, cost in enumerate(costs.tolist()):
            cheaper = [s for s, c in zip(reached, front.chips, strict=True) if costs[c] <= cost]
            assert cheaper or scores[chip] == 0.0, "the cheapest chip is on the front"
            assert scores[chip] <= max(cheaper, default=0.0) * (1 + TOLERANCE + 1e-9)


def test_a_front_that_is_stopped_says_how_far_it_is_proven() -> None:
    stop = Stop()
    search = make_search(2, 40, stop=stop)
    exact_search(search)
    costs = known_costs(search)
    reports = count()

    def stop_soon(phase: str, left: int, total: int, score: float, bound: float) -> None:
        if next(reports) == 11:
            stop.limit(-1.0)

    search.progress = stop_soon
    gaps = prove_fronts(search, costs, TOLERANCE)
    assert all(TOLERANCE < gap < np.inf for gap in gaps.values())
    scores = true_scores(make_search(2, 40))
    plans = {chip: search.evaluated_score(chip) for chip in search.frontier.plans}
    for name, cost in costs.items():
        for chip, score in enumerate(scores.tolist()):
            cheaper = [reached for c, reached in plans.items() if cost[c] <= cost[chip]]
            assert score <= max(cheaper, default=0.0) * (1 + gaps[name] + 1e-9)


def test_cheaper_chips_are_those_of_a_comparison_of_all_pairs() -> None:
    rng = np.random.default_rng(1)
    costs = {name: rng.integers(0, 20, 60).astype(float) for name in ("a", "b")}
    rivals, scores = CheaperChips(costs, 0.01), np.zeros(60)
    every = np.arange(60)
    for chip in rng.permutation(60)[:40].tolist():
        scores[chip] = rng.integers(1, 30)
        rivals.add(chip, scores[chip])
        best = [[scores[cost <= cost[c]].max() for c in every] for cost in costs.values()]
        assert rivals.to_beat(every).tolist() == (np.min(best, axis=0) * 1.01).tolist()


def test_a_chip_that_could_not_beat_the_best_may_still_be_the_best_of_its_size() -> None:
    search, whole = make_search(2, 150), make_search(2, 150)
    exact_search(search)
    exact_search(whole)
    front = fronts(whole)[0]["area_mm2"].chips
    # As the search leaves a chip whose placements do not beat the incumbent: without a plan.
    small = front[-1]
    search.frontier.plans[small] = {}
    search.frontier.stage[small] = 2
    assert fronts(search)[0]["area_mm2"].chips == front


def test_two_models_at_once_are_optimal_too() -> None:
    from tiny import tiny_config

    from atoll.explore.pricing.workloads import Workload, make_variants

    workloads = [
        Workload("a", tiny_config(2, 256, 4), 128, BATCH),
        Workload("b", tiny_config(2, 128, 4), 256, BATCH),
    ]
    variants = make_variants(workloads, (1, 2), (1, 2), 4, "optimal", DEFAULT)
    setting = tiny_setting(DEFAULT, 4)
    objective = Objective(AIMS["worst"], (BATCH, BATCH), (1.0, 1.0), (1000.0, 2000.0))
    search = Search(random_space(4, 80), variants, setting, objective, 1e-3)
    outcome = exact_search(search)
    fresh = Search(random_space(4, 80), variants, setting, objective, 1e-3)
    scores = fresh.evaluate_all(np.arange(80))
    assert outcome.score >= scores.max() * (1 - 2e-3)
    assert outcome.bound >= scores.max() * (1 - 1e-9)


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_the_most_promising_point_has_the_largest_expected_improvement(seed: int) -> None:
    """Compare with the expected improvement of every point, from a system of equations."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(28, 3)) * 3
    values = rng.normal(size=8)
    process = GaussianProcess(points, 8)
    for point, value in enumerate(values):
        process.observe(point, value)
    distances = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    covariance = np.exp(-0.5 * distances / 3)
    weights = np.linalg.solve(covariance[:8, :8] + 1e-4 * np.eye(8), covariance[:8])
    standard = (values - values.mean()) / values.std()
    deviation = np.sqrt(np.maximum(1 - (weights * covariance[:8]).sum(axis=0), 1e-12))
    better = standard.min() - standard @ weights
    z = better / deviation
    gain = better * norm.cdf(z) + deviation * norm.pdf(z)
    chosen = process.most_promising()
    assert chosen >= 8, "observed points are not proposed again"
    assert gain[chosen] >= gain[8:].max() * (1 - 1e-6)
