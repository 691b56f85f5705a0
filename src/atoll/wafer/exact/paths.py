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
from atoll.wafer.exact.path_kernels import chosen, fewest_pairs, min_plus, priced_pairs
from atoll.wafer.exact.price_kernels import Steps


@dataclass(frozen=True)
class Price:
    """Seconds a byte here and a byte elsewhere are worth; how often a layer's bytes count.

    `per_kept` bytes of the stage for each kept byte of a layer and microbatch, `per_state` for each
    byte of state.
    """

    own: float
    away: float
    per_kept: float
    per_state: float


FREE = Price(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class Step:
    """Arrays are (from, to) by state; options are (options, from or 1, to)."""

    time_s: FloatArray
    kept: FloatArray
    again_s: FloatArray
    away_s: FloatArray | None
    """None: nowhere to go."""
    droppable: bool
    option_s: FloatArray
    state: FloatArray

    def fates(self) -> tuple[int, ...]:
        if not self.droppable:
            return (KEEP,)
        return (KEEP, AGAIN) if self.away_s is None else (KEEP, AGAIN, OFFLOAD)

    def prices(self, price: Price) -> tuple[float, float, float, float]:
        """Of a byte of state, and of the tensor if it is kept, made again or left elsewhere."""
        kept, own = price.own * price.per_kept, price.own
        return own * price.per_state, kept, own, own + price.away * price.per_kept

    @cached_property
    def choices(self) -> tuple[FloatArray, ...]:
        """Seconds of pairs; bytes and seconds of the tensor's fates; seconds and bytes of the
        options.
        """
        away_s = self.again_s if self.away_s is None else self.away_s
        shape = (*self.option_s.shape[:2], self.time_s.shape[1])
        options = (
            part if part.shape == shape else np.broadcast_to(part, shape)
            for part in (self.option_s, self.state)
        )
        parts = self.time_s, self.kept, self.again_s, away_s, *options
        # Kernels are compiled for arrays that can be written; what can be is not copied.
        return tuple(np.require(part, np.float64, ("C", "W")) for part in parts)

    def scalar(self, price: Price) -> FloatArray:
        """Least seconds + price x bytes of every pair of states."""
        weights = np.empty(self.time_s.shape)
        fates, prices = len(self.fates()), self.prices(price)
        priced_pairs(*self.choices, fates, prices, weights)
        return weights

    def choose(self, before: int, here: int, price: Price) -> tuple[int, int]:
        """The option and the fate that `scalar` takes at a pair of states."""
        fates, prices = len(self.fates()), self.prices(price)
        option, fate = chosen(*self.choices[1:], fates, prices, before, here)
        return option, self.fates()[fate]

    def least_bytes(self, per_kept: float, per_state: float) -> FloatArray:
        """The fewest bytes here that the step can take."""
        found = np.empty(self.time_s.shape)
        fewest_pairs(*self.choices[1:], len(self.fates()), per_kept, per_state, found)
        return found


class Way(NamedTuple):
    """One way through all chains: states by chain, options by operator, fates by saved tensor."""

    states: list[list[int]]
    options: list[int]
    fates: list[int]


def taken(way: Way, chains: list[list[Step]], stream: int) -> list[tuple[Step, int, int, int, int]]:
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


class Reach(NamedTuple):
    """Least seconds + price x bytes to every state, for every stream layout."""

    before: FloatArray
    """(streams that were asked for, states) before a step."""
    weight: FloatArray
    """(states, states) of the step."""

    def choice(self, row: int, state: int) -> int:
        """The state before, on the way of a stream layout."""
        return int((self.before[row] + self.weight[:, state]).argmin())


def scalar_chain(
    steps: list[Step], price: Price, streams: IntArray | None = None
) -> tuple[FloatArray, list[Reach]]:
    """Least seconds + price x bytes of a chain for every stream layout, or for some of them; the
    way there.
    """
    reach = steps[0].scalar(price)
    rows = np.arange(len(reach)) if streams is None else streams
    if len(steps) == 1:
        return reach[rows, rows], []
    if streams is not None:
        reach = reach[rows]
    ways: list[Reach] = []
    for step in steps[1:-1]:
        ways.append(Reach(reach, step.scalar(price)))
        reach = np.empty((len(rows), ways[-1].weight.shape[1]))
        min_plus(*ways[-1], reach)
    # A chain ends in the stream layout that it began with.
    ways.append(Reach(reach, steps[-1].scalar(price)))
    return (reach + ways[-1].weight.T[rows]).min(axis=1), ways


class Outlook(NamedTuple):
    """Least seconds + price x bytes of a chain, by stream layout; and (streams, states) of every
    operator: through its states, and after them.
    """

    value: FloatArray
    through: list[FloatArray]
    behind: list[FloatArray]


def outlook(steps: list[Step], price: Price) -> Outlook:
    value, reaches = scalar_chain(steps, price)
    behind = [np.ascontiguousarray(reaches[-1].weight.T)]
    for reach in reversed(reaches[:-1]):
        further = np.empty((len(behind[0]), len(reach.weight)))
        min_plus(behind[0], np.ascontiguousarray(reach.weight.T), further)
        behind.insert(0, further)
    through = [reach.before + after for reach, after in zip(reaches, behind, strict=True)]
    return Outlook(value, through, behind)


@dataclass(frozen=True, eq=False)
class Paths:
    """All chains of a block, and what each stream layout costs beside them."""

    chains: list[list[Step]]
    stream_s: FloatArray
    stream_kept: FloatArray
    """Of one microbatch: the layer's input and its masks."""
    buffers: FloatArray

    def least(
        self, price: Price, streams: IntArray | None = None
    ) -> tuple[FloatArray, list[list[Reach]]]:
        """Least seconds + price x bytes of every stream layout, or of some of them, without its own
        bytes.
        """
        solved = [scalar_chain(steps, price, streams) for steps in self.chains]
        own_s = self.stream_s if streams is None else self.stream_s[streams]
        total = own_s + sum((v for v, _ in solved), np.zeros(len(own_s)))
        return total, [ways for _, ways in solved]

    def through(self, price: Price) -> tuple[FloatArray, list[FloatArray]]:
        """Least seconds + price x bytes of every stream layout, and through every state of every
        operator, whatever the stream.
        """
        total = self.least(price)[0]
        found = []
        for look in (outlook(steps, price) for steps in self.chains):
            found += [((total - look.value)[:, None] + t).min(axis=0) for t in look.through]
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
            total += scalar_chain(bytes_, FREE)[0]
        return total

    def fastest(self, stream: int) -> Way:
        """The fastest way with a stream layout, whatever memory it takes."""
        _, ways = self.least(FREE, np.array([stream]))
        found = Way([], [], [])
        for steps, reaches in zip(self.chains, ways, strict=True):
            path = [stream]
            for reach in reversed(reaches):
                path.insert(0, reach.choice(0, path[0]))
            found.states.append(path[:-1])
            before = stream
            for step, here in zip(steps, path, strict=True):
                option, fate = step.choose(before, here, FREE)
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
    def packed(self) -> Steps:
        """All steps as kernels take them."""
        steps = [step for chain in self.chains for step in chain]
        arrays = np.array([[part.ctypes.data for part in step.choices] for step in steps])
        shapes = np.array([(*s.time_s.shape, *s.choices[-1].shape[:2]) for s in steps])
        fates = np.array([len(step.fates()) for step in steps])
        return Steps(arrays, shapes, fates, np.cumsum([len(chain) for chain in self.chains]))

    def unpacked(self, taken: IntArray) -> Way:
        """The way by the state, option and fate (its place among a step's) of every step."""
        way, rows = Way([], [], []), iter(taken.tolist())
        for chain in self.chains:
            found = list(zip(chain, rows, strict=False))
            way.states.append([state for _, (state, _, _) in found[:-1]])
            way.options.extend(option for _, (_, option, _) in found[:-1])
            way.fates.extend(step.fates()[fate] for step, (_, _, fate) in found if step.droppable)
        return way

    def fastest_bytes(self, stream: int) -> tuple[float, float]:
        """States, and bytes kept of a microbatch, of the fastest way with a stream layout."""
        cost = self.cost(stream, self.fastest(stream))
        return cost.state_bytes, cost.kept_bytes

    def cost(self, stream: int, way: Way) -> BlockCost:
        time = float(self.stream_s[stream])
        state, kept, rebuilt, away = 0.0, float(self.stream_kept[stream]), 0.0, 0.0
        for step, before, here, option, fate in taken(way, self.chains, stream):
            time += float(step.time_s[before, here])
            at = 0 if step.option_s.shape[1] == 1 else before
            time += float(step.option_s[option, at, here])
            state += float(step.state[option, at, here])
            if not step.droppable:
                continue
            held = float(step.kept[before, here])
            if fate == KEEP:
                kept += held
            elif fate == AGAIN:
                rebuilt += held
                time += float(step.again_s[before, here])
            else:
                assert step.away_s is not None
                rebuilt += held
                away += held
                time += float(step.away_s[before, here])
        return BlockCost(time, state, kept, rebuilt, away)

    def bytes(self, stream: int, cost: BlockCost, layers: int, in_flight: int) -> float:
        """Of a stage on one die."""
        return cost.memory_bytes(layers, in_flight) + float(self.buffers[stream])
