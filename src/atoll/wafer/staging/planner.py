"""Plan pipeline stages on given rectangles: layers and best block mapping of each stage.

A stage's load and memory grow with its layers. Assigning layers one by one to the stage whose load
would then be least minimises the largest load (loads being monotone), with the block mapping of
every stage solved for its layers and microbatches in flight.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

from atoll.base.stopping import StopCheck, check_stop, never
from atoll.fabric.digits import Digits, digit_systems
from atoll.fabric.mesh import Link, Rectangle
from atoll.fabric.routes import boundaries
from atoll.hardware.wafer import Wafer
from atoll.step.bubbles import peaks
from atoll.step.states import STATES, States
from atoll.wafer.costs.die_pricer import die_pricer
from atoll.wafer.costs.tables import BlockTables, CostSetting
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.block_parts import (
    EXTERNAL,
    OFFLOAD,
    OPTIMIZER,
    SCHEDULE_1F1B,
    SCHEDULES,
    SEARCHED_HOMES,
    HelperPath,
    SolvedBlock,
    WaferBlock,
)
from atoll.wafer.encoding.codes import Parts, code_sets, most_codes, split_codes
from atoll.wafer.encoding.mapping import StageMapping, WaferMapping
from atoll.wafer.evaluate import (
    EndsChoice,
    MappingCost,
    delayed_bytes,
    ends_by_time,
    ends_cost,
    evaluate,
    head_codes,
    helper_paths,
    streamed_bytes,
)
from atoll.wafer.exact.block_solver import BlockSolver
from atoll.wafer.staging.offload import RESERVED, Helpers, StagePipeline, pairings
from atoll.workload.families.model_config import ModelConfig

INFINITY = float("inf")
MICROBATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
MANY_CODES = 300  # shapes with more codes per operator are solved over a subset
TOLERANCE = 1e-3  # share of a block's time within which its mapping is proven
ROUGH = 5e-3  # the tolerance when candidates are compared
MOST_SHAPES = 6  # shapes whose solvers a planner keeps
START_SHARES = 0.75, 0.95  # of its layers by dies, with which a stage starts
MEMORY_SLOWDOWN = 0.005  # least slowdown by memory for which offload is tried


@dataclass(frozen=True)
class WaferOptions:
    """Freedoms of the search; ablations switch parts off."""

    streaming: bool = True
    """Collectives may overlap with their operators."""
    mixed_streaming: bool = True
    """Operators choose streaming individually; else all alike."""
    algorithm: str = "auto"
    recompute: bool = True
    offload: bool = True
    """Saved tensors may be offloaded to another stage's memory."""
    passes: bool = True
    """Gradient passes may have codes different from the forward pass."""
    homes: tuple[str, ...] = SEARCHED_HOMES
    orders: bool = True
    """The factors of an axis may nest in any order."""
    single_axis: bool = False
    """One tag for all digits of an operator: no mixed splits."""
    volume_only: bool = False
    """Choose mappings by bytes moved instead of time (still evaluated by time)."""
    zero_bubble: bool = True
    """Weight passes may fill pipeline bubbles (schedule zb-h1)."""
    states: States = STATES[OPTIMIZER]


def rough(options: WaferOptions) -> WaferOptions:
    """Return options with only the variables that matter most, to compare candidates."""
    return replace(options, mixed_streaming=False, passes=False, offload=False)


@dataclass(frozen=True)
class _StageBlock:
    digits: Digits
    solved: SolvedBlock
    buffer_bytes: float
    """In addition to the block's cost."""

    @property
    def external(self) -> bool:
        """Whether weights are streamed from outside the wafer."""
        return EXTERNAL in self.solved.mapping.homes


