"""PyTorch profiler traces (Kineto's JSON, plain or .gz): where the time of each step went.

A trace is read event by event, so that one of many gigabytes needs little memory; only what ran on
the device, the calls that launched it and the marks of steps are kept. A device's time is divided
into computation, communication that nothing hides, and idle time: of this, gaps in which the next
kernel had not been launched yet are the host's.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.answers.validation import ProfiledStep
from atoll.errors import AtollError

CHUNK = 2**20
MOST_CHARACTERS = 2**36
"""Of a trace, unpacked: some hundred million events."""
MOST_EVENT = 2**22
"""Characters of one event, and of what stands before the first."""
MOST_KEPT = 2 * 10**7
LARGEST = 1e18
"""Microseconds, or an id: 30,000 years."""
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCH = {"cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime"}
WAITS = re.compile(r"Synchronize|Wait|Query")
STEP = re.compile(r"ProfilerStep#\d+")
OPTIMIZER = "Optimizer.step#"

KINDS = {
    "streaming": r"^triton_(poi|red|per)_",  # whatever its name lists of what it fuses
    "communication": r"nccl|rccl|oneccl|deep_?ep|nvshmem",
    "attention": r"flash|fmha|sdpa|attention|attn",
    "products": r"gemm|nvjet|cutlass|cublas|xmma|wgmma|matmul|cijk_|_mm_|gemv",
    "optimizer": r"multi_tensor_apply|adam|lamb(?!da)|sgd",
    "copies": r"^memcpy|^memset",
}
OTHERS = "streaming"
"""Norms, activations, softmax, casts: whatever moves tensors once."""
OVERLAPS = {
    "tensor_products": r"tensor|\btp\b|_tp",
    "pipeline": r"pipeline|\bpp\b|_pp|sendrecv",
    "experts": r"expert|\bep\b|_ep|all_?to_?all",
    "gather": r"all_?gather",
    "gradient": r"reduce",
}
"""Overlaps of a stack, by the process group where a trace tells it, or by the collective."""
_KINDS, _OVERLAPS = (
    {kind: re.compile(words, re.IGNORECASE) for kind, words in table.items()}
    for table in (KINDS, OVERLAPS)
)
Floats = NDArray[np.float64]


@dataclass(slots=True)
class _Events:
    """What is kept of a trace, in microseconds."""

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
    """The steps of a trace: the profiler's, or from one update of the weights to the next; a trace
    that marks neither is one step.
    """
    kept = _Events()
    for event in events_of(path):
        _keep(kept, event)
        if len(kept.start) + len(kept.launched) > MOST_KEPT:
            raise AtollError(f"{path}: more than {MOST_KEPT:,} kernels and launches; profile less")
    if not kept.start:
        raise AtollError(f"{path}: the trace has no kernels; profile the device too")
    return _steps(kept)


def events_of(path: str | Path) -> Iterator[dict[str, Any]]:
    """The events of a Chrome trace, one by one: its "traceEvents", or those of a bare list."""
    try:
        with Path(path).open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream = gzip.GzipFile(fileobj=file) if packed else file
            yield from _events(codecs.getreader("utf-8-sig")(stream), path)
    except FileNotFoundError:
        raise AtollError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise AtollError(f"{path}: not a trace of the PyTorch profiler (not UTF-8 text)") from None
    except (OSError, EOFError, zlib.error) as error:
        raise AtollError(f"{path}: cannot be read as a trace ({error})") from None


def _events(file: codecs.StreamReader, path: str | Path) -> Iterator[dict[str, Any]]:
    buffer, read = file.read(CHUNK), CHUNK
    opening = re.compile(r'\A\s*\[|"traceEvents"\s*:\s*\[')
    while (found := opening.search(buffer)) is None:
        more = file.read(CHUNK)
        if not more or len(buffer) > MOST_EVENT:
            raise AtollError(f'{path}: not a trace of the PyTorch profiler (no "traceEvents")')
        buffer += more
    at = found.end()
    decode = json.JSONDecoder().raw_decode
    between = re.compile(r"[\s,]*")
    while True:
        at = between.match(buffer, at).end()  # type: ignore[union-attr]
        if buffer.startswith("]", at):
            return
        try:
            event, at = decode(buffer, at)
        except RecursionError:
            raise AtollError(f"{path}: not a trace of the PyTorch profiler (too deep)") from None
        except ValueError:  # perhaps the event goes on in what was not read yet
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


def _keep(kept: _Events, event: Mapping[str, Any]) -> None:
    category, name = event.get("cat"), event.get("name")
    start, length = _number(event.get("ts")), _number(event.get("dur"))
    if event.get("ph") != "X" or not isinstance(name, str) or not isinstance(category, str):
        return
    if start is None or length is None or length < 0:
        return
    told = event.get("args")
    told = told if isinstance(told, dict) else {}
    correlation = _number(told.get("correlation"))
    if category in DEVICE:
        kept.start.append(start)
        kept.length.append(length)
        kept.correlation.append(-1.0 if correlation is None else correlation)
        kept.device.append(_number(told.get("device")) or 0.0)
        kept.kind.append(_kind(name, told))
    elif category in LAUNCH:
        if WAITS.search(name):
            kept.waits.append((start, start + length))
        elif correlation is not None:
            kept.launched[correlation] = start, start + length
    elif category == "user_annotation":
        if STEP.match(name):
            kept.steps.append((start, start + length))
        elif name.startswith(OPTIMIZER):
            kept.updates.append(start + length)


def _number(value: Any) -> float | None:
    """A number of microseconds or an id, also as text, as some write it."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if abs(found) < LARGEST else None


