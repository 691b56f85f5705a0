"""Device times and kernels of the phases of a step, and the device's power and clock."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from atoll.calibration.local_gpu import nvml

Mark = Callable[[str], object]
Step = Callable[[Mark], Any]
"""A training step, which tells `mark` where its phases begin; the last mark is its end."""
CLOCK_SM = 1
"""Clock of the multiprocessors, as NVML counts clocks."""


def timed_steps(step: Step, repeats: int, device: str = "cuda") -> dict[str, Any]:
    """Return milliseconds of single steps on the device, the median until the host launched them,
    the median of each phase, and the power and clock of the device.
    """
    host_ms, clocks, steps = [], [], []
    energy_mJ, start = nvml("DeviceGetTotalEnergyConsumption"), time.perf_counter()
    for _ in range(repeats):
        marks: list[tuple[str, Any]] = []
        synchronize(device)
        began = time.perf_counter()
        step(partial(_note, marks, device))
        host_ms.append((time.perf_counter() - began) * 1e3)
        clocks.append(nvml("DeviceGetClockInfo", CLOCK_SM) or 0)  # while the device runs the step
        synchronize(device)
        phases_ms: dict[str, float] = defaultdict(float)
        for (name, begin), (_, end) in pairwise(marks):
            took = begin.elapsed_time(end) if device == "cuda" else (end - begin) * 1e3
            phases_ms[name] += took
        steps.append(phases_ms)
    took_s = time.perf_counter() - start
    names = steps[0]
    timed: dict[str, Any] = {
        "step_ms": [round(sum(phases_ms.values()), 3) for phases_ms in steps],
        "host_ms": round(statistics.median(host_ms), 3),
        "phases_ms": {n: round(statistics.median(ms[n] for ms in steps), 3) for n in names},
    }
    if device == "cuda" and energy_mJ is not None:
        used_mJ = nvml("DeviceGetTotalEnergyConsumption") - energy_mJ
        timed["power_W"] = round(used_mJ / 1e3 / took_s, 1)
        timed["clock_MHz"] = round(statistics.fmean(clocks))
    return timed


def _note(marks: list[tuple[str, Any]], device: str, name: str) -> None:
    """Add a mark with an event of the device, or the host's time."""
    instant: Any = time.perf_counter()
    if device == "cuda":
        instant = torch.cuda.Event(enable_timing=True)
        instant.record()
    marks.append((name, instant))


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
