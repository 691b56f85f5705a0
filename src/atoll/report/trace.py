"""A step as Chrome trace events, for Perfetto and chrome://tracing.

One process a pipeline stage with three lanes: its passes (idle time included, so that the lane adds
up to the step), what a pass is made of, and messages to the neighbours; of a plan also a counter of
its memory. One process a kind of layer with its operators on their cores, and counters of the FLOPs
and bytes per second that they do.

Times are microseconds, as the format wants them, on whole nanoseconds: Perfetto rounds starts and
durations to those on its own, and drops what then overlaps.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, TypeVar

from atoll.answers.design import LayerPass, SearchedModel
from atoll.answers.layout import PassParts
from atoll.answers.plan import DevicePass, EstimateAnswer, PlanAnswer, StageMemory
from atoll.answers.search import SearchAnswer
from atoll.answers.wafer import WaferAnswer
from atoll.errors import AtollError
from atoll.files.wholefile import check_place, whole_files
from atoll.report.timeline import (
    AFTER,
    BACKWARD,
    FORWARD,
    IDLE,
    WEIGHT,
    Slice,
    Timeline,
    placement_timeline,
    plan_timeline,
)

NS = 1e9
NS_PER_US = 1000
PASSES, INSIDE, MESSAGES = 0, 1, 2
STAGES = 1
"""Process numbers of stages begin here: 0 is the kernel's."""
LAYERS = 10_000
"""Those of layers begin here."""
LANES = 1000
"""Thread numbers are the process's times this, and the lane: viewers want each only once."""
LINK = "link"
RATES = (("compute", "TFLOP/s", 1e12), ("HBM", "GB/s", 1e9), ("links", "GB/s", 1e9))
ROUNDING = 1e-9  # of the largest rate: what sums leave where nothing runs
Work = tuple[float, float, float, float, bool]
"""Start, end, FLOPs, bytes, and whether these cross links."""
MOST_INSIDE = 20_000  # passes; beyond them their parts are left out of the trace


class Event(TypedDict, total=False):
    """One entry of the Trace Event Format, of the kinds that we write."""

    name: str
    cat: str
    ph: str
    pid: int
    tid: int
    ts: float
    dur: float
    args: Mapping[str, str | int | float]
    id2: Mapping[str, str]


class About(TypedDict):
    """What a viewer shows of one pipeline beside its events."""

    step_time_s: float
    stretch: float
    microbatches: int
    microbatches_shown: int
    bubble_s: list[float]


class Trace(TypedDict):
    """A trace file."""

    traceEvents: list[Event]
    displayTimeUnit: str
    otherData: dict[str, str | About]


def search_trace(answer: SearchAnswer | WaferAnswer) -> Trace:
    """Schedules of the layers and the pipeline of a search's best design, of every model."""
    events: list[Event] = []
    about: dict[str, str | About] = {"tool": "atoll search"}
    stage, layer = STAGES, LAYERS
    for plan in answer.best.models:
        timeline = placement_timeline(plan.placement)
        if timeline is not None:
            events += _pipeline_events(timeline, stage, f"{plan.model}: ")
            about[plan.model] = _about(timeline)
            stage += len(timeline.stages)
    for plan in answer.best.models:
        passes = plan.layers if isinstance(plan, SearchedModel) else ()
        for name, entries in _by_layer(passes).items():
            events += _process(layer, f"{plan.model}: layer {name}")
            events += _schedule_events(layer, entries)
            layer += 1
    return _file(events, about)


def plan_trace(answer: PlanAnswer | EstimateAnswer) -> Trace:
    """The pipeline of a plan, its collectives, and its layers' operators."""
    timeline = plan_timeline(answer.pipeline)
    events = list(_pipeline_events(timeline, STAGES, "", answer.pipeline.parts))
    for stage, (row, memory) in enumerate(
        zip(timeline.stages, answer.memory_bytes.stages, strict=True)
    ):
        events += _memory(STAGES + stage, row, memory)
    layers = _by_layer(answer.operators)
    for number, (name, entries) in enumerate(layers.items(), start=LAYERS):
        events += _process(number, f"layer {name}, on one device")
        events += _operator_events(number, entries)
    return _file(events, {"tool": "atoll plan", answer.model: _about(timeline)})


def trace_answer(
    answer: SearchAnswer | WaferAnswer | PlanAnswer | EstimateAnswer, path: Path
) -> Path:
    """Write the step of an answer."""
    check_trace_path(path)
    if isinstance(answer, SearchAnswer | WaferAnswer):
        trace = search_trace(answer)
    else:
        trace = plan_trace(answer)
    if not trace["traceEvents"]:
        raise AtollError("nothing is on record to trace; run the search again.")
    return write_trace(trace, path)


