"""What takes long in a search on a wafer, piece by piece.

A piece is a pure function of plain data with plain data (JSON) as its result: a run's store keeps
it, and workers may compute it ahead of its turn (`executors.pieces`). Each kind has a method that
asks for it and gives the search's own objects back. What a mapping costs is worked out again: that
is quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, astuple, replace
from typing import Any

from pydantic import JsonValue

from atoll.answers.wafer import Worth
from atoll.executors.copies import Ahead
from atoll.fabric.mesh import Link, Rectangle
from atoll.hardware.wafer import Wafer
from atoll.stopping import Asked
from atoll.wafer.anneal import anneal
from atoll.wafer.answer.explain import CHANGES, worth
from atoll.wafer.bounds.layer_bounds import LayerBounds, SizeBound
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.mapping import from_dict
from atoll.wafer.evaluate import Evaluation, evaluate
from atoll.wafer.others.baselines import Baseline, run_baseline
from atoll.wafer.staging.faults import Faults, map_around
from atoll.wafer.staging.stages import ROUGH, Options, Planner, rough

Call = tuple[Any, ...]


class Pieces:
    """Of one model on one wafer."""

    def __init__(
        self, wafer: Wafer, model: str, batch: int, sequence: int, options: Options,
        most_codes: int, stop: Asked,
    ) -> None:  # fmt: skip
        self._stop = stop
        self.wafer, self.options, self._asked = wafer, options, (wafer, model, batch, sequence)
        self.fine = Planner(*self._asked, options, most_codes, stop)
        few = rough(options)
        modes = (few, replace(few, streaming=False)) if options.streaming else (few,)
        self.rough = tuple(Planner(*self._asked, mode, most_codes, stop, ROUGH) for mode in modes)
        self._planners = (*self.rough, self.fine, self.rough[0].helping())
        """By the numbers under which they are asked."""
        shared = LayerBounds(self.rough)
        self._bounds = shared, LayerBounds((self.fine,), like=shared)
        self.kinds: dict[str, Callable[..., Any]] = {
            "fastest": lambda planner, *shape: self._planners[planner].fastest_s(*shape),
            "plan": self._plan,
            "whole": self._whole,
            "size": lambda overall, *size: self._bounds[overall].sharper(*size).to_dict(),
            "around": lambda dead, sizes: told(map_around(self.rough[0], Faults(*dead), sizes)),
            "baseline": self._baseline,
            "anneal": self._anneal,
            "worth": self._worth,
        }
        self.ask: Callable[..., Any] = self.make
        """Who is asked, and told of what may be asked for soon."""
        self.ahead: Callable[[Sequence[Call]], None] = lambda calls: None

    def make(self, kind: str, *args: Any) -> Any:
        return self.kinds[kind](*args)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """A search: a copy of this process makes what may be asked for soon, where nobody else is
        asked; whoever is asked need not go on with it afterwards.
        """
        if self.ask != self.make:
            try:
                yield
            finally:
                self.ahead(())
            return
        before = self.ask, self.ahead
        with closing(Ahead(self.make, self._stop)) as copy:
            self.ask, self.ahead = copy.ask, copy.ahead
            try:
                yield
            finally:
                self.ask, self.ahead = before

    def _evaluated(self, mapping: Any, dead_links: Sequence[Link] = ()) -> Evaluation | None:
        return None if mapping is None else evaluate(self.wafer, from_dict(mapping), dead_links)

    def _plan(
        self, planner: int, rectangles: Sequence[Call], microbatch: int, limit_s: float
    ) -> Any:
        laid = [Rectangle(*r) for r in rectangles]
        return told(self._planners[planner].anew().best(laid, microbatch, limit_s))

    def _whole(self, microbatch: int, limit_s: float) -> Any:
        """All dies as one group, over all codes that may be fast enough."""
        layers = make_block(self.fine.model, microbatch, self.fine.sequence).layers
        enough_s = limit_s / self.fine.rounds(microbatch) / layers
        fast = self._bounds[1].fast_splits(microbatch, self.wafer.dies, enough_s)
        laid = [Rectangle(0, 0, self.wafer.columns, self.wafer.rows)]
        return told(self.fine.among(fast).best(laid, microbatch, limit_s))

    def whole(self, microbatch: int, limit_s: float) -> Evaluation | None:
        """The best mapping of all dies as one group below the limit, over all codes."""
        return self._evaluated(self.ask("whole", microbatch, limit_s))

    def plan(
        self, planner: int, rectangles: Sequence[Rectangle], microbatch: int, limit_s: float
    ) -> Evaluation | None:
        """The best mapping on these rectangles that a planner finds below the limit."""
        return self._evaluated(self.ask(*plan_call(planner, rectangles, microbatch, limit_s)))

    def size(
        self, overall: bool, microbatch: int, dies: int, level: int, enough_s: float
    ) -> SizeBound:
        """A sharper bound of stages of so many dies."""
        asked = overall, microbatch, dies, level, enough_s
        return SizeBound.from_dict(self.ask("size", *asked))

    def around(self, faults: Faults, microbatches: Sequence[int]) -> Evaluation | None:
        """The best mapping that leaves the dead out."""
        found = self.ask("around", (faults.dies, faults.links), tuple(microbatches))
        return self._evaluated(found, faults.all_links(self.wafer))

    def _baseline(self, name: str) -> Any:
        return _plain(run_baseline(name, *self._asked, self.options.states.name))

    def baseline(self, name: str) -> Baseline | None:
        """What another method would do here."""
        return self._known(self.ask("baseline", name))

    def _known(self, plain: Any) -> Baseline | None:
        if plain is None:
            return None
        more = {
            "evaluation": self._evaluated(plain["evaluation"]),
            "fixed": self._known(plain["fixed"]),
        }
        return Baseline(**plain | more)

    def _anneal(self, mapping: Any, seed: int, dead_links: Sequence[Link]) -> Any:
        start = evaluate(self.wafer, from_dict(mapping), dead_links)
        return told(anneal(self.wafer, start, seed, dead_links, self.options.homes))

    def annealed(self, start: Evaluation, seed: int, dead_links: Sequence[Link]) -> Evaluation:
        """What random moves make of a mapping."""
        found = self.ask("anneal", told(start), seed, tuple(dead_links))
        return evaluate(self.wafer, from_dict(found), dead_links)

    def _worth(self, resource: str, mapping: Any, dead_links: Sequence[Link]) -> Any:
        start = evaluate(self.wafer, from_dict(mapping), dead_links)
        found = worth(resource, self.wafer, start, self.rough[0].options, dead_links)
        return None if found is None else asdict(found)

    def explained(self, best: Evaluation, dead_links: Sequence[Link]) -> tuple[Worth, ...]:
        """What a little more of each resource is worth."""
        calls = [("worth", name, told(best), tuple(dead_links)) for name in CHANGES]
        self.ahead(calls)
        return tuple(Worth(**row) for call in calls if (row := self.ask(*call)) is not None)


def _plain(found: Baseline | None) -> Any:
    if found is None:
        return None
    return vars(found) | {"evaluation": told(found.evaluation), "fixed": _plain(found.fixed)}


def told(found: Evaluation | None) -> JsonValue:
    """A mapping as plain data."""
    return None if found is None else found.mapping.to_dict()


def plan_call(
    planner: int, rectangles: Sequence[Rectangle], microbatch: int, limit_s: float
) -> Call:
    return "plan", planner, [astuple(r) for r in rectangles], microbatch, limit_s
