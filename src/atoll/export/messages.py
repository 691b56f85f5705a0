"""All messages of a step: what is sent among which ranks, how large, when and how often.

The same tensors that the step's collectives are priced by (`step.Stepper`), on one device of every
stage. Ranks are counted as layouts place them: tensor innermost, then context, data, pipeline.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path

from atoll.errors import AtollError
from atoll.files.csvfile import write_csv
from atoll.files.wholefile import whole_files
from atoll.step.orders import arrivals
from atoll.training.estimate import Estimate, Estimator
from atoll.training.operators.layers import LayerCost, Share
from atoll.training.operators.policies import TensorLink
from atoll.training.step import Stepper, held_parameters

FORWARD, BACKWARD, AGAIN, STEP = "forward", "backward", "recompute", "step"
SUFFIXES = (".json", ".csv")


@dataclass(frozen=True, slots=True)
class Message:
    """One kind of message of one device of a stage."""

    stage: int
    phase: str
    """forward, backward, recompute (passes of microbatches) or step (once, at its end)."""
    group: str
    """Who: tensor, context, expert, data (ranks that share weights) or pipeline."""
    kind: str
    """all_gather, reduce_scatter, all_reduce, all_to_all or send."""
    ranks: int
    stride: int
    """From one rank of the group to the next."""
    bytes: float
    """The whole (gathered, summed) tensor of a collective; what a device sends of the others."""
    count: float
    """In a step."""

    @property
    def sent_bytes(self) -> float:
        """What a device sends in all, collectives as rings (Patarasuk and Yuan, 2009)."""
        ring = (self.ranks - 1) / self.ranks
        shares = {"all_reduce": 2 * ring, "send": 1.0}
        return self.bytes * self.count * shares.get(self.kind, ring)


def messages_of(found: Estimate) -> tuple[Message, ...]:
    """The messages of an estimated step, equal ones counted together."""
    stepper, shares = (estimator := Estimator(found.run)).shares(found.layout)
    counts: dict[Message, float] = defaultdict(float)
    for stage, chunks in enumerate(shares):
        trained = estimator.trained(found.layout, chunks)
        for one in _of_stage(stepper, stage, chunks, found.policies[stage], trained):
            if one.ranks > 1 and one.bytes > 0 and one.count > 0:
                counts[replace(one, count=0.0)] += one.count
    return tuple(replace(one, count=count) for one, count in counts.items())


def _of_stage(
    stepper: Stepper,
    stage: int,
    chunks: Sequence[Share],
    recompute: str,
    trained: tuple[float, float],
) -> Iterator[Message]:
    """Messages of one device of a stage in a step."""
    layout, m = stepper.layout, stepper.microbatches
    directions = max(1, len(chunks) // layout.rounds)
    for chunk in chunks:
        for cost, count in chunk:
            for one in of_layer(stepper, stage, cost, recompute):
                yield replace(one, count=one.count * m * count / directions)
    yield from of_weights(stepper, stage, *trained)
    boundary = max((c.boundary_bytes for x in chunks for c, _ in x if c.is_block), default=0)
    sent, stride = stepper.sent_bytes(boundary), layout.tp * layout.cp * layout.dp
    for way, phase in ((0, FORWARD), (1, BACKWARD)):
        # What arrives at the others of this stage leaves it: activations down, gradients up.
        came = arrivals(layout.schedule, layout.pp, len(chunks))[stage][1 - way]
        yield Message(stage, phase, "pipeline", "send", layout.pp, stride, sent, m * came)


def of_layer(stepper: Stepper, stage: int, cost: LayerCost, recompute: str) -> Iterator[Message]:
    """Messages of one layer for one microbatch."""
    layout = stepper.layout
    kept = cost.kept(recompute if cost.is_block else "none")

    def tensor(phase: str, links: tuple[TensorLink, ...]) -> Iterator[Message]:
        for link in links:
            yield Message(stage, phase, "tensor", link.kind, link.group, 1, link.bytes, 1)

    yield from tensor(FORWARD, cost.forward_links)
    yield from tensor(BACKWARD, cost.backward_links)
    # Where some blocks of several run again, all of them send their share of it.
    share = {AGAIN: kept.share}
    yield from (replace(x, bytes=x.bytes * kept.share) for x in tensor(AGAIN, kept.links))
    turns = layout.cp - 1
    exchanged, apart = stepper.exchange(cost)
    # Backwards, the gradients of keys and values go round with them.
    for phase, rings, exchanges in (
        (FORWARD, turns, 2),
        (BACKWARD, 2 * turns, 2),
        (AGAIN, turns * kept.attention, 2 * kept.exchange),
    ):
        if stepper.run.stack.gives_heads(cost.kv_heads, layout.cp):
            times, kind, moved = int(rings > 0), "all_to_all", cost.heads_bytes
        else:
            times, kind, moved = rings, "send", cost.ring_bytes
        moved, tokens = (x * share.get(phase, 1.0) for x in (moved, exchanged))
        yield Message(stage, phase, "context", kind, layout.cp, layout.tp, moved, times)
        yield Message(stage, phase, "expert", "all_to_all", layout.ep, apart, tokens, exchanges)
    if layout.zero < 3:
        return
    held = held_parameters(stepper.run, cost)  # gathered with the frozen ones
    for one in stepper.shared():
        dense, expert = held if one.gathers else (cost.parameters, cost.expert_parameters)
        bytes_ = one.dense * dense + one.expert * expert
        for phase in (FORWARD, BACKWARD) if one.gathers else (BACKWARD,):
            yield Message(stage, phase, "data", one.kind, one.group, one.stride, bytes_, 1)


def of_weights(stepper: Stepper, stage: int, dense: float, expert: float) -> Iterator[Message]:
    """Sums of gradients and gathers of weights, where they are not of single layers."""
    layout, m = stepper.layout, stepper.microbatches
    if layout.zero >= 3:
        return
    for one in stepper.shared():
        bytes_ = one.dense * dense + one.expert * expert
        every = layout.zero == 2 and (not one.gathers or stepper.run.stack.regathers)
        yield Message(stage, STEP, "data", one.kind, one.group, one.stride, bytes_, 1)
        if every:  # divided gradients cannot wait for the last microbatch
            yield Message(stage, BACKWARD, "data", one.kind, one.group, one.stride, bytes_, m - 1)


def check_messages_path(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise AtollError(f"messages: {path} is written as .json or .csv, by the end of its name")


def write_messages(messages: tuple[Message, ...], path: Path) -> None:
    """As JSON or as a table, by the end of the name."""
    check_messages_path(path)
    if path.suffix == ".csv":
        write_csv(path, [f.name for f in fields(Message)], map(astuple, messages))
        return
    content = {"kind": "messages", "format": 1, "messages": [asdict(one) for one in messages]}
    with whole_files(lambda why: f"messages: {path} cannot be written ({why}).", path) as (part,):
        part.write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")
