"""Device times and kernels of the phases of a step, and the device's power and clock."""

from __future__ import annotations

import importlib
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch

Mark = Callable[[str], None]
Step = Callable[[Mark], Any]
"""A training step, which tells `mark` where its phases begin; the last mark is its end."""


class StepTimes(NamedTuple):
    """Milliseconds of steps on the device and until the host has launched them, and the median of
    each phase."""

    step_ms: list[float]
    host_ms: list[float]
    phases_ms: dict[str, float]


def synchronize(device: str = "cuda") -> None:
    """Wait for the device, if it is one."""
    if device == "cuda":
        torch.cuda.synchronize()


def timed_steps(
    step: Step, repeats: int, device: str = "cuda", after: Step | None = None
) -> StepTimes:
    """Time single steps; `after` runs when a step is launched and has not ended."""
    times, host = [], []
    phases: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeats):
        marks: list[tuple[str, Any]] = []

        def mark(name: str, marks: list[tuple[str, Any]] = marks) -> None:
            if device != "cuda":
                marks.append((name, time.perf_counter()))
                return
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            marks.append((name, event))

        synchronize(device)
        start = time.perf_counter()
        step(mark)
        host.append((time.perf_counter() - start) * 1e3)
        if after is not None:
            after(mark)
        synchronize(device)
        times.append(_elapsed_ms(marks[0][1], marks[-1][1]))
        sums: dict[str, float] = defaultdict(float)
        for (name, begin), (_, end) in pairwise(marks):
            sums[name] += _elapsed_ms(begin, end)
        for name, value in sums.items():
            phases[name].append(value)
    return StepTimes(times, host, {name: statistics.median(v) for name, v in phases.items()})


def _elapsed_ms(begin: Any, end: Any) -> float:
    if isinstance(begin, float):
        return float((end - begin) * 1e3)
    return float(begin.elapsed_time(end))


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


class Nvml:
    """NVIDIA's management library and the first device; raises where it is not installed."""

    def __init__(self) -> None:
        self.library: Any = importlib.import_module("pynvml")
        self.library.nvmlInit()
        self.device = self.library.nvmlDeviceGetHandleByIndex(0)

    def joules(self) -> float:
        """Return the energy that the device has taken so far."""
        return float(self.library.nvmlDeviceGetTotalEnergyConsumption(self.device) / 1e3)

    def clock_MHz(self) -> float:
        """Return the clock of its multiprocessors."""
        return float(self.library.nvmlDeviceGetClockInfo(self.device, self.library.NVML_CLOCK_SM))

    def driver(self) -> str:
        """Return the driver's version."""
        return str(self.library.nvmlSystemGetDriverVersion())


def nvml() -> Nvml | None:
    """Return the management library where it is there and reports energy."""
    try:
        library = Nvml()
        library.joules()
    except Exception:
        return None
    return library
