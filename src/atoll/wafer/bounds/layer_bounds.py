"""Lower bounds on a layer on a number of dies: seconds, and seconds for given bytes.

No code of an operator is faster than its products and passes at the best split over these dies.
Re-sharding and sums of gradients are left out, so that the bound holds for all shapes of these dies
and all codes of the three passes of an operator. If the exact part has solved all shapes of a size,
its bounds are used instead.

Memory: for a price of a byte, `V(price, in flight)` is the minimum of

    seconds of a layer + price x (state + in flight x kept)         (a layer, on one die)

so that a layer that takes t seconds holds at least (V - t) / price bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from typing import Any

import numpy as np
from pydantic import JsonValue

from atoll.base.arrays import Floats, Ints
from atoll.base.stopping import check_stop
from atoll.fabric.digits import Digits
from atoll.hardware.wafer import Wafer
from atoll.step.replay import PassTime
from atoll.wafer.bounds.split_tables import SplitBounds, SplitTables, rates, split_bounds
from atoll.wafer.costs.block_kernels import CHUNKS
from atoll.wafer.costs.die_pricer import die_pricer, pass_times_s
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.block_parts import TaggedMatmul, TaggedVector, WaferBlock
from atoll.wafer.encoding.codes import Parts, by_tag, divisible, parts_of, splits
from atoll.wafer.exact.block_solver import BlockSolver
from atoll.wafer.exact.paths import FREE, ChainBounds
from atoll.wafer.exact.shared_states import DecoupledBound, Rules, least_block_s
from atoll.wafer.staging.planner import Planner

PEAK, OPERATORS, COUNTS, EXACT, ALL_CODES = range(5)
MEMORY = 5  # a request rather than a level: curves of the exact part at prices of a byte

DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
"""Microbatches in flight for which curves are computed; others use the next smaller."""
MAX_CODES = 1 << 10  # per operator: more are not solved together
PRICES = 2.0 ** np.arange(-7.0, 3.0)  # of a die's bytes, in seconds of a layer


@dataclass(frozen=True, eq=False)
class SizeBound:
    """Lower bounds of one microbatch on a stage of `dies` dies."""

    microbatch: int
    dies: int
    layer_s: float
    but_weight_s: float
    """Layer without its weight passes."""
    head_s: float
    head_but_weight_s: float
    head_bytes: float
    """Per die, of the head and its loss."""
    embedding_bytes: float
    prices: Floats
    curves: Floats
    """V (depths, prices) of `DEPTHS` and `prices`, for the bytes on the stage's dies."""
    pooled: Floats
    """V for these bytes and those offloaded to another stage."""
    level: int
    """Method of the bound: `PEAK`, `OPERATORS`, `COUNTS`, `EXACT` or `ALL_CODES`."""
    most_weight_s: float
    """Weight passes of a layer under the slowest codes: their largest share of a fill."""
    head_most_weight_s: float
    embedding_s: float = 0.0
    """Transitions between the stream and the embedding, whose vocabulary is divided."""
    fastest_state: float = 0.0
    fastest_kept: float = 0.0
    """Bytes per die of the exact part's fastest layer: its states, and kept per microbatch."""
    priced: bool = False
    """Whether the curves are those of the exact part."""

    def to_dict(self) -> dict[str, JsonValue]:
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(self).items()}

    @staticmethod
    def from_dict(fields: Mapping[str, JsonValue]) -> SizeBound:
        arguments: Any = {k: np.array(v) if isinstance(v, list) else v for k, v in fields.items()}
        return SizeBound(**arguments)


SharpenSize = Callable[[int, int, int, float], SizeBound]
"""Bound for microbatch, dies and level; it need not exceed the given seconds of a layer."""


