"""Device times and kernels of the phases of a step, and the device's power and clock."""

from __future__ import annotations

import importlib
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

Mark = Callable[[str], object]
Step = Callable[[Mark], Any]
"""A training step, which tells `mark` where its phases begin; the last mark is its end."""
CLOCK_SM = 1
"""Clock of the multiprocessors, as NVML counts clocks."""


def timed_steps(
    step: Step, repeats: int, device: str = "cuda", after: Callable[[], None] | None = None
) -> tuple[list[float], list[float], dict[str, float]]:
    """Return milliseconds of single steps on the device and until the host has launched them, and
    the median of each phase; `after` runs when a step is launched and has not ended.
    """
    phases, host = zip(*(_phases_ms(step, device, after) for _ in range(repeats)), strict=True)
    medians = {name: statistics.median(step_[name] for step_ in phases) for name in phases[0]}
    return [sum(step_.values()) for step_ in phases], list(host), medians


def _phases_ms(
    step: Step, device: str, after: Callable[[], None] | None
) -> tuple[dict[str, float], float]:
    """Return the milliseconds of the phases of a step, and those until the host launched it."""
    marks: list[tuple[str, Any]] = []

    def mark(name: str) -> None:
        instant: Any = time.perf_counter()
        if device == "cuda":
            instant = torch.cuda.Event(enable_timing=True)
            instant.record()
        marks.append((name, instant))

    synchronize(device)
    start = time.perf_counter()
    step(mark)
    host_ms = (time.perf_counter() - start) * 1e3
    if after is not None:
        after()
    synchronize(device)
    phases: dict[str, float] = defaultdict(float)
    for (name, begin), (_, end) in pairwise(marks):
        phases[name] += begin.elapsed_time(end) if device == "cuda" else (end - begin) * 1e3
    return phases, host_ms


def synchronize(device: str) -> None:
    """Wait for the device, if it is one."""
    if device == "cuda":
        torch.cuda.synchronize()


def profiled_kernels(step: Step) -> dict[str, dict[str, tuple[float, int]]]:
    """Return milliseconds and count of each kernel of one step, by phase; a spin kernel of one
    cycle marks where each phase begins.
    """
    names: list[str] = []

    def mark(name: str) -> None:
        names.append(name)
        torch.cuda._sleep(1)

    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step(mark)
        torch.cuda.synchronize()
    events = sorted(
        (event.start_ns(), event.duration_ns(), event.name())
        for event in profile.profiler.kineto_results.events()
        if str(event.device_type()).endswith("CUDA")
    )
    kernels: dict[str, dict[str, tuple[float, int]]] = defaultdict(dict)
    phase, passed = "", 0
    for _, duration_ns, name in events:
        if "spin_kernel" in name:
            phase = names[passed] if passed < len(names) else "end"
            passed += 1
        elif not name.startswith(("cuda", "Activity Buffer", "Context Sync")):
            ms, count = kernels[phase].get(name, (0.0, 0))
            kernels[phase][name] = ms + duration_ns / 1e6, count + 1
    return dict(kernels)


def nvml(figure: str, *more: int) -> Any:
    """Return a figure of the first GPU by its name in NVIDIA's management library; None without
    the library, or if the device does not report it.
    """
    try:
        library = importlib.import_module("pynvml")
        library.nvmlInit()
        device = [library.nvmlDeviceGetHandleByIndex(0)] if figure.startswith("Device") else []
        return getattr(library, f"nvml{figure}")(*device, *more)
    except Exception:
        return None
