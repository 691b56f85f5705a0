"""The exact strategy: batches of chips, the most promising first, then more effort where the proof
needs it, for schedules that keep the bound above the incumbent.

There it goes one node after the other, always that of the chip with the highest bound. Where there
are several workers, the nodes that will most likely be next are solved ahead of their turn.
"""

from __future__ import annotations

import numpy as np

from atoll.arrays import FloatArray, IntArray
from atoll.errors import InfeasibleError
from atoll.executors import Call
from atoll.explore.proof.branch_and_bound import Outcome, Search
from atoll.explore.proof.journal import Evaluation, Key
from atoll.explore.proof.order import ROUNDING, check_step, chip_name
from atoll.explore.proof.tasks import Solved, solve_node
from atoll.hardware.product import ProductSpace
from atoll.hardware.space import Space
from atoll.schedule.solve import Effort

FIRST_BATCH = 16
LARGEST_BATCH = 4096
EFFORTS: tuple[Effort, ...] = ("linear", "bounded", "exact")
"""The first rules most chips out, at a tenth of the cost of the second; so is the second's of the
third's."""
FEW, ROUGHLY = 5, 0.002
"""Values of each list, and a tolerance, with which a large space is looked at first."""
FACTORS = (2.0, 1.25)
"""How far neighbours of a first design reach."""
MANY = 12
"""With more chips open than this, the last effort is worth its cost on the incumbent before the
second is spent on others: a better incumbent rules chips out at once."""


def exact_search(search: Search) -> Outcome:
    """Until no chip is left that could beat the best, or the search has to end. With a score to
    beat from elsewhere, there may be no best.
    """
    if isinstance(search.space, ProductSpace) and not search.score:
        begin(search, search.space)
    bound_all(search)
    tighten(search, 0.0)
    return search.outcome()


def bound_all(search: Search) -> None:
    """Schedule bounds and placements of all chips that rooflines leave a chance."""
    size = FIRST_BATCH
    while not search.stop():
        search.crew.executor.consider()
        search.admit(size)
        fresh = (search.frontier.stage == 0) & (search.scores > search.threshold())
        if not fresh.any():
            break
        search.report("bounding", search.designs_of(fresh))
        ranked = np.flatnonzero(fresh)
        search.batch(ranked[np.argsort(-search.scores[ranked], kind="stable")][:size])
        size = min(4 * size, LARGEST_BATCH)
        if search.reserve is not None:
            # The way is long: close the gap as far as the chips that wait allow.
            tighten(search, search.best_waiting())


