"""A chip against the incumbent: which placements to solve, and what they prove.

The order and the limits depend on the incumbent. A worker runs a trial with the incumbent when the
chip was sent, and records the placements; the driver runs it again with the current incumbent and
reuses nearly all of them. So results equal those of a single process, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.cost.chips import memories
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.workloads import Variants
from atoll.explore.proof.bound_checks import check_step, variant_name
from atoll.explore.proof.objective import Objective
from atoll.hardware.accelerator import Hbm
from atoll.hardware.product_space import SearchedSpace
from atoll.placement.chain import Division

SolvedPlacements = dict[tuple[str, int], tuple[float, Division | None]]
"""By (kind of times, variant): limit, fastest placement below it. Kinds are "lower" and "upper"
bounds on the passes from quick schedules, "linear lower" and "linear upper" from better ones."""


SolvePlacement = Callable[[str, int, float], Division | None]
"""Returns the fastest placement of (kind, variant) below a limit, or None."""


@dataclass(frozen=True, eq=False)
class Rule:
    """The scoring of designs from their step times."""

    by_model: tuple[Ints, ...]  # variant numbers by model
    objective: Objective
    tolerance: float
    names: tuple[str, ...]  # descriptions of the variants

    @staticmethod
    def of(variants: Variants, objective: Objective, tolerance: float) -> Rule:
        by_model = tuple(np.array(variants.of(i)) for i in range(len(variants.workloads)))
        names = tuple(variant_name(variants, variant) for variant in variants.variants)
        return Rule(by_model, objective, tolerance, names)

    def memories(self, space: SearchedSpace, setting: SearchSetting) -> list[tuple[Hbm, ...]]:
        """Return the HBM options of a space, grouped by bandwidth or separately."""
        return memories(space.hbm_options, setting.profile, self.objective.by_memory)

    def scores(self, rows: Floats) -> Floats:
        """Return upper bounds on the scores from bounds (chips, variants), before prices."""
        times = np.column_stack([rows[:, numbers].min(axis=1) for numbers in self.by_model])
        return self.objective.scores(times)


@dataclass(frozen=True, eq=False)
class Trial:
    """A chip's bounds and plans before the trial, and the score to beat."""

    chip: str  # description of the chip
    lower_s: Floats  # (variants,): lower bound on the step time
    best_step_s: Mapping[int, float]  # step time of the best plan so far on this chip, by model
    score: float  # score to beat, before the price
    cutoff_s: float  # with one model: the step time that must be beaten
    plans_only: bool = False  # solve plans only, not bounds, whatever the incumbent is
    tolerance: float | None = None
    """For plans near the optimum of the chip itself, from schedules solved with linear effort:
    how far they may be from it. None: the tolerance of the search, with quick schedules."""


def try_chip(
    rule: Rule, trial: Trial, solve_placement: SolvePlacement
) -> tuple[Floats, dict[int, tuple[int, Division]]]:
    """Solve the placements that could improve the incumbent, the most promising first. Return the
    bounds, and by model the variant and placement of a plan better than the one before."""
    lower_s = trial.lower_s.copy()
    best_s = dict(trial.best_step_s)
    divisions: dict[int, tuple[int, Division]] = {}
    cutoff, score = trial.cutoff_s, trial.score
    linear = trial.tolerance is not None
    # Placements whose step times bound a node's, in rising order of cost.
    kinds: tuple[str, ...] = ("lower", "linear lower") if linear else ("lower",)
    kinds = () if trial.plans_only else kinds
    slack = 1.0 + (rule.tolerance if trial.tolerance is None else trial.tolerance)
    for model, variants in enumerate(rule.by_model):
        for variant in variants[np.argsort(lower_s[variants], kind="stable")].tolist():
            own_limit = best_s.get(model, np.inf) / slack
            limit = min(cutoff, own_limit)
            if lower_s[variant] >= limit:
                break
            least: Division | None = None
            for kind in kinds:
                least = solve_placement(kind, variant, limit)
                bound_s = limit if least is None else least.step_time_s
                lower_s[variant] = max(lower_s[variant], bound_s)
                if least is None:
                    break
                if linear:  # quick schedules are not enough for this chip
                    kinds = ("linear lower",)
            if least is None and not trial.plans_only:
                continue
            upper = ("linear upper", variant, own_limit) if linear else ("upper", variant, limit)
            most = solve_placement(*upper)
            if most is None:
                continue
            check_step(lower_s[variant], most.step_time_s, trial.chip, rule.names[variant])
            if most.step_time_s >= best_s.get(model, np.inf):
                continue
            best_s[model] = most.step_time_s
            divisions[model] = (variant, most)
            if not trial.plans_only and len(best_s) == len(rule.by_model):
                times = np.array([[best_s[i] for i in range(len(rule.by_model))]])
                score = max(score, float(rule.objective.scores(times)[0]))
        if rule.scores(lower_s[None, :])[0] <= score * slack:
            break
    return lower_s, divisions


def replayed(recorded: SolvedPlacements, solve_placement: SolvePlacement) -> SolvePlacement:
    """Return a `SolvePlacement` that reuses a worker's placements where they are conclusive.

    No placement below a limit also means none below a stricter limit. A placement is the fastest
    of all, and so conclusive for every limit.
    """

    def answer(kind: str, variant: int, limit: float) -> Division | None:
        if (kind, variant) in recorded:
            solved_below, division = recorded[(kind, variant)]
            if division is not None:
                return division if division.step_time_s < limit else None
            if limit <= solved_below:
                return None
        return solve_placement(kind, variant, limit)

    return answer
