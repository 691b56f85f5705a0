"""Lower bound on the step of every mapping of the encoding, for all tilings, stages and genes.

A step is M x (largest load) + the fills of the other stages. For a largest load X,

    carried(n, w, X)   layers that a stage of n dies, w-th from the end, can carry within X: by its
                       fastest layer, and by the bytes that a layer of X / layers seconds must hold
    held(X)            the fewest bytes of all stages together, which must fit the wafer: stages may
                       offload saved tensors to each other, so that only states bind a single stage
    fill(X)            the least sum of fills of all pipelines of such stages that carry all layers
                       on the dies of the wafer: dynamic programming over (stage, dies, layers)

fill(X) falls as X grows, so that for X between X1 and X2 no step is shorter than M x X1 + fill(X2).
Intervals of X are halved, the lowest first, until they are narrow. The sizes of the lowest interval
are then solved by the exact part, and so on until nothing is left to refine.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Ints
from atoll.base.stopping import check_stop
from atoll.wafer.bounds.bound_kernels import (
    ROUNDING,
    SizeArrays,
    all_carried,
    carried_layers,
    fit_together,
    least_fill,
)
from atoll.wafer.bounds.layer_bounds import (
    ALL_CODES,
    COUNTS,
    DEPTHS,
    EXACT,
    OPERATORS,
    PEAK,
    LayerBounds,
    SharpenSize,
    SizeBound,
    port_step_s,
)
from atoll.wafer.staging.planner import Planner

StageSizes = tuple[tuple[int, int], ...]  # (dies, layers), the last stage first

INFINITY = float("inf")
NARROW = 2e-3  # of the step: intervals are not halved further
CLOSE = 0.08  # of the step: a smaller gap needs no bound over all codes
UNKNOWN = -1.0
HOPELESS = 1e3  # largest load / fastest load at which memory that is too small stays too small


@dataclass(frozen=True)
class LowestBound:
    """The lowest interval: no step with this microbatch is shorter than `bound_s`."""

    bound_s: float
    microbatch: int
    stages: StageSizes
    """The pipeline that attains it; empty if no mapping beats the given step."""


class StepBound:
    """Bounds of one model on one wafer."""

    def __init__(
        self, planner: Planner, microbatches: Sequence[int],
        sharpen_size: SharpenSize | None = None,
    ) -> None:  # fmt: skip
        self.planner = planner
        self.layers = LayerBounds(planner, sharpen_size)
        self.microbatches = tuple(microbatches)
        self.wafer = planner.wafer
        self.zero_bubble = planner.options.zero_bubble

    # -- one microbatch ------------------------------------------------------------------------

    def sizes(self, microbatch: int) -> list[SizeBound]:
        bounds = [self.layers.size_bound(microbatch, n) for n in self.layers.shapes_by_dies]
        return [size for size in bounds if size.layer_s < INFINITY]

    def work_s(self, microbatch: int) -> float:
        """Return a lower bound on the largest load: work / dies, or the ports' seconds."""
        block = self.layers.block(microbatch)
        sizes = self.sizes(microbatch)
        layer = min(size.dies * size.layer_s for size in sizes)
        head = min(size.dies * size.head_s for size in sizes)
        ports = port_step_s(self.planner, microbatch)
        return max((block.layers * layer + head) / self.wafer.dies, ports)

    def fill(self, microbatch: int, largest_s: float, cap_s: float) -> tuple[float, StageSizes]:
        """Return the least fill below `cap_s` and its pipeline; infinity if there is none."""
        if largest_s < port_step_s(self.planner, microbatch):
            return INFINITY, ()
        sizes = self.sizes(microbatch)
        layers = self.layers.block(microbatch).layers
        dies = np.array([size.dies for size in sizes], np.int64)
        rows = _depth_rows(self.wafer.dies, self.planner.rounds(microbatch))
        from_last = np.array([0, *rows], np.int64)
        most = np.zeros((len(DEPTHS) + 1, len(sizes)), np.int64)
        most_first, stage_bytes = np.zeros_like(most), np.zeros((*most.shape, layers + 1))
        carried_layers(
            _size_arrays(sizes), dies, layers, np.unique(rows), largest_s,
            float(self.wafer.memory_bytes), most, most_first, stage_bytes,
        )  # fmt: skip
        if self.planner.options.offload:
            # The stages of a pipeline hold no more than the wafer has.
            embedding = np.array([size.dies * size.embedding_bytes for size in sizes])
            memory_bytes = self.wafer.dies * self.wafer.memory_bytes * (1 + ROUNDING)
            where = self.wafer.dies, layers, dies, from_last
            if not fit_together(*where, most, most_first, stage_bytes, embedding, memory_bytes):
                return INFINITY, ()
        parents = np.full((self.wafer.dies + 1, self.wafer.dies + 1, layers + 1, 2), -1, np.int32)
        fill_s, first_stage = least_fill(
            self.wafer.dies, layers, dies,
            np.array([s.layer_s for s in sizes]), np.array([s.but_weight_s for s in sizes]),
            np.array([s.head_s for s in sizes]), np.array([s.head_but_weight_s for s in sizes]),
            np.array([s.most_weight_s for s in sizes]),
            np.array([s.head_most_weight_s for s in sizes]),
            from_last, most, most_first, largest_s, self.zero_bubble,
            self.planner.rounds(microbatch) - 1, cap_s, parents,
        )  # fmt: skip
        if first_stage[0] < 0:
            return INFINITY, ()
        return float(fill_s), _trace_stages(first_stage, parents, [s.dies for s in sizes], layers)

    # -- equal stages --------------------------------------------------------------------------

    def equal_s(
        self, microbatch: int, dies: int, stages: int, cap_s: float, layer_s: float = 0.0
    ) -> float:
        """Bound the step of equal stages whose layers take `layer_s` or longer, below `cap_s`."""
        size = self.layers.size_bound(microbatch, dies)
        size = replace(size, layer_s=max(size.layer_s, layer_s))
        layers = self.layers.block(microbatch).layers
        rounds = self.planner.rounds(microbatch)
        if size.layer_s == INFINITY or stages > layers:
            return INFINITY
        low = max(
            -(-layers // stages) * size.layer_s,
            (layers * size.layer_s + size.head_s + size.embedding_s) / stages,
            port_step_s(self.planner, microbatch),
        )
        high = min(cap_s / rounds, HOPELESS * low)
        if low >= high or not self._all_carried(size, layers, stages, high):
            return INFINITY
        if size.level > PEAK and not self._all_carried(size, layers, stages, low):
            while high - low > NARROW * high:
                middle = 0.5 * (low + high)
                carried = self._all_carried(size, layers, stages, middle)
                low, high = (low, middle) if carried else (middle, high)
        if not self.zero_bubble:
            return rounds * low + layers * size.layer_s + size.head_s - low
        # Stages other than the slowest run their passes once more, without delayed weight passes,
        # which take at most the rest of the load X: the step is at least M X, and at least
        # (M - late) X + share x (passes of all layers but the X / layer_s of the slowest).
        late = min(rounds, stages) - 1
        share = 1.0 + late / max(1, stages - 1)
        others_s = share * layers * size.but_weight_s
        fill_per_load = share * size.but_weight_s / size.layer_s
        filled_s = (rounds - late - fill_per_load) * low + others_s
        balanced_s = rounds * others_s / (late + fill_per_load)  # the step where both are equal
        return rounds * low if stages == 1 else max(rounds * low, min(filled_s, balanced_s))

    def _all_carried(self, size: SizeBound, layers: int, stages: int, largest_s: float) -> bool:
        rows = _depth_rows(stages, self.planner.rounds(size.microbatch))
        memory_bytes = float(self.wafer.memory_bytes)
        return bool(all_carried(_size_arrays([size]), layers, rows, largest_s, memory_bytes))

    # -- all of them ---------------------------------------------------------------------------

    def lowest(
        self, best_s: float, most: int = ALL_CODES, microbatches: Sequence[int] | None = None,
        small: float = INFINITY,
    ) -> LowestBound:  # fmt: skip
        """Return the lowest bound over all microbatches (or those `among`), at most `best_s`.

        `most`: highest level for the sizes that decide it; sizes of more than `small` dies are
        bounded by their splits at most.
        """
        heap: list[tuple[float, int, float, float, float, int, StageSizes]] = []
        for microbatch in self.microbatches if microbatches is None else microbatches:
            rounds = self.planner.rounds(microbatch)
            low, high = self.work_s(microbatch), best_s / rounds
            if low < high:
                # The fill is computed when the interval is the lowest.
                heapq.heappush(heap, (rounds * low, microbatch, low, high, UNKNOWN, 0, ()))
        while heap:
            check_stop(self.planner.stop)
            bound, microbatch, low, high, fill, version, stages = heapq.heappop(heap)
            rounds = self.planner.rounds(microbatch)
            narrow = rounds * (high - low) <= NARROW * best_s
            if fill == UNKNOWN or (narrow and version < self.layers.sharpenings):
                low, version = max(low, self.work_s(microbatch)), self.layers.sharpenings
                fill, stages = self.fill(microbatch, high, best_s - rounds * low)
                if low < high and fill < INFINITY:
                    lowest = max(bound, rounds * low + fill)
                    heapq.heappush(heap, (lowest, microbatch, low, high, fill, version, stages))
                continue
            level = OPERATORS
            if narrow:
                level = min(most, ALL_CODES if bound < best_s * (1.0 - CLOSE) else EXACT)
            if self._sharpen(microbatch, stages, level, best_s / rounds, small):
                heapq.heappush(heap, (bound, microbatch, low, high, UNKNOWN, 0, ()))
            elif narrow:
                return LowestBound(bound, microbatch, stages)
            else:
                middle = 0.5 * (low + high)
                upper = rounds * middle + fill
                if upper < best_s:
                    heapq.heappush(heap, (upper, microbatch, middle, high, fill, version, stages))
                heapq.heappush(heap, (bound, microbatch, low, middle, UNKNOWN, 0, ()))
        return LowestBound(best_s, 0, ())

    def _sharpen(
        self, microbatch: int, stages: StageSizes, most: int, largest_s: float, small: float
    ) -> bool:
        """Sharpen the sizes of a pipeline; return whether any bound changed."""
        sharper = False
        rows = _depth_rows(len(stages), self.planner.rounds(microbatch))
        for dies in sorted({dies for dies, _ in stages}):
            # Seconds of a layer on its share of the dies, if all stages took `largest_s`.
            enough_s = largest_s / self.layers.block(microbatch).layers * self.wafer.dies / dies
            size = self.layers.size_bound(microbatch, dies)
            fits = all(
                self._fastest_layers_fit(size, layers, row, first=number == len(stages) - 1)
                for number, ((stage_dies, layers), row) in enumerate(zip(stages, rows, strict=True))
                if stage_dies == dies
            )
            level = most if dies <= small else min(most, COUNTS)
            sharper |= self.layers.sharpen(microbatch, dies, level, enough_s, fits)
        return sharper

    def _fastest_layers_fit(self, size: SizeBound, layers: int, row: int, *, first: bool) -> bool:
        """Return whether a stage can hold its layers if each is the fastest."""
        layer = size.fastest_state + DEPTHS[max(0, row - 1)] * size.fastest_kept
        ends = (size.head_bytes if row == 0 else 0.0) + (size.embedding_bytes if first else 0.0)
        return layers * layer + ends <= self.wafer.memory_bytes


@lru_cache(maxsize=1 << 10)
def _depth_rows(stages: int, rounds: int) -> Ints:
    """Return the row of each stage, counted from the last."""
    in_flight = np.minimum(np.arange(2, stages + 1), rounds)
    rows = [0, *np.searchsorted(DEPTHS, in_flight, side="right").tolist()]
    return np.array(rows, np.int64)


def _size_arrays(sizes: Sequence[SizeBound]) -> SizeArrays:
    return SizeArrays(*(np.array([vars(s)[name] for s in sizes]) for name in SizeArrays._fields))


def _trace_stages(
    first_stage: Ints, parents: NDArray[np.int32], dies: list[int], layers: int
) -> StageSizes:
    """Trace the stages from the first to the last of the pipeline; return them last first."""
    stage, size, used, done, flag = (int(number) for number in first_stage)
    stages = [(dies[size], layers - done)]
    count = len(dies)
    for previous in range(stage - 1, 0, -1):
        code = int(parents[previous, used, done, flag])
        stage_layers, remainder = divmod(code, 2 * count)
        size, flag = divmod(remainder, 2)
        stages.append((dies[size], stage_layers))
        used, done = used - dies[size], done - stage_layers
    return tuple(reversed(stages))
