"""The scheduling problem of one layer's pass on one chip, as plain arrays.

Operators j = 0..n-1 are in topological order. Operator j runs once, without interruption, in one of
its options o (a number of cores). It takes `duration_s[j, o]` seconds and, while it runs,
`demand[j, o, r]` of each renewable resource r, of which the chip has `capacity[r]`. Options that an
operator does not have are given an infinite duration.

Resources: tensor cores, vector cores, HBM bandwidth, GLB bandwidth (both as shares of 1), GLB
slots (how many tensor operators may own a part of the buffer at once) and the network port.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atoll.base.arrays import Floats, Ints

Arrays = tuple[Floats, Floats, Floats, Ints, Ints]

RESOURCES = ("tensor", "vector", "hbm", "glb", "slot", "link")
"""Names of the resources, in the order of the last axis of `demand`."""


@dataclass(frozen=True)
class ScheduleProblem:
    duration_s: Floats  # (operators, options); inf where the option does not exist
    demand: Floats  # (operators, options, resources)
    capacity: Floats  # (resources,)
    predecessors: tuple[tuple[int, ...], ...]

    @property
    def operators(self) -> int:
        return int(self.duration_s.shape[0])

    def arrays(self) -> Arrays:
        """Return contiguous arrays for the kernels: durations, demands, capacities, ptr and idx,
        where the predecessors of j are idx[ptr[j] : ptr[j + 1]]."""
        ptr = np.zeros(self.operators + 1, dtype=np.int64)
        ptr[1:] = np.cumsum([len(before) for before in self.predecessors])
        idx = np.array([i for before in self.predecessors for i in before], dtype=np.int64)
        floats = self.duration_s, self.demand, self.capacity
        duration, demand, capacity = (np.ascontiguousarray(x, dtype=np.float64) for x in floats)
        return duration, demand, capacity, ptr, idx


@dataclass(frozen=True)
class Schedule:
    """A feasible schedule with a lower bound on the makespan."""

    start_s: tuple[float, ...]
    option: tuple[int, ...]
    makespan_s: float
    lower_bound_s: float
    method: str  # how the schedule was found: "list", "branch and bound", ...
    bound: str  # which bound is the strongest: "critical path", "tensor work", "lp", ...

    @property
    def gap(self) -> float:
        """Return the relative distance to the lower bound; 0 if proven optimal."""
        if self.makespan_s <= 0.0:
            return 0.0
        return max(0.0, 1.0 - self.lower_bound_s / self.makespan_s)


@dataclass(frozen=True, slots=True)
class Goal:
    """Stopping criterion for a schedule and its lower bound."""

    tolerance: float
    """Largest acceptable gap."""
    enough_s: float = np.inf
    """Sufficient lower bound: a pass that takes this long is ruled out."""

    def met(self, schedule: Schedule) -> bool:
        return schedule.gap <= self.tolerance or schedule.lower_bound_s >= self.enough_s

    def to_beat_s(self, schedule: Schedule) -> float:
        """Return the makespan to stay below; a lower bound that reaches it meets the goal."""
        return min(schedule.makespan_s * (1.0 - 0.999 * self.tolerance), self.enough_s)
