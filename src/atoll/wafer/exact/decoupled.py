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

from atoll.arrays import FloatArray
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.costs.homes import home_bytes
from atoll.wafer.costs.tables import EdgeTable, Nodes, Setting, exposed
from atoll.wafer.exact.paths import Paths, scalar_chain
from atoll.wafer.exact.shared import SharedStates
from atoll.wafer.exact.steps import Price, Step


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
        setting = tables.setting
        forward, backward, weights = [], [], []
        for chain, (steps, edges) in enumerate(zip(states.chains, states.edges, strict=True)):
            nodes = tables.chain_nodes(chain)[1:]
            triples = list(zip(steps, edges, nodes, strict=True))
            forward.append([_forward(*t, rules.homes, setting) for t in triples])
            backward.append([_backward(*t) for t in triples])
            weighted = [n for n in nodes if n.unit is not None and n.unit.parameters]
            weights += [_weight(node, rules.homes, setting) for node in weighted]
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
    step: Step, edge: EdgeTable, node: Nodes, homes: Sequence[str], setting: Setting
) -> Step:
    time = edge.forward_s + node.forward_s[None, :]
    if node.unit is None:
        # The stream has no gradient passes of its own: what it gathers, it gathers twice.
        time = time + edge.fetch_s
    if node.unit is None or not node.unit.parameters:
        return replace(step, time_s=time)
    seconds, state = _held(node, homes, setting)
    return replace(step, time_s=time, option_s=seconds[:, None, :], state=state[:, None, :])


def _backward(step: Step, edge: EdgeTable, node: Nodes) -> Step:
    none = np.zeros((1, 1, len(node.codes)))
    time = edge.back_s + node.data_s[None, :]
    return replace(step, time_s=time, droppable=False, option_s=none, state=none)


def _held(node: Nodes, homes: Sequence[str], setting: Setting) -> tuple[FloatArray, FloatArray]:
    """What a home costs at least by the forward code alone: the optimizer, and gathering weights
    over their copies (once a step, or for both passes of every microbatch).
    """
    step, rounds = node.step_s / node.copies, setting.microbatches
    gathered = exposed(node.gather_s, node.forward_s, node.streams)
    outside = np.maximum(0.0, node.port_s - node.forward_s)
    seconds = {
        "replicated": node.sum_s / rounds + node.step_s,
        "optimizer": node.gather_s / rounds + step,
        "gradients": node.gather_s / rounds + step,
        "weights": gathered + node.gather_s / kernels.CHUNKS + step,
        "external": outside,
    }
    each = np.arange(len(node.codes))
    parts = [home_bytes(setting.states, home, node, each, each) for home in homes]
    return np.stack([seconds[home] for home in homes]), np.stack([w + o for w, _, o in parts])


def _weight(node: Nodes, homes: Sequence[str], setting: Setting) -> tuple[FloatArray, FloatArray]:
    """The weight gradient with the sum over its copies, by home and code."""
    once = node.sum_s / setting.microbatches
    summed = exposed(node.sum_s, node.weight_s, node.streams)
    seconds = {
        "replicated": once, "optimizer": once, "gradients": summed, "weights": summed,
        "external": 0.0 * once,
    }  # fmt: skip
    each = np.arange(len(node.codes))
    parts = [home_bytes(setting.states, home, node, each, each) for home in homes]
    return np.stack([node.weight_s + seconds[h] for h in homes]), np.stack([g for _, g, _ in parts])
