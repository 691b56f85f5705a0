"""Shortest paths through the chains of a block, for every stream layout at once.

One step leads into one operator, from every state of the last. A state is what the path
must remember of an operator (its code). A step costs

    time_s                       re-sharding and compute of the pair of states
    one option of the operator   seconds and bytes of state (home of the weight)
    one fate of the tensor       keep: bytes of every microbatch in flight
                                 again: seconds of its producer, bytes of one microbatch
                                 offload: seconds of the transfers, bytes of one microbatch locally
                                 and of all in flight in the memory of another stage

Local bytes and offloaded bytes are the two resources of the path.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.wafer.encoding.block_parts import KEEP, OFFLOAD, RECOMPUTE, BlockCost
from atoll.wafer.exact import path_kernels as kernels
from atoll.wafer.exact import price_kernels

FATE_ORDER = (KEEP, RECOMPUTE, OFFLOAD)
PathChoices = Ints
"""Of every step: the state it leads to, its option, and its fate's position in `FATE_ORDER`."""


@dataclass(frozen=True)
class MemoryPrice:
    """Prices of local and offloaded bytes, and how many copies of a layer's bytes a stage holds:
    `saved_copies` of a kept byte per microbatch, `state_copies` of a byte of state.
    """

    local_s_per_byte: float
    offload_s_per_byte: float
    saved_copies: float
    state_copies: float


