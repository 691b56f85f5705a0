"""A step as Chakra execution traces (MLCommons), one file per device, for ASTRA-sim and alike.

Format: `schema/protobuf/et_def.proto` of mlcommons/chakra: GlobalMetadata, then nodes, each with a
length prefix. A device runs its passes in pipeline order, layer by layer: a compute node, then the
layer's collectives. Sends overlap with the nodes after them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from atoll.base.errors import AtollError
from atoll.export.messages import (
    BACKWARD,
    FORWARD,
    RECOMPUTE,
    STEP,
    StepMessage,
    layer_messages,
    weight_messages,
)
from atoll.files.atomic_file import atomic_files, check_folder
from atoll.step.orders import SPLIT, passes, route
from atoll.training.estimate import Estimate
from atoll.training.operators.layers import Share

VERSION = "0.0.4"
COMPUTE, SENT, RECEIVED, COLLECTIVE = 4, 5, 6, 7  # NodeType
KINDS = {"all_reduce": 0, "all_gather": 2, "all_to_all": 6, "reduce_scatter": 7}
"""CollectiveCommType."""
MOST_NODES = 2_000_000
"""Limit for all devices together."""
GROUPS_FILE = "comm_groups.json"
MICROSECONDS_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One node of a stage's trace."""

    name: str
    type: int
    seconds: float = 0.0
    message: StepMessage | None = None
    tag: int = 0
    peer_stage: int = 0
    """Stage that the message is sent to or received from."""
    asynchronous: bool = False
    """Whether later nodes do not wait for it."""


