"""A site from what its owner has: runs, a profile of the PyTorch profiler, logs of nccl-tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from atoll.answers.answer import made_of
from atoll.answers.validation import CollectiveTold, ProfiledStep, RunsFit, SiteCalibration
from atoll.calibration.kineto import read_trace
from atoll.calibration.nccl import Collective, Spread, read_log
from atoll.calibration.runs import NOISE, fit_runs
from atoll.hardware.catalog import load_network
from atoll.hardware.device import load_device
from atoll.training.site import LEAST, KnownFactor, KnownShare, Levels, Overlaps, Site

PROFILING = 2.2
"""Host time of a profiled step over that of a plain one: 27.3 ms of 742 launches in the second step
of an eager model on our H200, for which the stack's fitted times give 12.4 ms."""


def calibrate_site(
    data: str | Path | None = None,
    trace: str | Path | None = None,
    nccl_tests: Sequence[str | Path] = (),
    device: str = "h200",
    out: str | Path | None = None,
) -> SiteCalibration:
    """The site that measurements tell, and what each of them says; a YAML in `out`.

    What a profile or NCCL's tests measure directly is not fitted to runs. `device` is the one that
    steps ran on, and whose network logs are held against.
    """
    given = [path for path in (data, trace, *nccl_tests) if path is not None]
    site = Site(name=Path(given[0]).stem.partition(".")[0] or "site", source="")
    logs: list[Collective] = []
    steps: Sequence[ProfiledStep] = ()
    fit: RunsFit | None = None
    if nccl_tests:
        logs = [read_log(path) for path in nccl_tests]
        site = _with_logs(site, logs, device)
    if trace is not None:
        steps = read_trace(trace)
        site = _with_steps(site, steps)
    if data is not None:
        fitted, fit = fit_runs(data, site, device)
        site = _joined(site, fitted)
    names = ", ".join(Path(path).name for path in given)
    site = site.model_copy(update={"source": fitted.source if data is not None else names})
    if out is not None:
        site.save(out)
    return SiteCalibration(
        site=site.model_dump(mode="json", exclude_none=True, exclude_defaults=True),
        collectives=tuple(map(_told, logs)),
        steps=tuple(steps),
        runs=fit,
        out=None if out is None else str(out),
    )


def _with_logs(site: Site, logs: Sequence[Collective], device: str) -> Site:
    """Bandwidths and latencies over the catalogue's; of several collectives, an all-reduce's."""
    network = load_network(load_device(device).network)
    bandwidth: dict[str, KnownFactor] = {}
    latency: dict[str, KnownFactor] = {}
    for log in sorted(logs, key=lambda log: log.kind == "all_reduce"):
        for found, known in zip(log.against(network), (bandwidth, latency), strict=True):
            if found is not None:
                known[log.level] = _factor(found)
    return site.model_copy(update={"bandwidth": Levels(**bandwidth), "latency": Levels(**latency)})


def _with_steps(site: Site, steps: Sequence[ProfiledStep]) -> Site:
    """Slack, host time and overlaps of a profile's steps."""
    slack = _spread([s.time_s / max(1e-12, s.time_s - s.other_gap_s) for s in steps])
    told: dict[str, Any] = {"slack": _factor(slack)}
    launching = [s.host_s / s.launches for s in steps if s.launches and s.host_s]
    if launching:
        most_s = min(launching)
        plain_s = most_s / PROFILING
        told["host_kernel_s"] = _factor((plain_s / PROFILING, plain_s, most_s))
    shares: dict[str, Any] = {}
    for kind in dict.fromkeys(kind for step in steps for kind in step.hidden):
        parts = [s.hidden[kind] for s in steps if kind in s.hidden]
        low, middle, high = _spread([1 - out_s / all_s for all_s, out_s in parts if all_s])
        shares[kind] = KnownShare(value=middle, low=max(0.0, low), high=min(1.0, high))
    told["overlap"] = Overlaps(**shares)
    return site.model_copy(update=told)


def _joined(measured: Site, fitted: Site) -> Site:
    """What was measured directly, and what runs tell of the rest."""
    levels = {
        name: getattr(measured.bandwidth, name) or getattr(fitted.bandwidth, name)
        for name in Levels.model_fields
    }
    overlap = measured.overlap.model_copy(update={"odds": fitted.overlap.odds})
    return fitted.model_copy(
        update={
            "bandwidth": Levels(**levels),
            "latency": measured.latency,
            "overlap": overlap,
            "host_kernel_s": measured.host_kernel_s,
        }
    )


def _spread(values: Sequence[float]) -> Spread:
    """The mean of a few steps, and within what a further one lies (Student's distribution); of
    one step, as far as step times usually differ.
    """
    n, mean = len(values), float(np.mean(values))
    sd = float(np.std(values, ddof=1)) if n > 1 else NOISE * mean
    reach = float(stdtrit(max(1, n - 1), 0.95)) * sd * (1 + 1 / n) ** 0.5
    return mean - reach, mean, mean + reach


def _factor(found: Spread) -> KnownFactor:
    low, middle, high = (min(max(value, LEAST), 1 / LEAST) for value in found)
    return KnownFactor(value=middle, low=low, high=high)


def _told(log: Collective) -> CollectiveTold:
    """A log's figures; each as low, median, high."""
    return made_of(CollectiveTold, log, collective=log.kind, bus_Bps=log.bandwidth_Bps)
