"""A step as Chrome trace events, for Perfetto and chrome://tracing.

One process per pipeline stage with three lanes: its passes and idle time, which add up to the
step; the parts of a pass; and messages to the neighbours. Plans also have a memory counter. One
process per kind of layer with its operators on their cores, and counters of FLOP/s and bytes/s.

Times are microseconds, rounded to nanoseconds: Perfetto rounds starts and durations separately to
nanoseconds, and drops slices that then overlap.
"""

from __future__ import annotations

import heapq
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

from atoll.answers.design import LayerPass, SearchedModel
from atoll.answers.layout import PassParts
from atoll.answers.plan import DevicePass, EstimateAnswer, PlanAnswer, StageMemory
from atoll.answers.search import SearchAnswer
from atoll.answers.wafer import WaferAnswer
from atoll.base.errors import AtollError
from atoll.files.atomic_file import atomic_files, check_place
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
"""First process number of stages; 0 is reserved for the kernel."""
LAYERS = 10_000
"""First process number of layers."""
LANES = 1000
"""Thread number = process number x LANES + lane + 1: unique, as viewers require."""
LINK = "link"
RATES = (("compute", "TFLOP/s", 1e12), ("HBM", "GB/s", 1e9), ("links", "GB/s", 1e9))
ROUNDING = 1e-9  # share of the largest rate below which a sum of rates counts as 0
Work = tuple[float, float, float, float, bool]
"""Start, end, FLOPs, bytes, and whether these cross links."""
MOST_INSIDE = 20_000  # passes; the trace of a longer step omits the parts of passes


TraceEvent = dict[str, Any]
"""One entry of the Trace Event Format."""
ChromeTrace = dict[str, Any]
"""A trace file."""


def search_trace(answer: SearchAnswer | WaferAnswer) -> ChromeTrace:
    """Return the trace of a search's best design: pipeline and layer schedules per model."""
    events: list[TraceEvent] = []
    about: dict[str, Any] = {"tool": "atoll search"}
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


def plan_trace(answer: PlanAnswer | EstimateAnswer) -> ChromeTrace:
    """Return the trace of a plan: pipeline, collectives, and operators of its layers."""
    timeline = plan_timeline(answer.pipeline)
    events = list(_pipeline_events(timeline, STAGES, "", answer.pipeline.parts))
    stages = zip(timeline.stages, answer.memory_bytes.stages, strict=True)
    for stage, (row, memory) in enumerate(stages, start=STAGES):
        events += _memory(stage, row, memory)
    layers = _by_layer(answer.operators)
    for number, (name, entries) in enumerate(layers.items(), start=LAYERS):
        events += _process(number, f"layer {name}, on one device")
        events += _operator_events(number, entries)
    return _file(events, {"tool": "atoll plan", answer.model: _about(timeline)})


def trace_answer(
    answer: SearchAnswer | WaferAnswer | PlanAnswer | EstimateAnswer, path: Path
) -> Path:
    """Write the step of an answer as a trace."""
    check_trace_path(path)
    if isinstance(answer, SearchAnswer | WaferAnswer):
        trace = search_trace(answer)
    else:
        trace = plan_trace(answer)
    if not trace["traceEvents"]:
        raise AtollError("nothing is on record to trace; run the search again.")
    with atomic_files(lambda why: f"trace: {path} cannot be written ({why}).", path) as (part,):
        part.write_text(json.dumps(trace, allow_nan=False) + "\n", encoding="utf-8")
    return path


def check_trace_path(path: Path | None) -> None:
    """Refuse a file that cannot be written, before any work."""
    if path is not None:
        words = "give a file such as step.json"
        check_place(lambda why: f"trace: {path} cannot be written ({why}); {words}.", path)


def _file(events: list[TraceEvent], about: dict[str, Any]) -> ChromeTrace:
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _about(timeline: Timeline) -> dict[str, Any]:
    """Return the figures of one pipeline that a viewer shows with its events."""
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
) -> Iterator[TraceEvent]:
    count = len(timeline.stages)
    inside = len(parts) == count and count * timeline.shown <= MOST_INSIDE
    for stage, row in enumerate(timeline.stages):
        pid = base + stage
        yield from _process(pid, f"{prefix}stage {stage}")
        yield _thread(pid, PASSES, "passes")
        if inside:
            yield _thread(pid, INSIDE, "parts of a pass (shares, not their order)")
        for item in row:
            yield _complete(pid, PASSES, _title(item), _category(item), item.start_s, item.end_s, {
                "kind": item.kind,
                **({"microbatch": item.microbatch} if item.microbatch >= 0 else {}),
                **({"chunk": item.chunk} if item.chunk else {}),
            })  # fmt: skip
            if inside and item.kind in (FORWARD, BACKWARD):
                forward = item.kind == FORWARD
                yield from _parts(
                    pid, item, parts[stage].forward if forward else parts[stage].backward
                )
        yield from _messages(timeline, stage, pid, count)