def write_chakra(estimate: Estimate, folder: Path) -> None:
    """Write a file `step.RANK.et` per device, and the ranks of all groups (JSON)."""
    layout, devices = estimate.layout, estimate.run.devices
    stages = [tuple(nodes) for nodes in _stages(estimate)]
    node_count = sum(map(len, stages)) * (devices // layout.pp)
    if node_count > MOST_NODES:
        raise AtollError(
            f"chakra: {node_count:,} nodes on {devices:,} devices, but at most {MOST_NODES:,} are "
            "written; ask for fewer microbatches (--batch) or replicas (--devices)"
        )
    check_folder(folder, ())
    folder.mkdir(parents=True, exist_ok=True)
    groups: dict[tuple[int, ...], str] = {}
    per_stage = devices // layout.pp
    for rank in range(devices):
        path = folder / f"step.{rank}.et"
        data = encode_trace(stages[rank // per_stage], rank, per_stage, groups)
        with atomic_files(_write_error(path), path) as (part,):
            part.write_bytes(data)
    ranks_by_group = {name: list(ranks) for ranks, name in groups.items()}
    with atomic_files(_write_error(folder / GROUPS_FILE), folder / GROUPS_FILE) as (part,):
        part.write_text(json.dumps(ranks_by_group) + "\n", encoding="utf-8")


def _write_error(path: Path) -> Callable[[str], str]:
    return lambda why: f"chakra: {path} cannot be written ({why})."


def _stages(estimate: Estimate) -> Iterator[Iterator[TraceNode]]:
    _, shares = estimate.prices.shares(estimate.layout)
    for stage, chunks in enumerate(shares):
        yield _stage(estimate, stage, chunks)


def _stage(estimate: Estimate, stage: int, chunks: Sequence[Share]) -> Iterator[TraceNode]:
    """Yield the nodes of a device of a stage in a step."""
    layout, policy, estimator = estimate.layout, estimate.policies[stage], estimate.prices
    stepper, _ = estimator.shares(layout)
    order, microbatches = layout.schedule, stepper.microbatches
    boundary = max((c.boundary_bytes for part in chunks for c, _ in part if c.is_block), default=0)
    sent = StepMessage(stage, "", "pipeline", "send", layout.pp, 1, stepper.sent_bytes(boundary), 1)
    routes = [route(order, layout.pp, len(chunks), i) for i in range(2)]
    weights = list(weight_messages(stepper, stage, *estimator.trained(layout, chunks)))
    divided = [replace(message, count=1) for message in weights if message.phase == BACKWARD]
    for pass_ in passes(order, stage, layout.pp, len(chunks), microbatches):
        stops = routes[pass_.microbatch % 2]
        position = stops.index((stage, pass_.chunk))
        name = f"{pass_.kind}{pass_.microbatch}.{pass_.chunk}"
        step = 1 if pass_.kind == "F" else -1
        if pass_.kind != "W":
            before, after = position - step, position + step
            # Activations have even tags, gradients odd ones.
            tag = 2 * pass_.microbatch * len(stops) + (pass_.kind == "B")
            if 0 <= before < len(stops) and (peer := stops[before][0]) != stage:
                yield TraceNode(f"{name}.recv", RECEIVED, 0.0, sent, tag + 2 * position, peer)
        for number, (cost, count) in enumerate(chunks[pass_.chunk]):
            f, b, r = stepper.layer_passes(cost, policy)
            weight_s = cost.weight.total_s if order in SPLIT else 0.0
            seconds = {"F": f.compute_s, "B": b.compute_s + r.compute_s - weight_s, "W": weight_s}
            phases = {"F": (FORWARD,), "B": (RECOMPUTE, BACKWARD), "W": ()}[pass_.kind]
            all_messages = layer_messages(stepper, stage, cost, policy)
            messages = [message for message in all_messages if message.phase in phases]
            for layer in range(round(count)):
                label = f"{name}.{cost.name}.{number}.{layer}"
                yield TraceNode(label, COMPUTE, max(0.0, seconds[pass_.kind]))
                yield from _message_nodes(label, messages)
        if pass_.kind == "B" and pass_.chunk == 0 and pass_.microbatch < microbatches - 1:
            yield from _message_nodes(name, divided)
        if pass_.kind != "W" and 0 <= after < len(stops) and (peer := stops[after][0]) != stage:
            yield TraceNode(f"{name}.send", SENT, 0.0, sent, tag + 2 * after, peer, True)
    yield from _message_nodes("weights", [message for message in weights if message.phase == STEP])
    yield TraceNode("optimizer", COMPUTE, estimate.usual_step.optimizer_s)


def _message_nodes(label: str, messages: Sequence[StepMessage]) -> Iterator[TraceNode]:
    for number, message in enumerate(messages):
        if message.ranks < 2 or message.bytes <= 0:
            continue
        for repeat in range(round(message.count)):
            name = f"{label}.{message.group}.{message.kind}.{number}.{repeat}"
            if message.kind != "send":
                yield TraceNode(name, COLLECTIVE, 0.0, message)
                continue
            yield TraceNode(f"{name}.send", SENT, 0.0, message, asynchronous=True)
            yield TraceNode(f"{name}.recv", RECEIVED, 0.0, message)


# --- Encoding (protobuf: keys and varints, texts with length prefix) ----------------------------


def encode_trace(
    nodes: Sequence[TraceNode], rank: int, per_stage: int, groups: dict[tuple[int, ...], str]
) -> bytes:
    """Encode the trace of a device; the groups it uses are added to `groups`."""
    out = [_with_length(_text(1, VERSION))]
    last: tuple[int, ...] = ()
    for number, node in enumerate(nodes):
        attributes = _attributes(node, rank, per_stage, groups)
        message = b"".join([
            _number(1, number), _text(2, node.name), _number(3, node.type),
            _bytes(5, b"".join(map(_varint, last))) if last else b"",
            _number(7, round(node.seconds * MICROSECONDS_PER_S)),
            *(_bytes(10, attribute) for attribute in attributes),
        ])  # fmt: skip
        out.append(_with_length(message))
        if not node.asynchronous:
            last = (number,)
    return b"".join(out)


def _attributes(
    node: TraceNode, rank: int, per_stage: int, groups: dict[tuple[int, ...], str]
) -> Iterator[bytes]:
    yield _text(1, "is_cpu_op") + _number(27, 0, always=True)
    message = node.message
    if message is None:
        yield _text(1, "num_ops") + _number(9, 0, always=True)
        return
    yield _text(1, "comm_size") + _number(9, round(message.bytes))
    if node.type == COLLECTIVE:
        place = rank // message.stride % message.ranks
        first = rank - place * message.stride
        ranks = tuple(first + i * message.stride for i in range(message.ranks))
        yield _text(1, "comm_type") + _number(9, KINDS[message.kind], always=True)
        yield _text(1, "pg_name") + _text(29, groups.setdefault(ranks, str(len(groups))))
        return
    if message.group == "pipeline":
        peer = node.peer_stage * per_stage + rank % per_stage
    else:  # a ring: send to the next rank, receive from the previous
        place, direction = rank // message.stride % message.ranks, 1 if node.type == SENT else -1
        peer = rank + ((place + direction) % message.ranks - place) * message.stride
    ends = (rank, peer) if node.type == SENT else (peer, rank)
    for name, value in (("comm_src", ends[0]), ("comm_dst", ends[1]), ("comm_tag", node.tag)):
        yield _text(1, name) + _number(7, value, always=True)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int, *, always: bool = False) -> bytes:
    """Encode an integer; 0 is omitted as in proto3, except for members of a oneof."""
    return _varint(field << 3) + _varint(value) if value or always else b""


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _with_length(message: bytes) -> bytes:
    return _varint(len(message)) + message
