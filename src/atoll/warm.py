"""Compiles one part of a search's kernels; run by `kernel_cache.compile_in_background`.

The search compiles those of the placement, which it needs first. A part imports only what it
compiles.
"""

from __future__ import annotations

import os
import sys

import numpy as np

LATER = 5
"""Niceness of the part that is needed last."""


def bounds() -> None:
    """Compile operator costs and quick bounds, on one chip and a small model."""
    from atoll.cost.chips import chips_of_space
    from atoll.explore.answer.scope import open_space
    from atoll.explore.prepare import prepare_search
    from atoll.explore.pricing.evaluate import PricedChips
    from atoll.hardware.space import DesignSpace
    from atoll.questions import SearchQuestion
    from atoll.schedule.bound_kernels import prepare

    job = SearchQuestion.of(model="bert-large", microbatch=1, tp=1, devices=8)
    space, _ = open_space(job)
    assert isinstance(space, DesignSpace)
    setting, variants = prepare_search(job)
    chips = chips_of_space(space.subset([0]), setting.profile)
    PricedChips.of(chips, variants, setting, floors=True)
    priced = PricedChips.of(chips, variants, setting)
    first = np.zeros(1, np.int64)
    priced.floors(first, first)
    priced.schedule_bounds(first, first)
    prepare(*priced.problem(0, 0).arrays())


def schedules() -> None:
    """Compile the schedule searches, on an instance of one operator."""
    from atoll.schedule.bound_kernels import Instance
    from atoll.schedule.bounds import solve_subsets
    from atoll.schedule.branch_kernels import branch

    none = np.zeros(0, np.int64)
    instance = Instance(
        duration=np.ones((1, 1)), demand=np.ones((1, 1, 1)), capacity=np.ones(1),
        options=np.zeros((1, 1), np.int64), useful=np.ones(1, np.int64), fastest=np.ones(1),
        load=np.ones((1, 1, 1)), work=np.ones((1, 1)), pred_ptr=np.zeros(2, np.int64),
        pred_idx=none, succ_ptr=np.zeros(2, np.int64), succ_idx=none,
    )  # fmt: skip
    start_s, option = np.zeros(1), np.zeros(1, np.int64)
    solve_subsets(instance, np.zeros((1, 1), np.bool_), start_s, option, np.inf)
    branch(instance, np.zeros(1), 0.0, 1, start_s, option, np.zeros(1, np.bool_))


if __name__ == "__main__":
    part = {"bounds": bounds, "schedules": schedules}[sys.argv[1]]
    if part is schedules and hasattr(os, "nice"):
        os.nice(LATER)
    part()
