"""Lower bounds on the recomputation time of blocks as a function of the bytes they keep.

With the lower bound on each operator's time per sample (`Pricer.least`), no recomputation choice in
any microbatch lies below a convex curve g(bytes) = seconds. By Jensen's inequality, n blocks that
keep K bytes in total recompute for at least n * g(K / n) seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from atoll.base.arrays import Floats
from atoll.cost.pricer import Cost
from atoll.fabric.nested import collective_s
from atoll.fabric.network import Network
from atoll.placement.recompute import frontier
from atoll.step.layout import FULL_BLOCKS, HOSTED_INPUTS, RECOMPUTE
from atoll.training.memory import kept_bytes
from atoll.training.operators.layer_prices import LayerPrices
from atoll.training.operators.layers import LayerCost, recompute_choices
from atoll.training.operators.policies import by_operator, policies
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Operator

Point = tuple[float, float]
"""Bytes that a block keeps per sample, and seconds that it recomputes."""


def points_of(points: Mapping[str, Point], names: Sequence[str]) -> tuple[Floats, Floats]:
    """Return the bytes (ascending) and seconds of the lower hull of these policies. If a name is
    not in `points` (it can mix all choices), return the hull of all points.
    """
    alone = all(name in points for name in names)
    bytes_, seconds = np.array(sorted(points[name] for name in (names if alone else points))).T
    return frontier(bytes_, seconds)[:2]


def on_the_curve(names: Iterable[str]) -> bool:
    """Return whether the curve bounds all these policies. It does not bound offloading, which
    recomputes nothing, or module lists, which drop tensors that no choice by operator drops.
    """
    counted = [name for name in names if name.startswith(FULL_BLOCKS) and name != HOSTED_INPUTS]
    return all(name in RECOMPUTE or name in counted for name in names)


def choices(
    priced: LayerPrices,
    ideal: Network,
    layer: Layer,
    cost: LayerCost,
    ring: int,
    shown: float,
    names: Sequence[str],
) -> Mapping[str, Point]:
    """Return the bytes kept and a lower bound on the seconds recomputed per sample of a block on
    the ideal network: for these recomputation policies or, if one of them can mix choices, for each
    choice. `shown` is the share of collective time that does not overlap with computation.
    """
    least = {op.name: _least(priced, ideal, layer, op, ring, shown) for op in layer.forward}
    costs = replace(
        cost,
        policies=policies(layer, priced.pricer, least),
        by_operator=partial(by_operator, layer, priced.pricer, least),
    )
    alone = dict(costs.policies)
    every = names if all(x in alone for x in names) else recompute_choices([costs], "optimal")
    return {
        name: (kept_bytes(priced.run, costs, name), costs.kept(name).again.total_s)
        for name in every
    }


def _least(
    priced: LayerPrices, ideal: Network, layer: Layer, op: Operator, ring: int, shown: float
) -> Cost:
    sent = op.collective
    if sent is None or priced.pricer.schedules_links:
        return priced.pricer.least(layer, [op], ring)
    return Cost(vector_s=shown * float(collective_s(ideal, str(sent.kind), sent.bytes, sent.group)))
