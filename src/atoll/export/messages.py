"""All messages of a step: groups of ranks, sizes, phases and counts.

The tensors are those by which `step.Stepper` prices collectives, on one device per stage. Ranks are
ordered as in layouts: tensor innermost, then context, data, pipeline.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path

from atoll.base.errors import AtollError
from atoll.files.atomic_file import atomic_files
from atoll.files.csvfile import write_csv
from atoll.step.orders import arrivals
from atoll.training.estimate import Estimate
from atoll.training.operators.layers import LayerCost, Share
from atoll.training.operators.policies import TensorLink
from atoll.training.step import SharedCollective, Stepper, resident_parameters

FORWARD, BACKWARD, RECOMPUTE, STEP = "forward", "backward", "recompute", "step"
SUFFIXES = (".json", ".csv")


@dataclass(frozen=True, slots=True)
class StepMessage:
    """One kind of message sent by a device of a stage in a step."""

    stage: int
    phase: str
    """forward, backward, recompute (passes of microbatches) or step (once, at its end)."""
    group: str
    """tensor, context, expert, data (ranks that share weights) or pipeline."""
    kind: str
    """all_gather, reduce_scatter, all_reduce, all_to_all or send."""
    ranks: int
    stride: int
    """Distance between neighbouring ranks of the group."""
    bytes: float
    """Full (gathered, summed) tensor of a collective; for other kinds what a device sends."""
    count: float
    """Number per step."""

    @property
    def sent_bytes(self) -> float:
        """Total bytes a device sends, collectives as rings (Patarasuk and Yuan, 2009)."""
        ring = (self.ranks - 1) / self.ranks
        shares = {"all_reduce": 2 * ring, "send": 1.0}
        return self.bytes * self.count * shares.get(self.kind, ring)


Messages = Iterator[StepMessage]


def step_messages(estimate: Estimate) -> tuple[StepMessage, ...]:
    """Return the messages of an estimated step, equal ones merged."""
    stepper, shares = (estimator := estimate.prices).shares(estimate.layout)
    counts: dict[StepMessage, float] = defaultdict(float)
    for stage, chunks in enumerate(shares):
        trained = estimator.trained(estimate.layout, chunks)
        for message in _stage_messages(stepper, stage, chunks, estimate.policies[stage], trained):
            if message.ranks > 1 and message.bytes > 0 and message.count > 0:
                counts[replace(message, count=0.0)] += message.count
    return tuple(replace(message, count=count) for message, count in counts.items())


def _stage_messages(
    stepper: Stepper, stage: int, chunks: Sequence[Share], policy: str, trained: tuple[float, float]
) -> Messages:
    """Yield the messages of a device of a stage in a step."""
    layout, microbatches = stepper.layout, stepper.microbatches
    directions = max(1, len(chunks) // layout.rounds)
    for chunk in chunks:
        for cost, count in chunk:
            for message in layer_messages(stepper, stage, cost, policy):
                yield replace(message, count=message.count * microbatches * count / directions)
    yield from weight_messages(stepper, stage, *trained)
    boundary = max((c.boundary_bytes for part in chunks for c, _ in part if c.is_block), default=0)
    sent, stride = stepper.sent_bytes(boundary), layout.tp * layout.cp * layout.dp
    for direction, phase in ((0, FORWARD), (1, BACKWARD)):
        # A stage sends activations to later stages, gradients to earlier ones.
        arriving = arrivals(layout.schedule, layout.pp, len(chunks))[stage][1 - direction]
        ranks, sends = layout.pp, microbatches * arriving
        yield StepMessage(stage, phase, "pipeline", "send", ranks, stride, sent, sends)


def layer_messages(stepper: Stepper, stage: int, cost: LayerCost, recompute: str) -> Messages:
    """Yield the messages of a layer per microbatch."""
    layout = stepper.layout
    kept = cost.kept(recompute if cost.is_block else "none")

    def tensor(phase: str, links: tuple[TensorLink, ...]) -> Messages:
        for link in links:
            yield StepMessage(stage, phase, "tensor", link.kind, link.group, 1, link.bytes, 1)

    yield from tensor(FORWARD, cost.forward_links)
    yield from tensor(BACKWARD, cost.backward_links)
    # If only a share of the blocks is recomputed, every block is charged that share.
    share = {RECOMPUTE: kept.share}
    again = tensor(RECOMPUTE, kept.links)
    yield from (replace(sent, bytes=sent.bytes * kept.share) for sent in again)
    ring_steps = layout.cp - 1
    exchanged, stride = stepper.exchange(cost)
    # In the backward pass, gradients of keys and values are sent with them.
    for phase, rings, exchanges in (
        (FORWARD, ring_steps, 2),
        (BACKWARD, 2 * ring_steps, 2),
        (RECOMPUTE, ring_steps * kept.attention, 2 * kept.exchange),
    ):
        if stepper.run.stack.gives_heads(cost.kv_heads, layout.cp):
            times, kind, moved = int(rings > 0), "all_to_all", cost.given_bytes(layout.cp)
        else:
            times, kind, moved = rings, "send", cost.ring_bytes
        moved, tokens = (size * share.get(phase, 1.0) for size in (moved, exchanged))
        yield StepMessage(stage, phase, "context", kind, layout.cp, layout.tp, moved, times)
        group = "expert", "all_to_all", layout.ep, stride
        yield StepMessage(stage, phase, *group, tokens, exchanges)
    if layout.zero < 3:
        return
    gathered = resident_parameters(stepper.run, cost)  # with frozen weights
    for collective in stepper.shared():
        sizes = gathered if collective.gathers else (cost.parameters, cost.expert_parameters)
        for phase in (FORWARD, BACKWARD) if collective.gathers else (BACKWARD,):
            yield _data_message(stage, phase, collective, sizes, 1)


def _data_message(
    stage: int, phase: str, shared: SharedCollective, sizes: tuple[float, float], count: float
) -> StepMessage:
    """Message of a collective over weights of these sizes, dense ones and experts."""
    tensor_bytes = shared.dense * sizes[0] + shared.expert * sizes[1]
    group = shared.group, shared.stride
    return StepMessage(stage, phase, "data", shared.kind, *group, tensor_bytes, count)


def weight_messages(stepper: Stepper, stage: int, dense: float, expert: float) -> Messages:
    """Yield sums of gradients and gathers of weights per step (below ZeRO 3)."""
    layout, microbatches = stepper.layout, stepper.microbatches
    if layout.zero >= 3:
        return
    for collective in stepper.shared():
        repeats = layout.zero == 2 and (not collective.gathers or stepper.run.stack.regathers)
        yield _data_message(stage, STEP, collective, (dense, expert), 1)
        if repeats:  # sharded gradients are reduced after every microbatch
            yield _data_message(stage, BACKWARD, collective, (dense, expert), microbatches - 1)


def check_messages_path(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise AtollError(f"messages: {path} is written as .json or .csv, by the end of its name")


def write_messages(messages: tuple[StepMessage, ...], path: Path) -> None:
    """Write messages as JSON or CSV, by the path's suffix."""
    check_messages_path(path)
    if path.suffix == ".csv":
        write_csv(path, [column.name for column in fields(StepMessage)], map(astuple, messages))
        return
    content = {"kind": "messages", "format": 1, "messages": list(map(asdict, messages))}
    with atomic_files(lambda why: f"messages: {path} cannot be written ({why}).", path) as (part,):
        part.write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")