def write_trace(trace: Trace, path: Path) -> Path:
    """Write a trace, whole or not at all."""
    with whole_files(lambda why: f"trace: {path} cannot be written ({why}).", path) as (part,):
        part.write_text(json.dumps(trace, allow_nan=False) + "\n", encoding="utf-8")
    return path


def check_trace_path(path: Path | None) -> None:
    """Refuse, before any work, a file that could not be written in the end."""
    if path is not None:
        words = "give a file such as step.json"
        check_place(lambda why: f"trace: {path} cannot be written ({why}); {words}.", path)


def _file(events: list[Event], about: dict[str, str | About]) -> Trace:
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _about(timeline: Timeline) -> About:
    return {
        "step_time_s": timeline.step_time_s,
        "stretch": timeline.stretch,
        "microbatches": timeline.microbatches,
        "microbatches_shown": timeline.shown,
        "bubble_s": timeline.idle_s(),
    }


# --- The pipeline ---------------------------------------------------------------------------------


def _pipeline_events(
    timeline: Timeline, base: int, prefix: str, parts: Sequence[PassParts] = ()
) -> Iterator[Event]:
    count = len(timeline.stages)
    inside = len(parts) == count and count * timeline.shown <= MOST_INSIDE
    for stage, row in enumerate(timeline.stages):
        pid = base + stage
        yield from _process(pid, f"{prefix}stage {stage}")
        yield _thread(pid, PASSES, "passes")
        if inside:
            yield _thread(pid, INSIDE, "parts of a pass (shares, not their order)")
        for piece in row:
            yield _complete(pid, PASSES, _title(piece), _category(piece), piece.start_s, piece.end_s, {
                "kind": piece.kind,
                **({"microbatch": piece.microbatch} if piece.microbatch >= 0 else {}),
                **({"chunk": piece.chunk} if piece.chunk else {}),
            })  # fmt: skip
            if inside and piece.kind in (FORWARD, BACKWARD):
                stage_parts = parts[stage]
                shares = stage_parts.forward if piece.kind == FORWARD else stage_parts.backward
                yield from _parts(pid, piece, shares)
        yield from _messages(timeline, stage, pid, count)


def _memory(pid: int, row: Sequence[Slice], memory: StageMemory) -> Iterator[Event]:
    """Bytes of a device over the step: a forward pass leaves its share of what is saved, the last
    pass that reads it frees it; at most as many are in flight as the estimate's activations hold.
    """
    last = WEIGHT if any(piece.kind == WEIGHT for piece in row) else BACKWARD
    steps = [(piece.end_s, 1 if piece.kind == FORWARD else -1) for piece in row
             if piece.kind in (FORWARD, last)]  # fmt: skip
    in_flight, most_in_flight = 0, 0
    for _, change in steps:
        in_flight += change
        most_in_flight = max(most_in_flight, in_flight)
    activation_bytes = memory.parts.get("activations", 0.0)
    in_flight = 0
    for time_s, change in ((0.0, 0), *steps):
        in_flight += change
        yield {
            "name": "memory", "cat": "memory", "ph": "C", "pid": pid, "tid": _tid(pid, PASSES),
            "ts": round(time_s * NS) / NS_PER_US,
            "args": {"other": memory.total - activation_bytes, "activations": activation_bytes * in_flight / max(most_in_flight, 1)},
        }  # fmt: skip


def _title(piece: Slice) -> str:
    if piece.kind in (IDLE, AFTER):
        return piece.name or piece.kind
    chunk = f" chunk {piece.chunk}" if piece.chunk else ""
    return f"{piece.kind} {piece.microbatch}{chunk}"


def _category(piece: Slice) -> str:
    if piece.kind == AFTER:
        return "collective" if piece.name == "gradient reduction" else "step"
    return "bubble" if piece.kind == IDLE else "pipeline"


def _parts(pid: int, piece: Slice, parts: Mapping[str, float]) -> Iterator[Event]:
    """A pass divided by what its time is spent on."""
    total_s = sum(parts.values())
    clock = piece.start_s
    for name, seconds in parts.items():
        end = min(piece.end_s, clock + seconds / total_s * piece.duration_s)
        category = "compute" if name == "compute" else "collective"
        yield _complete(pid, INSIDE, name, category, clock, end, {})
        clock = end


def _messages(timeline: Timeline, stage: int, pid: int, count: int) -> Iterator[Event]:
    """Activations to the next stage and gradients to the one before; they may overlap."""
    if timeline.send_s <= 0.0 or count == 1:
        return
    for piece in timeline.stages[stage]:
        if piece.kind not in (FORWARD, BACKWARD):
            continue
        what = "activation" if piece.kind == FORWARD else "gradient"
        name = f"send {what} {piece.microbatch}"
        key = f"{pid}.{piece.kind}.{piece.microbatch}.{piece.chunk}"
        for phase, time_s in (("b", piece.end_s), ("e", piece.end_s + timeline.send_s)):
            yield {
                "name": name, "cat": "send", "ph": phase, "id2": {"local": key}, "pid": pid,
                "tid": _tid(pid, MESSAGES),
                "ts": round(min(time_s, timeline.end_s) * NS) / NS_PER_US,
            }  # fmt: skip


