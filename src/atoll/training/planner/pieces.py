"""The expensive parts of a plan: bounds of a family, and estimates of the layouts of a variant.

A piece is a pure function from plain data to plain data (JSON), so a run's store can save it and
worker processes can compute it in advance (`executors.crew`). Bounds are millions of numbers that
are fast to compute, so they are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Floats, Ints
from atoll.step.layout import Layout
from atoll.step.stages import ChainWork
from atoll.training.batch.choices import bounds, figures
from atoll.training.batch.estimates import LEAST_CHOICE, LayoutSource, batch_estimates
from atoll.training.batch.sums import Sums
from atoll.training.estimate import Estimator
from atoll.training.operators.layers import recompute_choices
from atoll.training.planner.bounds.family_bounds import OPTIMAL, FamilyBounds
from atoll.training.planner.space import Axes, LayoutColumns, LayoutFamily, block_of
from atoll.training.run import Run

if TYPE_CHECKING:
    from atoll.answers.designs import Row

Singles = NDArray[np.float32]
PieceCall = tuple[Any, ...]
ROUNDING = 1e-9  # relative error of times and bytes: compiled sums add in another order
SINGLE = 1e-6  # relative error of bounds, which are stored in single precision
SAME = 1e-12  # relative difference below which "optimal" equals a named recomputation policy
AXES = [field.name for field in fields(Layout) if field.name != "blocks"]


class PlanPieces:
    """Pieces for the layouts of one run."""

    def __init__(
        self, run: Run, axes: Axes, estimator: Estimator | None = None, below_s: float = np.inf
    ) -> None:
        self.run, self.axes = run, axes
        self.below_s = below_s
        """Step seconds that a layout must stay below to be of interest."""
        self.estimator = estimator or Estimator(run)
        self._lower_bounds = self.estimator.lower_bounds()
        self._floor = FamilyBounds(self._lower_bounds, axes.recompute)
        self._blocks: dict[LayoutFamily, LayoutColumns] = {}
        self.kinds: dict[str, Callable[..., Any]]
        self.kinds = {"bounds": self._bounds, "least": self._least, "times": self._times}
        self.ask: Callable[..., Any] = self.make
        """`ask` computes a piece or loads it; `announce` receives the calls expected next."""
        self.announce: Callable[[Iterable[PieceCall]], None] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the run and the axes; another process starts without cached results."""
        return PlanPieces, (self.run, self.axes)

    @property
    def alone(self) -> bool:
        """Return whether pieces are computed directly, without a store or other processes."""
        return self.ask == self.make

    def make(self, kind: str, *args: Any, keep: bool = True) -> Any:
        return self.kinds[kind](*args)

    def block(self, family: LayoutFamily) -> LayoutColumns:
        """Return all layouts of a family, cached."""
        if family not in self._blocks:
            self._blocks[family] = block_of(self.run, self.axes, family)
        return self._blocks[family]

    def bounds(self, family: LayoutFamily) -> tuple[Singles, ...]:
        """Return lower bounds for the layouts of a family, three arrays of shape (layouts,): step
        seconds, bytes, and step seconds without "optimal" recomputation. Seconds are infinite
        where the layout does not fit.
        """
        bounds: tuple[Singles, ...] = self.ask(*bounds_call(family), keep=False)
        return bounds

    def _bounds(self, *family: Any) -> tuple[Singles, ...]:
        capacity = self.run.capacity_bytes * (1 + 3 * SINGLE)
        block = self.block(LayoutFamily(*family))
        bounds = self._floor.bounds(block, capacity, self.below_s)
        return tuple((bound * (1 - SINGLE)).astype(np.float32) for bound in bounds)

    def least_s(self, block: LayoutColumns, names: Sequence[str]) -> Floats:
        """Return lower bounds on the step seconds of layouts of one variant, shape (layouts,
        names), for each recomputation policy. "optimal" is bounded as if it recomputed nothing and
        kept the fewest bytes. Other policies without a pipeline are exact
        (`exact_without_pipeline`). Values are rounded down; infinite where a layout does not fit.
        """
        if self.alone:
            return self._least_s(block, names)
        return _from_json(self.ask(*least_call(block, names)))

    @property
    def exact_without_pipeline(self) -> bool:
        """Return whether `least_s` is exact for pp = 1; it is not on chips with schedules."""
        return self._lower_bounds is self.estimator

    def _least(self, names: Sequence[str], *block: Any) -> list[Any]:
        return _as_json(self._least_s(_layouts(*block), names))

    def _least_s(self, layouts: LayoutSource, names: Sequence[str]) -> Floats:
        choices = [LEAST_CHOICE if name == OPTIMAL else name for name in names]
        return self._figures(self._lower_bounds, layouts, choices, bounds)[0]

    def times_s(self, block: LayoutColumns, names: Sequence[str], limit_s: float) -> Floats:
        """Return the step seconds of layouts of one variant, shape (layouts, names), for each
        recomputation policy. Values are rounded down; infinite where a layout does not fit; the
        negative of a lower bound where a layout takes at least `limit_s`.
        """
        if self.alone:
            return self._times_s(block, names, limit_s)
        return _from_json(self.ask(*times_call(block, names, limit_s))["times_s"])

    def _times(self, limit_s: float | None, names: Sequence[str], *block: Any) -> dict[str, Any]:
        times_s = self._times_s(_layouts(*block), names, np.inf if limit_s is None else limit_s)
        return {"layouts": block, "policies": list(names), "times_s": _as_json(times_s)}

    def _times_s(self, layouts: LayoutSource, names: Sequence[str], limit_s: float) -> Floats:
        choices = named = tuple(name for name in names if name != OPTIMAL)
        if OPTIMAL in names:
            costs = self.estimator.costs(replace(layouts.layout(0), recompute=OPTIMAL))
            others = (x for x in recompute_choices(costs, OPTIMAL) if x not in named)
            choices = (*named, *others)
        limited = partial(figures, limit_s=limit_s, named=len(named))
        step_s, by_stage_s = self._figures(self.estimator, layouts, choices, limited)
        times_s = np.stack(
            [by_stage_s if x == OPTIMAL else step_s[:, choices.index(x)] for x in names], axis=1
        )
        if OPTIMAL in names:
            at = list(names).index(OPTIMAL)
            others_s = np.abs(np.delete(times_s, at, axis=1)).min(axis=1, initial=np.inf)
            times_s[others_s <= np.abs(by_stage_s) * (1 + SAME), at] = np.inf
        return times_s

    def _figures(
        self,
        costs: Estimator,
        layouts: LayoutSource,
        choices: Sequence[str],
        numbers: Callable[[Sums], tuple[Floats, Floats, Ints]],
    ) -> tuple[Floats, Floats]:
        """Return the step seconds per recomputation choice, shape (layouts, choices), and with the
        best choice per stage, shape (layouts,)."""
        step_s, bytes_ = batch_estimates(costs, layouts, choices, numbers)
        step_s[bytes_ * (1 - ROUNDING) > self.run.capacity_bytes] = np.inf
        step_s *= 1 - ROUNDING
        return step_s[:, :-1], step_s[:, -1]


