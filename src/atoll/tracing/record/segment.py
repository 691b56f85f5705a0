"""From one trace to a chain of layers: where to cut, and which layers are the same.

Cuts lie where one item of a list of modules (torch.nn.ModuleList, Sequential, ModuleDict) hands
over to the next. Layers are the same when their operators, shapes and connections are, forward and
backward; their names play no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.tracing.record.trace import Argument, ModuleTrace, OperatorCall, TensorView, ValueSource
from atoll.workload.builders.block_runs import periods


@dataclass(frozen=True)
class Segment:
    """A contiguous part of the forward pass with its backward pass."""

    name: str
    prefix: str
    """Module path with a trailing dot; "" if the segment is no module."""
    forward: tuple[OperatorCall, ...]
    backward: tuple[OperatorCall, ...]
    entering: tuple[int, ...]
    """Values with a gradient that come from earlier segments, the main one first."""
    leaving: tuple[int, ...]


@dataclass(frozen=True)
class SegmentChain:
    """Distinct segments in order, each with its repeats; `copies` of each weight in all."""

    segments: tuple[tuple[Segment, int], ...]
    copies: dict[int, int]


def cut_segments(trace: ModuleTrace) -> SegmentChain:
    bounds, names = _bounds(trace)
    with_gradient = _with_gradient(trace)
    segments = _segments(trace, bounds, names, with_gradient)
    keys = [_signature(segment, trace) for segment in segments]
    merged: list[tuple[Segment, int]] = []
    at = 0
    for period, repeat in periods(keys):
        parts = segments[at : at + len(period)]
        merged.append((_joined(parts), repeat))
        at += len(period) * repeat
    copies: dict[int, int] = {}
    for segment in segments:
        for value in {v.value for c in (*segment.forward, *segment.backward) for v in c.ins}:
            if trace.values[value].source is ValueSource.WEIGHT:
                copies[value] = copies.get(value, 0) + 1
    return SegmentChain(tuple(merged), copies)


# --- where to cut ---------------------------------------------------------------------------------


def _bounds(trace: ModuleTrace) -> tuple[list[int], list[str]]:
    """First tick and module path of every segment."""
    containers = _containers(trace)
    items = [_item(path, containers) for path in trace.ticks]
    bounds, names = [0], [""]
    current = ""
    for tick, item in enumerate(items):
        if item and item != current:
            if tick:
                bounds.append(tick)
                names.append(item)
            else:
                names[0] = item
            current = item
    _cut_tail(trace, items, bounds, names)
    return bounds, names


def _containers(trace: ModuleTrace) -> list[str]:
    """The outermost lists that repeat a class; else the outermost lists; else the module."""

    def repeats(path: str) -> bool:
        children = (child for child in trace.classes if child != path)
        classes = [trace.classes[c] for c in children if c.rpartition(".")[0] == path]
        return len(set(classes)) < len(classes)

    def outermost(paths: Sequence[str]) -> list[str]:
        chosen: list[str] = []
        for path in paths:
            if not any(path.startswith(f"{parent}.") or parent == "" for parent in chosen):
                chosen.append(path)
        return chosen

    repeating = outermost([p for p in trace.containers if repeats(p)])
    return repeating or outermost(trace.containers or ("",))


def _item(path: str, containers: Sequence[str]) -> str:
    """The item of a list inside which a module lies; "" for none."""
    for container in containers:
        start = f"{container}." if container else ""
        if path.startswith(start) and path != container:
            return start + path[len(start) :].partition(".")[0]
    return ""


def _cut_tail(
    trace: ModuleTrace, items: Sequence[str], bounds: list[int], names: list[str]
) -> None:
    """What runs between two items belongs to the first of them. Behind the last item of a list, as
    much belongs to it as behind the one before it; the rest is a segment of its own."""
    for index in reversed(range(len(bounds))):
        name, inner = names[index], index + 1 < len(bounds)
        container = name.rpartition(".")[0]
        if not name or (inner and names[index + 1].rpartition(".")[0] == container):
            continue
        end = bounds[index + 1] if inner else len(items)
        last = max(t for t in range(bounds[index], end) if items[t] == name)
        suffix = 0
        if index and names[index - 1].rpartition(".")[0] == container:
            before = range(bounds[index - 1], bounds[index])
            last_before = max(t for t in before if items[t] == names[index - 1])
            suffix = bounds[index] - 1 - last_before
            ours = trace.ticks[last + 1 : last + 1 + suffix]
            if ours != trace.ticks[last_before + 1 : bounds[index]]:
                suffix = 0
        start = last + 1 + suffix
        if start < end:
            bounds.insert(index + 1, start)
            names.insert(index + 1, "")


# --- what is in a segment -------------------------------------------------------------------------


def _with_gradient(trace: ModuleTrace) -> set[int]:
    """Forward values of the model's stream: floating ones that depend on a weight."""
    weights = {v.number for v in trace.values if v.source is ValueSource.WEIGHT}
    dependent = set(weights)
    for call in trace.calls:
        if not call.backward and any(view.value in dependent for view in call.ins):
            dependent.update(view.value for view in call.outs if view.floating)
    return dependent - weights