class Planner:
    """Solves stages for one wafer, model, batch and sequence, and caches them."""

    def __init__(
        self, wafer: Wafer, model: str | ModelConfig, batch: int, sequence: int,
        options: WaferOptions | None = None, most_codes: int = MANY_CODES, stop: StopCheck = never,
        tolerance: float = TOLERANCE,
    ) -> None:  # fmt: skip
        """Shapes with more than `most_codes` codes per operator are solved over a subset."""
        self.stop, self.tolerance = stop, tolerance
        self.wafer, self.model, self.batch, self.sequence = wafer, model, batch, sequence
        self.options = options or WaferOptions()
        self.most_codes = most_codes
        self._allowed_splits: Mapping[str, Sequence[Parts]] | None = None
        self._exacts: dict[tuple[object, ...], list[BlockSolver]] = {}
        """Solvers of the shapes used last: they are large."""
        self._fastest: dict[tuple[int, int, int], float] = {}
        self._solved: dict[tuple[object, ...], tuple[_StageBlock | None, float]] = {}
        """The best block of a stage, and the seconds per layer below which it was searched."""

    def without_solutions(self) -> Planner:
        """Return a planner that shares solvers, but no blocks: those depend on earlier limits."""
        planner = copy(self)
        planner._solved = {}
        return planner

    def rounds(self, microbatch: int) -> int:
        return -(-self.batch // microbatch)

    def setting(self, microbatch: int) -> CostSetting:
        return CostSetting(
            self.wafer, self.rounds(microbatch), self.options.streaming, self.options.algorithm,
            states=self.options.states,
        )  # fmt: skip

    def exacts(
        self, width: int, height: int, microbatch: int, homes: tuple[str, ...] = ()
    ) -> list[BlockSolver]:
        """Return the solvers of a shape, one per digit system, for these homes or any."""
        shape, homes = (width, height, microbatch), homes or self.options.homes
        key = *shape, homes
        options, exacts = self.options, self._exacts.pop(key, None)
        if exacts is None:
            exacts = [
                BlockSolver(
                    tables, homes, recompute=options.recompute, volume_only=options.volume_only,
                    tolerance=self.tolerance, passes=options.passes,
                )
                for tables in self.tables(*shape)
            ]  # fmt: skip
            while len(self._exacts) >= MOST_SHAPES:
                del self._exacts[next(iter(self._exacts))]
        self._exacts[key] = exacts
        return exacts

    def tables(self, width: int, height: int, microbatch: int) -> Iterator[BlockTables]:
        """Yield the tables of a shape, one per digit system and set of codes."""
        block = make_block(self.model, microbatch, self.sequence)
        # Streaming hides transfers, but makes products smaller: operators may choose.
        both = self.options.streaming and self.options.mixed_streaming
        single_axis = self.options.single_axis
        modes = (True, False) if both else None
        setting, price = self.setting(microbatch), die_pricer(self.wafer.chip)
        systems = digit_systems(width, height)
        for digits in systems if self.options.orders else systems[:1]:
            sets = code_sets(block, digits, self.most_codes, single_axis=single_axis)
            if self._allowed_splits is not None:
                sets = split_codes(block, digits, self._allowed_splits)
            for only in sets:
                check_stop(self.stop)
                yield BlockTables(block, digits, setting, price, only, modes=modes)

    def complete(self, width: int, height: int, microbatch: int) -> bool:
        """Whether a shape is solved over all of its codes."""
        return self.codes(width, height, microbatch) <= self.most_codes

    def codes(self, width: int, height: int, microbatch: int) -> int:
        """Return the codes of the operator that has most on a shape."""
        block = make_block(self.model, microbatch, self.sequence)
        return most_codes(block, digit_systems(width, height)[0])

    def with_splits(self, fast: Mapping[str, Sequence[Parts]]) -> Planner:
        """Return a planner over all codes with these splits, where the fastest mapping fits."""
        planner = copy(self)
        planner._allowed_splits = fast
        planner._exacts, planner._fastest, planner._solved = {}, {}, {}
        return planner

    def fastest_s(self, width: int, height: int, microbatch: int) -> float:
        """Lower bound on this planner's seconds per layer on a shape: unlimited memory, less the
        tolerance. The exact solver's `bound_s` holds for all mappings.
        """
        key = width, height, microbatch
        if key not in self._fastest:
            unlimited_s = []
            for exact in self.exacts(*key):
                check_stop(self.stop)
                unlimited_s.append(exact.unlimited.cost.time_s)
            self._fastest[key] = min(unlimited_s, default=INFINITY) * (1.0 - TOLERANCE)
        return self._fastest[key]

    def block(
        self, shape: tuple[int, int], microbatch: int, layers: int, in_flight: int, limit: float,
        away: HelperPath | None = None, offload_bytes: float = 0.0, cap_s: float = INFINITY,
        homes: tuple[str, ...] = (),
    ) -> _StageBlock | None:  # fmt: skip
        """Return the best block of a stage within `limit` bytes per die and `offload_bytes` with a
        helper; None if no layer takes less than `cap_s`. Weights have one of `homes`, or any.
        """
        # The gain of better gradient codes is not bounded beforehand.
        cap_s = INFINITY if self.options.passes else cap_s
        key = (*shape, microbatch, layers, in_flight, limit, away, offload_bytes, homes)
        best, searched_s = self._solved.get(key, (None, 0.0))
        if best is not None or cap_s <= searched_s:
            return best
        best_s = cap_s
        for exact in self.exacts(*shape, microbatch, homes):
            check_stop(self.stop)
            # Solving this many codes within a memory limit takes too long.
            if self._allowed_splits is not None and not exact.fastest_fits(
                layers, in_flight, limit
            ):
                continue
            if exact.bound_s >= (best_s if best is None else best.solved.cost.time_s):
                continue
            solver = exact if away is None else exact.with_offload(away)
            solved = solver.solve(layers, in_flight, limit, offload_bytes, best_s)
            if solved and (not best or solved.cost.time_s < best.solved.cost.time_s):
                buffer_bytes = exact.tables.buffer_bytes(solved.mapping.stream)
                best = _StageBlock(exact.tables.digits, solved, buffer_bytes)
                best_s = min(best_s, INFINITY if self.options.passes else solved.cost.time_s)
        self._solved[key] = best, cap_s
        return best

    # -- stages --------------------------------------------------------------------------------

    def best(
        self, rectangles: Sequence[Rectangle], microbatch: int, limit_s: float = INFINITY,
        dead_links: Sequence[Link] = (),
    ) -> MappingCost | None:  # fmt: skip
        """Return the best that fits under either schedule; blocks are solved for the memory of
        1F1B, and for that of zero bubble unless the former fit it.
        """
        several_stages = len(rectangles) > 1 and self.options.zero_bubble
        schedules = SCHEDULES if several_stages else (SCHEDULE_1F1B,)
        best: MappingCost | None = None
        for solved_for in schedules:
            if best is not None and best.mapping.schedule != SCHEDULE_1F1B:
                break
            mapping = self.plan(rectangles, microbatch, dead_links, limit_s, solved_for)
            for schedule in schedules if mapping is not None else ():
                assert mapping is not None
                evaluation = evaluate(self.wafer, replace(mapping, schedule=schedule), dead_links)
                if evaluation.fits and (best is None or evaluation.step_s < best.step_s):
                    best = evaluation
        return best

    def plan(
        self, rectangles: Sequence[Rectangle], microbatch: int, dead_links: Sequence[Link] = (),
        stop_s: float = INFINITY, schedule: str = SCHEDULE_1F1B,
    ) -> WaferMapping | None:  # fmt: skip
        """Return the best mapping on these rectangles in this order; None if it does not fit or its
        step takes `stop_s` or longer. Stages offload to each other if that shortens the step.
        """
        pipe = StagePipeline(tuple(rectangles), microbatch, schedule)
        base = self.plan_once(pipe, dead_links, stop_s)
        if not self.options.offload or not self._memory_bound(pipe, stop_s):
            return base
        return plan_with_helpers(self, pipe, dead_links, stop_s, base)

    def _block(self, pipe: StagePipeline) -> WaferBlock:
        return make_block(self.model, pipe.microbatch, self.sequence)

    def _memory_bound(self, pipe: StagePipeline, stop_s: float) -> bool:
        """Whether memory slows a stage down, and the step could be below `stop_s` without it."""
        layers = self._block(pipe).layers
        if not 1 < len(pipe.rectangles) <= layers:
            return False
        unlimited_s = [self.fastest_s(r.width, r.height, pipe.microbatch) for r in pipe.rectangles]
        if self.rounds(pipe.microbatch) * layers / sum(1.0 / s for s in unlimited_s) >= stop_s:
            return False
        return any(
            choice is None or choice.solved.cost.time_s > fastest * (1.0 + MEMORY_SLOWDOWN)
            for (_, choice), fastest in zip(self._blocks_by_size(pipe), unlimited_s, strict=True)
        )

    def _blocks_by_size(self, pipe: StagePipeline) -> list[tuple[int, _StageBlock | None]]:
        """Return layers in proportion to dies, and the best block of every stage with them."""
        layers, total = self._block(pipe).layers, sum(r.size for r in pipe.rectangles)
        counts = [max(1, layers * r.size // total) for r in pipe.rectangles]
        return [(n, self._stage(pipe, stage, n)) for stage, n in enumerate(counts)]

    def spare_shares(self, pipe: StagePipeline) -> list[float]:
        """Return the free share of each stage's memory; 0 if it does not fit."""
        shares = []
        for stage, (layers, choice) in enumerate(self._blocks_by_size(pipe)):
            used_bytes = self.wafer.memory_bytes
            if choice is not None:
                in_flight, late_bytes = self._peak_demand(pipe, stage)
                used_bytes = choice.solved.cost.memory_bytes(layers, in_flight)
                used_bytes += layers * late_bytes
                used_bytes += self._end_bytes(pipe, stage, choice.external)[0]
            shares.append(1.0 - used_bytes / self.wafer.memory_bytes)
        return shares

    def plan_once(
        self, pipe: StagePipeline, dead_links: Sequence[Link], stop_s: float
    ) -> WaferMapping | None:
        """`plan` with the pipeline's helpers, or none."""
        block, count = self._block(pipe), len(pipe.rectangles)
        if count > block.layers:
            return None
        rounds = self.rounds(pipe.microbatch)
        crossings = boundaries(self.wafer.mesh, pipe.rectangles, block.stream_bytes, dead_links)
        few, most = (pipe.proportional_layers(block.layers, share) for share in START_SHARES)
        # Fallback if ends take as long as layers, or memory is short.
        single_layers = (1,) * count

        def load(stage: int, layers: int) -> float:
            most_s = stop_s / rounds - 2 * crossings.into_s[stage]
            choice = self._stage(pipe, stage, layers, most_s / layers)
            if choice is None:
                return INFINITY
            ends = self._ends(pipe, stage, layers, choice).cost
            return layers * choice.solved.cost.time_s + ends.time_s + 2 * crossings.into_s[stage]

        if count == 1:
            fits = rounds * load(0, block.layers) < stop_s
            return self._mapping(pipe, [block.layers]) if fits else None

        def largest(counts: Sequence[int]) -> float:
            return max(map(load, range(count), counts))

        start_layers = next((c for c in (few, single_layers) if rounds * largest(c) < stop_s), None)
        if start_layers is None:
            return None
        # A layer takes no less time in a fuller stage (as blocks are solved here), so that for any
        # assignment of the other layers, the largest load is at least layers / sum of the rates.
        rates = 0.0
        for number in range(count):
            choice = self._stage(pipe, number, start_layers[number])
            assert choice is not None
            rates += 1.0 / (choice.solved.cost.time_s * (1.0 - self.tolerance))
        if rounds * block.layers / rates >= stop_s:
            return None
        counts: list[int] = []
        for start in dict.fromkeys((most, few, single_layers)):
            start_s = largest(start)
            if rounds * start_s >= stop_s:
                continue
            counts = list(start)
            heap = [(load(s, counts[s] + 1), s) for s in range(count)]
            heapq.heapify(heap)
            largest_s = 0.0
            for layers_left in reversed(range(block.layers - sum(counts))):
                load_s, stage = heap[0]
                largest_s = max(largest_s, load_s)
                if load_s == INFINITY or rounds * largest_s >= stop_s:
                    return None
                counts[stage] += 1
                if layers_left:
                    heapq.heapreplace(heap, (load(stage, counts[stage] + 1), stage))
            # Assigned one by one, the layers of `start` would have got the same stages.
            if start_s <= largest_s:
                break
        return self._mapping(pipe, counts)

    def _stage(
        self, pipe: StagePipeline, stage: int, layers: int, cap_s: float = INFINITY
    ) -> _StageBlock | None:
        """Return the best block of a stage over all placements of its weights."""
        load_s = {
            choice: layers * choice.solved.cost.time_s
            + self._ends(pipe, stage, layers, choice).cost.time_s
            for homes in self._placement_groups()
            for choice in self._stage_blocks(pipe, stage, layers, cap_s, homes)
        }
        return min(load_s, key=load_s.__getitem__, default=None)

    def _placement_groups(self) -> tuple[tuple[str, ...], ...]:
        """Return groups of homes that differ in memory: external ends need a buffer, no states."""
        homes = self.options.homes
        inside = tuple(home for home in homes if home != EXTERNAL)
        return (inside, homes, (EXTERNAL,)) if inside and inside != homes else (homes,)

    def _stage_blocks(
        self, pipe: StagePipeline, stage: int, layers: int, cap_s: float, homes: tuple[str, ...]
    ) -> Iterator[_StageBlock]:
        r, helpers, external = pipe.rectangles[stage], pipe.helpers, EXTERNAL in homes
        in_flight = self._peak_demand(pipe, stage)[0]
        limit = self._free_bytes(pipe, stage, layers, external)
        away, offload_bytes = None, 0.0
        if helpers is not None:
            away = helpers.paths[stage]
            offload_bytes = helpers.offload_limit_bytes(stage, pipe.rectangles)
        stage_key = (r.width, r.height), pipe.microbatch, layers, in_flight
        unpressed_s = self.fastest_s(r.width, r.height, pipe.microbatch) * (1.0 + MEMORY_SLOWDOWN)
        for end_bytes in self._end_bytes(pipe, stage, external):
            choice = self.block(*stage_key, limit - end_bytes, away, offload_bytes, cap_s, homes)
            # A block that streams nothing has its ends on the wafer: it comes without `EXTERNAL`.
            if choice is not None and choice.external == external:
                yield choice
            if choice is not None and choice.solved.cost.time_s <= unpressed_s:
                return

    def _free_bytes(self, pipe: StagePipeline, stage: int, layers: int, external: bool) -> float:
        """Return the bytes per die for a stage's layers and ends."""
        free_bytes = self.wafer.memory_bytes - layers * self._peak_demand(pipe, stage)[1]
        if external:
            dies = pipe.rectangles[stage].size
            free_bytes -= streamed_bytes(self._block(pipe), self.options.states, dies)
        if pipe.helpers is not None:
            free_bytes -= pipe.helpers.reserved_bytes[stage]
        return free_bytes

    def _peak_demand(self, pipe: StagePipeline, stage: int) -> tuple[int, float]:
        """Return the microbatches in flight at a stage's memory peak, and the bytes per layer for
        delayed weight passes, with tensors cut over all dies.
        """
        position = pipe.schedule, len(pipe.rectangles), stage, self.rounds(pipe.microbatch)
        most, late = max((peak for peak in peaks(*position) if peak[0]), key=lambda peak: peak[1])
        layer_bytes = delayed_bytes(self._block(pipe), pipe.rectangles[stage].size)
        return int(most), late * layer_bytes

    def _end_bytes(self, pipe: StagePipeline, stage: int, external: bool) -> tuple[float, ...]:
        """Return the most and least bytes of embedding or head, before the stream is solved."""
        r = pipe.rectangles[stage]
        exacts = self.exacts(r.width, r.height, pipe.microbatch) if any(pipe.ends(stage)) else []
        if not exacts:
            return (0.0,)
        block, tables = self._block(pipe), exacts[0].tables
        where = block, tables.digits, self.setting(pipe.microbatch), tables.stream.codes[0]
        codes = head_codes(block, tables.digits, tables.stream.codes[0])
        least, most = (
            ends_cost(*where, code, *pipe.ends(stage), external).bytes
            for code in (codes[0], codes[-1])
        )
        return (least,) if least >= most else (most, least)

    def _ends(
        self, pipe: StagePipeline, stage: int, layers: int, choice: _StageBlock
    ) -> EndsChoice:
        """Return the fastest embedding or head that fits in addition to the layers."""
        block, genes, cost = self._block(pipe), choice.solved.mapping, choice.solved.cost
        in_flight = self._peak_demand(pipe, stage)[0]
        free_bytes = self._free_bytes(pipe, stage, layers, choice.external)
        free_bytes -= cost.memory_bytes(layers, in_flight) + choice.buffer_bytes
        modes = (True, False) if self.options.streaming else (False,)
        options = ends_by_time(
            block, choice.digits, self.setting(pipe.microbatch), genes.stream, pipe.ends(stage),
            choice.external, modes,
        )  # fmt: skip
        return next((option for option in options if option.cost.bytes <= free_bytes), options[0])

    def _mapping(self, pipe: StagePipeline, counts: Sequence[int]) -> WaferMapping:
        stages = []
        streaming = self.options.streaming
        for number, (rectangle, layers) in enumerate(zip(pipe.rectangles, counts, strict=True)):
            choice = self._stage(pipe, number, layers)
            assert choice is not None
            _, head, streaming = self._ends(pipe, number, layers, choice)
            genes = choice.solved.mapping
            # The mapping's default is the head's: operators name theirs.
            default = ((self.options.streaming, self.options.algorithm),) * len(genes.codes)
            genes = replace(genes, collectives=genes.collectives or default)
            helper = pipe.helpers.stages[number] if pipe.helpers and OFFLOAD in genes.keep else None
            stages.append(StageMapping(rectangle, choice.digits, layers, genes, head, helper))
        return WaferMapping(
            self.model, self.batch, pipe.microbatch, self.sequence, tuple(stages),
            streaming, self.options.algorithm, pipe.schedule, self.options.states.name,
        )  # fmt: skip


def plan_with_helpers(
    planner: Planner, pipe: StagePipeline, dead_links: Sequence[Link], stop_s: float,
    base: WaferMapping | None,
) -> WaferMapping | None:  # fmt: skip
    """Return the fastest of `base` and the mappings with each pairing and reserved share."""
    best, rectangles = base, pipe.rectangles
    spare = planner.spare_shares(pipe)
    if base is not None:
        stop_s = min(stop_s, evaluate(planner.wafer, base, dead_links).step_s)
    for helper_stages in pairings(len(rectangles)):
        paths = helper_paths(planner.wafer, rectangles, helper_stages, dead_links)
        most_spare = max(spare[helper] for helper in helper_stages if helper is not None)
        for share in RESERVED:
            # A helper without this much free memory slows down: not far beyond its spare share.
            if share > 1.5 * most_spare:
                break
            lent_bytes = share * planner.wafer.memory_bytes
            stages = range(len(rectangles))
            reserved = tuple(lent_bytes if stage in helper_stages else 0.0 for stage in stages)
            helped_pipe = pipe._replace(helpers=Helpers(helper_stages, paths, reserved))
            mapping = planner.plan_once(helped_pipe, dead_links, stop_s)
            if mapping is None:
                continue
            evaluation = evaluate(planner.wafer, mapping, dead_links)
            if evaluation.fits and evaluation.step_s < stop_s:
                best, stop_s = mapping, evaluation.step_s
    return best