def _memory(pid: int, row: Sequence[Slice], memory: StageMemory) -> Iterator[TraceEvent]:
    """Yield bytes of a device over the step: a forward pass saves its activations, the last pass
    that reads them frees them. The peak equals the activations of the estimate."""
    last = WEIGHT if any(piece.kind == WEIGHT for piece in row) else BACKWARD
    ends = [piece for piece in row if piece.kind in (FORWARD, last)]
    in_flight = [0, *accumulate(1 if piece.kind == FORWARD else -1 for piece in ends)]
    saved, most = memory.parts.get("activations", 0.0), max(1, *in_flight)
    for time_s, count in zip((0.0, *(piece.end_s for piece in ends)), in_flight, strict=True):
        shown = {"other": memory.total - saved, "activations": saved * count / most}
        yield {
            "name": "memory", "cat": "memory", "ph": "C", "pid": pid, "tid": _tid(pid, PASSES),
            "ts": _ns(time_s) / NS_PER_US, "args": shown,
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


def _parts(pid: int, piece: Slice, parts: Mapping[str, float]) -> Iterator[TraceEvent]:
    """Divide a pass into its parts, in proportion to their times."""
    total_s = sum(parts.values())
    clock = piece.start_s
    for name, seconds in parts.items():
        end = min(piece.end_s, clock + seconds / total_s * piece.duration_s)
        category = "compute" if name == "compute" else "collective"
        yield _complete(pid, INSIDE, name, category, clock, end, {})
        clock = end


def _messages(timeline: Timeline, stage: int, pid: int, count: int) -> Iterator[TraceEvent]:
    """Yield sends of activations to the next stage and gradients to the previous one."""
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
                "ts": _ns(min(time_s, timeline.end_s)) / NS_PER_US,
            }  # fmt: skip


# --- Layers ---------------------------------------------------------------------------------------


P = TypeVar("P", LayerPass, DevicePass)


def _by_layer(entries: Iterable[P]) -> dict[str, list[P]]:
    entries_by_layer: dict[str, list[P]] = defaultdict(list)
    for entry in entries:
        entries_by_layer[entry.layer].append(entry)
    return entries_by_layer


def _schedule_events(pid: int, entries: Sequence[LayerPass]) -> Iterator[TraceEvent]:
    """Yield operators of a chip's schedule; concurrent operators of a core have several lanes."""
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


def _operator_events(pid: int, entries: Sequence[DevicePass]) -> Iterator[TraceEvent]:
    """Yield operators that run one after the other, one lane per kind."""
    lanes: dict[str, int] = {}
    done: list[Work] = []
    clock = 0.0
    for entry in entries:
        work = entry.work or ((0, 0),) * len(entry.operators)
        if len(work) != len(entry.operators):
            raise AtollError(
                f"{entry.layer} {entry.pass_}: {len(entry.operators)} operators, but work of "
                f"{len(work)}; the answer is damaged, ask again"
            )
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


def _rates(pid: int, done: Sequence[Work]) -> Iterator[TraceEvent]:
    """Yield rate counters of a layer: the sum of mean rates of concurrent operators."""
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
                "ts": _ns(time_s) / NS_PER_US, "args": {unit: level},
            }  # fmt: skip


# --- Events ---------------------------------------------------------------------------------------


def _complete(
    pid: int, lane: int, name: str, category: str, start_s: float, end_s: float,
    args: Mapping[str, str | int],
) -> TraceEvent:  # fmt: skip
    start, end = _ns(start_s), _ns(end_s)
    return {
        "name": name, "cat": category, "ph": "X", "pid": pid, "tid": _tid(pid, lane),
        "ts": start / NS_PER_US, "dur": max(0, end - start) / NS_PER_US, "args": args,
    }  # fmt: skip


def _ns(time_s: float) -> int:
    if not math.isfinite(time_s * NS):
        raise AtollError(f"{time_s:g} s is too long for a trace, which counts nanoseconds")
    return round(time_s * NS)


def _tid(pid: int, lane: int) -> int:
    return pid * LANES + lane + 1


def _process(pid: int, name: str) -> Iterator[TraceEvent]:
    yield _metadata("process_name", pid, 0, name=name)
    yield _metadata("process_sort_index", pid, 0, sort_index=pid)


def _thread(pid: int, lane: int, name: str) -> TraceEvent:
    return _metadata("thread_name", pid, lane, name=name)


def _metadata(what: str, pid: int, lane: int, **args: str | int) -> TraceEvent:
    return {"name": what, "ph": "M", "pid": pid, "tid": _tid(pid, lane), "args": args}
