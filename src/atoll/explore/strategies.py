"""Search strategies over a space of chips: with proof, by PHAZE's rule, by evolution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atoll.base.registry import Registry
from atoll.explore.proof.branch_and_bound import Search, SearchOutcome
from atoll.explore.proof.exact import exact_search
from atoll.questions import SearchQuestion


@dataclass(frozen=True, slots=True)
class Strategy:
    """Which designs of a search are evaluated, and in which order."""

    name: str
    run: Callable[[Search, SearchQuestion], SearchOutcome]
    """Evaluates designs (`Search.evaluate_all`, `bring`, `accept`) and ends with
    `Search.outcome()`, whose certificate says how far the best is from the bound on the rest."""
    proves: bool = False
    """Whether it goes on until the gap is within the tolerance."""
    whole: bool = False
    """Whether it needs every chip of the space in memory."""
    samples: bool = False
    """Whether it looks at a part of the space that depends on the seed; its fronts are those of
    what it has seen."""


def _exact(search: Search, job: SearchQuestion) -> SearchOutcome:
    return exact_search(search)


def _phaze(search: Search, job: SearchQuestion) -> SearchOutcome:
    from atoll.phaze.strategy import visit_buckets

    area_mm2 = search.frontier.chips.area_mm2
    search.forget(visit_buckets(area_mm2, search.evaluate_all, search.accept))
    return search.outcome()


def _evolve(search: Search, job: SearchQuestion) -> SearchOutcome:
    from atoll.explore.evolve import evolve_search

    return evolve_search(search, job.evaluations, job.seed)


STRATEGIES = Registry(
    "strategies",
    Strategy,
    (
        Strategy("exact", _exact, proves=True),
        Strategy("phaze", _phaze, whole=True),
        Strategy("evolve", _evolve, samples=True),
    ),
    noun="strategy",
)
