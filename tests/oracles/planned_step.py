"""The fastest layout of a searched chip, written out one by one by the readable estimate."""

from __future__ import annotations

import numpy as np

from atoll.answers.design import PlacementAnswer
from atoll.explore.pricing.planned.layout_prices import PlannedLayouts
from atoll.placement.chain import Division, PlacementProblem, VariantTimes


def least_step_s(problem: PlacementProblem, times: VariantTimes) -> float:
    """Return the least step of all planned layouts. A stage's memory depends on its own choice
    alone, and no step is shorter where a stage recomputes more: each takes the fastest that fits,
    and where no stage has to recompute, other choices are not tried.
    """
    planned = problem.layouts
    if not isinstance(planned, PlannedLayouts) or not np.isfinite(times.pass_s).all():
        return np.inf
    count = planned.chosen(times).choice.shape[1]
    least_s = np.inf
    for layout in planned.layouts:

        def written(choices: tuple[int, ...]) -> PlacementAnswer:
            division = Division(0.0, layout.pp, layout.dp, layout=layout, choices=choices)  # noqa: B023
            return planned.describe(problem, times, division)

        uniform = []
        for choice in range(count):
            uniform.append((choice, written((choice,) * layout.pp)))
            if all(
                stage.recompute_s == 0.0 and stage.total_memory_bytes <= problem.memory_bytes
                for stage in uniform[-1][1].stages
            ):
                break
        picks = []
        for stage in range(layout.pp):
            fitting = [
                (placement.stages[stage].recompute_s, choice)
                for choice, placement in uniform
                if placement.stages[stage].total_memory_bytes <= problem.memory_bytes
            ]
            picks.append(min(fitting, default=(np.inf, -1))[1])
        if min(picks) >= 0:
            known = dict(uniform)[picks[0]] if len(set(picks)) == 1 else written(tuple(picks))
            least_s = min(least_s, known.step_time_s)
    return least_s
