"""One row of `Sums` with its parts: seconds of the step and of its stages, bytes of each device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.step.replay import PassTime
from atoll.training.batch.cost_arrays import StagePasses, StateCosts
from atoll.training.batch.sums import Sums
from atoll.training.memory import PARTS, RESERVED, Memory, workspace_bytes
from atoll.training.operators.tables import COPIES, GROUP, LOSS, PIPE, SIDE, ZERO, ContentColumn
from atoll.training.step import PassSeconds, StageTime, StepTime

SHARDED = PassSeconds._fields.index("sharded_s")


class LayoutRow(NamedTuple):
    """Step time and memory of one layout by part."""

    step: StepTime
    memory: tuple[Memory, ...]
    stages: tuple[StageTime, ...]
    messages_s: tuple[tuple[float, float], ...]
    """Seconds of one activation and one gradient into each stage."""


def layout_row(sums: Sums, picks: Ints) -> LayoutRow:
    """Return the parts of sums over one row, with these recomputation choices of its stages."""
    stage_bytes = sums.state_memory()
    states, passes = stage_bytes.states, sums.picked(sums.passes(stage_bytes), picks)
    parts, wanted = _by_pod(sums, _stage_parts, picks), np.ones((1, 1), dtype=np.bool_)
    paces_s = sums.paces_s(passes, wanted)
    device_s, host_s = (pace_s.item() for pace_s in paces_s)
    reduced_s = sums.with_gradients_s(states, sums.behind_s(passes), *paces_s).item()
    without_messages = sums.paces_s(passes, wanted, np.zeros_like(sums.message_s))
    alone_s = max(pace_s.item() for pace_s in without_messages)
    run, m, slowest = sums.run, sums.m.item(), sums.slowest(passes.total_s).item()
    busy_s = m * passes.total_s[slowest].item()
    idle_s = max(0.0, alone_s - busy_s)
    passes_s = max(device_s, host_s)
    accumulate_s, update_s = states.accumulate_s.item(), states.update_s.item()
    # Of m microbatches on the slowest stage.
    forward, backward, recompute = m * parts[slowest]
    spent, again = (PassSeconds(*part.tolist()) for part in (forward + backward, recompute))
    gradient_s = reduced_s - passes_s
    step = StepTime(
        time_s=passes_s + accumulate_s + gradient_s + update_s + run.stack.step_s,
        compute_s=spent.compute_s,
        accumulate_s=accumulate_s,
        recompute_s=again.compute_s,
        tensor_s=spent.tensor_s + again.tensor_s,
        context_s=spent.context_s + again.context_s,
        expert_s=spent.expert_s + again.expert_s,
        sharded_s=spent.sharded_s,
        bubble_s=idle_s,
        send_s=max(0.0, passes_s - busy_s - idle_s),
        gradient_s=gradient_s,
        optimizer_s=update_s,
        host_s=m * passes.stages.host_s[slowest].item() + run.stack.step_s,
    )
    # The slack of a site and the wait for the slowest device lengthen all parts alike.
    step = step.scaled(run.slack)
    stages = _stages(sums, states, passes, parts, hosts=host_s > device_s)
    messages_s = tuple((activation, gradient) for activation, gradient in sums.message_s.tolist())
    return LayoutRow(step, row_memory(sums, states, picks), stages, messages_s)


def _by_pod(sums: Sums, stage_values: Callable[..., Floats], *args: Any) -> Floats:
    """Return the values of each stage on its devices."""
    values = np.stack([stage_values(pod, *args) for pod in sums.pods])
    return values[sums.pod, np.arange(len(sums.pod))]


def _stage_parts(sums: Sums, picks: Ints) -> Floats:
    """Return (stages, 3, 5): `PassSeconds` of forward pass, backward pass and recomputation."""
    t, (side,), zero = sums.tables, sums.rows[:, SIDE], sums.rows[:, ZERO]
    group = np.where(zero == 3, sums.rows[:, GROUP], -1)
    layers_s = t.parts[side].copy()
    layers_s[..., :2, SHARDED] = sums.exposed_gathers_s(t.passes[[side]], group)[0]
    layers = t.counts[sums.mix] / sums.rows[0, COPIES]
    return np.asarray(np.einsum("sk,ksab->sab", layers, layers_s[:, picks]))


def _peaks(sums: Sums, states: StateCosts, picks: Ints) -> Floats:
    """Return (stages, 4): `PeakParts`."""
    parts = np.stack(np.broadcast_arrays(*sums.peak_parts(states)), axis=-1)
    return parts[np.arange(len(picks)), picks]


def _cached(sums: Sums, states: StateCosts, parts: Floats) -> Floats:
    """Return the bytes that the allocator keeps for reuse in each stage: a share of the allocated
    ones or, under FSDP, what belongs to other streams (reduced gradients and gathered weights), and
    a share of the loss's tensors, which smaller ones have broken up.
    """
    t, rows, stack = sums.tables, sums.rows[sums.row], sums.stack
    content, zero = t.content[sums.mix], rows[:, ZERO]
    gathered = t.contents[content, ContentColumn.BUFFER_BYTES + zero] - workspace_bytes(sums.run)
    gathered += t.contents[content, ContentColumn.LOSS_BYTES + zero]
    late = states.gradients - parts[:, PARTS.index("gradients")]  # not part of the peak
    cached = late + stack.cached_gathers * gathered
    cached += stack.cached_loss * t.logits[rows[:, LOSS], content]
    usual = RESERVED * parts.sum(axis=1)
    return np.asarray(np.where((zero > 0) & (stack.cached_loss > 0), cached, usual))


def _stages(
    sums: Sums, states: StateCosts, passes: StagePasses, parts: Floats, hosts: bool
) -> tuple[StageTime, ...]:
    chunks = sums.tables.chunks[sums.rows[0, PIPE]]
    paces = passes.chunks if chunks > 1 else passes.stages
    passes_s = np.concatenate(paces.host if hosts else paces.counted, axis=1)
    columns = parts, states.weight_s, passes.stages.host_s[:, 0], passes_s.reshape(-1, chunks, 3)
    return tuple(
        StageTime(
            PassSeconds(*forward),
            PassSeconds(*backward),
            PassSeconds(*recompute),
            weight_s,
            host_s,
            tuple(PassTime(*seconds) for seconds in chunk_passes),
        )
        for (forward, backward, recompute), weight_s, host_s, chunk_passes in zip(
            *(column.tolist() for column in columns), strict=True
        )
    )


def row_memory(sums: Sums, states: StateCosts, picks: Ints) -> tuple[Memory, ...]:
    """Return the bytes of each stage of one row by part, with these recomputation choices."""
    peaks = _by_pod(sums, _peaks, states, picks)
    weights, optimizer, buffers = states.fixed.T
    parts = np.column_stack([weights, peaks[:, 0], optimizer, peaks[:, 1:], buffers])
    cached = _by_pod(sums, _cached, states, parts)
    runs = [sums.pods[pod].run for pod in sums.pod.tolist()]
    late = np.array([run.stack.late_gradients for run in runs]) & ~sums.bucketed
    resting = weights + optimizer + np.where(late, 0.0, states.gradients)
    return tuple(
        Memory(
            stage=stage,
            **dict(zip(PARTS, row, strict=True)),
            fragmentation=run.stack.fragmentation,
            context_bytes=run.stack.context_bytes,
            resting=resting_bytes + workspace_bytes(run),
            cached=cached_bytes,
        )
        for stage, (run, row, resting_bytes, cached_bytes) in enumerate(
            zip(runs, parts.tolist(), resting.tolist(), cached.tolist(), strict=True)
        )
    )
