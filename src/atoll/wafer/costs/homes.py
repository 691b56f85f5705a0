"""Homes of weights: where the copies of a weight live among the dies that use it, and what that
costs, for whole arrays of codes.

    replicated, optimizer, gradients, weights    ZeRO 0 to 3 over the copies: all state on each die;
                                                 the optimizer's divided; gradients too; weights
                                                 too, gathered for every use
    external                                     streamed from outside the wafer

A home that divides nothing sums gradients in both halves of an all-reduce; the others gather
weights in its second half.
"""

from __future__ import annotations

import numpy as np

from atoll.arrays import FloatArray, IntArray
from atoll.step.states import States
from atoll.wafer.costs.tables import HOMES, Nodes, Setting, exposed

StateBytes = tuple[FloatArray, FloatArray, FloatArray]


def home_bytes(
    states: States, home: str, node: Nodes, forward: IntArray, weight: IntArray
) -> StateBytes:
    """Bytes a die of weights, gradients and optimizer state, for entries of the forward and of the
    weight pass: gradients lie as the latter leaves them.
    """
    if home == "external":
        nothing = 0.0 * node.parameters[forward]
        return nothing, nothing, nothing
    zero = HOMES.index(home)
    own, summed = node.parameters[forward], node.parameters[weight]
    weights, _, optimizer = states.parts(own, own / node.copies[forward], zero)
    return weights, states.parts(summed, summed / node.copies[weight], zero)[1], optimizer


def home_cost(
    node: Nodes, home: str, setting: Setting, forward: IntArray, data: IntArray, weight: IntArray,
    exchange: FloatArray | float = 0.0, gather: FloatArray | float = 0.0,
    to_home: FloatArray | float = 0.0,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Seconds a microbatch and bytes of state a die, for entries of the three passes.

    `exchange` and `gather` re-shard the weight for the data pass, `to_home` the summed gradient.
    """
    streams, rounds = node.streams[forward], float(setting.microbatches)
    held = sum(home_bytes(setting.states, home, node, forward, weight))
    zero = np.zeros(np.broadcast_shapes(forward.shape, data.shape, weight.shape))
    if home == "external":
        late = node.port_s[data] - node.data_s[data] - node.weight_s[weight]
        seconds = np.maximum(0.0, node.port_s[forward] - node.forward_s[forward])
        return seconds + np.maximum(0.0, late) + zero, held + zero
    once = to_home / rounds + node.step_s[forward] / (
        1.0 if home == "replicated" else node.copies[forward]
    )
    gathered, summed = node.gather_s[forward], node.sum_s[weight]
    if home == "replicated":
        gathered = node.sum_s[forward]
    if home in ("gradients", "weights"):
        once = once + exposed(summed, node.weight_s[weight], streams)
    else:
        once = once + summed / rounds
    if home == "weights":
        once = once + exposed(gathered, node.forward_s[forward], streams)
        gather = gather + gathered
    else:
        once = once + gathered / rounds
    seconds = once + exchange + exposed(gather + zero, node.data_s[data], streams)
    return seconds + zero, held + zero
