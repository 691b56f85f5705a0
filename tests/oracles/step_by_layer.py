"""A training step summed layer by layer in plain numbers, which the arrays of `training` equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from atoll.fabric.nested import collective_s
from atoll.step.bubbles import chunk_weights, peak_activation_bytes
from atoll.step.layout import Layout
from atoll.step.orders import SPLIT, arrivals
from atoll.step.replay import PassTime, pipeline_s
from atoll.training.estimate import Estimator, boundary_bytes
from atoll.training.memory import (
    buffers_bytes,
    fp8_bytes,
    kept_bytes,
    logits_bytes,
    loss_bytes,
    padded_loss_bytes,
    stage_parameters,
    transient_bytes,
)
from atoll.training.operators.layers import LayerCost, Share
from atoll.training.step import Stepper, accumulation_s, resident_parameters, update_s


class StepByLayer(NamedTuple):
    """Seconds of a step, and per stage seconds of a microbatch and bytes needed."""

    time_s: float
    stages_s: tuple[float, ...]
    needed: tuple[float, ...]


class StageSeconds(NamedTuple):
    """Seconds of a microbatch in a stage or chunk, on the device and on the host."""

    forward: float
    backward: float
    """With recomputation and weight gradients."""
    weight: float
    host_forward: float
    host_backward: float
    host_weight: float
    waiting: float
    microbatches: int
    split: bool
    late: float
    """Host time of the update beyond the device's."""

    @property
    def steady_s(self) -> float:
        launches_s = self.host_forward + self.host_backward + self.host_weight
        return launches_s - self.forward - self.backward

    @property
    def once_s(self) -> float:
        """Wait for the first forward pass or the update, over the microbatches."""
        first_s = (self.host_forward - self.forward) / self.microbatches
        late_s = self.steady_s + self.late / self.microbatches
        return 0.0 if self.split else max(0.0, max(first_s, late_s) - max(0.0, self.steady_s))

    @property
    def exposed_host_s(self) -> float:
        return max(0.0, self.steady_s) + self.once_s + self.waiting

    @property
    def total_s(self) -> float:
        return self.forward + self.backward + self.exposed_host_s

    def paces(self, order: str) -> list[PassTime]:
        """The passes of the device's pipeline and, with separate weight passes, of the host's."""
        more_s = (self.waiting if order in SPLIT else self.exposed_host_s) / 2
        data_s = self.backward - self.weight
        device = PassTime(self.forward + more_s, data_s + more_s, self.weight)
        host_s = self.host_forward + more_s, self.host_backward + more_s, self.host_weight
        return [device, PassTime(*host_s)] if order in SPLIT else [device]


def step_by_layer(estimator: Estimator, layout: Layout, policies: Sequence[str]) -> StepByLayer:
    """Estimate a layout with one recomputation policy per stage."""
    stepper, shares = estimator.shares(layout)
    stages = [
        stage_seconds(stepper, chunks, policy, _trained(estimator, layout, chunks))
        for chunks, policy in zip(shares, policies, strict=True)
    ]
    needed = (
        stage_bytes(estimator, stepper, stage, *given)
        for stage, given in enumerate(zip(shares, policies, strict=True))
    )
    time_s = _step_s(estimator, stepper, shares, policies, stages)
    return StepByLayer(time_s, tuple(stage.total_s for stage in stages), tuple(needed))


def _trained(
    estimator: Estimator, layout: Layout, chunks: Sequence[Share]
) -> tuple[float, float] | None:
    """A pipeline of several chunks per stage is replayed without the host's part of the update."""
    return estimator.trained(layout, chunks) if len(chunks) == 1 else None


