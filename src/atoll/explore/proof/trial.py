"""One chip against the incumbent: which placements to solve, and what they prove.

The order and the limits depend on the best design known. A worker runs a trial with what was known
when the chip was sent, and records the placements; the driver runs it again with what is known by
then, and finds nearly all placements answered. So the search is that of one process, to the last
bit, whatever the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from atoll.arrays import FloatArray, IntArray
from atoll.cost.chips import memories
from atoll.explore.pricing.layouts import Setting
from atoll.explore.pricing.workloads import Variants
from atoll.explore.proof.objective import Objective
from atoll.explore.proof.order import check_step, variant_name
from atoll.hardware.accelerator import Hbm
from atoll.hardware.product import ProductSpace
from atoll.hardware.space import Space
from atoll.placement.chain import Division

Answers = dict[tuple[str, int], tuple[float, Division | None]]
"""By ("lower" or "upper" times, variant): a limit, and the fastest placement below it."""


Place = Callable[[str, int, float], Division | None]
"""The fastest placement of (kind, variant) below a limit, or None."""


@dataclass(frozen=True, eq=False)
class Rule:
    """What decides between designs."""

    by_model: tuple[IntArray, ...]
    """The variants of each model."""
    objective: Objective
    tolerance: float
    names: tuple[str, ...]
    """Of the variants, in words."""

    @staticmethod
    def of(variants: Variants, objective: Objective, tolerance: float) -> Rule:
        by_model = tuple(np.array(variants.of(i)) for i in range(len(variants.workloads)))
        names = tuple(variant_name(variants, variant) for variant in variants.variants)
        return Rule(by_model, objective, tolerance, names)

    def memories(self, space: Space | ProductSpace, setting: Setting) -> list[tuple[Hbm, ...]]:
        """HBM options of a space: those of a chip's bandwidth, or each by itself."""
        return memories(space.hbm_options, setting.profile, self.objective.by_memory)

    def scores(self, rows: FloatArray) -> FloatArray:
        """No plan of a chip with these bounds (chips, variants) scores higher, before prices."""
        times = np.column_stack([rows[:, own].min(axis=1) for own in self.by_model])
        return self.objective.scores(times)


@dataclass(frozen=True, eq=False)
class Trial:
    """A chip's bounds and plans before the trial, and the incumbent then."""

    chip: str
    """In words."""
    row: FloatArray  # (variants,): no plan of the node is faster
    found_s: Mapping[int, float]
    """Step time of the best plan known of each model on this chip."""
    score: float
    """That this chip has to beat, before its price."""
    cutoff_s: float
    """With one model: a step time that would not improve the incumbent enough."""
    sparing: bool = False
    """Evaluate for the chip's own sake: only what exists, whatever the incumbent is."""


@dataclass(frozen=True, eq=False)
class Placed:
    """What a trial proved and found."""

    row: FloatArray
    found: Mapping[int, tuple[int, Division]] = field(default_factory=dict)
    """By model: variant and placement of a plan better than the one known before."""


def try_chip(rule: Rule, trial: Trial, place: Place) -> Placed:
    """Solve the placements that could improve the incumbent, the most promising first."""
    row = trial.row.copy()
    best_s = dict(trial.found_s)
    found: dict[int, tuple[int, Division]] = {}
    cutoff, score = trial.cutoff_s, trial.score
    slack = 1.0 + rule.tolerance
    for model, own in enumerate(rule.by_model):
        for v in own[np.argsort(row[own], kind="stable")].tolist():
            limit = min(cutoff, best_s.get(model, np.inf) / slack)
            if row[v] >= limit:
                break
            if not trial.sparing:
                least = place("lower", v, limit)
                row[v] = max(row[v], limit if least is None else least.step_time_s)
                if least is None:
                    continue
            most = place("upper", v, limit)
            if most is None:
                continue
            check_step(row[v], most.step_time_s, trial.chip, rule.names[v])
            if most.step_time_s >= best_s.get(model, np.inf):
                continue
            best_s[model] = most.step_time_s
            found[model] = (v, most)
            if not trial.sparing and len(best_s) == len(rule.by_model):
                times = np.array([[best_s[i] for i in range(len(rule.by_model))]])
                score = max(score, float(rule.objective.scores(times)[0]))
        if rule.scores(row[None, :])[0] <= score * slack:
            break
    return Placed(row, found)


def replayed(asked: Answers, place: Place) -> Place:
    """Placements from a worker's record, where it decides; solved again where it does not.

    A placement solved below one limit answers for every stricter limit, and, if one was found, for
    every other limit too: it is the fastest of all.
    """

    def answer(kind: str, variant: int, limit: float) -> Division | None:
        if (kind, variant) in asked:
            solved_below, division = asked[(kind, variant)]
            if division is not None:
                return division if division.step_time_s < limit else None
            if limit <= solved_below:
                return None
        return place(kind, variant, limit)

    return answer
