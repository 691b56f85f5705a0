"""The search for the best mapping on one wafer, with a bound on everything it did not try.

Candidates are (microbatch, shape of a stage's rectangle, number of stages), best bound first:

    step >= (M - 1) x ceil(layers / p) x t + layers x t,    t = a layer on that shape at its fastest

with t from the exact part (or, for shapes with very many codes, from peak rates). A candidate
whose bound is no better than the best mapping known is never solved. The bound on all mappings,
whatever their tiling of the wafer, is work over dies:

    step >= M x layers x min over shapes (dies of the shape x t) / dies of the wafer
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from atoll.cost.vector import operations_per_element
from atoll.errors import InfeasibleError
from atoll.units import format_bytes
from atoll.wafer.block import make_block
from atoll.wafer.digits import digit_systems
from atoll.wafer.evaluate import Evaluation, evaluate
from atoll.wafer.faults import Faults, map_around
from atoll.wafer.pricing import pricer
from atoll.wafer.stages import INFINITY, Options, Planner, snake
from atoll.wafer.tables import STATE_BYTES, legal_codes
from atoll.wafer.template import Wafer

MICROBATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
MANY_CODES = 300  # shapes with more codes an operator are bounded, not solved
QUICK_CODES = 100  # the same when many wafers are compared
MOST_SOLVED = 16  # candidates solved on one wafer; the bound covers the others
QUICK_SOLVED = 6  # the same, of those that fit, when many wafers are compared

Progress = Callable[[str, int, int, float, float], None]


@dataclass(frozen=True, order=True)
class Candidate:
    bound_s: float
    microbatch: int
    width: int
    height: int
    stages: int


@dataclass(frozen=True)
class Found:
    """The best mapping on a wafer and how good it is."""

    best: Evaluation
    bound_s: float
    """No mapping of the encoding on this wafer has a shorter step."""
    candidates: int
    solved: int
    pruned: int
    runners_up: tuple[Evaluation, ...] = field(default=())

    @property
    def gap(self) -> float:
        return max(0.0, 1.0 - self.bound_s / self.best.step_s)


def _by_bound(pair: tuple[Planner, float]) -> float:
    return pair[1]


class WaferSearch:
    """One model on one wafer."""

    def __init__(
        self, wafer: Wafer, model: str, batch: int, sequence: int, options: Options | None = None,
        microbatches: Sequence[int] = MICROBATCHES, progress: Progress | None = None,
        most_codes: int = MANY_CODES, accept: Callable[[Candidate], bool] | None = None,
    ) -> None:  # fmt: skip
        self.accept = accept
        self.most_codes = most_codes
        self.wafer, self.model, self.batch, self.sequence = wafer, model, batch, sequence
        chosen = options or Options()
        self.planners = (Planner(wafer, model, batch, sequence, chosen),)
        self.planner = self.planners[0]
        self.microbatches = tuple(b for b in microbatches if b <= batch)
        self.progress = progress
        self._bounds: dict[tuple[int, int, int], tuple[float, ...]] = {}
        self._free: dict[tuple[int, int, int], float] = {}
        self._ideal: dict[int, float] = {}

    # -- bounds --------------------------------------------------------------------------------

    def ideal_layer_s(self, microbatch: int, dies: int) -> float:
        """A layer's products at peak rate (masked attention tiles are not computed), then its
        vector passes on all lanes or at full memory bandwidth.
        """
        if microbatch not in self._ideal:
            self._ideal[microbatch] = self._ideal_die_s(microbatch)
        return self._ideal[microbatch] / dies

    def _ideal_die_s(self, microbatch: int) -> float:
        block = make_block(self.model, microbatch, self.sequence)
        flops = sum(
            item.matmul.flops * item.matmul.fraction
            for unit in block.units
            for items in (unit.forward, unit.data_gradient, unit.weight_gradient)
            for item in items
        )
        passes = [p for chain in block.chains for p in (*chain.entry_passes, *chain.stream_passes)]
        passes += [
            p
            for unit in block.units
            if not unit.on_chip
            for p in (*unit.forward_passes, *unit.backward_passes)
        ]
        price = pricer(self.wafer.chip)
        chip = self.wafer.chip
        lanes = chip.vector_cores * chip.vector_width * chip.clock_Hz
        vectors = sum(
            max(
                p.work.elements * operations_per_element(p.work.function, "default") / lanes,
                p.bytes / price.chip.hbm.bandwidth_Bps,
            )
            for p in passes
        )
        return float(flops) / self.wafer.core.peak_flops + vectors

    def layer_bounds_s(self, width: int, height: int, microbatch: int) -> tuple[float, ...]:
        """No layer on this shape takes less: one bound for each planner."""
        key = width, height, microbatch
        if key not in self._bounds:
            self._bounds[key] = tuple(p.fastest_s(*key) for p in self.planners)
            self._free[key] = min(p.free_bound_s(*key) for p in self.planners)
        return self._bounds[key]

    def _too_many(self, width: int, height: int, microbatch: int) -> bool:
        block = make_block(self.model, microbatch, self.sequence)
        digits = digit_systems(width, height)[0]
        if 3**digits.count > self.most_codes:
            return True
        return any(len(legal_codes(u.sizes, digits)) > self.most_codes for u in block.units)

    def step_bound_s(self, layer_s: float, microbatch: int, stages: int) -> float:
        layers = make_block(self.model, microbatch, self.sequence).layers
        rounds = self.planner.rounds(microbatch)
        return (rounds - 1) * -(-layers // stages) * layer_s + layers * layer_s

    def candidates(self) -> list[Candidate]:
        """All of them under the ideal bound."""
        found = []
        rows, columns = self.wafer.rows, self.wafer.columns
        for microbatch in self.microbatches:
            layers = make_block(self.model, microbatch, self.sequence).layers
            for width in range(1, columns + 1):
                for height in range(1, rows + 1):
                    most = min(layers, (columns // width) * (rows // height))
                    ideal = self.ideal_layer_s(microbatch, width * height)
                    for stages in range(1, most + 1):
                        bound = self.step_bound_s(ideal, microbatch, stages)
                        found.append(Candidate(bound, microbatch, width, height, stages))
        return sorted(c for c in found if self.accept is None or self.accept(c))

    # -- the search ----------------------------------------------------------------------------

    def ideal_step_s(self) -> float:
        """Work over dies at peak rates: a bound that needs no solving."""
        return min(
            self.planner.rounds(b)
            * make_block(self.model, b, self.sequence).layers
            * self.ideal_layer_s(b, self.wafer.dies)
            for b in self.microbatches
        )

    def run(self, seeds: Sequence[Evaluation] = ()) -> Found:
        """`seeds` are mappings known already (baselines are points of the same space)."""
        if not any(seed.fits for seed in seeds):
            self._check_memory()
        queue = self.candidates()
        kept = [seed for seed in (*seeds, self._seed(queue)) if seed is not None and seed.fits]
        best = min(kept, key=lambda e: e.step_s) if kept else None
        solved = 0
        for number, candidate in enumerate(queue):
            limit = INFINITY if best is None else best.step_s
            if candidate.bound_s >= limit:
                break
            shape = candidate.width, candidate.height
            if self._too_many(*shape, candidate.microbatch):
                continue
            # Bytes moved bound no time: mappings chosen by them alone are not pruned by bounds.
            loose = self.most_codes <= QUICK_CODES or self.planner.options.volume_only
            quick = loose and len(kept) > QUICK_SOLVED
            if solved >= MOST_SOLVED or quick:
                break
            bounds = self.layer_bounds_s(*shape, candidate.microbatch)
            for planner, bound in sorted(zip(self.planners, bounds, strict=True), key=_by_bound):
                limit = INFINITY if best is None else best.step_s
                if self.step_bound_s(bound, candidate.microbatch, candidate.stages) >= limit:
                    continue
                solved += 1
                found = self._solve(candidate, limit, planner)
                if found is not None:
                    kept.append(found)
                    if best is None or found.step_s < best.step_s:
                        best = found
            if self.progress and best is not None:
                self.progress("mappings", len(queue) - number, len(queue), best.samples_per_s,
                              self.batch / self.bound_s(best.step_s))  # fmt: skip
        mixed = self._mixed(best)
        if mixed is not None:
            kept.append(mixed)
            best = mixed
        if best is None:
            raise InfeasibleError(
                f"model {self.model}: no mapping fits wafer {self.wafer.name} with batch "
                f"{self.batch} and sequence {self.sequence}, even with everything recomputed; use "
                "more memory a die, a shorter sequence or a smaller model."
            )
        kept.sort(key=lambda e: e.step_s)
        return Found(
            best, self.bound_s(best.step_s), len(queue), solved, len(queue) - solved,
            tuple(e for e in kept if e is not best)[:3],
        )  # fmt: skip

    def _mixed(self, best: Evaluation | None) -> Evaluation | None:
        """Stages of different shapes, where equal ones leave dies idle or do not fit at all."""
        full = best is not None and len(set(best.mapping.dies)) == self.wafer.dies
        if full or self.accept is not None:
            return None
        found = map_around(self.planner, Faults(), [b for b in self.microbatches if b <= 2])
        better = found is not None and (best is None or found.step_s < best.step_s)
        return found if better else None

    def _check_memory(self) -> None:
        block = make_block(self.model, 1, self.sequence)
        needed = STATE_BYTES * block.parameters
        wafer_bytes = self.wafer.memory_bytes * self.wafer.dies
        if needed > wafer_bytes and "external" not in self.planner.options.homes:
            raise InfeasibleError(
                f"model {self.model}: weights, gradients and optimizer take "
                f"{format_bytes(needed)}, but wafer {self.wafer.name} has "
                f"{format_bytes(wafer_bytes)}; even with full recomputation it does not fit: use a "
                "smaller model or more DRAM a die."
            )

    def _seed(self, queue: Sequence[Candidate]) -> Evaluation | None:
        """A first mapping from a plain candidate, so that bounds prune from the start."""
        tried = 0
        for candidate in queue:
            dies = candidate.width * candidate.height
            small = dies <= 8 and candidate.microbatch == 1
            if small and candidate.stages * dies >= self.wafer.dies - 8:
                tried += 1
                found = self._solve(candidate, INFINITY)
                if found is not None or tried >= 6:
                    return found
        return None

    def _solve(
        self, candidate: Candidate, limit: float, planner: Planner | None = None
    ) -> Evaluation | None:
        rectangles = snake(
            self.wafer.rows, self.wafer.columns, candidate.width, candidate.height,
            candidate.stages,
        )  # fmt: skip
        if rectangles is None:
            return None
        chosen = planner or self.planner
        mapping = chosen.plan(rectangles, candidate.microbatch, stop_s=limit)
        if mapping is None:
            return None
        found = evaluate(self.wafer, mapping)
        return found if found.fits else None

    def bound_s(self, best_s: float) -> float:
        """On every mapping of the encoding, whatever its rectangles."""
        bounds = []
        for microbatch in self.microbatches:
            layers = make_block(self.model, microbatch, self.sequence).layers
            rounds = self.planner.rounds(microbatch)
            ideal = rounds * layers * self.ideal_layer_s(microbatch, self.wafer.dies)
            if ideal >= best_s:
                bounds.append(ideal)
                continue
            per_die = min(
                width * height * self._known_bound_s(width, height, microbatch)
                for width in range(1, self.wafer.columns + 1)
                for height in range(1, self.wafer.rows + 1)
            )
            bounds.append(rounds * layers * per_die / self.wafer.dies)
        return min(bounds)

    def _known_bound_s(self, width: int, height: int, microbatch: int) -> float:
        """The exact part's bound where it was needed, otherwise products at peak rate."""
        known = self._free.get((width, height, microbatch), 0.0)
        return max(known, self.ideal_layer_s(microbatch, width * height))
