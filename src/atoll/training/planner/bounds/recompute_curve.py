"""What blocks that keep fewer bytes run again, at least.

At the least that operators take of a sample (`Pricer.least`) the choices of what to keep lie on a
convex curve of bytes and seconds, and no choice in any microbatch lies below it. So blocks that
together keep so many bytes run again no less than if each of them kept as many (Jensen).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from atoll.cost.pricer import Cost
from atoll.fabric.nested import collective_s
from atoll.fabric.network import Network
from atoll.step.layout import FULL_BLOCKS, RECOMPUTE
from atoll.training.memory import kept_bytes
from atoll.training.operators.layer_prices import LayerPrices
from atoll.training.operators.layers import LayerCost, recompute_choices
from atoll.training.operators.policies import by_operator, policies
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Operator

Floats = NDArray[np.float64]
Point = tuple[float, float]
"""Bytes of a sample that a block keeps, and seconds that it runs again."""


def points_of(points: Mapping[str, Point], names: Sequence[str]) -> tuple[Floats, Floats]:
    """Bytes, the fewest first, and seconds that none of these policies is below; one that is no
    choice itself mixes all of them.
    """
    alone = all(name in points for name in names)
    return _lower_hull(points[name] for name in (names if alone else points))


def on_the_curve(names: Iterable[str]) -> bool:
    """Whether no such policy lies below: a host's memory takes no time, and some modules drop what
    no choice by operator does.
    """
    return all(name in RECOMPUTE or name.startswith(FULL_BLOCKS) for name in names)


def choices(
    priced: LayerPrices, ideal: Network, layer: Layer, cost: LayerCost, ring: int, shown: float
) -> Mapping[str, Point]:
    """Choices of what a block keeps, with the bytes that it keeps of a sample and the seconds that
    it then runs again of any sample of a microbatch, on an ideal network; of its collectives this
    share is not hidden.
    """
    least = {op.name: _least(priced, ideal, layer, op, ring, shown) for op in layer.forward}
    chosen = by_operator(layer, priced.pricer, least)
    costs = replace(
        cost, policies=policies(layer, priced.pricer, least), by_operator=lambda: chosen
    )
    return {
        name: (kept_bytes(priced.run, costs, name), costs.kept(name).again.total_s)
        for name in recompute_choices([costs], "optimal")
    }


def _least(
    priced: LayerPrices, ideal: Network, layer: Layer, op: Operator, ring: int, shown: float
) -> Cost:
    sent = op.collective
    if sent is None or priced.pricer.schedules_links:
        return priced.pricer.least(layer, [op], ring)
    return Cost(vector_s=shown * float(collective_s(ideal, str(sent.kind), sent.bytes, sent.group)))


def _lower_hull(points: Iterable[Point]) -> tuple[Floats, Floats]:
    hull: list[Point] = []
    for x, y in sorted(points):
        if hull and hull[-1][1] <= y:
            continue  # it keeps no less and takes no less
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x0) < (y - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y))
    bytes_, seconds = np.array(hull).T
    return bytes_, seconds
