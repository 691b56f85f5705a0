"""The exact strategy: batches of chips, the most promising first, then tighter schedules where the
bound is still above the incumbent.

Tightening solves one node at a time, of the chip with the highest bound. With several workers, the
nodes most likely to be next are solved in advance.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.base.errors import InfeasibleError
from atoll.executors import TaskCall
from atoll.explore.proof.bound_checks import ROUNDING, check_step, chip_name
from atoll.explore.proof.branch_and_bound import Search, SearchOutcome
from atoll.explore.proof.journal import ChipEvaluation, EvaluationKey
from atoll.explore.proof.tasks import SolvedNode, solve_node
from atoll.hardware.product_space import CLOCK, ProductSpace
from atoll.hardware.space import DesignSpace
from atoll.schedule.solve import Effort

FIRST_BATCH = 16
LARGEST_BATCH = 4096
EFFORTS: tuple[Effort, ...] = ("linear", "bounded", "exact")
"""In rising order of cost, each about ten times the one before."""
FIRST_VALUES, FIRST_TOLERANCE = 5, 0.002
"""Values per list, and the tolerance, of the first search of a large space."""
FACTORS = (2.0, 1.25)  # ratios between a first design's values and those of its neighbours
MANY_OPEN = 12
"""With more open chips than this, the last effort is spent on the incumbent before the second on
others: a better incumbent rules chips out at once."""


def exact_search(search: Search) -> SearchOutcome:
    """Search until no chip can beat the best, or `search.stop`. With a score to beat from another
    search, there may be no best."""
    if isinstance(search.space, ProductSpace) and not search.score:
        begin(search, search.space)
    bound_all(search)
    tighten(search, 0.0)
    return search.outcome()


def bound_all(search: Search) -> None:
    """Bound and place all chips that their rooflines do not rule out."""
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
            # The search is long: close the gap down to the bound of the chips not bounded yet.
            tighten(search, search.best_waiting())


def begin(search: Search, space: ProductSpace) -> None:
    """Find a first incumbent of a large space: the best of a few values per list, then of far and
    near neighbours until none is better."""
    names = space.axes.names
    lists = [np.sort(values) for values in space.axes.lists()]
    spread = (np.linspace(0, len(values) - 1, FIRST_VALUES) for values in lists)
    indices = [np.unique(positions.round().astype(int)) for positions in spread]
    best, score = None, 0.0
    factors = iter(FACTORS)
    factor = next(factors)
    while not search.stop():
        chosen = (tuple(values[i].tolist()) for values, i in zip(lists, indices, strict=True))
        improved = _best_in_part(search, space.part(dict(zip(names, chosen, strict=True))), score)
        if improved is not None:
            best, score = improved
        elif best is None or (factor := next(factors, 1.0)) == 1.0:
            break
        best_values = space.values(best // len(search.memories))
        named = zip(lists, names, strict=True)
        indices = [_about(values, best_values[name], factor) for values, name in named]
    if best is not None:
        # A limit on power may leave a clock between that of the best and the next of the list.
        number, memory = divmod(best, len(search.memories))
        values = space.values(number)
        above = space.place(values | {CLOCK: np.nextafter(values.get(CLOCK, 0.0), np.inf)})
        places = {number, number if above is None else above}
        ids = [place * len(search.memories) + memory for place in sorted(places)]
        search.batch(np.array(list(search.bring(ids).values()), np.int64))


def _about(values: Floats, value: float, factor: float) -> Ints:
    """Return the indices of a value, its neighbours, value / factor and value * factor."""
    index, *scaled = np.searchsorted(values, [value, value / factor, value * factor])
    return np.unique(np.clip([index - 1, index, index + 1, *scaled], 0, len(values) - 1))


def _best_in_part(search: Search, space: ProductSpace, score: float) -> tuple[int, float] | None:
    """Return number and score of the best chip of a part, None where no chip beats `score`."""
    try:
        inputs = search.variants, search.setting, search.objective, FIRST_TOLERANCE
        part = Search(space.build(), *inputs, stop=search.stop)
        part.score = score
        bound_all(part)
    except InfeasibleError:
        return None
    if part.best is None:
        return None
    chip, chips = part.best, part.frontier.chips
    memory_options = part.memories[int(chips.memory[chip])]
    memory = next(i for i, options in enumerate(search.memories) if memory_options[0] in options)
    assert isinstance(part.space, DesignSpace) and isinstance(search.space, ProductSpace)
    place = search.space.place(part.space.values(int(chips.design[chip])))
    assert place is not None
    return place * len(search.memories) + memory, part.score


def tighten(search: Search, until: float) -> None:
    """Solve schedules until no chip's bound is above the incumbent or `until`."""
    sent: dict[EvaluationKey, TaskCall] = {}
    while search.score > 0.0 and len(search.scores) and not search.stop():
        search.crew.executor.consider()
        every = np.arange(len(search.scores))
        to_beat = search.to_beat(every)
        chip = int(np.argmax(search.promise(every)))
        if search.scores[chip] <= max(to_beat[chip], until):
            break
        left = search.scores > to_beat
        search.report("tightening", search.designs_of(left))
        target = _loosest(search, chip)
        if target is None:
            break
        key, model = target
        if key.effort == "bounded" and left.sum() > MANY_OPEN and search.best is not None:
            incumbent_target = _loosest(search, search.best)
            if incumbent_target is not None and incumbent_target[0].effort == "exact":
                chip, (key, model) = search.best, incumbent_target
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
    search: Search, chip: int, model: int, key: EvaluationKey, limit_s: float, solved: SolvedNode
) -> ChipEvaluation:
    """Return the chip's bounds and plans after the node is solved."""
    lower_s = search.frontier.lower_s[chip].copy()
    lower_s[key.variant] = max(lower_s[key.variant], solved.least_s)
    plans = dict(search.frontier.plans.get(chip, {}))
    search.schedules[key] = solved.schedules, limit_s
    division = solved.division
    if division is not None:
        name = chip_name(search.frontier.chips, chip)
        check_step(lower_s[key.variant], division.step_time_s, name, search.rule.names[key.variant])
        if model not in plans or division.step_time_s < plans[model].step_time_s:
            traffic = solved.hbm_bytes, solved.glb_bytes
            effort, limit = cast(Effort, key.effort), limit_s if np.isfinite(limit_s) else None
            planned = chip, key.variant, division, solved.pass_s, traffic, effort, limit
            plans[model] = search.evaluated_plan(*planned)
    return ChipEvaluation(lower_s, plans)


