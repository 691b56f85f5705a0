"""PyTorch profiler traces (Kineto's JSON, plain or .gz): breakdown of the time of each step.

Traces are read event by event, so that traces of many gigabytes need little memory; only device
events, their launches and step marks are stored. A device's time is computation, exposed
communication, and idle time; gaps before a kernel that was launched too late count as the host's.
"""

from __future__ import annotations

import codecs
import json
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from atoll.answers.validation import ProfiledStep
from atoll.base.arrays import Floats
from atoll.base.errors import AtollError
from atoll.files.inputs import open_input
from atoll.files.jsonfile import read_object
from atoll.training.operators.kernel_classes import KERNEL_CLASSES
from atoll.validation.tables import RunRow

CHUNK = 2**20
MOST_CHARACTERS = 2**36
"""Limit of an unpacked trace: about a hundred million events."""
MOST_EVENT = 2**22
"""Limit of characters of an event, and of the text before the first."""
CAPACITY = 2 * 10**7  # stored kernels and launches
LARGEST = 1e18
"""Limit of microseconds and ids: 30,000 years."""
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCH = {"cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime"}
WAITS = re.compile(r"Synchronize|Wait|Query")
STEP = re.compile(r"ProfilerStep#\d+")
OPTIMIZER = "Optimizer.step#"

KINDS = {
    "memory": r"memcpy|memset",
    "communication": r"nccl|rccl|oneccl|deep_?ep|nvshmem",
    "softmax/loss": r"softmax|nll_?loss|cross_?entropy",
    "streaming": r"^triton_(?!tem)",  # before the names of the operators it fuses
    "attention": r"flash|fmha|sdpa|attention|attn",
    "products": r"gemm|nvjet|cutlass|cublas|xmma|wgmma|matmul|cijk_|_mm_|gemv",
    "optimizer": r"multi_tensor_apply|adam|lamb(?!da)|sgd",
}
"""Classes of kernels (`operators.kernel_classes`) and communication; the first match counts."""
DEFAULT_KIND = "streaming"
"""Norms, activations, casts: kernels that move tensors once."""
OVERLAPS = {
    "tensor_products": r"tensor|\btp\b|_tp",
    "pipeline": r"pipeline|\bpp\b|_pp|sendrecv",
    "experts": r"expert|\bep\b|_ep|all_?to_?all",
    "gather": r"all_?gather",
    "gradient": r"reduce",
}
"""Overlaps of a stack, by process group if the trace names it, or by collective."""
_KINDS, _OVERLAPS = (
    {kind: re.compile(words, re.IGNORECASE) for kind, words in table.items()}
    for table in (KINDS, OVERLAPS)
)
START, END = 0, 1  # columns of intervals
CLASS_COLUMNS = {name: f"k_{name}_ms" for name in KERNEL_CLASSES}
STAND_IN = re.compile(r"copysign|Memcpy DtoD")
"""Kernels that stand in for collectives (`measurement.collectives`); not counted as a rank's."""
BACKENDS = {"pytorch_flash": "FLASH_ATTENTION", "cudnn_generated": "CUDNN_ATTENTION"}
"""Back ends of torch's attention by what their kernels are called."""


@dataclass(slots=True)
class _Events:
    """Stored events of a trace, in microseconds."""

    start: array[float] = field(default_factory=lambda: array("d"))
    length: array[float] = field(default_factory=lambda: array("d"))
    correlation: array[float] = field(default_factory=lambda: array("d"))
    device: array[float] = field(default_factory=lambda: array("d"))
    kind: list[tuple[str, str]] = field(default_factory=list)
    launched: dict[float, tuple[float, float]] = field(default_factory=dict)
    waits: list[tuple[float, float]] = field(default_factory=list)
    steps: list[tuple[float, float]] = field(default_factory=list)
    updates: list[float] = field(default_factory=list)


def read_trace(path: str | Path) -> tuple[ProfiledStep, ...]:
    """Read the steps of a trace, by the profiler's marks, else by weight updates, else as one."""
    events = _Events()
    for event in read_events(path):
        _store_event(events, event)
        if len(events.start) + len(events.launched) > CAPACITY:
            raise AtollError(f"{path}: more than {CAPACITY:,} kernels and launches; profile less")
    if not events.start:
        raise AtollError(f"{path}: the trace has no kernels; profile the device too")
    return _steps(events)