def make_piece(pieces: PlanPieces, kind: str, *args: Any) -> Any:
    """Compute a piece; a module-level function, so other processes can call it."""
    return pieces.make(kind, *args)


def bounds_call(family: LayoutFamily) -> PieceCall:
    return "bounds", *astuple(family)


def least_call(block: LayoutColumns, names: Sequence[str]) -> PieceCall:
    columns = block.columns.tolist()
    return "least", tuple(names), astuple(block.family), block.schedules, block.chain, columns


def times_call(block: LayoutColumns, names: Sequence[str], limit_s: float) -> PieceCall:
    return "times", limit_s if limit_s < np.inf else None, *least_call(block, names)[1:]


def _layouts(
    family: Sequence[Any], schedules: Sequence[str], chain: Sequence[Any], columns: Any
) -> LayoutColumns:
    blocks, head_blocks, *weights = chain
    work = ChainWork(blocks, head_blocks, *map(tuple, weights))
    return LayoutColumns(LayoutFamily(*family), tuple(schedules), work, np.array(columns))


def _as_json(seconds: Floats) -> list[Any]:
    """Return nested lists with None for infinity, which JSON cannot represent."""
    return [[None if s == np.inf else s for s in row] for row in seconds.tolist()]


def _from_json(rows: Any) -> Floats:
    seconds = np.array(rows, dtype=np.float64)
    seconds[np.isnan(seconds)] = np.inf
    return seconds


def estimated_layouts(notes: Iterable[Any], global_batch: int) -> Iterator[Row]:
    """Yield one row per estimated layout and recomputation policy in a store."""
    for note in notes:
        record = note["value"]
        if not isinstance(record, Mapping):
            continue  # bounds
        block = _layouts(*record["layouts"])
        layouts = block.layouts(np.arange(len(block)), "none")
        for layout, row_s in zip(layouts, record["times_s"], strict=True):
            for policy, step_s in zip(record["policies"], row_s, strict=True):
                if step_s is not None and step_s >= 0:
                    recomputed = replace(layout, recompute=policy)
                    yield {
                        "score": global_batch / step_s,
                        "layout": str(recomputed),
                        "step_time_s": step_s,
                        **{axis: getattr(recomputed, axis) for axis in AXES},
                    }
