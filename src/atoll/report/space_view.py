"""Every chip of the space for the report: its score, or an upper bound on it.

Evaluated designs come from the store. All others were ruled out by a bound: the strongest recorded
one is drawn and marked as a bound. Columns are packed: short lists of values as one byte per value,
the others as 32-bit floats.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.answers.designs import ShownParameter
from atoll.answers.search import SearchAnswer
from atoll.base.errors import AtollError
from atoll.explore.answer.scope import open_space
from atoll.explore.prepare import make_objective, prepare_search
from atoll.explore.proof.branch_and_bound import Search
from atoll.front import ScriptData
from atoll.hardware.space import DesignSpace
from atoll.questions import SearchQuestion
from atoll.store import RunReader

PLAN_COLUMNS = ("hbm_capacity_bytes", "microbatch", "tensor", "pipeline", "data")
ROOFLINE, SCHEDULE, PLACEMENT, EVALUATED = 0, 1, 2, 3
"""State of a chip: the bound that ruled it out, or evaluated."""
MOST_POINTS = 40_000
"""Chips drawn at most; of a larger space only the best evaluated designs are drawn."""


@dataclass(frozen=True)
class Points:
    """Columns of a scatter plot."""

    shown: Sequence[ShownParameter]
    """The parameters of the chips: name, label, unit."""
    parameters: Mapping[str, NDArray[np.float64]]
    """Values of the chip parameters and of the plans."""
    score: NDArray[np.float64]
    state: NDArray[np.uint8]
    figures: Mapping[str, NDArray[np.float64]]
    """Area and peak power; running power and energy per token of evaluated designs."""
    total: int
    note: str = ""

    def packed(self) -> ScriptData:
        """Return the columns as 32-bit floats and bytes (base64)."""
        return {
            "count": len(self.score),
            "total": self.total,
            "note": self.note,
            "shown": self.shown,
            "parameters": {name: _coded_column(v) for name, v in self.parameters.items()},
            "score": _packed_floats(self.score),
            "state": _packed_bytes(self.state),
            "figures": {name: _packed_floats(v) for name, v in self.figures.items()},
        }


def space_points(folder: Path | None, answer: SearchAnswer) -> Points | None:
    """Return all chips of a search's space; None if there is nothing to draw."""
    stored, search, why = None if folder is None else _read_store(folder, answer), None, ""
    try:
        search = _open_search(answer)
    except AtollError as error:
        why = str(error)
    if search is not None:
        return _all_chips(search, stored, answer)
    return None if stored is None else _evaluated_designs(stored, why)


@dataclass(frozen=True)
class _StoredRun:
    designs: Sequence[Mapping[str, float]]
    bounds: Mapping[int, float]
    placed_s: Sequence[tuple[int, bytes]]
    total: int
    parameters: Sequence[ShownParameter]


def _read_store(folder: Path, answer: SearchAnswer) -> _StoredRun | None:
    try:
        with RunReader(folder) as reader:
            designs = reader.designs(limit=MOST_POINTS)
            rows = cast(Sequence[Mapping[str, float]], designs)  # their numbers
            total = answer.certificate.architectures
            parameters = [p for p in reader.parameters if p.name not in PLAN_COLUMNS]
            if total > MOST_POINTS:
                return _StoredRun(rows, {}, (), total, parameters)
            placed_bounds = list(reader.placed_bounds_s())
            return _StoredRun(rows, reader.bound_scores(), placed_bounds, total, parameters)
    except AtollError:
        return None


def _open_search(answer: SearchAnswer) -> Search | None:
    """Return the search with the roofline of every chip; None if the space is too large."""
    job = SearchQuestion.from_dict(answer.job)
    space = open_space(job)[0]
    if not isinstance(space, DesignSpace) or len(space) > MOST_POINTS:
        return None
    setting, variants = prepare_search(job)
    return Search(space, variants, setting, make_objective(job, space, setting, variants), 0.0)


