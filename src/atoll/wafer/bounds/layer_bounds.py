"""What a layer takes at least on so many dies: seconds, and seconds for given bytes.

No code of an operator beats its products and passes at the best split of so many dies; re-sharding
and sums of gradients are left out, so that this holds for whatever shape the dies form and whatever
codes the three passes of an operator have. Where the exact part has solved all shapes of a size,
its bounds are taken instead.

Memory: for a price of a byte, `V(price, in flight)` is the least of

    seconds of a layer + price x (state + in flight x kept)         (a layer, on one die)

so that a layer which is done within t seconds holds at least (V - t) / price bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from typing import Any

import numpy as np
from pydantic import JsonValue

from atoll.arrays import FloatArray, IntArray
from atoll.fabric.digits import Digits
from atoll.hardware.wafer import Wafer
from atoll.step.replay import PassTime
from atoll.stopping import go_on
from atoll.wafer.bounds.counts import SplitBounds, SplitTables, split_bounds, rates
from atoll.wafer.costs.block_kernels import CHUNKS
from atoll.wafer.costs.pricing import passes_of, pricer
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.block_parts import Block, Pass, Product
from atoll.wafer.encoding.codes import Parts, by_tag, parts_of, splits
from atoll.wafer.exact.exact import Exact
from atoll.wafer.exact.paths import FREE, ChainBounds
from atoll.wafer.exact.states import DecoupledBound, Rules, least_block_s
from atoll.wafer.staging.stages import Planner

PEAK, OPERATORS, COUNTS, EXACT, WHOLE = range(5)
MEMORY = 5  # asked for beside these: what a byte is worth by the exact part

DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
"""Microbatches in flight for which curves are computed; others take the next smaller."""
WHOLE_CODES = 1 << 10  # an operator: more are not solved together
PRICES = 2.0 ** np.arange(-7.0, 3.0)  # of a die's bytes, in seconds of a layer


@dataclass(frozen=True, eq=False)
class SizeBound:
    """One microbatch on a stage of so many dies."""

    microbatch: int
    dies: int
    layer_s: float
    but_weight_s: float
    """A layer without its weight passes."""
    head_s: float
    head_but_weight_s: float
    head_bytes: float
    """A die's, of the head and its loss, at least."""
    embedding_bytes: float
    prices: FloatArray
    curves: FloatArray
    """V (depths, prices) of `DEPTHS` and `prices`, for the bytes on the stage's own dies."""
    pooled: FloatArray
    """The same for these and what the stage left with a helper."""
    level: int
    """What is known: `PEAK`, `OPERATORS`, `COUNTS`, `EXACT` or `WHOLE`."""
    most_weight_s: float
    """The weight passes of a layer under the slowest codes: no more of a fill can be theirs."""
    head_most_weight_s: float
    embedding_s: float = 0.0
    """Both ways between the embedding, whose vocabulary is cut, and the stream."""
    fastest_state: float = 0.0
    fastest_kept: float = 0.0
    """Bytes of a layer on a die where it takes as long as the exact part says at least: its states,
    and what it keeps of a microbatch.
    """
    priced: bool = False
    """Whether the curves are those of the exact part."""

    def to_dict(self) -> dict[str, JsonValue]:
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(self).items()}

    @staticmethod
    def from_dict(told: Mapping[str, JsonValue]) -> SizeBound:
        own: Any = {k: np.array(v) if isinstance(v, list) else v for k, v in told.items()}
        return SizeBound(**own)


SharpenSize = Callable[[int, int, int, float], SizeBound]
"""Microbatch, dies, level and seconds of a layer that are enough: what is known then."""


