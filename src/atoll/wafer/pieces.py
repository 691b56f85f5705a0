"""The expensive computations of a wafer search, as pieces.

A piece is a pure function from plain data to plain data (JSON): a run's store keeps its result, and
workers may compute it early (`executors.crew`). Each kind has a method that requests it and
returns the search's objects. Mappings are evaluated again, which is quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, fields
from typing import Any

from atoll.answers.wafer import ResourceWorth
from atoll.base.stopping import StopCheck
from atoll.fabric.mesh import Link, Rectangle
from atoll.hardware.wafer import Wafer
from atoll.wafer.answer.explain import CHANGES, worth
from atoll.wafer.baselines import WaferBaseline, run_baseline
from atoll.wafer.bounds.layer_bounds import LayerBounds, SizeBound
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.mapping import from_dict
from atoll.wafer.evaluate import MappingCost, evaluate
from atoll.wafer.staging.faults import Faults, map_around
from atoll.wafer.staging.planner import ROUGH, Planner, WaferOptions, rough

Call = tuple[Any, ...]


class WaferPieces:
    """Pieces of one model on one wafer."""

    def __init__(
        self, wafer: Wafer, model: str, batch: int, sequence: int, options: WaferOptions,
        most_codes: int, stop: StopCheck,
    ) -> None:  # fmt: skip
        self.wafer, self.options, self._problem = wafer, options, (wafer, model, batch, sequence)
        self.planner = Planner(*self._problem, options, most_codes, stop)
        self._rough = Planner(*self._problem, rough(options), most_codes, stop, ROUGH)
        """Maps around faults, with only the variables that matter most."""
        self._bounds = LayerBounds(self.planner)
        self.kinds: dict[str, Callable[..., Any]] = {
            "fastest": self.planner.fastest_s,
            "plan": self._plan,
            "whole": self._single_group,
            "size": self._bounds.sharper,
            "around": self._around,
            "baseline": self._baseline,
            "worth": self._worth,
        }
        self.ask: Callable[..., Any] = self.make
        """Computes a piece; `prefetch` receives pieces likely to be requested soon."""
        self.prefetch: Callable[[Iterable[Call]], None] = lambda calls: None

    def make(self, kind: str, *args: Any) -> Any:
        return plain_data(self.kinds[kind](*args))

    def _evaluated(self, mapping: Any, dead_links: Sequence[Link] = ()) -> MappingCost | None:
        return None if mapping is None else evaluate(self.wafer, from_dict(mapping), dead_links)

    def _plan(
        self, rectangles: Sequence[Call], microbatch: int, limit_s: float,
        dead_links: Sequence[Link] = (),
    ) -> MappingCost | None:  # fmt: skip
        stages = [Rectangle(*r) for r in rectangles]
        return self.planner.without_solutions().best(stages, microbatch, limit_s, dead_links)

    def _around(self, dead: Call, microbatches: Sequence[int]) -> MappingCost | None:
        return map_around(self._rough, Faults(*dead), microbatches)

    def _single_group(self, microbatch: int, limit_s: float) -> MappingCost | None:
        """Solve all dies as one group, over all codes that may be fast enough."""
        layers = make_block(self.planner.model, microbatch, self.planner.sequence).layers
        enough_s = limit_s / self.planner.rounds(microbatch) / layers
        fast = self._bounds.fast_splits(microbatch, self.wafer.dies, enough_s)
        wafer_rectangle = [Rectangle(0, 0, self.wafer.columns, self.wafer.rows)]
        return self.planner.with_splits(fast).best(wafer_rectangle, microbatch, limit_s)

    def single_group(self, microbatch: int, limit_s: float) -> MappingCost | None:
        """Return the best mapping of all dies as one group below the limit, over all codes."""
        return self._evaluated(self.ask("whole", microbatch, limit_s))

    def plan(
        self, rectangles: Sequence[Rectangle], microbatch: int, limit_s: float
    ) -> MappingCost | None:
        """Return the best mapping below the limit on these rectangles."""
        return self._evaluated(self.ask(*plan_call(rectangles, microbatch, limit_s)))

    def freed(self, start: MappingCost, dead_links: Sequence[Link]) -> MappingCost:
        """Solve the stages of a mapping again with every variable free; return the faster one."""
        rectangles = [stage.rectangle for stage in start.mapping.stages]
        call = plan_call(rectangles, start.mapping.microbatch, start.step_s)
        cost = self._evaluated(self.ask(*call, tuple(dead_links)), dead_links)
        return start if cost is None or start.step_s <= cost.step_s else cost

    def size(self, microbatch: int, dies: int, level: int, enough_s: float) -> SizeBound:
        """Return a sharper bound for stages of `dies` dies."""
        return SizeBound.from_dict(self.ask("size", microbatch, dies, level, enough_s))

    def around(self, faults: Faults, microbatches: Sequence[int]) -> MappingCost | None:
        """Return the best mapping that avoids faulty dies and links."""
        mapping = self.ask("around", (faults.dies, faults.links), tuple(microbatches))
        return self._evaluated(mapping, faults.all_links(self.wafer))

    def _baseline(self, name: str) -> WaferBaseline | None:
        optimizer, stop = self.options.states.name, self.planner.stop
        return run_baseline(name, *self._problem, optimizer, stop)

    def baseline(self, name: str) -> WaferBaseline | None:
        """Return the best mapping of a published method."""
        return self._from_record(self.ask("baseline", name))

    def _from_record(self, record: Any) -> WaferBaseline | None:
        if record is None:
            return None
        evaluation = self._evaluated(record["evaluation"])
        fixed = self._from_record(record["fixed"])
        return WaferBaseline(**record | {"evaluation": evaluation, "fixed": fixed})

    def _worth(
        self, resource: str, mapping: Any, dead_links: Sequence[Link]
    ) -> ResourceWorth | None:
        start = evaluate(self.wafer, from_dict(mapping), dead_links)
        return worth(resource, self.wafer, start, self._rough.options, dead_links)

    def explained(self, best: MappingCost, dead_links: Sequence[Link]) -> tuple[ResourceWorth, ...]:
        """Return the gain of a little more of each resource."""
        calls = [("worth", name, plain_data(best), tuple(dead_links)) for name in CHANGES]
        self.prefetch(calls)
        return tuple(ResourceWorth(**row) for call in calls if (row := self.ask(*call)) is not None)


def plain_data(value: Any) -> Any:
    """Return the result of a piece as plain data; of an evaluated mapping, the mapping."""
    if isinstance(value, MappingCost):
        return value.mapping.to_dict()
    if isinstance(value, SizeBound):
        return value.to_dict()
    if isinstance(value, WaferBaseline | ResourceWorth):
        return {field.name: plain_data(getattr(value, field.name)) for field in fields(value)}
    return value


def plan_call(rectangles: Sequence[Rectangle], microbatch: int, limit_s: float) -> Call:
    return "plan", [astuple(r) for r in rectangles], microbatch, limit_s
