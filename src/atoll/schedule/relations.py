"""Branch and bound on options and relations, with the feasible-subset bound at every node.

The linear program of `subset_kernels` lets an operator change its option and be interrupted. A node
restricts this: it fixes which options an operator may use and, for some pairs, that one operator
ends before the other starts or does not (the schedule schemes of Brucker, Knust, Schoo and Thiele
1998, here with several options). The consequences are propagated; the linear program, solved again,
bounds all schedules of the node. The few operators that matter are decided first, regardless of the
number of small ones, with which a search forward in time (`branch_kernels`) cannot cope.

The lowest bound of the open nodes bounds all schedules. List schedules that respect a node's
restrictions are feasible for the problem and often shorter.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from atoll.base.stopping import StopCheck, check_stop
from atoll.schedule.bound_kernels import EPSILON, Bools, Floats, Ints, prepare
from atoll.schedule.bounds import solve_subsets
from atoll.schedule.problem import Goal, Schedule, ScheduleProblem
from atoll.schedule.quick import quick_of
from atoll.schedule.relation_kernels import propagate
from atoll.schedule.series import ordered

TRIED = 2
"""Number of operators, and of pairs, whose branches are solved before one is chosen."""

LOOKED_AT = 6
"""Number of operators, and of pairs, that are candidates for branching."""


@dataclass(frozen=True, eq=False)
class _Node:
    alive: Bools  # (operators, options)
    before: Bools  # [i, j]: i ends before j starts
    never: Bools  # [i, j]: i does not end before j starts
    bound_s: float = 0.0
    seconds: Floats | None = None  # seconds of the sets that solve the linear program
    sets: Ints | None = None  # pairs operator, option; -1 after the last


Branches = tuple[_Node, ...]

Division = tuple[int, ...]


class Relations:
    """One branch and bound search over options and relations."""

    def __init__(self, problem: ScheduleProblem, weight_s: Floats) -> None:
        self.problem = replace(
            problem,
            duration_s=np.ascontiguousarray(problem.duration_s),
            demand=np.ascontiguousarray(problem.demand),
        )
        self.weight_s = weight_s
        n, options = problem.duration_s.shape
        arrays = problem.arrays()
        p = prepare(*arrays)
        alive = np.zeros((n, options), np.bool_)
        for j in range(n):
            alive[j, p.options[j, : p.useful[j]]] = True
        before = np.triu(ordered(*arrays[3:]))
        self.root = _Node(alive, before, before.T | np.eye(n, dtype=np.bool_))
        both = problem.demand[:, :, None, None, :] + problem.demand[None, None]
        capacity = problem.capacity * (1.0 + EPSILON)
        self.together = np.all(both <= capacity, axis=4)  # (operator, option) with another

    def search(self, schedule: Schedule, goal: Goal, nodes: int, stop: StopCheck) -> Schedule:
        """Improve a schedule and its bound until the goal or the node limit is reached."""
        self.schedule = schedule
        self.goal = goal
        self.solved = 0
        self.pool: dict[bytes, Ints] = {}
        self.gains: dict[Division, float] = {}
        number = count()
        heap: list[tuple[float, int, _Node]] = []
        stuck = np.inf
        first = self._solved(self.root)
        if first is not None:
            heapq.heappush(heap, (first.bound_s, next(number), first))
        while heap and self.solved < nodes and heap[0][0] < self._goal():
            check_stop(stop)
            _, _, node = heapq.heappop(heap)
            children = self._children(node)
            if children is None:
                stuck = min(stuck, node.bound_s)
                continue
            for child in children:
                heapq.heappush(heap, (child.bound_s, next(number), child))
        lower = min(stuck, heap[0][0] if heap else np.inf, self._goal())
        if lower > self.schedule.lower_bound_s:
            self.schedule = replace(self.schedule, lower_bound_s=float(lower), bound="relations")
        return self.schedule

    def _goal(self) -> float:
        """Return the makespan that a better schedule must be below."""
        return self.goal.to_beat_s(self.schedule)

    def _children(self, node: _Node) -> list[_Node] | None:
        """Return the children of the division that raises the bound most; None if no division is
        left.

        Promising divisions that are new are solved; others are rated by their gain at earlier nodes
        (reliability branching, Achterberg et al. 2005).
        """
        solved: dict[Division, list[_Node]] = {}
        expected: dict[Division, float] = {}
        fresh = {len(division): 0 for division in ((0,), (0, 0))}
        for division in self._divisions(node):
            if division in self.gains:
                expected[division] = self.gains[division]
            elif fresh[len(division)] < TRIED:
                fresh[len(division)] += 1
                solved[division] = self._divided(node, division)
                expected[division] = self._gain(node, solved[division])
                if not solved[division]:
                    return []
        if not expected:
            return None
        best = max(expected, key=lambda division: expected[division])
        children = solved[best] if best in solved else self._divided(node, best)
        return children

    def _divided(self, node: _Node, division: Division) -> list[_Node]:
        branches = (
            self._split(node, *division) if len(division) == 1 else self._related(node, *division)
        )
        children = [child for child in map(self._solved, branches) if child is not None]
        gain = self._gain(node, children)
        self.gains[division] = 0.5 * (self.gains.get(division, gain) + gain)
        return children

    def _gain(self, node: _Node, children: list[_Node]) -> float:
        """Return the product of the two smallest increases of the bound over the branches."""
        missing_s = self._goal() - node.bound_s
        gains = sorted(
            [*(child.bound_s - node.bound_s for child in children), missing_s, missing_s]
        )
        return max(gains[0], 1e-4 * missing_s) * max(gains[1], 1e-4 * missing_s)

    def _solved(self, node: _Node) -> _Node | None:
        """Return the propagated node with its bound; None if it has no schedule below the goal."""
        alive, before, never = node.alive.copy(), node.before.copy(), node.never.copy()
        problem = self.problem
        if not propagate(
            problem.duration_s, self.together, self.weight_s, self._goal(), alive, before, never
        ):
            return None
        self.solved += 1
        node = replace(node, alive=alive, before=before, never=never)
        order = np.argsort(before.sum(axis=0), kind="stable")
        edges = before[np.ix_(order, order)]
        arrays = (
            np.where(alive, problem.duration_s, np.inf)[order],
            problem.demand[order],
            problem.capacity,
            np.concatenate([[0], np.cumsum(edges.sum(axis=0))]),
            np.ascontiguousarray(np.nonzero(edges.T)[1]),
        )
        lower, upper, _, _, start, option = quick_of(arrays)
        if upper < self.schedule.makespan_s:
            place = np.argsort(order)
            self.schedule = replace(
                self.schedule,
                start_s=tuple(start[place].tolist()),
                option=tuple(option[place].tolist()),
                makespan_s=float(upper),
                method="relations",
            )
        both = ordered(*arrays[3:])
        seed = self._seed(node, order)
        subsets = solve_subsets(prepare(*arrays), both, start, option, self._goal(), seed=seed)
        bound = max(node.bound_s, float(lower), subsets.lower_bound_s)
        if bound >= self._goal():
            return None
        used = subsets.seconds > 0.0
        sets = subsets.sets[used]
        sets[:, 0::2] = np.where(sets[:, 0::2] >= 0, order[sets[:, 0::2]], -1)
        self.pool.update({row.tobytes(): row for row in sets})
        return replace(node, bound_s=bound, seconds=subsets.seconds[used], sets=sets)

    def _seed(self, node: _Node, order: Ints) -> Ints:
        """Return sets from solutions of other nodes that this node allows, in its order."""
        pool = np.array(list(self.pool.values()), np.int64).reshape(-1, 2 * order.size)
        member, option = pool[:, 0::2], pool[:, 1::2]
        allowed = np.all(node.alive[member, option] | (member < 0), axis=1)
        of = _members(pool, order.size).astype(np.float32)
        allowed &= ~np.any((of @ node.before.astype(np.float32) > 0.0) & (of > 0.0), axis=1)
        seed = pool[allowed]
        place = np.argsort(order)
        seed[:, 0::2] = np.where(seed[:, 0::2] >= 0, place[seed[:, 0::2]], -1)
        return seed

    def _divisions(self, node: _Node) -> Iterator[Division]:
        """Yield divisions by operators and pairs for which the solution is not a schedule."""
        assert node.sets is not None and node.seconds is not None
        n = node.alive.shape[0]
        of = _members(node.sets, n)
        shared_s = of.T @ (of * node.seconds[:, None])
        run = np.diag(shared_s)
        mixed = (1.0 - self._share(node).max(axis=1)) * run
        mixed[node.alive.sum(axis=1) < 2] = 0.0
        least = 1e-6 * self.schedule.makespan_s
        for j in np.argsort(-mixed, kind="stable")[:LOOKED_AT].tolist():
            if mixed[j] > least:
                yield (j,)
        # If j overlaps an operator before c and one after c, it overlaps all of c.
        earlier = np.max(shared_s[:, :, None] * node.before[None], axis=1)
        later = np.max(shared_s[:, :, None] * node.before.T[None], axis=1)
        stops = np.minimum(np.minimum(earlier, later), run[None, :] - shared_s)
        undecided = ~(node.before | node.before.T | (node.never & node.never.T))
        stops = np.where(undecided, stops, 0.0)
        if max(stops.max(), mixed.max()) <= least:
            stops = np.where(undecided, np.minimum(run[:, None], run[None, :]), 0.0)
        for at in np.argsort(-stops, axis=None, kind="stable")[:LOOKED_AT].tolist():
            j, c = divmod(at, n)
            if stops[j, c] > least:
                yield (min(j, c), max(j, c))

    def _share(self, node: _Node) -> Floats:
        """Return the share of each operator run in each option, shape (operators, options)."""
        assert node.sets is not None and node.seconds is not None
        share = np.zeros(node.alive.shape)
        row, k = np.nonzero(node.sets[:, 0::2] >= 0)
        j, o = node.sets[row, 2 * k], node.sets[row, 2 * k + 1]
        np.add.at(share, (j, o), node.seconds[row] / self.problem.duration_s[j, o])
        return share

    def _split(self, node: _Node, j: int) -> Branches:
        """Return two branches: the faster options of j, or the slower ones."""
        options = np.flatnonzero(node.alive[j])
        options = options[np.argsort(self.problem.duration_s[j, options], kind="stable")]
        share = self._share(node)[j]
        gathered = np.cumsum(share[options])[:-1]
        at = int(np.argmin(np.abs(gathered - 0.5 * share.sum()))) + 1
        fast, slow = node.alive.copy(), node.alive.copy()
        fast[j, options[at:]] = False
        slow[j, options[:at]] = False
        return replace(node, alive=fast), replace(node, alive=slow)

    def _related(self, node: _Node, i: int, j: int) -> Branches:
        """Return the branches of a pair: i before j, j before i, or both overlap in time."""
        branches = []
        for first, then in ((i, j), (j, i)):
            if not node.never[first, then]:
                before = node.before.copy()
                before[first, then] = True
                branches.append(replace(node, before=before))
        never = node.never.copy()
        never[i, j] = never[j, i] = True
        return (*branches, replace(node, never=never))


def _members(sets: Ints, operators: int) -> Ints:
    """Return which operators are in which set."""
    of = np.zeros((sets.shape[0], operators + 1), np.int64)
    np.put_along_axis(of, np.where(sets[:, 0::2] >= 0, sets[:, 0::2], operators), 1, axis=1)
    return of[:, :operators]
