"""Lower bounds on the time and memory of one sequence on the devices of a family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.fabric.nested import collective_s, collective_times_s
from atoll.fabric.network import Network
from atoll.step.layout import ZERO_STAGES
from atoll.training.memory import (
    buffers_bytes,
    kept_bytes,
    logits_bytes,
    stage_parameters,
    workspace_bytes,
)
from atoll.training.operators.layer_prices import LayerPrices
from atoll.training.operators.layers import LayerCost
from atoll.training.operators.policies import links
from atoll.training.planner.bounds.recompute_curve import Point, choices
from atoll.training.planner.space import LayoutFamily
from atoll.training.run import Run
from atoll.training.step import Stepper
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Operator, Role


class SampleBounds:
    """Lower bounds on the time and memory of one sequence on the devices of a family. `sizes` has
    the microbatch sizes to bound, shape (sizes,)."""

    def __init__(
        self, priced: LayerPrices, network: Network, family: LayoutFamily, sizes: Ints
    ) -> None:
        run = priced.run
        ideal = replace(run, network=network)
        self.family = family
        # Expert parallelism does not change the work: fewer experts get more tokens each.
        alone = replace(family, ep=1).layout(recompute="none")
        model, costs = priced.model(alone), priced.costs(alone)
        stepper = Stepper(ideal, family.layout(zero=0))
        apart = Stepper(ideal, family.layout(dp=family.ep, zero=0))
        far = family.tp * family.cp * family.ep <= run.devices
        self.forward_s = self.data_s = self.weight_s = self.host_s = self.waiting_s = 0.0
        self.outside_s = 0.0
        """Extra seconds per pass where ep divides dp, so expert ranks are farther apart."""
        self.overlapped_s = np.zeros((2, 1))
        """Seconds that gathers can overlap with, shape (2, 1): forward and backward passes."""
        self.ends_s = [0.0, 0.0]
        """Seconds of the layers before the first block and after the last block."""
        self.beyond_s = np.zeros((3, len(sizes)))
        """Seconds of a microbatch beyond size * seconds per sample, shape (3, sizes): forward,
        backward and weight passes."""
        self.parts_s = np.zeros((3, len(sizes)))
        """Seconds of all passes of a microbatch, shape (3, sizes): in the fastest block, in the
        layers before the first block, and in the layers after the last block."""
        self.parts_s[0] = np.inf
        self.apart_s = np.full((3, len(sizes)), np.inf)
        """Seconds of a microbatch in the fastest block, shape (3, sizes): forward pass, backward
        pass without weight gradients, and weight pass."""
        blocks = []
        for (layer, repeat), cost in zip(model.layers, costs, strict=True):
            least = _least(priced, layer, cost, family.cp)
            forward, backward, _ = stepper.layer_passes(least, "none")
            both_s = forward.total_s + backward.total_s
            self.overlapped_s += repeat * np.array([stepper.hides_gathers_s(least, "none")]).T
            if far and cost.experts:
                away_s = apart.layer_passes(least, "none")[0].expert_s
                self.outside_s += repeat * (away_s - forward.expert_s)
            data_s = backward.total_s - least.weight.total_s
            passes_s = forward.total_s, data_s, least.weight.total_s
            self.forward_s += repeat * forward.total_s
            self.data_s += repeat * data_s
            self.weight_s += repeat * least.weight.total_s
            # A microbatch launches as many kernels as one sample.
            kernels = np.array([[x.kernels] for x in (cost.forward, cost.data, cost.weight)])
            beyond_s = np.repeat(priced.pricer.launch_s * kernels, len(sizes), axis=1)
            if stepper.unhidden(least):
                spread = family.ep if cost.experts else 1
                key = "beyond", id(layer), spread, *sizes.tolist()
                make_beyond = partial(_beyond_s, priced, layer, sizes.tolist(), spread)
                beyond_s += priced.once(key, make_beyond)
                beyond_s[:2] += _links_s(run, network, least, sizes, family.sp)
            self.beyond_s += repeat * beyond_s
            layer_s = sizes * both_s + beyond_s.sum(axis=0)
            host = stepper.host(cost, "none")
            self.host_s += repeat * host.overlapped_s
            self.waiting_s += repeat * host.waiting_s / family.ep
            if cost.is_block:
                kept = max(0.0, min(cost.boundary_bytes, kept_bytes(run, cost, "full")))
                temporary_bytes = run.stack.temporaries * cost.transient_bytes / 2
                all_bytes = cost.kept("none").bytes + temporary_bytes
                blocks.append((both_s, kept, max(0.0, all_bytes - kept), cost.waiting_bytes))
                self.parts_s[0] = np.minimum(self.parts_s[0], layer_s)
                self.apart_s = np.minimum(self.apart_s, np.outer(passes_s, sizes) + beyond_s)
            else:
                self.ends_s[bool(blocks)] += repeat * both_s
                self.parts_s[1 + bool(blocks)] += repeat * layer_s
        least_of_blocks = np.min(blocks, axis=0)
        self.block_s, self.kept_bytes, self.transient_bytes, self.waiting_bytes = least_of_blocks
        blocks_costs = [cost for cost in costs if cost.is_block]
        self.boundary_bytes = stepper.sent_bytes(min(cost.boundary_bytes for cost in blocks_costs))
        at = costs.index(blocks_costs[0])
        self.again: Callable[[tuple[str, ...]], Mapping[str, Point]] | None = None
        """Bytes kept and seconds recomputed per policy (`recompute_curve.choices`); None unless
        all blocks are equal."""
        if len(blocks_costs) == 1:
            shown = 1 - run.stack.overlap.in_products(family.sp)
            block = model.layers[at][0], blocks_costs[0]
            self.again = cache(partial(choices, priced, network, *block, family.cp, shown))
        ends = [[cost for cost in of if not cost.is_block] for of in (costs[:at], costs[at:])]
        shares = [[(_of_experts(x, family.ep), 1)] for x in blocks_costs]
        last = [*shares[-1], *((cost, 1) for cost in ends[1])]
        self.buffers = np.array(
            [
                [workspace_bytes(run)] * len(ZERO_STAGES),
                [min(buffers_bytes(run, x, zero) for x in shares) for zero in ZERO_STAGES],
                [buffers_bytes(run, last, zero) for zero in ZERO_STAGES],
            ]
        )
        """Buffer bytes, shape (3, 4): for stages without blocks, with blocks, and with the last
        block and the output head; columns are ZeRO stages."""
        self.logits_bytes = logits_bytes(run, family.layout(), [(x, 1) for x in ends[1]], 1)
        shared = [priced.shared(family.layout(pp=2, recompute="none"), end) for end in ends]
        every = self._parameters(run, costs, model.shared_parameters)
        self.trained = every[1]
        every_block = [self._parameters(run, [cost], repeated=False) for cost in blocks_costs]
        block_parameters = np.min(every_block, axis=0)
        sides = (self._parameters(run, *end) for end in zip(ends, shared, strict=True))
        self.parameters = np.stack([every, block_parameters, *sides], axis=-1)
        """Parameter counts, shape (2, 2, 4): stored or trained; dense or expert; model, smallest
        block, layers before the first block, layers after the last block."""

    def _parameters(
        self, run: Run, costs: Sequence[LayerCost], shared: int = 0, repeated: bool = True
    ) -> Floats:
        layers = [(cost, cost.repeat if repeated else 1) for cost in costs]
        return np.array(stage_parameters(run, layers, shared)[::-1]) / (1, self.family.ep)


def _of_experts(cost: LayerCost, ep: int) -> LayerCost:
    """Return the cost of a layer whose experts are divided over `ep` ranks."""
    dense, experts = cost.frozen
    trained = cost.expert_parameters // ep
    return replace(cost, expert_parameters=trained, frozen=(dense, experts / ep))


def _beyond_s(priced: LayerPrices, layer: Layer, sizes: list[int], ep: int) -> Floats:
    return np.array([priced.pricer.beyond(layer, x, sizes, ep) for x in _parts(layer)])


def _links_s(run: Run, ideal: Network, cost: LayerCost, sizes: Ints, sp: bool) -> Floats:
    """Return the seconds that activation collectives of a microbatch take beyond size * seconds
    per sample on the ideal network, shape (2, sizes): forward and backward passes. Everything that
    can overlap with matrix products does.
    """
    overlap, link_s = run.stack.overlap, {}
    for link in {*cost.forward_links, *cost.backward_links, *cost.hidden_links}:
        where = link.kind, link.group
        link_s[link] = collective_times_s(run.network, *where, link.bytes * sizes.astype(float))
        link_s[link] -= sizes * collective_s(ideal, link.kind, link.bytes, link.group)
    forward, backward, hidden = (
        sum((link_s[link] for link in links), np.zeros(len(sizes)))
        for links in (cost.forward_links, cost.backward_links, cost.hidden_links)
    )
    both = np.stack([forward, backward - overlap.tensor * hidden])
    return np.asarray((1 - overlap.in_products(sp)) * both)


def _least(priced: LayerPrices, layer: Layer, cost: LayerCost, ring: int) -> LayerCost:
    """Return a layer cost that is a lower bound per sample for every microbatch size."""
    forward, data, weight = (priced.pricer.least(layer, part, ring) for part in _parts(layer))
    inside = priced.pricer.schedules_links
    return replace(
        cost,
        forward=forward,
        backward=data + weight,
        data=data,
        weight=weight,
        forward_links=() if inside else links(_sent(layer, layer.forward)),
        backward_links=() if inside else links(_sent(layer, layer.backward)),
        expert_forward_s=0.0,
        expert_backward_s=0.0,
    )


def _parts(layer: Layer) -> tuple[Sequence[Operator], ...]:
    """Return the operators of the forward, backward and weight passes."""
    data = [op for op in layer.backward if not op.weighs]
    return layer.forward, data, [op for op in layer.backward if op.weighs]


def _sent(layer: Layer, operators: Sequence[Operator]) -> list[Operator]:
    """Return the collectives of activations, whose bytes grow with the microbatch size."""
    weights = (Role.WEIGHT, Role.WEIGHT_GRADIENT)
    return [
        op
        for op in operators
        if op.collective is not None
        and not any(layer.tensors[name].role in weights for name in (*op.reads, *op.writes))
    ]
