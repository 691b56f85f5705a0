"""A bound over the whole encoding of a block, gradient passes with codes of their own included.

The passes are taken apart: the fastest forward path, the fastest backward path and the fastest
weight gradients, each for itself, bytes at a price (Lagrangian). What couples the passes (fetching
inputs and output gradients in other layouts, re-sharding weights) costs nothing or more, and is
dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from atoll.wafer import block_kernels as kernels
from atoll.wafer.paths import Paths, scalar_chain
from atoll.wafer.shared import SharedStates
from atoll.wafer.steps import Price, Step
from atoll.wafer.tables import EdgeTable, Nodes, exposed

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Decoupled:
    """Steps of the passes taken apart."""

    forward: Paths
    backward: list[list[Step]]
    weights: tuple[tuple[FloatArray, FloatArray], ...]
    """Of every weight: seconds and bytes of state by home and code of its gradient."""

    @staticmethod
    def of(states: SharedStates, paths: Paths) -> Decoupled:
        tables, rules = states.tables, states.rules
        rounds = tables.setting.microbatches
        forward, backward, weights = [], [], []
        for chain, (steps, edges) in enumerate(zip(states.chains, states.edges, strict=True)):
            nodes = tables.chain_nodes(chain)[1:]
            triples = list(zip(steps, edges, nodes, strict=True))
            forward.append([_forward(*t, rules.homes, rounds) for t in triples])
            backward.append([_backward(*t) for t in triples])
            weighted = [n for n in nodes if n.unit is not None and n.unit.parameters]
            weights += [_weight(node, rules.homes, rounds) for node in weighted]
        return Decoupled(replace(paths, chains=forward), backward, tuple(weights))

    def least(self, price: Price, *, away: bool = False) -> FloatArray:
        """No block takes fewer seconds + price x bytes, by stream layout; `away`: tensors may wait
        elsewhere, which costs no less than nothing.
        """
        paths = self.forward
        if away:
            chains = [
                [replace(s, away_s=np.zeros_like(s.kept)) for s in steps] for steps in paths.chains
            ]
            paths = replace(paths, chains=chains)
        total = paths.least(price)[0]
        for steps in self.backward:
            total = total + scalar_chain(steps, price)[0]
        for seconds, state in self.weights:
            total = total + float((seconds + price.own * price.per_state * state).min())
        return total


def _forward(
    step: Step, edge: EdgeTable, node: Nodes, homes: Sequence[str], rounds: int
) -> Step:
    time = edge.forward_s + node.forward_s[None, :]
    if node.unit is None:
        # The stream has no gradient passes of its own: what it gathers, it gathers twice.
        time = time + edge.fetch_s
    if node.unit is None or not node.unit.parameters:
        return replace(step, time_s=time)
    seconds, state = _held(node, homes, rounds)
    return replace(step, time_s=time, option_s=seconds[:, None, :], state=state[:, None, :])


def _backward(step: Step, edge: EdgeTable, node: Nodes) -> Step:
    none = np.zeros((1, 1, len(node.codes)))
    time = edge.back_s + node.data_s[None, :]
    return replace(step, time_s=time, droppable=False, option_s=none, state=none)


def _held(node: Nodes, homes: Sequence[str], rounds: int) -> tuple[FloatArray, FloatArray]:
    """What a home costs at least by the forward code alone: the optimizer, and gathering weights
    over their copies (once a step, or for both passes of every microbatch).
    """
    step, once, w = node.step_s / node.copies, node.sum_s / rounds, node.parameters
    divided = w / node.copies
    gathered = exposed(node.sum_s, node.forward_s, node.streams)
    outside = np.maximum(0.0, node.port_s - node.forward_s)
    costs = {
        "replicated": (once + node.step_s, 14.0 * w),
        "optimizer": (once + step, 2.0 * w + 12.0 * divided),
        "gradients": (once + step, 2.0 * w + 12.0 * divided),
        "weights": (gathered + node.sum_s / kernels.CHUNKS + step, 14.0 * divided),
        "external": (outside, 0.0 * w),
    }
    return np.stack([costs[h][0] for h in homes]), np.stack([costs[h][1] for h in homes])


def _weight(node: Nodes, homes: Sequence[str], rounds: int) -> tuple[FloatArray, FloatArray]:
    """The weight gradient with the sum over its copies, by home and code."""
    once = node.sum_s / rounds
    each = exposed(node.sum_s, node.weight_s, node.streams)
    whole, divided = 2.0 * node.parameters, 2.0 * node.parameters / node.copies
    costs = {
        "replicated": (once, whole),
        "optimizer": (once, whole),
        "gradients": (each, divided),
        "weights": (each, divided),
        "external": (0.0 * once, 0.0 * whole),
    }
    seconds = np.stack([node.weight_s + costs[h][0] for h in homes])
    return seconds, np.stack([costs[h][1] for h in homes])
