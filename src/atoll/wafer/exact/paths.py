"""Shortest paths through the chains of a block, for every stream layout at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from atoll.arrays import FloatArray, IntArray
from atoll.wafer.encoding.genes import AGAIN, KEEP, BlockCost
from atoll.wafer.exact.path_kernels import min_plus
from atoll.wafer.exact.steps import Price, Step, Way, taken


def scalar_chain(steps: list[Step], price: Price) -> tuple[FloatArray, list[IntArray]]:
    """Least seconds + price x bytes of a chain for every stream layout; the way there."""
    reach: FloatArray | None = None
    choices: list[IntArray] = []
    for step in steps:
        weight = step.scalar(price)
        if reach is None:
            reach = weight
            continue
        product = np.empty((reach.shape[0], weight.shape[1]))
        choice = np.empty(product.shape, np.int64)
        min_plus(reach, weight, product, choice)
        reach = product
        choices.append(choice)
    assert reach is not None
    return np.ascontiguousarray(np.diagonal(reach)), choices


@dataclass(frozen=True, eq=False)
class Paths:
    """All chains of a block, and what each stream layout costs beside them."""

    chains: list[list[Step]]
    stream_s: FloatArray
    stream_kept: FloatArray
    """Of one microbatch: the layer's input and its masks."""
    buffers: FloatArray

    def least(self, price: Price) -> tuple[FloatArray, list[list[IntArray]]]:
        """Least seconds + price x bytes of every stream layout, without its own bytes."""
        solved = [scalar_chain(steps, price) for steps in self.chains]
        total = self.stream_s + sum((v for v, _ in solved), np.zeros(len(self.stream_s)))
        return total, [choices for _, choices in solved]

    def fewest_bytes(self, per_state: float) -> FloatArray:
        """The fewest bytes of a stage's layers here that any way takes, by stream layout, without
        the stream's own.
        """
        total = np.zeros(len(self.stream_s))
        for steps in self.chains:
            bytes_ = [
                replace(s, time_s=s.least_bytes(per_state), droppable=False,
                        option_s=np.zeros((1, 1, 1)), state=np.zeros((1, 1, 1)))
                for s in steps
            ]  # fmt: skip
            total += scalar_chain(bytes_, Price(0.0, 0.0, 0.0, 0.0))[0]
        return total

    def recover(self, stream: int, price: Price, ways: list[list[IntArray]]) -> Way:
        """The way of the scalar optimum by the choices of `least`."""
        found = Way([], [], [])
        for steps, choices in zip(self.chains, ways, strict=True):
            path = [stream]
            for choice in reversed(choices):
                path.insert(0, int(choice[stream, path[0]]))
            found.states.append(path[:-1])
            before = stream
            for step, here in zip(steps, path, strict=True):
                option, fate = step.choose(before, here, price)
                if step.droppable:
                    found.fates.append(fate)
                if step is not steps[-1]:
                    found.options.append(option)
                before = here
        return found

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