def _kind(name: str, told: Mapping[str, Any]) -> tuple[str, str]:
    """What a kernel does; of communication, which overlap of a stack it belongs to."""
    kind = next((kind for kind, words in _KINDS.items() if words.search(name)), OTHERS)
    if kind != "communication":
        return kind, ""
    said = f"{told.get('Process Group Description', '')} {told.get('Collective name', '')} {name}"
    return kind, next((part for part, words in _OVERLAPS.items() if words.search(said)), "gradient")


def _steps(kept: _Events) -> tuple[ProfiledStep, ...]:
    start = np.array(kept.start)
    end = start + np.array(kept.length)
    devices = np.array(kept.device)
    busiest = Counter(kept.device).most_common(1)[0][0]
    unknown = np.nan, np.nan
    launched = np.array([kept.launched.get(number, unknown) for number in kept.correlation])
    begun = np.where(np.isnan(launched[:, 0]), start, launched[:, 0])
    found: list[ProfiledStep] = []
    ended: float | None = None
    for low, high in _windows(kept, float(begun.min())):
        own = np.flatnonzero((devices == busiest) & (begun >= low) & (begun < high))
        if not own.size:
            continue
        own = own[np.argsort(start[own], kind="stable")]
        opened = float(min(begun[own].min(), start[own].min())) if ended is None else ended
        kinds = [kept.kind[i] for i in own]
        found.append(_step(start[own], end[own], launched[own], kinds, opened, kept.waits))
        ended = max(opened, float(end[own].max()))
    return tuple(found)


def _windows(kept: _Events, first: float) -> list[tuple[float, float]]:
    """Steps on the host's clock."""
    if kept.steps:
        return sorted(kept.steps)
    ends = sorted(kept.updates) or [np.inf]
    return list(zip([first, *ends], ends, strict=False))


def _step(
    start: Floats,
    end: Floats,
    launched: Floats,
    kinds: Sequence[tuple[str, str]],
    opened: float,
    waits: Iterable[tuple[float, float]],
) -> ProfiledStep:
    """A step from its events by their start, in microseconds."""
    times: dict[str, float] = defaultdict(float)
    for (kind, _), length in zip(kinds, end - start, strict=True):
        times[kind] += float(length) / 1e6
    part_of = np.array([part for _, part in kinds])
    work = _union(start[part_of == ""], end[part_of == ""])
    hidden = {}
    for part in dict.fromkeys(part for _, part in kinds if part):
        wires = _union(start[part_of == part], end[part_of == part])
        hidden[part] = _length(wires) / 1e6, _uncovered(wires, work) / 1e6
    wires = _union(start[part_of != ""], end[part_of != ""])
    # Idle time before each kernel that starts after all before it have ended.
    reached = np.maximum.accumulate(np.concatenate(([opened], end)))[:-1]
    gaps = np.maximum(0.0, start - reached)
    late = np.nan_to_num(launched[:, 1] - reached, nan=0.0)
    host_gaps = np.minimum(gaps, np.maximum(0.0, late))
    calls = launched[~np.isnan(launched[:, 0])]
    host = 0.0
    if calls.size:
        first, last = float(calls[:, 0].min()), float(calls[:, 1].max())
        host = last - first - sum(max(0.0, min(b, last) - max(a, first)) for a, b in waits)
    return ProfiledStep(
        time_s=max(0.0, float(end.max() - opened)) / 1e6,
        kinds=dict(sorted(times.items(), key=lambda item: -item[1])),
        exposed_s=_uncovered(wires, work) / 1e6,
        host_gap_s=float(host_gaps.sum()) / 1e6,
        other_gap_s=float((gaps - host_gaps).sum()) / 1e6,
        launches=len(calls),
        host_s=max(0.0, host) / 1e6,
        hidden=hidden,
    )


def _union(start: Floats, end: Floats) -> Floats:
    """Intervals, joined where they touch, as rows."""
    if not start.size:
        return np.empty((0, 2))
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
    last = np.concatenate((first[1:] - 1, [start.size - 1]))
    return np.stack((start[first], reach[last]), axis=1)


def _length(joined: Floats) -> float:
    return float((joined[:, 1] - joined[:, 0]).sum())


def _uncovered(joined: Floats, others: Floats) -> float:
    """Length of joined intervals that others do not cover."""
    both = np.concatenate((joined, others))
    return _length(_union(both[:, 0], both[:, 1])) - _length(others)