def read_events(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a Chrome trace: of its "traceEvents", or of a bare list."""
    try:
        with open_input(path, MOST_CHARACTERS) as file:
            yield from _parse_events(codecs.getreader("utf-8-sig")(file), path)
    except UnicodeDecodeError:
        raise AtollError(f"{path}: not a trace of the PyTorch profiler (not UTF-8 text)") from None


def _parse_events(file: codecs.StreamReader, path: str | Path) -> Iterator[dict[str, Any]]:
    buffer, read = file.read(CHUNK), CHUNK
    opening = re.compile(r'\A\s*\[|"traceEvents"\s*:\s*\[')
    while (match := opening.search(buffer)) is None:
        more = file.read(CHUNK)
        if not more or len(buffer) > MOST_EVENT:
            raise AtollError(f'{path}: not a trace of the PyTorch profiler (no "traceEvents")')
        buffer += more
    at = match.end()
    decode = json.JSONDecoder().raw_decode
    separators = re.compile(r"[\s,]*")
    while True:
        at = separators.match(buffer, at).end()  # type: ignore[union-attr]
        if buffer.startswith("]", at):
            return
        try:
            event, at = decode(buffer, at)
        except RecursionError:
            raise AtollError(f"{path}: not a trace of the PyTorch profiler (too deep)") from None
        except ValueError:  # the event may continue in the next chunk
            more = file.read(CHUNK)
            read += len(more)
            if not more or len(buffer) - at > MOST_EVENT:
                raise AtollError(f"{path}: the trace is cut off or damaged") from None
            if read > MOST_CHARACTERS:
                raise AtollError(f"{path}: more than {MOST_CHARACTERS:,} characters") from None
            buffer, at = buffer[at:] + more, 0
            continue
        if isinstance(event, dict):
            yield event


def _store_event(events: _Events, event: Mapping[str, Any]) -> None:
    category, name = event.get("cat"), event.get("name")
    start, length = _number(event.get("ts")), _number(event.get("dur"))
    if event.get("ph") != "X" or not isinstance(name, str) or not isinstance(category, str):
        return
    if start is None or length is None or length < 0:
        return
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    correlation = _number(args.get("correlation"))
    if category in DEVICE:
        events.start.append(start)
        events.length.append(length)
        events.correlation.append(-1.0 if correlation is None else correlation)
        events.device.append(_number(args.get("device")) or 0.0)
        events.kind.append(_kind(name, args))
    elif category in LAUNCH:
        if WAITS.search(name):
            events.waits.append((start, start + length))
        elif correlation is not None:
            events.launched[correlation] = start, start + length
    elif category == "user_annotation":
        if STEP.match(name):
            events.steps.append((start, start + length))
        elif name.startswith(OPTIMIZER):
            events.updates.append(start + length)


def _number(value: Any) -> float | None:
    """Parse microseconds or an id, a number or a text."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < LARGEST else None


def kernel_class(name: str) -> str:
    """Return the class of a kernel by its name."""
    return next((kind for kind, words in _KINDS.items() if words.search(name)), DEFAULT_KIND)


def profiled_classes_s(row: RunRow) -> dict[str, float]:
    """Return the measured seconds of kernels by class: from a row's columns, a trace of the
    profiler, or a list of kernels by name; nothing if the row has none of them.
    """
    folder = Path(row.source).parent
    if row.text("trace"):
        steps = read_trace(folder / row.text("trace"))
        kinds = dict.fromkeys(kind for step in steps for kind in step.kinds)
        return {kind: float(np.mean([s.kinds.get(kind, 0.0) for s in steps])) for kind in kinds}
    times_s: dict[str, float] = defaultdict(float)
    if row.text("kernel_list"):
        for time_ms, _, name in read_kernels(folder / row.text("kernel_list"), row.id):
            times_s[kernel_class(name)] += time_ms / 1e3
        return times_s
    return {n: row.number(k) / 1e3 for n, k in CLASS_COLUMNS.items() if row.text(k)}


def rank_kernel_cells(phases: Mapping[str, Sequence[tuple[float, int, str]]]) -> dict[str, Any]:
    """Return the cells of a rank's kernels (ms, count, name) by phase. All kernels of clipping and
    of the update count as the optimizer's, and no others.
    """
    if not phases:
        return {}
    times_ms: dict[str, float] = defaultdict(float)
    counts = {"launches": 0, "stand_in": 0}
    kernels = [(phase, *kernel) for phase, listed in phases.items() for kernel in listed]
    for phase, time_ms, count, name in kernels:
        kind = "stand_in" if STAND_IN.search(name) else kernel_class(name)
        if kind != "stand_in" and phase in ("clip", "optimizer"):
            kind = "optimizer"
        elif kind == "optimizer":  # foreach copies of FSDP
            kind = "streaming"
        times_ms[kind] += time_ms
        counts["stand_in" if kind == "stand_in" else "launches"] += count
    stand_in_ms = times_ms.pop("stand_in", 0.0)
    names = " ".join(name for *_, name in kernels)
    return {column: round(times_ms[kind], 3) for kind, column in CLASS_COLUMNS.items()} | {
        "backend": next((end for word, end in BACKENDS.items() if word in names), ""),
        "kernels": counts["launches"],
        "kernel_ms": round(sum(times_ms.values()), 3),
        "stand_in_ms": round(stand_in_ms, 3),
        "stand_in_copies": counts["stand_in"],
    }


def read_kernels(path: Path, step: str) -> list[tuple[float, int, str]]:
    """Return milliseconds, launches and name of every kernel of a step, from a JSON file (also
    packed) with such a list for each step.
    """
    try:
        kernels = read_object(path)[step]
        return [(float(time_ms), int(count), str(name)) for time_ms, count, name in kernels]
    except (KeyError, TypeError, ValueError):
        raise AtollError(f"{path}: no list of the kernels of step {step!r}") from None


def _kind(name: str, args: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind of a kernel and, for communication, the overlap of a stack it belongs to."""
    kind = kernel_class(name)
    if kind != "communication":
        return kind, ""
    text = f"{args.get('Process Group Description', '')} {args.get('Collective name', '')} {name}"
    return kind, next((part for part, words in _OVERLAPS.items() if words.search(text)), "gradient")


def _steps(events: _Events) -> tuple[ProfiledStep, ...]:
    start = np.array(events.start)
    end = start + np.array(events.length)
    devices = np.array(events.device)
    busiest = Counter(events.device).most_common(1)[0][0]
    unknown = np.nan, np.nan
    launched = np.array([events.launched.get(number, unknown) for number in events.correlation])
    issued = np.where(np.isnan(launched[:, START]), start, launched[:, START])
    steps: list[ProfiledStep] = []
    last_end: float | None = None
    for low, high in _windows(events, float(issued.min())):
        ids = np.flatnonzero((devices == busiest) & (issued >= low) & (issued < high))
        if not ids.size:
            continue
        ids = ids[np.argsort(start[ids], kind="stable")]
        begin = float(min(issued[ids].min(), start[ids].min())) if last_end is None else last_end
        kinds = [events.kind[i] for i in ids]
        steps.append(_step(start[ids], end[ids], launched[ids], kinds, begin, events.waits))
        last_end = max(begin, float(end[ids].max()))
    return tuple(steps)


def _windows(events: _Events, first: float) -> list[tuple[float, float]]:
    """Return start and end of steps on the host's clock."""
    if events.steps:
        return sorted(events.steps)
    ends = sorted(events.updates) or [np.inf]
    return list(zip([first, *ends], ends, strict=False))


def _step(
    start: Floats,
    end: Floats,
    launched: Floats,
    kinds: Sequence[tuple[str, str]],
    step_start: float,
    waits: Iterable[tuple[float, float]],
) -> ProfiledStep:
    """Return a step from its events, sorted by start, in microseconds."""
    times: dict[str, float] = defaultdict(float)
    for (kind, _), length in zip(kinds, end - start, strict=True):
        times[kind] += float(length) / 1e6
    overlaps = np.array([part for _, part in kinds])
    computation = _union(start[overlaps == ""], end[overlaps == ""])
    hidden = {}
    for part in dict.fromkeys(part for _, part in kinds if part):
        transfers = _union(start[overlaps == part], end[overlaps == part])
        hidden[part] = _length(transfers) / 1e6, _uncovered(transfers, computation) / 1e6
    transfers = _union(start[overlaps != ""], end[overlaps != ""])
    # Idle time before each kernel: until its start, since all earlier kernels ended.
    busy_until = np.maximum.accumulate(np.concatenate(([step_start], end)))[:-1]
    gaps = np.maximum(0.0, start - busy_until)
    late = np.nan_to_num(launched[:, END] - busy_until, nan=0.0)
    host_gaps = np.minimum(gaps, np.maximum(0.0, late))
    calls = launched[~np.isnan(launched[:, START])]
    host = 0.0
    if calls.size:
        first, last = float(calls[:, START].min()), float(calls[:, END].max())
        host = last - first - sum(max(0.0, min(b, last) - max(a, first)) for a, b in waits)
    return ProfiledStep(
        time_s=max(0.0, float(end.max() - step_start)) / 1e6,
        kinds=dict(sorted(times.items(), key=lambda item: -item[1])),
        exposed_s=_uncovered(transfers, computation) / 1e6,
        host_gap_s=float(host_gaps.sum()) / 1e6,
        other_gap_s=float((gaps - host_gaps).sum()) / 1e6,
        launches=len(calls),
        host_s=max(0.0, host) / 1e6,
        hidden=hidden,
    )


def _union(start: Floats, end: Floats) -> Floats:
    """Return the union of intervals as rows (start, end)."""
    if not start.size:
        return np.empty((0, 2))
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
    last = np.concatenate((first[1:] - 1, [start.size - 1]))
    return np.stack((start[first], reach[last]), axis=1)


def _length(joined: Floats) -> float:
    return float((joined[:, END] - joined[:, START]).sum())


def _uncovered(joined: Floats, others: Floats) -> float:
    """Return the length of joined intervals outside of others."""
    both = np.concatenate((joined, others))
    return _length(_union(both[:, START], both[:, END])) - _length(others)