# --- Layers ---------------------------------------------------------------------------------------


P = TypeVar("P", LayerPass, DevicePass)


def _by_layer(entries: Iterable[P]) -> dict[str, list[P]]:
    entries_by_layer: dict[str, list[P]] = {}
    for entry in entries:
        entries_by_layer.setdefault(entry.layer, []).append(entry)
    return entries_by_layer


def _schedule_events(pid: int, entries: Sequence[LayerPass]) -> Iterator[Event]:
    """Operators of a chip's schedule: a lane for each that runs beside others on its cores."""
    lanes: dict[tuple[str, int], int] = {}
    done: list[Work] = []
    clock = 0.0
    for entry in entries:
        free: dict[str, list[tuple[float, int]]] = {}
        used: dict[str, int] = {}
        for op in sorted(entry.operators, key=lambda op: op.start_s):
            start, end = clock + op.start_s, clock + op.start_s + op.duration_s
            core = op.core
            waiting = free.setdefault(core, [])
            if waiting and waiting[0][0] <= start:
                _, slot = heapq.heappop(waiting)
            else:
                slot = used.get(core, 0)
                used[core] = slot + 1
            heapq.heappush(waiting, (end, slot))
            if (core, slot) not in lanes:
                lanes[core, slot] = len(lanes)
                name = f"{core} cores" if core in ("tensor", "vector") else core
                yield _thread(pid, lanes[core, slot], f"{name} {slot}" if slot else name)
            about = {name: getattr(op, name) for name in ("tensor_cores", "vector_cores", "limit")}
            yield _complete(pid, lanes[core, slot], op.name, entry.pass_, start, end, about)
            done.append((start, end, op.flops, op.moved_bytes, core == LINK))
        clock += entry.makespan_s
    yield from _rates(pid, done)


def _operator_events(pid: int, entries: Sequence[DevicePass]) -> Iterator[Event]:
    """Operators of a device that runs one after the other, a lane for each kind."""
    lanes: dict[str, int] = {}
    done: list[Work] = []
    clock = 0.0
    for entry in entries:
        work = entry.work or ((0, 0),) * len(entry.operators)
        for (name, lane, start, seconds), (flops, moved) in zip(entry.operators, work, strict=True):
            if lane not in lanes:
                lanes[lane] = len(lanes)
                yield _thread(pid, lanes[lane], lane)
            begin = clock + start
            category = "collective" if lane == LINK else entry.pass_
            yield _complete(pid, lanes[lane], name, category, begin, begin + seconds, {})
            done.append((begin, begin + seconds, flops, moved, lane == LINK))
        clock += entry.makespan_s
    yield from _rates(pid, done)


def _rates(pid: int, done: Sequence[Work]) -> Iterator[Event]:
    """Counters of a layer: what runs at a time adds up, each operator at its mean rate."""
    for name, unit, scale in RATES:
        changes: dict[float, float] = {}
        for start, end, flops, moved, links in done:
            amount = flops if name == "compute" else moved if links == (name == "links") else 0
            if amount and end > start:
                rate = amount / (end - start) / scale
                changes[start] = changes.get(start, 0.0) + rate
                changes[end] = changes.get(end, 0.0) - rate
        level, most = 0.0, max(map(abs, changes.values()), default=0.0)
        for time_s, change in sorted(changes.items()):
            level = level + change if abs(level + change) > ROUNDING * most else 0.0
            yield {
                "name": name, "cat": "rate", "ph": "C", "pid": pid, "tid": _tid(pid, 0),
                "ts": round(time_s * NS) / NS_PER_US, "args": {unit: level},
            }  # fmt: skip


# --- Events ---------------------------------------------------------------------------------------


def _complete(
    pid: int, lane: int, name: str, category: str, start_s: float, end_s: float,
    args: Mapping[str, str | int],
) -> Event:  # fmt: skip
    start, end = round(start_s * NS), round(end_s * NS)
    return {
        "name": name, "cat": category, "ph": "X", "pid": pid, "tid": _tid(pid, lane),
        "ts": start / NS_PER_US, "dur": max(0, end - start) / NS_PER_US, "args": args,
    }  # fmt: skip


def _tid(pid: int, lane: int) -> int:
    return pid * LANES + lane + 1


def _process(pid: int, name: str) -> Iterator[Event]:
    about: dict[str, dict[str, str | int]] = {
        "process_name": {"name": name},
        "process_sort_index": {"sort_index": pid},
    }
    for what, args in about.items():
        yield {"name": what, "ph": "M", "pid": pid, "tid": _tid(pid, 0), "args": args}


def _thread(pid: int, lane: int, name: str) -> Event:
    tid = _tid(pid, lane)
    return {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
