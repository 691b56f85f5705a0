"""Search strategies over a space of chips: with proof, by PHAZE's rule, by evolution.

Evolution is for spaces where even the bounds leave too much: good designs, no proof. NSGA-II (Deb
et al., IEEE Trans. Evol. Comput. 6(2), 2002; Optuna's) over the space's lists, with three aims:
score, area, energy per token. A design whose roofline cannot beat one that is known to be smaller
and faster is not evaluated. The certificate states how far the roofline of the rest leaves the
answer from the best possible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from atoll.base.errors import AtollError
from atoll.base.registry import Registry
from atoll.cost.chips import clock_ranks
from atoll.explore.pricing.energy import energy_per_token_J
from atoll.explore.proof.branch_and_bound import Search, SearchOutcome
from atoll.explore.proof.exact import exact_search
from atoll.hardware.product_space import ProductSpace
from atoll.questions import SearchQuestion

POPULATION = 64
_STALE = 50  # generations without a new design after which the search ends


class _Objectives(NamedTuple):
    score: float
    area_mm2: float
    energy_per_token_J: float


def _evolve(search: Search, job: SearchQuestion) -> SearchOutcome:
    """Evaluate about `job.evaluations` designs in generations, or all of a smaller space."""
    evaluations = job.evaluations
    try:
        import optuna
    except ImportError:
        raise AtollError(
            "strategy: evolve needs Optuna, which is not installed; pip install 'atoll[evolve]'."
        ) from None
    genes = _Genes.of(search)
    if genes.count <= evaluations:
        return _evaluate_all(search, genes.count)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        directions=["maximize", "minimize", "minimize"],
        sampler=optuna.samplers.NSGAIISampler(population_size=POPULATION, seed=job.seed),
    )
    objectives: dict[int, _Objectives | None] = {}
    stale = 0
    while len(search.frontier.plans) < evaluations and stale < _STALE and not search.stop():
        trials = [study.ask() for _ in range(POPULATION)]
        chips = [genes.chip(trial) for trial in trials]
        fresh = sorted({chip for chip in chips if chip is not None and chip not in objectives})
        stale = 0 if fresh else stale + 1
        objectives.update(_evaluate(search, fresh, objectives))
        if search.stop():
            break
        for trial, chip in zip(trials, chips, strict=True):
            values = None if chip is None else objectives[chip]
            if values is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, values)
        search.report("evolving", evaluations - len(search.frontier.plans))
    return search.outcome()


def _evaluate_all(search: Search, count: int) -> SearchOutcome:
    """Evaluate every chip, in the order of their bounds."""
    objectives: dict[int, _Objectives | None] = {}
    places = search.bring(list(range(count)))
    best_first = sorted(places, key=lambda name: -search.scores[places[name]])
    for first in range(0, count, POPULATION):
        if search.stop():
            break
        objectives.update(_evaluate(search, best_first[first : first + POPULATION], objectives))
        search.report("evolving", count - first)
    return search.outcome()


def _evaluate(
    search: Search, ids: list[int], objectives: dict[int, _Objectives | None]
) -> dict[int, _Objectives | None]:
    """Return the objectives of chips, None where nothing fits or a bound rules the chip out."""
    evaluated: dict[int, _Objectives | None] = dict.fromkeys(ids)
    places = search.bring(ids)
    area = search.frontier.chips.area_mm2
    best = [values for values in objectives.values() if values is not None]
    best_score = np.array([values.score for values in best])
    best_mm2 = np.array([values.area_mm2 for values in best])
    promising = sorted(
        chip
        for chip in places.values()
        if not ((best_score >= search.scores[chip]) & (best_mm2 <= area[chip])).any()
    )
    scores = search.evaluate_all(np.array(promising)).tolist() if promising else []
    score_by_chip = dict(zip(promising, scores, strict=True))
    for chip_id, chip in places.items():
        score = score_by_chip.get(chip, -1.0)
        if score > 0.0:
            search.accept(chip, score)
            steps = [plan.energy for plan in search.frontier.plans[chip].values()]
            evaluated[chip_id] = _Objectives(score, float(area[chip]), energy_per_token_J(steps))
    return evaluated


@dataclass(frozen=True, eq=False)
class _Genes:
    """Maps the choices of a trial to a chip of the space."""

    lists: dict[str, list[float]]
    bandwidths: int
    count: int  # number of chips that trials can propose
    chips: dict[tuple[float, ...], int] | None
    """Chip number by combination of values and bandwidth; None for a space outside memory, which
    has all."""

    @staticmethod
    def of(search: Search) -> _Genes:
        space, bandwidths = search.space, len(search.memories)
        if isinstance(space, ProductSpace):
            lists = {name: list(space.axes.values[name]) for name in space.axes.names}
            return _Genes(lists, bandwidths, len(space) * bandwidths, None)
        chips = search.frontier.chips
        names = [p.name for p in space.template.parameters]
        columns = {name: space.columns[name][chips.design] for name in names}
        if "clock_Hz" in columns:  # limits on power set most clocks: they are chosen by rank
            columns["clock_Hz"] = clock_ranks(space, chips, chips.memory)[1]
        lists = {name: np.unique(column).tolist() for name, column in columns.items()}
        rows = zip(*(column.tolist() for column in columns.values()), chips.memory, strict=True)
        numbers = dict(zip(rows, search.frontier.ids.tolist(), strict=True))
        return _Genes(lists, bandwidths, len(space) * bandwidths, numbers)

    def chip(self, trial: Any) -> int | None:
        """Return the chip number that a trial proposes, None where the space has no such chip."""
        shape = {name: len(values) for name, values in self.lists.items()}
        indices = [trial.suggest_categorical(name, range(n)) for name, n in shape.items()]
        band = int(trial.suggest_categorical("hbm_bandwidth", range(self.bandwidths)))
        if self.chips is None:
            position = np.ravel_multi_index(indices, tuple(shape.values()))
            return int(position) * self.bandwidths + band
        values = (listed[i] for listed, i in zip(self.lists.values(), indices, strict=True))
        return self.chips.get((*values, band))


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


def _phaze(search: Search, job: SearchQuestion) -> SearchOutcome:
    from atoll.phaze.strategy import visit_buckets

    search.forget(visit_buckets(search.frontier.chips.area_mm2, search.evaluate_all, search.accept))
    return search.outcome()


STRATEGIES = Registry(
    "strategies",
    Strategy,
    (
        Strategy("exact", lambda search, _: exact_search(search), proves=True),
        Strategy("phaze", _phaze, whole=True),
        Strategy("evolve", _evolve, samples=True),
    ),
    noun="strategy",
)