def begin(search: Search, space: ProductSpace) -> None:
    """A design to hold a large space against from the start: the best of a few values of each list,
    then of those about it, far and near, until none is better.
    """
    names = space.axes.names
    lists = [np.sort(values) for values in space.axes.lists()]
    places = [np.unique(np.linspace(0, len(own) - 1, FEW).round().astype(int)) for own in lists]
    best, score = None, 0.0
    factors = iter(FACTORS)
    factor = next(factors)
    while not search.stop():
        chosen = [tuple(own[at].tolist()) for own, at in zip(lists, places, strict=True)]
        found = _best_of(search, space.part(dict(zip(names, chosen, strict=True))), score)
        if found is not None:
            best, score = found
        elif best is None or (factor := next(factors, 1.0)) == 1.0:
            break
        values = space.values(best // len(search.memories))
        places = [_about(own, values[name], factor) for own, name in zip(lists, names, strict=True)]
    if best is not None:
        search.batch(np.array(list(search.bring([best]).values()), np.int64))


def _about(values: FloatArray, value: float, factor: float) -> IntArray:
    """Places of a value, its neighbours, and so many times less and more: with less of one
    parameter there is room for more of another.
    """
    at, *scaled = np.searchsorted(values, [value, value / factor, value * factor])
    return np.unique(np.clip([at - 1, at, at + 1, *scaled], 0, len(values) - 1))


def _best_of(search: Search, space: ProductSpace, score: float) -> tuple[int, float] | None:
    """The number of the best chip of a part of the space, roughly, and its score; none where none
    beats that score.
    """
    try:
        part = Search(
            space.build(),
            search.variants,
            search.setting,
            search.objective,
            ROUGHLY,
            stop=search.stop,
        )
        part.score = score
        bound_all(part)
    except InfeasibleError:
        return None
    if part.best is None:
        return None
    chip, chips = part.best, part.frontier.chips
    own = part.memories[int(chips.memory[chip])]
    memory = next(i for i, options in enumerate(search.memories) if own[0] in options)
    assert isinstance(part.space, Space) and isinstance(search.space, ProductSpace)
    place = search.space.place(part.space.values(int(chips.design[chip])))
    return place * len(search.memories) + memory, part.score


def tighten(search: Search, until: float) -> None:
    """Solve schedules until no chip's bound is above the incumbent, or above `until`."""
    sent: dict[Key, Call] = {}
    while search.score > 0.0 and len(search.scores) and not search.stop():
        search.crew.executor.consider()
        chip = int(np.argmax(search.scores))
        if search.scores[chip] <= max(search.threshold(), until):
            break
        left = search.scores > search.threshold()
        search.report("tightening", search.designs_of(left))
        target = _loosest(search, chip)
        if target is None:
            break
        if target[0].effort == "bounded" and left.sum() > MANY and search.best is not None:
            own = _loosest(search, search.best)
            if own is not None and own[0].effort == "exact":
                chip, target = search.best, own
        key, model = target
        search.solved.add(key)
        stored = search.journal.evaluation(key)
        if stored is not None:
            search.apply(chip, stored)
            continue
        _send(search, chip, key, sent)
        call = sent.pop(key)
        solved = search.crew.result(call)
        if solved is None:
            search.solved.discard(key)
            break
        search.finish(chip, key, _after(search, chip, model, key, call.tag, solved))
    search.crew.drop(sent.values())


def _after(
    search: Search, chip: int, model: int, key: Key, limit_s: float, solved: Solved
) -> Evaluation:
    """The chip's bounds and plans once the node is solved."""
    row = search.frontier.lower_s[chip].copy()
    row[key.variant] = max(row[key.variant], solved.least_s)
    found = dict(search.frontier.found.get(chip, {}))
    search.schedules[key] = solved.schedules, limit_s
    division = solved.division
    if division is not None:
        name = chip_name(search.frontier.chips, chip)
        check_step(row[key.variant], division.step_time_s, name, search.rule.names[key.variant])
        if model not in found or division.step_time_s < found[model].step_time_s:
            traffic = solved.hbm_bytes, solved.glb_bytes
            effort = next(effort for effort in EFFORTS if effort == key.effort)
            limit = limit_s if np.isfinite(limit_s) else None
            found[model] = search.plan_found(
                chip, key.variant, division, solved.pass_s, traffic, effort, limit
            )
    return Evaluation(row, found)


def _limit_s(search: Search, chip: int) -> float:
    """The step that a chip has to be shown not to beat: a little more than the proof asks for, as
    rounding must not undo it. Schedules of the incumbent are solved for their own sake.
    """
    if chip == search.best:
        return np.inf
    return float(search.cutoff_s(np.array([chip]))[0]) * (1.0 + ROUNDING)


def _send(search: Search, chip: int, first: Key, sent: dict[Key, Call]) -> None:
    """Begin the node that is needed now, and what will most likely be needed next. What was sent
    against another limit is solved again: so it is in one process alone.
    """
    crew = search.crew
    wanted = [(first, chip)]
    if crew.room > 1:
        open_ = np.flatnonzero(search.scores > search.threshold())
        ranked = open_[np.argsort(-search.scores[open_], kind="stable")]
        for other in ranked[: crew.room + 1].tolist():
            target = None if other == chip else _loosest(search, other)
            if target is not None and search.journal.evaluation(target[0]) is None:
                wanted.append((target[0], other))
    for key, at in wanted:
        limit_s = _limit_s(search, at)
        if key in sent and sent[key].tag != limit_s:
            crew.drop([sent.pop(key)])
        free = crew.in_flight(sent.values()) < crew.room
        if key not in sent and (free or key == first):
            alone = search.frontier.chips.subset(np.array([at]))
            arguments = (alone, key.variant, key.effort, limit_s)
            sent[key] = Call(solve_node, arguments, tag=limit_s)
            crew.send(sent[key])


def _loosest(search: Search, chip: int) -> tuple[Key, int] | None:
    """The chip's model and variant whose bound is the lowest and can still be improved."""
    lower = search.frontier.lower_s[chip]
    for model, own in enumerate(search.by_model):
        v = int(own[np.argmin(lower[own])])
        known = search.frontier.found.get(chip, {}).get(model)
        if known is not None and lower[v] >= known.step_time_s / (1.0 + search.tolerance):
            continue
        for effort in EFFORTS:
            key = Key("tighten", int(search.frontier.ids[chip]), v, effort)
            if key not in search.solved:
                return key, model
    return None