class LayerBounds:
    """Bounds of layers of one model, batch and sequence on one wafer."""

    def __init__(
        self, planners: Sequence[Planner], ask: SharpenSize | None = None,
        like: LayerBounds | None = None,
    ) -> None:  # fmt: skip
        """`ask` makes bounds sharper instead of `sharper`, which does it here. `like`: bounds under
        options that differ in offload, gradient codes and ways of each operator alone, which share
        what operators and splits take.
        """
        first = planners[0]
        self._sharpen_size = ask or self.sharper
        self.planners = tuple(planners)
        self.wafer: Wafer = first.wafer
        self.options = first.options
        self.pricer = pricer(self.wafer.chip)
        # Products of streamed operators run in pieces; each operator may stream or not.
        self.pieces = (int(CHUNKS), 1) if self.options.streaming else (1,)
        self._size_bounds: dict[tuple[int, int], SizeBound] = {}
        # Of this object: a cache of the class would keep every search's tables for ever.
        self._split_bounds: Callable[[int, int], SplitBounds] = cache(self._compute_split_bounds)
        self._operator_times: Callable[[int, str, int], tuple[PassTime, float]] = cache(self._compute_operator_times)
        if like is not None:
            self._split_bounds, self._operator_times = like._split_bounds, like._operator_times
        self.sharpenings = 0
        """How often a size was made sharper: fills worked out before are out of date."""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Dies that some rectangle on the wafer has."""
        shapes = self.shapes_by_dies()
        return tuple(sorted(shapes))

    def shapes_by_dies(self) -> dict[int, list[tuple[int, int]]]:
        shapes: dict[int, list[tuple[int, int]]] = {}
        for width in range(1, self.wafer.columns + 1):
            for height in range(1, self.wafer.rows + 1):
                shapes.setdefault(width * height, []).append((width, height))
        return shapes

    def block(self, microbatch: int) -> Block:
        return make_block(self.planners[0].model, microbatch, self.planners[0].sequence)

    @property
    def external(self) -> bool:
        return "external" in self.options.homes

    # -- one size ------------------------------------------------------------------------------

    def size_bound(self, microbatch: int, dies: int) -> SizeBound:
        key = microbatch, dies
        if key not in self._size_bounds:
            self._size_bounds[key] = self._at_peak(microbatch, dies)
        return self._size_bounds[key]

    def sharpen(
        self, microbatch: int, dies: int, most: int, enough_s: float = 0.0, roomy: bool = True
    ) -> bool:
        """Know more about a size, at most so much; False if that is known already. What is `WHOLE`
        need not be known beyond `enough_s` of a layer; what bytes are worth, not where the fastest
        layers fit (`roomy`).
        """
        known = self.size_bound(microbatch, dies)
        most = min(most, OPERATORS) if self.options.volume_only else most
        level = known.level + 1
        if known.level >= EXACT and not known.priced and not roomy and most >= EXACT:
            level = MEMORY
        elif level > most or (level == WHOLE and not self._needs_all_codes(known, enough_s)):
            return False
        sharper = self._sharpen_size(microbatch, dies, level, enough_s if level == WHOLE else 0.0)
        if level >= WHOLE:
            layer_s = max(known.layer_s, sharper.layer_s)
            own, pooled = (
                np.maximum(np.maximum(a, b), layer_s)
                for a, b in ((known.curves, sharper.curves), (known.pooled, sharper.pooled))
            )
            priced = known.priced or level == MEMORY
            sharper = replace(
                known, layer_s=layer_s, curves=own, pooled=pooled, priced=priced,
                level=max(known.level, sharper.level),
            )  # fmt: skip
        self._size_bounds[microbatch, dies] = sharper
        self.sharpenings += 1
        return True

    def _needs_all_codes(self, known: SizeBound, enough_s: float) -> bool:
        """Whether all codes of a size say more than its splits, and are not too many."""
        shape = self.shapes_by_dies()[known.dies][0]
        planner = self.planners[0]
        few = planner.codes(*shape, known.microbatch) <= WHOLE_CODES
        return few and known.layer_s < enough_s and not planner.complete(*shape, known.microbatch)

    def sharper(self, microbatch: int, dies: int, level: int, enough_s: float) -> SizeBound:
        """The bound of a size by its operators; by its splits; by the exact part over the codes of
        all of its shapes (over splits, where there are too many), seconds alone or for bytes as
        well (`MEMORY`); or, seconds alone, over all codes however many there are.
        """
        plain = self._by_operators(microbatch, dies)
        if level == WHOLE:
            whole_s = self._all_codes_s(microbatch, dies, enough_s)
            return replace(plain, layer_s=whole_s, level=level)
        if level == OPERATORS or plain.layer_s == np.inf:
            return replace(plain, level=level)
        layers = self.block(microbatch).layers
        solvers: list[Exact | DecoupledBound] = [self._split_bounds(microbatch, dies).decoupled]
        exact = level in (EXACT, MEMORY)
        if exact and self.planners[0].complete(*self.shapes_by_dies()[dies][0], microbatch):
            solvers = [
                solver
                for planner in self.planners
                for shape in self.shapes_by_dies()[dies]
                for _, solver in planner.exacts(*shape, microbatch)
            ]
        fastest = min(solvers, key=lambda solver: solver.bound_s)
        layer_s = max(plain.layer_s, fastest.bound_s)
        but_s = max(plain.but_weight_s, min(solver.but_weight_s for solver in solvers))
        own, pooled = (np.maximum(c, layer_s) for c in (plain.curves, plain.pooled))
        kept, away = (_LeastPricedSeconds(solvers, plain.prices, layers, offload=o) for o in (False, True))
        for depth, in_flight in enumerate(DEPTHS if level == MEMORY else ()):
            if not self._memory_matters(plain, depth, layers):
                continue
            for j in range(len(plain.prices)):
                go_on(self.planners[0].stop)
                pooled[depth, j] = max(pooled[depth, j], kept.least(j, in_flight))
                value = away.least(j, in_flight) if self.options.offload else pooled[depth, j]
                own[depth, j] = max(own[depth, j], value)
        _, nested, _ = rates(self.shapes_by_dies()[dies], self.wafer.mesh)
        sums_s = nested.seconds(np.array(dies), self.block(microbatch).stream_bytes)
        state, held = fastest.fastest_bytes if exact else (0.0, 0.0)
        return replace(
            plain, layer_s=layer_s, but_weight_s=but_s, curves=own, pooled=pooled,
            level=min(level, EXACT), embedding_s=2.0 * float(sums_s), fastest_state=state,
            fastest_kept=held,
        )  # fmt: skip

    def _all_codes_s(self, microbatch: int, dies: int, enough_s: float) -> float:
        """Seconds of the fastest layer over all codes, at most `enough_s`: codes whose splits take
        as long, forward or back, beside those of the stream, need not be looked at.
        """
        block, apart = self.block(microbatch), self._split_bounds(microbatch, dies).decoupled
        among = [
            splits(sizes, dies) for sizes in (block.stream_sizes, *(u.sizes for u in block.units))
        ]
        counts = [len(parts) for parts in among]
        least, passes = apart.least_costs(FREE), apart.pass_bounds()
        streams = [parts for parts, s in zip(among[0], least, strict=True) if s < enough_s]
        for planner, shape in product(self.planners, self.shapes_by_dies()[dies]):
            for tables in planner.among({"stream": streams}).tables(*shape, microbatch):
                nodes = tables.stream, *(node for each in tables.nodes for node in each)
                which = [
                    _split_indices(node.codes, tables.digits, parts)
                    for node, parts in zip(nodes, among, strict=True)
                ]
                ahead, back = (_code_bounds(looks, which, counts) for looks in passes)
                exact_s = np.array([tables.stream_s(code) for code in tables.stream.codes])
                known = (least - apart.forward.stream_s)[which[0]] + exact_s
                enough_s = least_block_s(tables, self.options.homes, known, ahead, back, enough_s)
        return enough_s

    def fast_splits(self, microbatch: int, dies: int, enough_s: float) -> dict[str, list[Parts]]:
        """Of every operator and the stream: those of layers that may take less than this, one code
        for all passes of an operator.
        """
        block = self.block(microbatch)
        stream_s, through_s = self._split_bounds(microbatch, dies).shared.through(FREE)
        units = zip(block.units, through_s, strict=True)
        values = {"stream": (block.stream_sizes, stream_s)}
        values |= {unit.name: (unit.sizes, seconds) for unit, seconds in units}
        found = {}
        for name, (sizes, seconds) in values.items():
            among = splits(sizes, dies)
            least_s = seconds.reshape(-1, len(among)).min(axis=0)  # of all ways of collectives
            found[name] = [p for p, s in zip(among, least_s, strict=True) if s < enough_s]
        return found

    def _compute_split_bounds(self, microbatch: int, dies: int) -> SplitBounds:
        setting, shapes = self.planners[0].setting(microbatch), self.shapes_by_dies()[dies]
        tables = SplitTables(self.block(microbatch), shapes, setting, self.pricer, self.pieces)
        return split_bounds(tables, Rules(self.options.homes, self.options.recompute))

    def _memory_matters(self, plain: SizeBound, depth: int, layers: int) -> bool:
        """Whether a stage of this size and depth could run out of memory in a sensible pipeline."""
        if DEPTHS[depth] > self.wafer.dies // plain.dies + 1:
            return False
        share = min(layers, -(-layers * plain.dies // self.wafer.dies))
        kept = plain.pooled[depth, 0] - plain.layer_s
        return bool(3.0 * share * kept / plain.prices[0] > self.wafer.memory_bytes)

    # -- operators alone -----------------------------------------------------------------------

    def _at_peak(self, microbatch: int, dies: int) -> SizeBound:
        """All products at peak rate, nothing else."""
        block = self.block(microbatch)
        legal = all(splits(unit.sizes, dies) for unit in block.units)
        peak = self.wafer.core.peak_flops * dies
        if self.options.volume_only:
            peak = np.inf

        def seconds(items: Iterable[Product]) -> float:
            return sum(float(p.matmul.flops * p.matmul.fraction) for p in items) / peak

        times = {
            unit.name: PassTime(
                seconds(unit.forward), seconds(unit.data_gradient), seconds(unit.weight_gradient)
            )
            for unit in (*block.units, *([block.head] if block.head else []))
        }
        zero = [0.0] * len(block.chains)
        most = dict.fromkeys(times, np.inf)
        others = zero if legal else [np.inf]
        return self._bound(microbatch, dies, times, most, zero, others, PEAK)

    def _by_operators(self, microbatch: int, dies: int) -> SizeBound:
        block = self.block(microbatch)
        units = (*block.units, *([block.head] if block.head else []))
        known = {unit.name: self._operator_times(microbatch, unit.name, dies) for unit in units}
        times = {name: passes for name, (passes, _) in known.items()}
        most = {name: weight_s for name, (_, weight_s) in known.items()}
        stream_splits = splits(block.stream_sizes, dies)
        entries = [self._least_vector_s(c.entry_passes, stream_splits) for c in block.chains]
        others = [self._least_vector_s(c.stream_passes, stream_splits) for c in block.chains]
        return self._bound(microbatch, dies, times, most, entries, others, OPERATORS)

    def _bound(
        self, microbatch: int, dies: int, times: dict[str, PassTime],
        most_weight_s: dict[str, float], entries: Sequence[float], others: Sequence[float],
        level: int,
    ) -> SizeBound:  # fmt: skip
        """From seconds of passes to seconds and bytes of a layer and of the ends."""
        block = self.block(microbatch)
        rounds, states = self.planners[0].rounds(microbatch), self.options.states
        bandwidth = self.pricer.chip.hbm.bandwidth_Bps
        parameters = sum(unit.parameters for unit in block.units)
        update = 0.0 if self.external else states.update / (dies * bandwidth * rounds)
        inside = [times[unit.name] for unit in block.units]
        but_weight = sum(t.forward_s + t.backward_s for t in inside) + sum(entries) + sum(others)
        but_weight += update * parameters
        layer = but_weight + sum(t.weight_s for t in inside)
        head_s = head_but = head_bytes = 0.0
        if block.head is not None:
            head = times[block.head.name]
            head_but = head.forward_s + head.backward_s + update * block.head.parameters
            head_but += 3.0 * block.head_bytes / dies / bandwidth
            head_s = head_but + head.weight_s
            head_bytes = block.head_bytes / dies
            head_bytes += 0.0 if self.external else states.held * block.head.parameters / dies
        scale = layer if 0.0 < layer < np.inf else 1.0
        prices = PRICES * scale * block.layers * dies / self.wafer.dies / self.wafer.memory_bytes
        curves = np.full((len(DEPTHS), len(prices)), layer)
        state = 0.0 if self.external else states.held * parameters / dies
        held = self.planners[0].setting(microbatch).held_bytes(block)
        for depth, in_flight in enumerate(DEPTHS):
            curves[depth] += prices * state
            curves[depth] += prices * in_flight * held / dies
        own = curves.copy()
        for depth, in_flight in enumerate(DEPTHS):
            for chain, entry in zip(block.chains, entries, strict=True):
                for i, edge in enumerate(chain.edges):
                    if not edge.kept_name:
                        continue
                    again = entry if i == 0 else times[chain.units[i - 1].name].forward_s
                    again = again if self.options.recompute else np.inf
                    curves[depth] += np.minimum(prices * in_flight * sum(edge.totals) / dies, again)
        embedding = 0.0 if self.external else states.held * block.embedding_parameters / dies
        # Whatever is saved may lie in another stage's memory.
        own = own if self.options.offload else curves
        return SizeBound(
            microbatch, dies, layer, but_weight, head_s, head_but, head_bytes, embedding, prices,
            own, curves, level, sum(most_weight_s[unit.name] for unit in block.units),
            most_weight_s[block.head.name] if block.head is not None else 0.0,
        )  # fmt: skip

    def _least_vector_s(self, passes: Sequence[Pass], among: Sequence[Parts]) -> float:
        return float(np.min(self.pricer.passes_s(passes, by_tag(among))))

    def _compute_operator_times(self, microbatch: int, name: str, dies: int) -> tuple[PassTime, float]:
        """The fastest passes of an operator, and its slowest weight pass."""
        block = self.block(microbatch)
        unit = next(u for u in (*block.units, block.head) if u is not None and u.name == name)
        among = splits(unit.sizes, dies)
        if not among:
            return PassTime(np.inf, np.inf, np.inf), np.inf
        if self.options.volume_only:
            return PassTime(0.0, 0.0, 0.0), np.inf
        ways = self.pieces if unit.kind == "linear" else (1,)
        passes = np.concatenate([passes_of(self.pricer, unit, among, k) for k in ways])
        return PassTime(*passes.min(axis=0).tolist()), float(passes[:, 2].max())


class _LeastPricedSeconds:
    """The least of several solvers at rising prices and microbatches in flight.

    None gets cheaper then, so that most need not be asked again.
    """

    def __init__(
        self, solvers: Sequence[Exact | DecoupledBound], prices: FloatArray, layers: int, *,
        offload: bool,
    ) -> None:  # fmt: skip
        self._solvers, self._prices, self._layers, self._offload = solvers, prices, layers, offload
        free = np.array([[solver.bound_s] for solver in solvers])
        self._least_so_far_s = np.repeat(free, len(prices), axis=1)

    def least(self, price: int, in_flight: int) -> float:
        found = np.inf
        for number in np.argsort(self._least_so_far_s[:, price], kind="stable"):
            if self._least_so_far_s[number, price] >= found:
                break
            value = self._solvers[number].priced_s(
                self._prices[price], in_flight, self._layers, offload=self._offload
            )
            later = self._least_so_far_s[number, price:]
            np.maximum(later, value, out=later)
            found = min(found, value)
        return found


def _split_indices(codes: Sequence[str], digits: Digits, among: Sequence[Parts]) -> IntArray:
    """The split of every code."""
    known = {frozenset(parts.items()): i for i, parts in enumerate(among)}
    return np.array([known[frozenset(parts_of(c, digits).items())] for c in codes], np.int64)


def _code_bounds(
    looks: Sequence[ChainBounds], which: Sequence[IntArray], counts: Sequence[int]
) -> list[ChainBounds]:
    """What splits, so many of an operator, say of the codes that have them, whatever the way of
    their collectives.
    """
    found, units = [], iter(range(1, len(which)))
    for look in looks:
        own = [next(units) for _ in look.through]
        through, behind = (
            [
                s.reshape(len(s), -1, counts[k]).min(axis=1)[np.ix_(which[0], which[k])]
                for s, k in zip(each, own, strict=True)
            ]
            for each in look[1:]
        )
        found.append(ChainBounds(look.total[which[0]], through, behind))
    return found


def port_step_s(planner: Planner, microbatch: int) -> float:
    """Largest load at least where all weights live outside the wafer, whatever the stages.

    Every weight comes in twice a microbatch, and p stages have a p-th of the ports each: the loads
    add up to p times what the ports need for all weights, or for what layers move through them.
    """
    if planner.options.homes != ("external",):
        return 0.0
    block = make_block(planner.model, microbatch, planner.sequence)
    parameters = block.layers * sum(unit.parameters for unit in block.units)
    parameters += block.head.parameters if block.head else 0
    weights_s = 2.0 * planner.options.states.weight * parameters / planner.wafer.io_Bps
    return max(weights_s, block.layers * planner.setting(microbatch).ports_s(block))