def _segments(
    trace: ModuleTrace, bounds: Sequence[int], names: Sequence[str], with_gradient: set[int]
) -> list[Segment]:
    lengths = np.diff([*bounds, len(trace.ticks)])
    owner = np.repeat(np.arange(len(bounds)), lengths).tolist()
    forward: list[list[OperatorCall]] = [[] for _ in bounds]
    backward: list[list[OperatorCall]] = [[] for _ in bounds]
    last_reader: dict[int, int] = {}
    maker: dict[int, int] = {}
    for call in trace.calls:
        where = owner[call.tick]
        if call.backward:
            backward[where].append(call)
            continue
        forward[where].append(call)
        for view in call.ins:
            last_reader[view.value] = max(where, last_reader.get(view.value, 0))
        for view in call.outs:
            maker.setdefault(view.value, where)
    stream = {value: start for value, start in maker.items() if value in with_gradient}

    def crossing(index: int) -> tuple[int, ...]:
        values = (v for v, start in stream.items() if start < index <= last_reader.get(v, -1))
        return tuple(sorted(values, reverse=True))

    segments = []
    for index, path in enumerate(names):
        calls = tuple(forward[index]), tuple(backward[index])
        if any(calls):
            name, prefix = path or _name(calls[0], trace, index == 0), f"{path}." if path else ""
            segments.append(Segment(name, prefix, *calls, crossing(index), crossing(index + 1)))
    return segments


def _name(calls: Sequence[OperatorCall], trace: ModuleTrace, first: bool) -> str:
    """Name a segment that is no module after its first (or last) module with a weight."""
    paths = [
        call.path
        for call in calls
        if call.path and any(trace.values[v.value].source is ValueSource.WEIGHT for v in call.ins)
    ] or [call.path for call in calls if call.path]
    if not paths:
        return "inputs" if first else "outputs"
    return paths[0] if first else paths[-1]


def _joined(parts: Sequence[Segment]) -> Segment:
    """Join the segments of a period of alternating blocks."""
    if len(parts) == 1:
        return parts[0]
    return Segment(
        name=f"{parts[0].name}-{parts[-1].name.rpartition('.')[2]}",
        prefix=parts[0].name.rpartition(".")[0] + ".",
        forward=tuple(call for part in parts for call in part.forward),
        backward=tuple(call for part in reversed(parts) for call in part.backward),
        entering=parts[0].entering,
        leaving=parts[-1].leaving,
    )


# --- which are the same ---------------------------------------------------------------------------


def _signature(segment: Segment, trace: ModuleTrace) -> tuple[object, ...]:
    """Return a key that is equal for segments with the same operators, shapes and connections."""
    numbers: dict[int, int] = {}
    crossing = {value: f"in{i}" for i, value in enumerate(segment.entering)}
    computed = {v.value for call in (*segment.forward, *segment.backward) for v in call.outs}

    def plain(argument: Argument) -> object:
        if isinstance(argument, TensorView):
            value = trace.values[argument.value]
            number = numbers.setdefault(argument.value, len(numbers))
            source = "own" if argument.value in computed else str(value.source)
            kind = crossing.get(argument.value) or source
            return (number, kind, argument.shape, argument.strides, argument.offset,
                    argument.element_bytes)  # fmt: skip
        if isinstance(argument, tuple):
            return tuple(plain(item) for item in argument)
        return argument

    calls = (*segment.forward, *segment.backward)
    rows = [(c.op, plain(c.args), plain(c.outs), c.unmasked_share) for c in calls]
    return tuple(rows), tuple(numbers.get(value, -1) for value in segment.leaving)
