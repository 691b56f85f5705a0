"""Calibration of a site on runs, a trace of the PyTorch profiler and logs of nccl-tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from atoll.answers.answer import build_from
from atoll.answers.validation import NcclTestFigures, ProfiledStep, RunsFit, SiteCalibration
from atoll.calibration.nccl import CollectiveLog, Spread, read_log
from atoll.calibration.site_fit import NOISE, fit_runs
from atoll.hardware.catalog import load_network
from atoll.hardware.device import load_device
from atoll.training.site import LEAST, FactorInterval, LevelFactors, Overlaps, ShareInterval, Site
from atoll.validation.kineto import read_trace

PROFILING = 2.2
"""Host time of a profiled step over that of a plain one: 27.3 ms for 742 launches of an eager model
on our H200, where the stack's fitted times give 12.4 ms."""


def calibrate_site(
    data: str | Path | None = None,
    trace: str | Path | None = None,
    nccl_tests: Sequence[str | Path] = (),
    device: str = "h200",
    out: str | Path | None = None,
) -> SiteCalibration:
    """Calibrate a site on its measurements, and write YAML to `out`.

    Quantities measured by a profile or NCCL's tests are not fitted to runs. `device` is the one of
    steps, and the one with whose network logs are compared.
    """
    paths = [path for path in (data, trace, *nccl_tests) if path is not None]
    site = Site(name=Path(paths[0]).stem.partition(".")[0] or "site", source="")
    logs: list[CollectiveLog] = []
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
        site = _combined(site, fitted)
    names = ", ".join(Path(path).name for path in paths)
    site = site.model_copy(update={"source": fitted.source if data is not None else names})
    if out is not None:
        site.save(out)
    return SiteCalibration(
        site=site.model_dump(mode="json", exclude_none=True, exclude_defaults=True),
        collectives=tuple(
            build_from(NcclTestFigures, log, collective=log.kind, bus_Bps=log.bandwidth_Bps)
            for log in logs
        ),
        steps=tuple(steps),
        runs=fit,
        out=None if out is None else str(out),
    )


def _with_logs(site: Site, logs: Sequence[CollectiveLog], device: str) -> Site:
    """Add bandwidths and latencies over the catalogue's; all-reduces take precedence."""
    network = load_network(load_device(device).network)
    bandwidth: dict[str, FactorInterval] = {}
    latency: dict[str, FactorInterval] = {}
    for log in sorted(logs, key=lambda log: log.kind == "all_reduce"):
        for ratio, factors in zip(log.ratios_to(network), (bandwidth, latency), strict=True):
            if ratio is not None:
                factors[log.level] = _factor(ratio)
    return site.model_copy(
        update={"bandwidth": LevelFactors(**bandwidth), "latency": LevelFactors(**latency)}
    )


def _with_steps(site: Site, steps: Sequence[ProfiledStep]) -> Site:
    """Add slack, host time and overlaps of a profile's steps."""
    slack = _spread([s.time_s / max(1e-12, s.time_s - s.other_gap_s) for s in steps])
    fields: dict[str, Any] = {"slack": _factor(slack)}
    launching = [s.host_s / s.launches for s in steps if s.launches and s.host_s]
    if launching:
        most_s = min(launching)
        plain_s = most_s / PROFILING
        fields["host_kernel_s"] = _factor(Spread(plain_s / PROFILING, plain_s, most_s))
    shares: dict[str, Any] = {}
    for kind in dict.fromkeys(kind for step in steps for kind in step.hidden):
        parts = [s.hidden[kind] for s in steps if kind in s.hidden]
        low, middle, high = _spread([1 - open_s / all_s for all_s, open_s in parts if all_s])
        shares[kind] = ShareInterval(value=middle, low=max(0.0, low), high=min(1.0, high))
    fields["overlap"] = Overlaps(**shares)
    return site.model_copy(update=fields)


def _combined(measured: Site, fitted: Site) -> Site:
    """Combine direct measurements with a fit to runs of the other quantities."""
    levels = {
        name: getattr(measured.bandwidth, name) or getattr(fitted.bandwidth, name)
        for name in LevelFactors.model_fields
    }
    overlap = measured.overlap.model_copy(update={"odds": fitted.overlap.odds})
    return fitted.model_copy(
        update={
            "bandwidth": LevelFactors(**levels),
            "latency": measured.latency,
            "overlap": overlap,
            "host_kernel_s": measured.host_kernel_s,
        }
    )


def _spread(values: Sequence[float]) -> Spread:
    """Return the mean with a 90 % interval (Student); one step has the usual noise."""
    n, mean = len(values), float(np.mean(values))
    sd = float(np.std(values, ddof=1)) if n > 1 else NOISE * mean
    reach = float(stdtrit(max(1, n - 1), 0.95)) * sd * (1 + 1 / n) ** 0.5
    return Spread(mean - reach, mean, mean + reach)


def _factor(ratio: Spread) -> FactorInterval:
    low, middle, high = (min(max(value, LEAST), 1 / LEAST) for value in ratio)
    return FactorInterval(value=middle, low=low, high=high)