def _all_chips(search: Search, stored: _StoredRun | None, answer: SearchAnswer) -> Points:
    space = search.space
    assert isinstance(space, DesignSpace)
    count = len(space)
    chips = search.frontier.chips
    score = np.zeros(count)
    state = np.zeros(count, np.uint8)
    bounds, bound_kinds = _strongest_bounds(search, stored)
    np.maximum.at(score, chips.design, np.where(np.isfinite(bounds), bounds, 0.0))
    np.maximum.at(state, chips.design, bound_kinds)
    area = np.full(count, np.inf)
    np.minimum.at(area, chips.design, chips.area_mm2)  # HBM interfaces included
    sparse_names = ("power_W", "energy_per_token_J", *PLAN_COLUMNS)
    sparse = {name: np.full(count, np.nan) for name in sparse_names}
    stale = 0
    for row in stored.designs if stored is not None else ():
        design = int(row["design"])
        if design >= count or not _is_unchanged(space, design, row):
            stale += 1
            continue
        if state[design] == EVALUATED and score[design] >= row["score"]:
            continue
        state[design], score[design] = EVALUATED, row["score"]
        area[design] = row["area_mm2"]
        for name, values in sparse.items():
            values[design] = row[name] if row[name] is not None else np.nan
    note = "" if stored is not None else "No store beside the result: only bounds are drawn."
    if stale:
        note = f"The space has changed since the search: {stale:,} of its designs are left out."
    varied = [p for p in space.template.parameters if len(np.unique(space.columns[p.name])) > 1]
    return Points(
        shown=[ShownParameter(**parameter.to_dict()) for parameter in varied],
        parameters={p.name: np.asarray(space.columns[p.name], np.float64) for p in varied}
        | {name: sparse[name] for name in PLAN_COLUMNS},
        score=score,
        state=state,
        figures={
            "area_mm2": area,
            "peak_power_W": space.peak_power_with(space.hbm_options[0]),
            "power_W": sparse["power_W"],
            "energy_per_token_J": sparse["energy_per_token_J"],
        },
        total=answer.certificate.architectures,
        note=note,
    )


def _strongest_bounds(
    search: Search, stored: _StoredRun | None
) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Return per chip the lowest upper bound on its score, and the kind of that bound."""
    bounds = search.scores.copy()
    bound_kinds = np.full(len(bounds), ROOFLINE, np.uint8)
    if stored is None:
        return bounds, bound_kinds
    position_by_chip = {int(chip): position for position, chip in enumerate(search.frontier.ids)}
    for chip, score in stored.bounds.items():
        if chip in position_by_chip:
            position = position_by_chip[chip]
            bounds[position], bound_kinds[position] = min(bounds[position], score), SCHEDULE
    for chip, raw in stored.placed_s:
        row = np.frombuffer(raw, np.dtype("<f8"))
        if chip in position_by_chip and len(row) == search.frontier.lower_s.shape[1]:
            position = position_by_chip[chip]
            score = float(search.rule.scores(row[None, :])[0] / search.frontier.price[position])
            bounds[position], bound_kinds[position] = min(bounds[position], score), PLACEMENT
    return bounds, bound_kinds


def _is_unchanged(space: DesignSpace, design: int, row: Mapping[str, float]) -> bool:
    """Return whether the design of this number in the space equals the stored one."""
    return all(value == row.get(name) for name, value in space.values(design).items())


def _evaluated_designs(stored: _StoredRun, why: str) -> Points:
    """Return evaluated designs only: the space is too large, or its files are missing."""

    def column(name: str) -> NDArray[np.float64]:
        return np.array([row[name] for row in stored.designs], np.float64)  # None becomes NaN

    drawn = len(stored.designs)
    note = f"Of {stored.total:,} chips the {drawn:,} best evaluated designs are drawn."
    names = [parameter.name for parameter in stored.parameters]
    return Points(
        shown=stored.parameters,
        parameters={name: column(name) for name in (*names, *PLAN_COLUMNS)},
        score=column("score"),
        state=np.full(drawn, EVALUATED, np.uint8),
        figures={n: column(n) for n in ("area_mm2", "power_W", "energy_per_token_J")},
        total=stored.total,
        note=f"{note} {why}".strip(),
    )


# --- Packing --------------------------------------------------------------------------------------


def _coded_column(values: NDArray[np.float64]) -> ScriptData:
    """Return distinct values and the index per point, of one byte or two (wide); the highest means
    no value."""
    distinct = np.unique(values[~np.isnan(values)])
    wide = len(distinct) > 254
    kind = np.dtype("<u2") if wide else np.dtype("u1")
    none = np.iinfo(kind).max
    place = np.where(np.isnan(values), none, np.searchsorted(distinct, values)).astype(kind)
    return {"values": distinct.tolist(), "wide": wide, "places": _packed_bytes(place)}


def _packed_floats(values: ArrayLike) -> str:
    return _packed_bytes(np.asarray(values, np.dtype("<f4")))


def _packed_bytes(values: NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")