def stage_seconds(
    stepper: Stepper,
    chunks: Sequence[Share],
    policy: str,
    trained: tuple[float, float] | None = None,
) -> StageSeconds:
    """Of several chunks of both directions, the mean over the directions. With its trained
    parameters a stage waits for the host's part of the update too.
    """
    directions = max(1, len(chunks) // stepper.layout.rounds)
    layers = [(cost, n / directions) for chunk in chunks for cost, n in chunk]
    seconds = sum(n * _layer_seconds(stepper, cost, policy) for cost, n in layers)
    late_s = 0.0
    if trained is not None:
        pairs = (pair for chunk in chunks for pair in chunk)
        launched_s = sum(n * stepper.host_update_s(cost) for cost, n in pairs)
        late_s = max(0.0, launched_s - update_s(stepper.run, stepper.layout, *trained))
    split = stepper.layout.schedule in SPLIT
    return StageSeconds(*seconds, stepper.microbatches, split, late_s)


def _layer_seconds(stepper: Stepper, cost: LayerCost, policy: str) -> np.ndarray:
    forward, backward, again = stepper.layer_passes(cost, policy)
    exposed_s = [0.0, 0.0]
    if stepper.layout.zero == 3:
        stack = stepper.run.stack
        _, reduce_s = shared_s(stepper, cost.parameters, cost.expert_parameters)
        gather_s, _ = shared_s(stepper, *resident_parameters(stepper.run, cost))
        for i, hides_s in enumerate(stepper.hides_gathers_s(cost, policy)):
            wire_s = (gather_s + i * reduce_s) / stack.gather_efficiency
            exposed_s[i] = wire_s - min(stack.overlap.gather * wire_s, hides_s)
    forward_s, backward_s = forward.total_s + exposed_s[0], backward.total_s + exposed_s[1]
    device_s = forward_s, backward_s + again.total_s, cost.weight.total_s
    return np.array([*device_s, *stepper.host(cost, policy)])


def shared_s(stepper: Stepper, dense: float, expert: float) -> tuple[float, float]:
    """Seconds of weight gathers and of gradient reductions of so many parameters."""
    both_s = [0.0, 0.0]
    for item in stepper.shared():
        bytes_ = item.dense * dense + item.expert * expert
        place = item.kind, bytes_, item.group, item.stride
        both_s[not item.gathers] += collective_s(stepper.run.network, *place)
    return both_s[0], both_s[1]


def gradient_s(stepper: Stepper, dense: float, expert: float) -> tuple[float, float]:
    """Seconds after the last backward pass of a step, and after each earlier one."""
    gather_s, reduce_s = shared_s(stepper, dense, expert)
    regathered_s = gather_s if stepper.run.stack.regathers else 0.0
    zero = stepper.layout.zero
    return (gather_s + reduce_s) * (zero < 3), (reduce_s + regathered_s) * (zero == 2)


def _step_s(
    estimator: Estimator,
    stepper: Stepper,
    shares: Sequence[Sequence[Share]],
    policies: Sequence[str],
    stages: Sequence[StageSeconds],
) -> float:
    run, layout, m = estimator.run, stepper.layout, stepper.microbatches
    order, overlap = layout.schedule, run.stack.overlap
    trained = [estimator.trained(layout, chunks) for chunks in shares]
    last_s, before_s = np.max([gradient_s(stepper, *p) for p in trained], axis=0)
    hidden = overlap.hidden_gradient(layout.zero, layout.pp)
    slowest = max(stages, key=lambda stage: stage.total_s)
    send_s = stepper.send_s(boundary_bytes(shares))
    arrive = np.array(arrivals(order, layout.pp, len(shares[0]))) > 0
    waits_s = (1 - overlap.pipeline) * arrive[None] * send_s
    delays_s = overlap.pipeline * arrive[None] * send_s
    times_s = []
    for pace, _ in enumerate(slowest.paces(order)):
        passes = [stage.paces(order)[pace] for stage in stages]
        behind_s = slowest.total_s - slowest.forward - slowest.once_s
        if order in SPLIT:
            longest = max(passes, key=lambda stage: stage.total_s)
            behind_s = longest.backward_s + longest.weight_s
        passes_s = m * passes[0].total_s
        if layout.pp > 1:
            several = len(shares[0]) > 1
            chunks = [
                [stage_seconds(stepper, [chunk], policy).paces(order)[pace] for chunk in stage]
                if several
                else [passes[number]]
                for number, (stage, policy) in enumerate(zip(shares, policies, strict=True))
            ]
            (passes_s,) = pipeline_s(order, np.array([chunks]), m, waits_s, delays_s)
        exposed_s = (wire_s - hidden * min(wire_s, behind_s) for wire_s in (last_s, before_s))
        after_s = sum(n * wire_s for n, wire_s in zip((1, m - 1), exposed_s, strict=True))
        times_s.append(float(passes_s + after_s))
    accumulate_s = max(accumulation_s(run, layout, m, *p) for p in trained)
    updated_s = max(update_s(run, layout, *p) for p in trained)
    return (max(times_s) + m * accumulate_s + updated_s + run.stack.step_s) * run.slack


def stage_bytes(
    estimator: Estimator, stepper: Stepper, stage: int, chunks: Sequence[Share], policy: str
) -> float:
    """Bytes that a device of a stage needs."""
    run, layout, m = estimator.run, stepper.layout, stepper.microbatches
    stack, states = run.stack, run.states
    layers = [pair for chunk in chunks for pair in chunk]
    shared = estimator.shared(layout, [cost for cost, _ in layers])
    trained, resident = stage_parameters(run, layers, shared)
    padding = run.expert_padding(layout)
    padded = [layout.divided(dense, padding * expert) for dense, expert in (trained, resident)]
    _, gradients, optimizer = run.state_bytes(sum(trained), padded[0], layout.zero)
    weights, _, _ = run.state_bytes(sum(resident), padded[1], layout.zero)
    shard_bytes = run.state_bytes(1.0, layout.divided(1.0, 0.0), layout.zero)[1]
    early = m > 1 or (stack.buckets and layout.zero == 0 and layout.ranks > 1)
    if m > layout.copies:
        gradients = run.accumulated_bytes(sum(trained), gradients, layout.zero)
    if early:
        shard_bytes = -states.reduced if stack.delays_reduction else 0.0
    pipeline = layout.schedule, layout.pp, stage, m, layout.vpp
    kept = sum(
        weight * n * kept_bytes(run, cost, policy)
        for weight, chunk in zip(chunk_weights(*pipeline), chunks, strict=True)
        for cost, n in chunk
    )
    waiting = sum(cost.waiting_bytes * n for cost, n in layers) / layout.copies
    activations = peak_activation_bytes(*pipeline, kept_bytes=kept, waiting_bytes=waiting)
    logits = logits_bytes(run, layout, layers, m) + loss_bytes(run, layers, layout.zero)
    logits += (padding - 1) * padded_loss_bytes(run, layers, layout.zero)
    *phases, at_end = (
        bytes_ + parameters * shard_bytes + (padding - 1) * padded_bytes
        for bytes_, parameters, padded_bytes in transient_bytes(run, layers, layout.zero, policy)
    )
    transient = max(phases)
    fixed = weights + optimizer + buffers_bytes(run, layers, layout.zero)
    if layout.zero < 3:
        fixed += sum(fp8_bytes(run, cost) * n for cost, n in layers)
    if arrivals(layout.schedule, layout.pp, len(chunks))[stage][0]:
        fixed += stack.sends_held * boundary_bytes([chunks])
    copied = 4 * min(gradients / max(states.gradient, 1.0), stack.update_parameters)
    peak = gradients + max(activations + max(transient, logits), copied)
    if stack.late_gradients:
        summed = max(at_end, 2 * states.gradient * (0 if run.adapters else shared))
        if stack.optimizer == "foreach":
            summed = max(summed, gradients)
        at_loss = (gradients if early else 0.0) + activations + max(transient, logits)
        peak = max(at_loss, gradients + summed)
    return float((fixed + peak) * (1 + stack.fragmentation) + stack.context_bytes)
