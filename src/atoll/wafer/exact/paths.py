"""Shortest paths through the chains of a block, for every stream layout at once.

One step leads into one operator, from every state of the last. A state is what the path
must remember of an operator (its code). A step costs

    time_s                       re-sharding and compute of the pair of states
    one option of the operator   seconds and bytes of state (home of the weight)
    one fate of the tensor       keep (bytes of every microbatch in flight), again (its producer's
                                 seconds, bytes of one microbatch), offload (seconds of its journey,
                                 bytes of one microbatch here and of all in flight elsewhere)

Bytes here and bytes elsewhere are the two resources of the path.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from atoll.arrays import FloatArray, IntArray
from atoll.wafer.encoding.genes import AGAIN, KEEP, OFFLOAD, BlockCost
from atoll.wafer.exact.path_kernels import cheapest_choice, fewest_bytes_pairs, min_plus, priced_pairs
from atoll.wafer.exact.price_kernels import PackedSteps


@dataclass(frozen=True)
class MemoryPrice:
    """Seconds a byte here and a byte elsewhere are worth; how often a layer's bytes count.

    `per_kept` bytes of the stage for each kept byte of a layer and microbatch, `per_state` for each
    byte of state.
    """

    local_s_per_byte: float
    offload_s_per_byte: float
    saved_copies: float
    state_copies: float


FREE = MemoryPrice(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class PathStep:
    """Arrays are (from, to) by state; options are (options, from or 1, to)."""

    time_s: FloatArray
    saved_bytes: FloatArray
    recompute_s: FloatArray
    offload_s: FloatArray | None
    """None: nowhere to go."""
    droppable: bool
    option_s: FloatArray
    state_bytes: FloatArray

    def fates(self) -> tuple[int, ...]:
        if not self.droppable:
            return (KEEP,)
        return (KEEP, AGAIN) if self.offload_s is None else (KEEP, AGAIN, OFFLOAD)

    def byte_prices(self, price: MemoryPrice) -> tuple[float, float, float, float]:
        """Of a byte of state, and of the tensor if it is kept, made again or left elsewhere."""
        kept, own = price.local_s_per_byte * price.saved_copies, price.local_s_per_byte
        return own * price.state_copies, kept, own, own + price.offload_s_per_byte * price.saved_copies

    @cached_property
    def kernel_arrays(self) -> tuple[FloatArray, ...]:
        """Seconds of pairs; bytes and seconds of the tensor's fates; seconds and bytes of the
        options.
        """
        away_s = self.recompute_s if self.offload_s is None else self.offload_s
        shape = (*self.option_s.shape[:2], self.time_s.shape[1])
        options = (
            part if part.shape == shape else np.broadcast_to(part, shape)
            for part in (self.option_s, self.state_bytes)
        )
        parts = self.time_s, self.saved_bytes, self.recompute_s, away_s, *options
        # Kernels are compiled for arrays that can be written; what can be is not copied.
        return tuple(np.require(part, np.float64, ("C", "W")) for part in parts)

    def least_costs(self, price: MemoryPrice) -> FloatArray:
        """Least seconds + price x bytes of every pair of states."""
        weights = np.empty(self.time_s.shape)
        fates, prices = len(self.fates()), self.byte_prices(price)
        priced_pairs(*self.kernel_arrays, fates, prices, weights)
        return weights

    def cheapest_choice(self, before: int, here: int, price: MemoryPrice) -> tuple[int, int]:
        """The option and the fate that `scalar` takes at a pair of states."""
        fates, prices = len(self.fates()), self.byte_prices(price)
        option, fate = cheapest_choice(*self.kernel_arrays[1:], fates, prices, before, here)
        return option, self.fates()[fate]

    def least_bytes(self, per_kept: float, per_state: float) -> FloatArray:
        """The fewest bytes here that the step can take."""
        found = np.empty(self.time_s.shape)
        fewest_bytes_pairs(*self.kernel_arrays[1:], len(self.fates()), per_kept, per_state, found)
        return found


class BlockPath(NamedTuple):
    """One way through all chains: states by chain, options by operator, fates by saved tensor."""

    states: list[list[int]]
    options: list[int]
    fates: list[int]


def path_steps(way: BlockPath, chains: list[list[PathStep]], stream: int) -> list[tuple[PathStep, int, int, int, int]]:
    """The way step by step: step, state before, state, option, fate."""
    options, fates = iter(way.options), iter(way.fates)
    walked = []
    for steps, path in zip(chains, way.states, strict=True):
        before = stream
        for step, here in zip(steps, [*path, stream], strict=True):
            fate = next(fates) if step.droppable else KEEP
            option = 0 if step is steps[-1] else next(options)
            walked.append((step, before, here, option, fate))
            before = here
    return walked


class ReachCosts(NamedTuple):
    """Least seconds + price x bytes to every state, for every stream layout."""

    cost_before: FloatArray
    """(streams that were asked for, states) before a step."""
    step_cost: FloatArray
    """(states, states) of the step."""

    def previous_state(self, row: int, state: int) -> int:
        """The state before, on the way of a stream layout."""
        return int((self.cost_before[row] + self.step_cost[:, state]).argmin())


def least_chain_costs(
    steps: list[PathStep], price: MemoryPrice, streams: IntArray | None = None
) -> tuple[FloatArray, list[ReachCosts]]:
    """Least seconds + price x bytes of a chain for every stream layout, or for some of them; the
    way there.
    """
    reach = steps[0].least_costs(price)
    rows = np.arange(len(reach)) if streams is None else streams
    if len(steps) == 1:
        return reach[rows, rows], []
    if streams is not None:
        reach = reach[rows]
    ways: list[ReachCosts] = []
    for step in steps[1:-1]:
        ways.append(ReachCosts(reach, step.least_costs(price)))
        reach = np.empty((len(rows), ways[-1].step_cost.shape[1]))
        min_plus(*ways[-1], reach)
    # A chain ends in the stream layout that it began with.
    ways.append(ReachCosts(reach, steps[-1].least_costs(price)))
    return (reach + ways[-1].step_cost.T[rows]).min(axis=1), ways


class ChainBounds(NamedTuple):
    """Least seconds + price x bytes of a chain, by stream layout; and (streams, states) of every
    operator: through its states, and after them.
    """

    total: FloatArray
    through: list[FloatArray]
    after: list[FloatArray]


def chain_bounds(steps: list[PathStep], price: MemoryPrice) -> ChainBounds:
    value, reaches = least_chain_costs(steps, price)
    behind = [np.ascontiguousarray(reaches[-1].step_cost.T)]
    for reach in reversed(reaches[:-1]):
        further = np.empty((len(behind[0]), len(reach.step_cost)))
        min_plus(behind[0], np.ascontiguousarray(reach.step_cost.T), further)
        behind.insert(0, further)
    through = [reach.cost_before + after for reach, after in zip(reaches, behind, strict=True)]
    return ChainBounds(value, through, behind)


@dataclass(frozen=True, eq=False)
class BlockPaths:
    """All chains of a block, and what each stream layout costs beside them."""

    chains: list[list[PathStep]]
    stream_s: FloatArray
    stream_saved_bytes: FloatArray
    """Of one microbatch: the layer's input and its masks."""
    buffer_bytes: FloatArray

    def least_costs(
        self, price: MemoryPrice, streams: IntArray | None = None
    ) -> tuple[FloatArray, list[list[ReachCosts]]]:
        """Least seconds + price x bytes of every stream layout, or of some of them, without its own
        bytes.
        """
        solved = [least_chain_costs(steps, price, streams) for steps in self.chains]
        own_s = self.stream_s if streams is None else self.stream_s[streams]
        total = own_s + sum((v for v, _ in solved), np.zeros(len(own_s)))
        return total, [ways for _, ways in solved]

    def through(self, price: MemoryPrice) -> tuple[FloatArray, list[FloatArray]]:
        """Least seconds + price x bytes of every stream layout, and through every state of every
        operator, whatever the stream.
        """
        total = self.least_costs(price)[0]
        found = []
        for look in (chain_bounds(steps, price) for steps in self.chains):
            found += [((total - look.total)[:, None] + t).min(axis=0) for t in look.through]
        return total, found

    def fewest_bytes(self, per_kept: float, per_state: float) -> FloatArray:
        """The fewest bytes of a stage's layers here that any way takes, by stream layout, without
        the stream's own.
        """
        total = np.zeros(len(self.stream_s))
        for steps in self.chains:
            bytes_ = [
                replace(s, time_s=s.least_bytes(per_kept, per_state), droppable=False,
                        option_s=np.zeros((1, 1, 1)), state=np.zeros((1, 1, 1)))
                for s in steps
            ]  # fmt: skip
            total += least_chain_costs(bytes_, FREE)[0]
        return total

    def fastest_path(self, stream: int) -> BlockPath:
        """The fastest way with a stream layout, whatever memory it takes."""
        _, ways = self.least_costs(FREE, np.array([stream]))
        found = BlockPath([], [], [])
        for steps, reaches in zip(self.chains, ways, strict=True):
            path = [stream]
            for reach in reversed(reaches):
                path.insert(0, reach.previous_state(0, path[0]))
            found.states.append(path[:-1])
            before = stream
            for step, here in zip(steps, path, strict=True):
                option, fate = step.cheapest_choice(before, here, FREE)
                if step.droppable:
                    found.fates.append(fate)
                if step is not steps[-1]:
                    found.options.append(option)
                before = here
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Without `packed`: its addresses are those of this object's arrays."""
        return {name: value for name, value in vars(self).items() if name != "packed"}

    @cached_property
    def packed_steps(self) -> PackedSteps:
        """All steps as kernels take them."""
        steps = [step for chain in self.chains for step in chain]
        arrays = np.array([[part.ctypes.data for part in step.kernel_arrays] for step in steps])
        shapes = np.array([(*s.time_s.shape, *s.kernel_arrays[-1].shape[:2]) for s in steps])
        fates = np.array([len(step.fates()) for step in steps])
        return PackedSteps(arrays, shapes, fates, np.cumsum([len(chain) for chain in self.chains]))

    def unpack_path(self, taken: IntArray) -> BlockPath:
        """The way by the state, option and fate (its place among a step's) of every step."""
        way, rows = BlockPath([], [], []), iter(taken.tolist())
        for chain in self.chains:
            found = list(zip(chain, rows, strict=False))
            way.states.append([state for _, (state, _, _) in found[:-1]])
            way.options.extend(option for _, (_, option, _) in found[:-1])
            way.fates.extend(step.fates()[fate] for step, (_, _, fate) in found if step.droppable)
        return way

    def fastest_bytes(self, stream: int) -> tuple[float, float]:
        """States, and bytes kept of a microbatch, of the fastest way with a stream layout."""
        cost = self.path_cost(stream, self.fastest_path(stream))
        return cost.state_bytes, cost.kept_bytes

    def path_cost(self, stream: int, way: BlockPath) -> BlockCost:
        time = float(self.stream_s[stream])
        state, kept, rebuilt, away = 0.0, float(self.stream_saved_bytes[stream]), 0.0, 0.0
        for step, before, here, option, fate in path_steps(way, self.chains, stream):
            time += float(step.time_s[before, here])
            at = 0 if step.option_s.shape[1] == 1 else before
            time += float(step.option_s[option, at, here])
            state += float(step.state_bytes[option, at, here])
            if not step.droppable:
                continue
            held = float(step.saved_bytes[before, here])
            if fate == KEEP:
                kept += held
            elif fate == AGAIN:
                rebuilt += held
                time += float(step.recompute_s[before, here])
            else:
                assert step.offload_s is not None
                rebuilt += held
                away += held
                time += float(step.offload_s[before, here])
        return BlockCost(time, state, kept, rebuilt, away)

    def stage_bytes(self, stream: int, cost: BlockCost, layers: int, in_flight: int) -> float:
        """Of a stage on one die."""
        return cost.memory_bytes(layers, in_flight) + float(self.buffer_bytes[stream])
