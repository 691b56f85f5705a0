"""A run's log or profile, compared with its estimate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from atoll.answers.validation import MeasuredPart, MeasuredRun, ProfiledStep
from atoll.base.errors import AtollError
from atoll.base.units import format_bytes, format_seconds
from atoll.calibration.site_fit import fit_single_run
from atoll.tools.files.logs import Log, read_run_log, steady_times
from atoll.training.estimate import Estimate
from atoll.validation.kineto import read_trace


def measured_run(
    estimate: Estimate, log_path: Path | None, trace_path: Path | None
) -> MeasuredRun | None:
    """Return the measured steps, if any."""
    profile = read_trace(trace_path) if trace_path else ()
    if log_path is not None:
        log = read_run_log(log_path)
    elif profile:
        log = Log(str(trace_path), "PyTorch profiler", tuple(step.time_s for step in profile))
    else:
        return None
    run = estimate.run
    times_s = log.step_times_s(run.global_batch, run.sequence, run.devices)
    steady_times_s = steady_times(times_s) if log_path is not None else times_s
    low_s, time_s, high_s = (float(t) for t in np.quantile(steady_times_s, (0.05, 0.5, 0.95)))
    slack = fit_single_run(run, estimate.layout, time_s, Path(log.file).name).slack
    peak = max(log.peaks, key=lambda peak: peak.peak_bytes, default=None)
    predicted_bytes = None if peak is None else _predicted_bytes(estimate, log, peak.rank)
    return MeasuredRun(
        file=log.file,
        software=log.software,
        steps=len(steady_times_s),
        left_out=len(times_s) - len(steady_times_s),
        step_time_s=time_s,
        low_s=low_s,
        high_s=high_s,
        error=estimate.step.time_s / time_s - 1,
        memory_bytes=peak and peak.peak_bytes,
        memory_counts=log.counts,
        memory_predicted_bytes=predicted_bytes,
        memory_error=predicted_bytes / peak.peak_bytes - 1 if peak and predicted_bytes else None,
        slack=None if slack is None else (slack.value, slack.low, slack.high),
        parts=_parts(estimate, profile),
        other_job=_other_job(estimate, log),
    )


def _other_job(estimate: Estimate, log: Log) -> str:
    """Return what a log's run has that the estimate's has not, and the way out."""
    run, layout = estimate.run, estimate.layout
    asked = {"devices": run.devices, "batch": run.global_batch, "sequence": run.sequence}
    values = asked | {n: getattr(layout, n) for n in ("tp", "pp", "cp", "microbatch")}
    other = {n: value for n, value in log.job.items() if value != values[n]}
    if not other:
        return ""
    jobs = log.job, values
    theirs, ours = (", ".join(f"{name} {job[name]:,}" for name in other) for job in jobs)
    way = "give the log of this file"
    if other.keys() <= asked.keys():
        way = f"add {' '.join(f'--{name} {value}' for name, value in other.items())}"
    different = f"its run has {theirs}, the estimate {ours}: two different jobs are compared"
    return f"{log.file}: {different}; {way}"


def doubts(estimate: Estimate, measured: MeasuredRun) -> Iterator[str]:
    """Yield where a measurement contradicts the estimate: it is of another job, ran though it is
    estimated not to fit, or is twice as far from the estimate as the end of its 90 % interval.
    """
    if measured.other_job:
        yield measured.other_job
        return
    way = "it may be of another run; if it is not, atoll calibrate fits estimates to your site"
    if not estimate.fits:
        yield f"{measured.file}: ran {measured.steps} steps, which are estimated not to fit; {way}"
    for what, value, predicted, spread, show in (
        ("step", measured.step_time_s, estimate.step.time_s, estimate.time_spread, format_seconds),
        ("memory", measured.memory_bytes, measured.memory_predicted_bytes, estimate.memory_spread,
         format_bytes),
    ):  # fmt: skip
        if value and predicted:
            low, high = astuple(spread.interval(predicted))
            if not low * low / predicted < value < high * high / predicted:
                yield (
                    f"{measured.file}: its {what} of {show(value)} lies far outside of {show(low)} "
                    f"to {show(high)}; {way}"
                )


def measured_columns(measured: MeasuredRun) -> dict[str, Any]:
    """Return the cells of a table of measured runs."""
    peak_bytes = measured.memory_bytes
    return {
        "measured_iter_time_s": measured.step_time_s,
        "measured_peak_mem_GB": "" if peak_bytes is None else peak_bytes / 1e9,
        "peak_counts": "" if peak_bytes is None else measured.memory_counts,
    }


def _predicted_bytes(estimate: Estimate, log: Log, rank: int | None) -> float:
    """Return the predicted bytes a log's peak counts, on the stage of the rank that wrote it."""
    stages, devices = estimate.memory, estimate.run.devices
    if rank is not None and rank >= devices:
        raise AtollError(f"{log.file}: rank {rank} wrote it, of a run on {devices} devices")
    if rank is not None:
        memory = stages[rank * len(stages) // devices]  # pipelines are outermost
    else:
        memory = stages[-1 if log.stage == "last" else 0]
    return memory.reserved if log.counts == "reserved" else memory.allocated


def _parts(estimate: Estimate, profile: Sequence[ProfiledStep]) -> tuple[MeasuredPart, ...]:
    """Return mean seconds per step of kernels, exposed communication and waiting for the host."""
    if not profile:
        return ()
    # the profile may be of another stage than the slowest
    predicted = dict(estimate.kernel_classes_s) if estimate.layout.pp == 1 else {}
    breakdown = estimate.step.breakdown()
    compute = {"compute", "recompute", "optimizer", "host", "gradient_accumulation"}
    others = breakdown.keys() - compute - {"pipeline_bubble"}
    predicted |= {
        "optimizer": breakdown["optimizer"],
        "exposed communication": sum(s for part, s in breakdown.items() if part in others),
        "waiting for the host": breakdown["host"],
    }
    kinds = sorted({kind for step in profile for kind in step.kinds} - {"communication"})
    measured = {kind: _mean(step.kinds.get(kind, 0.0) for step in profile) for kind in kinds}
    measured |= {
        "exposed communication": _mean(step.exposed_s for step in profile),
        "waiting for the host": _mean(step.host_gap_s for step in profile),
        "other gaps": _mean(step.other_gap_s for step in profile),
    }
    return tuple(
        MeasuredPart(part=part, measured_s=time_s, predicted_s=predicted.get(part))
        for part, time_s in measured.items()
    )


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