def _send(
    search: Search, chip: int, first: EvaluationKey, sent: dict[EvaluationKey, TaskCall]
) -> None:
    """Send the node that is needed now and those most likely needed next. Nodes sent with another
    limit are solved again, as in a single process."""
    crew = search.crew
    wanted = [(first, chip)]
    if crew.capacity > 1:
        open_ = np.flatnonzero(search.scores > search.threshold())
        ranked = open_[np.argsort(-search.scores[open_], kind="stable")]
        for next_chip in ranked[: crew.capacity + 1].tolist():
            target = None if next_chip == chip else _loosest(search, next_chip)
            if target is not None and search.journal.evaluation(target[0]) is None:
                wanted.append((target[0], next_chip))
    for key, target_chip in wanted:
        # The step that the chip must be shown not to beat; infinite for the incumbent.
        cutoff_s = float(search.cutoff_s(np.array([target_chip]))[0]) * (1.0 + ROUNDING)
        limit_s = np.inf if target_chip == search.best else cutoff_s
        if key in sent and sent[key].tag != limit_s:
            crew.drop([sent.pop(key)])
        free = crew.in_flight(sent.values()) < crew.capacity
        if key not in sent and (free or key == first):
            single_chip = search.frontier.chips.subset(np.array([target_chip]))
            arguments = (single_chip, key.variant, key.effort, limit_s)
            sent[key] = TaskCall(solve_node, arguments, tag=limit_s)
            crew.send(sent[key])


def _loosest(search: Search, chip: int) -> tuple[EvaluationKey, int] | None:
    """Return the key and model of the chip's lowest bound that can still be improved."""
    lower = search.frontier.lower_s[chip]
    for model, variants in enumerate(search.by_model):
        variant = int(variants[np.argmin(lower[variants])])
        plan = search.frontier.plans.get(chip, {}).get(model)
        if plan is not None and lower[variant] >= plan.step_time_s / (1.0 + search.tolerance):
            continue
        for effort in EFFORTS:
            key = EvaluationKey("tighten", int(search.frontier.ids[chip]), variant, effort)
            if key not in search.solved:
                return key, model
    return None
