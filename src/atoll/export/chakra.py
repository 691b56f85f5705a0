"""A step as Chakra execution traces (MLCommons), one file a device, for ASTRA-sim and its kin.

Messages of `schema/protobuf/et_def.proto` of mlcommons/chakra: GlobalMetadata, then nodes, each
behind its length. A device runs its passes in the pipeline's order, layer by layer: a node of
computing, then the layer's collectives; what it sends is beside what follows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from atoll.errors import AtollError
from atoll.export.messages import AGAIN, BACKWARD, FORWARD, STEP, Message, of_layer, of_weights
from atoll.files.wholefile import check_folder, whole_files
from atoll.step.orders import SPLIT, passes, route
from atoll.training.estimate import Estimate, Estimator
from atoll.training.operators.layers import Share

VERSION = "0.0.4"
COMPUTE, SENT, RECEIVED, COLLECTIVE = 4, 5, 6, 7  # NodeType
KINDS = {"all_reduce": 0, "all_gather": 2, "all_to_all": 6, "reduce_scatter": 7}
"""CollectiveCommType."""
MOST_NODES = 2_000_000
"""Of all devices together."""
GROUPS = "comm_groups.json"
US = 1e6


@dataclass(frozen=True, slots=True)
class Work:
    """One node of a stage; peers are counted from the device that runs it."""

    name: str
    type: int
    seconds: float = 0.0
    message: Message | None = None
    tag: int = 0
    to: int = 0
    """The stage that is sent to or received from."""
    aside: bool = False
    """Whether what follows does not wait for it."""


def write_chakra(found: Estimate, folder: Path) -> None:
    """One file `step.RANK.et` a device, and the ranks of all groups (JSON)."""
    layout, devices = found.layout, found.run.devices
    stages = [tuple(works) for works in _stages(found)]
    count = sum(map(len, stages)) * (devices // layout.pp)
    if count > MOST_NODES:
        raise AtollError(
            f"chakra: {count:,} nodes on {devices:,} devices, but at most {MOST_NODES:,} are "
            "written; ask for fewer microbatches (--batch) or replicas (--devices)"
        )
    check_folder(folder, ())
    folder.mkdir(parents=True, exist_ok=True)
    groups: dict[tuple[int, ...], str] = {}
    per_stage = devices // layout.pp
    for rank in range(devices):
        path = folder / f"step.{rank}.et"
        data = encoded(stages[rank // per_stage], rank, per_stage, groups)
        with whole_files(_unwritten(path), path) as (part,):
            part.write_bytes(data)
    told = {name: list(ranks) for ranks, name in groups.items()}
    with whole_files(_unwritten(folder / GROUPS), folder / GROUPS) as (part,):
        part.write_text(json.dumps(told) + "\n", encoding="utf-8")


def _unwritten(path: Path) -> Callable[[str], str]:
    return lambda why: f"chakra: {path} cannot be written ({why})."


def _stages(found: Estimate) -> Iterator[Iterator[Work]]:
    stepper, shares = (estimator := Estimator(found.run)).shares(found.layout)
    layout, m = found.layout, stepper.microbatches
    for stage, chunks in enumerate(shares):
        yield _stage(found, estimator, stage, chunks, m, layout.schedule)


def _stage(
    found: Estimate, estimator: Estimator, stage: int, chunks: Sequence[Share], m: int, order: str
) -> Iterator[Work]:
    """What a device of a stage does in a step."""
    layout, policy = found.layout, found.policies[stage]
    stepper, _ = estimator.shares(layout)
    boundary = max((c.boundary_bytes for x in chunks for c, _ in x if c.is_block), default=0)
    sent = Message(stage, "", "pipeline", "send", layout.pp, 1, stepper.sent_bytes(boundary), 1)
    ways = [route(order, layout.pp, len(chunks), i) for i in range(2)]
    weights = list(of_weights(stepper, stage, *estimator.trained(layout, chunks)))
    divided = [replace(x, count=1) for x in weights if x.phase == BACKWARD]
    for one in passes(order, stage, layout.pp, len(chunks), m):
        way = ways[one.microbatch % 2]
        at = way.index((stage, one.chunk))
        name = f"{one.kind}{one.microbatch}.{one.chunk}"
        step = 1 if one.kind == "F" else -1
        if one.kind != "W":
            before, after = at - step, at + step
            # Activations have even tags, gradients odd ones.
            tag = 2 * one.microbatch * len(way) + (one.kind == "B")
            if 0 <= before < len(way) and way[before][0] != stage:
                yield Work(f"{name}.recv", RECEIVED, 0.0, sent, tag + 2 * at, way[before][0])
        for number, (cost, count) in enumerate(chunks[one.chunk]):
            f, b, r = stepper.layer_passes(cost, policy)
            weight_s = cost.weight.total_s if order in SPLIT else 0.0
            seconds = {"F": f.compute_s, "B": b.compute_s + r.compute_s - weight_s, "W": weight_s}
            phases = {"F": (FORWARD,), "B": (AGAIN, BACKWARD), "W": ()}[one.kind]
            messages = [x for x in of_layer(stepper, stage, cost, policy) if x.phase in phases]
            for layer in range(round(count)):
                label = f"{name}.{cost.name}.{number}.{layer}"
                yield Work(label, COMPUTE, max(0.0, seconds[one.kind]))
                yield from _sends(label, messages)
        if one.kind == "B" and one.chunk == 0 and one.microbatch < m - 1:
            yield from _sends(name, divided)
        if one.kind != "W" and 0 <= after < len(way) and way[after][0] != stage:
            yield Work(f"{name}.send", SENT, 0.0, sent, tag + 2 * after, way[after][0], aside=True)
    yield from _sends("weights", [x for x in weights if x.phase == STEP])
    yield Work("optimizer", COMPUTE, found.step.optimizer_s)


def _sends(label: str, messages: Sequence[Message]) -> Iterator[Work]:
    for number, one in enumerate(messages):
        if one.ranks < 2 or one.bytes <= 0:
            continue
        for again in range(round(one.count)):
            name = f"{label}.{one.group}.{one.kind}.{number}.{again}"
            if one.kind != "send":
                yield Work(name, COLLECTIVE, 0.0, one)
                continue
            yield Work(f"{name}.send", SENT, 0.0, one, aside=True)
            yield Work(f"{name}.recv", RECEIVED, 0.0, one)


# --- Encoding (protobuf: keys and varints, texts behind their lengths) ----------------------------


def encoded(
    works: Sequence[Work], rank: int, per_stage: int, groups: dict[tuple[int, ...], str]
) -> bytes:
    """The file of a device; `groups` collects the ranks of those that it names."""
    out = [_framed(_text(1, VERSION))]
    last: tuple[int, ...] = ()
    for number, work in enumerate(works):
        attributes = _attributes(work, rank, per_stage, groups)
        node = b"".join([
            _number(1, number), _text(2, work.name), _number(3, work.type),
            _bytes(5, b"".join(map(_varint, last))) if last else b"",
            _number(7, round(work.seconds * US)),
            *(_bytes(10, attribute) for attribute in attributes),
        ])  # fmt: skip
        out.append(_framed(node))
        if not work.aside:
            last = (number,)
    return b"".join(out)


def _attributes(
    work: Work, rank: int, per_stage: int, groups: dict[tuple[int, ...], str]
) -> Iterator[bytes]:
    yield _text(1, "is_cpu_op") + _number(27, 0, always=True)
    one = work.message
    if one is None:
        yield _text(1, "num_ops") + _number(9, 0, always=True)
        return
    yield _text(1, "comm_size") + _number(9, round(one.bytes))
    if work.type == COLLECTIVE:
        place = rank // one.stride % one.ranks
        first = rank - place * one.stride
        ranks = tuple(first + i * one.stride for i in range(one.ranks))
        yield _text(1, "comm_type") + _number(9, KINDS[one.kind], always=True)
        yield _text(1, "pg_name") + _text(29, groups.setdefault(ranks, str(len(groups))))
        return
    if one.group == "pipeline":
        peer = work.to * per_stage + rank % per_stage
    else:  # a ring: to the next, from the one before
        place, way = rank // one.stride % one.ranks, 1 if work.type == SENT else -1
        peer = rank + ((place + way) % one.ranks - place) * one.stride
    ends = (rank, peer) if work.type == SENT else (peer, rank)
    for name, value in (("comm_src", ends[0]), ("comm_dst", ends[1]), ("comm_tag", work.tag)):
        yield _text(1, name) + _number(7, value, always=True)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int, *, always: bool = False) -> bytes:
    """A whole number; 0 is left out as proto3 does, but for members of a oneof."""
    return _varint(field << 3) + _varint(value) if value or always else b""


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _framed(message: bytes) -> bytes:
    return _varint(len(message)) + message
