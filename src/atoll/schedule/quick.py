"""Fast bounds and schedules of one problem, by the kernel for many problems."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.schedule.list_kernels import Problems, Quick, quick_bounds
from atoll.schedule.problem import Arrays
from atoll.schedule.series import part_begins


class QuickSchedule(NamedTuple):
    """Fast bounds and schedule; both times are infinite if an operator has no option that fits."""

    lower_s: float
    upper_s: float
    kind: int  # kind and resource of the bound of the longest part
    resource: int
    start_s: Floats
    option: Ints


def empty_quick(problems: int, operators: int) -> Quick:
    """Return empty result arrays for `problems` problems with `operators` operators in total."""
    lower_s, upper_s = np.zeros(problems), np.zeros(problems)
    kind, resource = np.zeros(problems, np.int64), np.zeros(problems, np.int64)
    return Quick(
        lower_s, upper_s, kind, resource, np.zeros(operators), np.zeros(operators, np.int64)
    )


def quick_of(arrays: Arrays) -> QuickSchedule:
    """Return the fast bounds and schedule of a problem given by `ScheduleProblem.arrays`."""
    duration, demand, capacity, pred_ptr, pred_idx = arrays
    n = len(duration)
    begins = part_begins(pred_ptr, pred_idx)
    zero, ptr = np.zeros(1, np.int64), np.array([0, n], np.int64)
    problems = Problems(ptr, duration, demand, capacity[None], zero, pred_ptr, pred_idx, begins)
    quick = empty_quick(1, n)
    quick_bounds(0, 1, problems, quick)
    return QuickSchedule(
        float(quick.lower_s[0]), float(quick.upper_s[0]), int(quick.kind[0]),
        int(quick.resource[0]), quick.start_s, quick.option,
    )  # fmt: skip