class LayerBounds:
    """Bounds of layers of one model, batch and sequence on one wafer."""

    def __init__(self, planner: Planner, sharpen_size: SharpenSize | None = None) -> None:
        """`sharpen_size` replaces the method `sharper`."""
        self._sharpen_size = sharpen_size or self.sharper
        self.planner, self.options = planner, planner.options
        self.wafer: Wafer = planner.wafer
        self.pricer = die_pricer(self.wafer.chip)
        # Products of streamed operators run in pieces; each operator may stream or not.
        self.modes = (True, False) if self.options.streaming else (False,)
        self._size_bounds: dict[tuple[int, int], SizeBound] = {}
        # Per object: a cache of the class would never release the tables of a search.
        self._split_bounds = cache(self._compute_split_bounds)
        self._operator_times = cache(self._compute_operator_times)
        self.sharpenings = 0
        """Number of sharpened sizes: fills computed before the last one are out of date."""

    @cached_property
    def shapes_by_dies(self) -> dict[int, list[tuple[int, int]]]:
        """Shapes of all rectangles on the wafer by their dies, in rising order."""
        shapes: dict[int, list[tuple[int, int]]] = {}
        widths, heights = range(1, self.wafer.columns + 1), range(1, self.wafer.rows + 1)
        for width, height in product(widths, heights):
            shapes.setdefault(width * height, []).append((width, height))
        return dict(sorted(shapes.items()))

    def block(self, microbatch: int) -> WaferBlock:
        return make_block(self.planner.model, microbatch, self.planner.sequence)

    # -- one size ------------------------------------------------------------------------------

    def size_bound(self, microbatch: int, dies: int) -> SizeBound:
        key = microbatch, dies
        if key not in self._size_bounds:
            self._size_bounds[key] = self._at_peak(microbatch, dies)
        return self._size_bounds[key]

    def sharpen(
        self, microbatch: int, dies: int, most: int, enough_s: float = 0.0, fits: bool = True
    ) -> bool:
        """Raise the bound of a size to the next level, up to `most`; return whether it was raised.
        `ALL_CODES` stops at `enough_s` per layer; `MEMORY` is skipped if the fastest layers fit.
        """
        bound = self.size_bound(microbatch, dies)
        most = min(most, OPERATORS) if self.options.volume_only else most
        level = bound.level + 1
        if bound.level >= EXACT and not bound.priced and not fits and most >= EXACT:
            level = MEMORY
        elif level > most or (level == ALL_CODES and not self._needs_all_codes(bound, enough_s)):
            return False
        least_s = enough_s if level == ALL_CODES else 0.0
        sharper = self._sharpen_size(microbatch, dies, level, least_s)
        if level >= ALL_CODES:
            layer_s = max(bound.layer_s, sharper.layer_s)
            curves = np.maximum(np.maximum(bound.curves, sharper.curves), layer_s)
            pooled = np.maximum(np.maximum(bound.pooled, sharper.pooled), layer_s)
            priced = bound.priced or level == MEMORY
            sharper = replace(
                bound, layer_s=layer_s, curves=curves, pooled=pooled, priced=priced,
                level=max(bound.level, sharper.level),
            )  # fmt: skip
        self._size_bounds[microbatch, dies] = sharper
        self.sharpenings += 1
        return True

    def _needs_all_codes(self, bound: SizeBound, enough_s: float) -> bool:
        """Return whether a bound over all codes may be higher, and they are not too many."""
        shape = self.shapes_by_dies[bound.dies][0]
        planner = self.planner
        few = planner.codes(*shape, bound.microbatch) <= MAX_CODES
        return few and bound.layer_s < enough_s and not planner.complete(*shape, bound.microbatch)

    def sharper(self, microbatch: int, dies: int, level: int, enough_s: float) -> SizeBound:
        """Return the bound of a size by its operators; by its splits; by the exact part over the
        codes of all its shapes (over splits, if there are too many), for seconds (`EXACT`) or bytes
        too (`MEMORY`); or for seconds over all codes, without a limit on their number.
        """
        plain = self._by_operators(microbatch, dies)
        if level == ALL_CODES:
            all_codes_s = self._all_codes_s(microbatch, dies, enough_s)
            return replace(plain, layer_s=all_codes_s, level=level)
        if level == OPERATORS or plain.layer_s == np.inf:
            return replace(plain, level=level)
        layers = self.block(microbatch).layers
        solvers: list[BlockSolver | DecoupledBound] = [
            self._split_bounds(microbatch, dies).decoupled
        ]
        exact = level in (EXACT, MEMORY)
        if exact and self.planner.complete(*self.shapes_by_dies[dies][0], microbatch):
            shapes = self.shapes_by_dies[dies]
            solvers = [s for shape in shapes for s in self.planner.exacts(*shape, microbatch)]
        fastest = min(solvers, key=lambda solver: solver.bound_s)
        layer_s = max(plain.layer_s, fastest.bound_s)
        but_weight_s = max(plain.but_weight_s, min(solver.but_weight_s for solver in solvers))
        curves, pooled = (np.maximum(curve, layer_s) for curve in (plain.curves, plain.pooled))
        local, offloading = (
            _LeastPricedSeconds(solvers, plain.prices, layers, offload=offload)
            for offload in (False, True)
        )
        for depth, in_flight in enumerate(DEPTHS if level == MEMORY else ()):
            if not self._memory_matters(plain, depth, layers):
                continue
            for j in range(len(plain.prices)):
                check_stop(self.planner.stop)
                pooled[depth, j] = max(pooled[depth, j], local.least(j, in_flight))
                value = offloading.least(j, in_flight) if self.options.offload else pooled[depth, j]
                curves[depth, j] = max(curves[depth, j], value)
        _, nested, _ = rates(self.shapes_by_dies[dies], self.wafer.mesh)
        sums_s = nested.seconds(np.array(dies), self.block(microbatch).stream_bytes)
        state_bytes, kept_bytes = fastest.fastest_bytes if exact else (0.0, 0.0)
        return replace(
            plain, layer_s=layer_s, but_weight_s=but_weight_s, curves=curves, pooled=pooled,
            level=min(level, EXACT), embedding_s=2.0 * float(sums_s), fastest_state=state_bytes,
            fastest_kept=kept_bytes,
        )  # fmt: skip

    def _all_codes_s(self, microbatch: int, dies: int, enough_s: float) -> float:
        """Return a lower bound on a layer over all codes, at most `enough_s`."""
        block, decoupled = self.block(microbatch), self._split_bounds(microbatch, dies).decoupled
        node_sizes = block.stream_sizes, *(unit.sizes for unit in block.units)
        node_splits = [splits(sizes, dies) for sizes in node_sizes]
        counts = [len(parts) for parts in node_splits]
        least_s, pass_bounds = decoupled.least_costs(FREE), decoupled.pass_bounds()
        streams = [p for p, s in zip(node_splits[0], least_s, strict=True) if s < enough_s]
        for shape in self.shapes_by_dies[dies]:
            for tables in self.planner.with_splits({"stream": streams}).tables(*shape, microbatch):
                nodes = tables.stream, *(node for chain in tables.nodes for node in chain)
                indices = [
                    _split_indices(node.codes, tables.digits, parts)
                    for node, parts in zip(nodes, node_splits, strict=True)
                ]
                forward, backward = (_code_bounds(b, indices, counts) for b in pass_bounds)
                exact_s = np.array([tables.stream_s(code) for code in tables.stream.codes])
                stream_s = (least_s - decoupled.forward.stream_s)[indices[0]] + exact_s
                homes = self.options.homes
                enough_s = least_block_s(tables, homes, stream_s, forward, backward, enough_s)
        return enough_s

    def fast_splits(self, microbatch: int, dies: int, enough_s: float) -> dict[str, list[Parts]]:
        """Return the splits of layers that may take less than `enough_s` with shared codes."""
        block = self.block(microbatch)
        stream_s, through_s = self._split_bounds(microbatch, dies).shared.through(FREE)
        units = zip(block.units, through_s, strict=True)
        values = {"stream": (block.stream_sizes, stream_s)}
        values |= {unit.name: (unit.sizes, seconds) for unit, seconds in units}
        fast = {}
        for name, (sizes, seconds) in values.items():
            cuts = splits(sizes, dies)
            least_s = seconds.reshape(-1, len(cuts)).min(axis=0)  # over modes of collectives
            fast[name] = [cut for cut, s in zip(cuts, least_s, strict=True) if s < enough_s]
        return fast

    def _compute_split_bounds(self, microbatch: int, dies: int) -> SplitBounds:
        setting, shapes = self.planner.setting(microbatch), self.shapes_by_dies[dies]
        tables = SplitTables(self.block(microbatch), shapes, setting, self.pricer, self.modes)
        return split_bounds(tables, Rules(self.options.homes, self.options.recompute))

    def _memory_matters(self, bound: SizeBound, depth: int, layers: int) -> bool:
        """Return whether a stage of this size and depth could run out of memory."""
        if DEPTHS[depth] > self.wafer.dies // bound.dies + 1:
            return False
        share = min(layers, -(-layers * bound.dies // self.wafer.dies))
        priced_s = bound.pooled[depth, 0] - bound.layer_s
        return bool(3.0 * share * priced_s / bound.prices[0] > self.wafer.memory_bytes)

    # -- operators alone -----------------------------------------------------------------------

    def _at_peak(self, microbatch: int, dies: int) -> SizeBound:
        """Return the bound of products at peak rate alone."""
        block = self.block(microbatch)
        legal = all(divisible(unit.sizes, dies) for unit in block.units)
        peak = self.pricer.chip.peak_flops * self.pricer.stalls.array * dies
        if self.options.volume_only:
            peak = np.inf

        def seconds(products: Iterable[TaggedMatmul]) -> float:
            return sum(float(p.matmul.flops * p.matmul.fraction) for p in products) / peak

        times = {
            unit.name: PassTime(
                seconds(unit.forward), seconds(unit.data_gradient), seconds(unit.weight_gradient)
            )
            for unit in (*block.units, *([block.head] if block.head else []))
        }
        no_time = [0.0] * len(block.chains)
        slowest_weight_s = dict.fromkeys(times, np.inf)
        stream_s = no_time if legal else [np.inf]
        return self._bound(microbatch, dies, times, slowest_weight_s, no_time, stream_s, PEAK)

    def _by_operators(self, microbatch: int, dies: int) -> SizeBound:
        block = self.block(microbatch)
        units = (*block.units, *([block.head] if block.head else []))
        both = {unit.name: self._operator_times(microbatch, unit.name, dies) for unit in units}
        times = {name: passes for name, (passes, _) in both.items()}
        slowest_weight_s = {name: weight_s for name, (_, weight_s) in both.items()}
        stream_splits = splits(block.stream_sizes, dies)
        entry_s = [self._least_vector_s(c.entry_passes, stream_splits) for c in block.chains]
        stream_s = [self._least_vector_s(c.stream_passes, stream_splits) for c in block.chains]
        return self._bound(microbatch, dies, times, slowest_weight_s, entry_s, stream_s, OPERATORS)

    def _bound(
        self, microbatch: int, dies: int, times: dict[str, PassTime],
        slowest_weight_s: dict[str, float], entry_s: Sequence[float], stream_s: Sequence[float],
        level: int,
    ) -> SizeBound:  # fmt: skip
        """Combine seconds of passes into bounds of a layer, the head and the embedding."""
        block = self.block(microbatch)
        rounds, states = self.planner.rounds(microbatch), self.options.states
        bandwidth_Bps = self.pricer.stream_Bps
        parameters = sum(unit.parameters for unit in block.units)
        external = "external" in self.options.homes
        state_bytes = 0.0 if external else states.bytes_per_parameter
        update = 0.0 if external else states.update / (dies * bandwidth_Bps * rounds)
        unit_times = [times[unit.name] for unit in block.units]
        but_weight_s = sum(t.forward_s + t.backward_s for t in unit_times)
        but_weight_s = but_weight_s + sum(entry_s) + sum(stream_s) + update * parameters
        layer_s = but_weight_s + sum(t.weight_s for t in unit_times)
        head_s = head_but_weight_s = head_bytes = 0.0
        if block.head is not None:
            head = times[block.head.name]
            head_but_weight_s = head.forward_s + head.backward_s + update * block.head.parameters
            head_s = head_but_weight_s + head.weight_s
            head_bytes = block.head_bytes / dies + state_bytes * block.head.parameters / dies
        scale = layer_s if 0.0 < layer_s < np.inf else 1.0
        prices = PRICES * scale * block.layers * dies / self.wafer.dies / self.wafer.memory_bytes
        in_flight = np.array(DEPTHS)[:, None]
        saved_bytes = self.planner.setting(microbatch).stream_saved_bytes(block)
        curves = layer_s + prices * (state_bytes * parameters / dies)
        curves = curves + prices * in_flight * saved_bytes / dies
        local_curves = curves
        for chain, chain_entry_s in zip(block.chains, entry_s, strict=True):
            remade_s = chain_entry_s, *(times[unit.name].forward_s for unit in chain.units)
            for edge, again_s in zip(chain.edges, remade_s, strict=True):
                if edge.kept_name:
                    again_s = again_s if self.options.recompute else np.inf
                    kept_s = prices * in_flight * sum(edge.totals) / dies
                    curves = curves + np.minimum(kept_s, again_s)
        embedding_bytes = state_bytes * block.embedding_parameters / dies
        # All saved tensors may be offloaded to another stage.
        local_curves = local_curves if self.options.offload else curves
        return SizeBound(
            microbatch, dies, layer_s, but_weight_s, head_s, head_but_weight_s, head_bytes,
            embedding_bytes, prices, local_curves, curves, level,
            sum(slowest_weight_s[unit.name] for unit in block.units),
            slowest_weight_s[block.head.name] if block.head is not None else 0.0,
        )  # fmt: skip

    def _least_vector_s(
        self, passes: Sequence[TaggedVector], stream_splits: Sequence[Parts]
    ) -> float:
        return float(np.min(self.pricer.passes_s(passes, by_tag(stream_splits))))

    def _compute_operator_times(
        self, microbatch: int, name: str, dies: int
    ) -> tuple[PassTime, float]:
        """Return the fastest passes of an operator, and its slowest weight pass."""
        block = self.block(microbatch)
        unit = next(u for u in (*block.units, block.head) if u is not None and u.name == name)
        cuts = splits(unit.sizes, dies)
        if not cuts:
            return PassTime(np.inf, np.inf, np.inf), np.inf
        if self.options.volume_only:
            return PassTime(0.0, 0.0, 0.0), np.inf
        pieces = {int(CHUNKS) if streams and unit.kind == "linear" else 1 for streams in self.modes}
        times = np.concatenate([pass_times_s(self.pricer, unit, cuts, count) for count in pieces])
        _, _, weight_s = times.T
        return PassTime(*times.min(axis=0).tolist()), float(weight_s.max())


class _LeastPricedSeconds:
    """Minimum over several solvers at rising prices and microbatches in flight.

    Costs never fall with these, so that most solvers need not run again.
    """

    def __init__(
        self, solvers: Sequence[BlockSolver | DecoupledBound], prices: Floats, layers: int, *,
        offload: bool,
    ) -> None:  # fmt: skip
        self._solvers, self._prices, self._layers, self._offload = solvers, prices, layers, offload
        free = np.array([[solver.bound_s] for solver in solvers])
        self._least_so_far_s = np.repeat(free, len(prices), axis=1)

    def least(self, price: int, in_flight: int) -> float:
        least_s = np.inf
        for solver in np.argsort(self._least_so_far_s[:, price], kind="stable"):
            if self._least_so_far_s[solver, price] >= least_s:
                break
            priced_s = self._solvers[solver].priced_s(
                self._prices[price], in_flight, self._layers, offload=self._offload
            )
            later = self._least_so_far_s[solver, price:]
            np.maximum(later, priced_s, out=later)
            least_s = min(least_s, priced_s)
        return least_s


def _split_indices(codes: Sequence[str], digits: Digits, unit_splits: Sequence[Parts]) -> Ints:
    """Return the index of the split of every code."""
    index_by_split = {frozenset(parts.items()): i for i, parts in enumerate(unit_splits)}
    keys = (frozenset(parts_of(code, digits).items()) for code in codes)
    return np.array([index_by_split[key] for key in keys], np.int64)


def _code_bounds(
    chains: Sequence[ChainBounds], split_indices: Sequence[Ints], counts: Sequence[int]
) -> list[ChainBounds]:
    """Expand bounds of splits (`counts` per operator), in their fastest mode, to their codes."""
    stream, units = split_indices[0], iter(range(1, len(split_indices)))

    def expand(costs: Floats, unit: int) -> Floats:
        least = costs.reshape(len(costs), -1, counts[unit]).min(axis=1)
        return np.asarray(least[np.ix_(stream, split_indices[unit])])

    bounds = []
    for chain in chains:
        chain_units = [next(units) for _ in chain.through]
        through = [expand(c, unit) for c, unit in zip(chain.through, chain_units, strict=True)]
        after = [expand(c, unit) for c, unit in zip(chain.after, chain_units, strict=True)]
        bounds.append(ChainBounds(chain.total[stream], through, after))
    return bounds


def port_step_s(planner: Planner, microbatch: int) -> float:
    """Return a lower bound on the largest load if all weights are stored outside the wafer.

    Every weight comes in twice per microbatch, and each of p stages has 1/p of the ports: the loads
    add up to p times what the ports need for all weights, or for what layers move through them.
    """
    if planner.options.homes != ("external",):
        return 0.0
    block = make_block(planner.model, microbatch, planner.sequence)
    parameters = block.layers * sum(unit.parameters for unit in block.units)
    parameters += block.head.parameters if block.head else 0
    weights_s = 2.0 * planner.options.states.weight * parameters / planner.wafer.io_Bps
    return max(weights_s, block.layers * planner.setting(microbatch).ports_s(block))