FREE = MemoryPrice(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class PathStep:
    """Step into an operator; array shapes as in `StepArrays`."""

    time_s: Floats
    saved_bytes: Floats
    recompute_s: Floats
    offload_s: Floats | None
    """None: offloading is not possible."""
    droppable: bool
    option_s: Floats
    state_bytes: Floats

    def byte_prices(self, price: MemoryPrice) -> tuple[float, float, float, float]:
        """Price a byte of state, and a byte of the tensor if kept, recomputed or offloaded."""
        local, saved = price.local_s_per_byte, price.saved_copies
        offloaded = local + price.offload_s_per_byte * saved
        return local * price.state_copies, local * saved, local, offloaded

    @cached_property
    def kernel_arrays(self) -> kernels.StepArrays:
        """The step as kernels take it, with how many of `FATE_ORDER` the tensor may have."""
        offload_s = self.recompute_s if self.offload_s is None else self.offload_s
        fates = (2 if self.offload_s is None else 3) if self.droppable else 1
        shape = (*self.option_s.shape[:2], self.time_s.shape[1])

        def writable(part: Floats, shape: tuple[int, ...] | None = None) -> Floats:
            """Kernels are compiled for writable arrays; arrays that are writable are not copied."""
            if shape is not None and part.shape != shape:
                part = np.broadcast_to(part, shape)
            return np.require(part, np.float64, ("C", "W"))

        return kernels.StepArrays(
            writable(self.time_s), writable(self.saved_bytes), writable(self.recompute_s),
            writable(offload_s), writable(self.option_s, shape),
            writable(self.state_bytes, shape), fates,
        )  # fmt: skip

    @property
    def without_seconds(self) -> PathStep:
        """The step with bytes alone; what cannot be recomputed takes infinitely long."""
        nothing = np.zeros_like(self.time_s)
        return replace(
            self, time_s=nothing, recompute_s=np.where(np.isfinite(self.recompute_s), 0.0, np.inf),
            offload_s=None if self.offload_s is None else nothing,
            option_s=np.zeros_like(self.option_s),
        )  # fmt: skip

    def least_costs(self, price: MemoryPrice) -> Floats:
        """Return the least seconds + price x bytes of every pair of states."""
        weights = np.empty(self.time_s.shape)
        kernels.priced_pairs(self.kernel_arrays, self.byte_prices(price), weights)
        return weights


def by_chain(chains: list[list[PathStep]], path: PathChoices) -> list[PathChoices]:
    """Divide the choices of a path between its chains."""
    return np.split(path, np.cumsum([len(steps) for steps in chains])[:-1])


class ReachCosts(NamedTuple):
    """Least seconds + price x bytes to reach every state, for every stream layout."""

    cost_before: Floats
    """(streams, states) before a step."""
    step_cost: Floats
    """(states, states) of the step."""


def least_chain_costs(steps: list[PathStep], price: MemoryPrice) -> tuple[Floats, list[ReachCosts]]:
    """Return least seconds + price x bytes of a chain, and the costs before each later step."""
    costs = steps[0].least_costs(price)
    if len(steps) == 1:
        return costs.diagonal(), []
    reaches: list[ReachCosts] = []
    for step in steps[1:-1]:
        reaches.append(ReachCosts(costs, step.least_costs(price)))
        costs = np.empty((len(costs), reaches[-1].step_cost.shape[1]))
        kernels.min_plus(*reaches[-1], costs)
    # A chain ends in the stream layout it begins with.
    reaches.append(ReachCosts(costs, steps[-1].least_costs(price)))
    return (costs + reaches[-1].step_cost.T).min(axis=1), reaches


class ChainBounds(NamedTuple):
    """Least seconds + price x bytes of a chain by stream layout; and, as arrays (streams, states)
    per operator, of paths through a state, and of what follows it.
    """

    total: Floats
    through: list[Floats]
    after: list[Floats]


def chain_bounds(steps: list[PathStep], price: MemoryPrice) -> ChainBounds:
    total, reaches = least_chain_costs(steps, price)
    after_states = [np.ascontiguousarray(reaches[-1].step_cost.T)]
    for reach in reversed(reaches[:-1]):
        further = np.empty((len(after_states[0]), len(reach.step_cost)))
        kernels.min_plus(after_states[0], np.ascontiguousarray(reach.step_cost.T), further)
        after_states.insert(0, further)
    pairs = zip(reaches, after_states, strict=True)
    return ChainBounds(total, [reach.cost_before + later for reach, later in pairs], after_states)


@dataclass(frozen=True, eq=False)
class BlockPaths:
    """All chains of a block, and the costs of each stream layout outside them."""

    chains: list[list[PathStep]]
    stream_s: Floats
    stream_saved_bytes: Floats
    """Input and masks of the layer, per microbatch."""
    buffer_bytes: Floats

    def least_costs(self, price: MemoryPrice) -> Floats:
        """Return least seconds + price x bytes by stream layout, without the stream's bytes."""
        costs = (least_chain_costs(steps, price)[0] for steps in self.chains)
        return self.stream_s + sum(costs, np.zeros(len(self.stream_s)))

    def through(self, price: MemoryPrice) -> tuple[Floats, list[Floats]]:
        """Return least seconds + price x bytes by stream layout, and through every state."""
        total = self.least_costs(price)
        through_s = []
        for bounds in (chain_bounds(steps, price) for steps in self.chains):
            others = (total - bounds.total)[:, None]
            through_s += [(others + costs).min(axis=0) for costs in bounds.through]
        return total, through_s

    def fewest_bytes(self, saved_copies: float, state_copies: float) -> Floats:
        """Return the fewest local bytes of a stage's layers, without the stream's bytes: the least
        cost if a byte costs 1 and seconds nothing.
        """
        price = MemoryPrice(1.0, 0.0, saved_copies, state_copies)
        chains = ([step.without_seconds for step in steps] for steps in self.chains)
        costs = (least_chain_costs(steps, price)[0] for steps in chains)
        return sum(costs, np.zeros(len(self.stream_s)))

    def fastest_path(self, stream: int) -> PathChoices:
        """Return the fastest path of a stream layout, without a memory limit."""
        path = np.empty((len(self.packed_steps.fate_counts), 3), np.int64)
        price_kernels.trace_priced_path(self.packed_steps, (0.0, 0.0, 0.0, 0.0), stream, path)
        return path

    def __getstate__(self) -> dict[str, Any]:
        """Leave out `packed_steps`, whose addresses are those of this object's arrays."""
        return {name: value for name, value in vars(self).items() if name != "packed_steps"}

    @cached_property
    def packed_steps(self) -> price_kernels.PackedSteps:
        """All steps as `price_kernels` takes them."""
        steps = [step for chain in self.chains for step in chain]
        arrays = [step.kernel_arrays for step in steps]
        addresses = np.array([[part.ctypes.data for part in step[:-1]] for step in arrays])
        shapes = np.array([(*step.time_s.shape, *step.option_s.shape[:2]) for step in arrays])
        fates = np.array([step.fates for step in arrays])
        ends = np.cumsum([len(steps) for steps in self.chains])
        return price_kernels.PackedSteps(addresses, shapes, fates, ends)

    def path_cost(self, stream: int, path: PathChoices) -> BlockCost:
        outside = self.stream_s, self.stream_saved_bytes
        return BlockCost(*price_kernels.path_cost(self.packed_steps, *outside, stream, path))
