"""A run's log or profile, compared with its estimate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atoll.answers.validation import MeasuredPart, MeasuredRun, ProfiledStep
from atoll.base.errors import AtollError
from atoll.calibration.site_fit import fit_single_run
from atoll.tools.files.logs import Log, read_run_log, steady_times
from atoll.training.estimate import Estimate
from atoll.training.memory import Memory
from atoll.validation.kineto import read_trace


def measured_run(
    estimate: Estimate, log_path: Path | None, trace_path: Path | None
) -> tuple[MeasuredRun | None, str]:
    """Return the measured steps, if any, and a note if the log has another batch."""
    profile = read_trace(trace_path) if trace_path else ()
    if log_path is not None:
        log = read_run_log(log_path)
    elif profile:
        log = Log(str(trace_path), "PyTorch profiler", tuple(step.time_s for step in profile))
    else:
        return None, ""
    run = estimate.run
    times_s = log.step_times_s(run.global_batch, run.sequence, run.devices)
    steady_times_s = steady_times(times_s) if log_path is not None else times_s
    low_s, time_s, high_s = (float(t) for t in np.quantile(steady_times_s, (0.05, 0.5, 0.95)))
    slack = fit_single_run(run, estimate.layout, time_s, Path(log.file).name).slack
    peak = max(log.peaks, key=lambda peak: peak.peak_bytes, default=None)
    predicted_bytes = None if peak is None else _predicted_bytes(estimate, log, peak.rank)
    batch_note = ""
    if log.batch not in (None, run.global_batch):
        batch_note = (
            f"{log.file}: its steps are of {log.batch:,} sequences, the estimate's of "
            f"{run.global_batch:,}: two different jobs are compared; add --batch {log.batch}"
        )
    measured = MeasuredRun(
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
    )
    return measured, batch_note


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
    if rank is not None:
        if rank >= devices:
            raise AtollError(f"{log.file}: rank {rank} wrote it, of a run on {devices} devices")
        memory: Memory = stages[rank * len(stages) // devices]  # pipelines are outermost
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
    idle = {"pipeline_bubble"}
    predicted |= {
        "optimizer": breakdown["optimizer"],
        "exposed communication": sum(
            time_s for part, time_s in breakdown.items() if part not in compute | idle
        ),
        "waiting for the host": breakdown["host"],
    }
    measured = {kind: _mean([s.kinds.get(kind, 0.0) for s in profile]) for kind in _kinds(profile)}
    measured |= {
        "exposed communication": _mean([s.exposed_s for s in profile]),
        "waiting for the host": _mean([s.host_gap_s for s in profile]),
        "other gaps": _mean([s.other_gap_s for s in profile]),
    }
    return tuple(
        MeasuredPart(part=part, measured_s=time_s, predicted_s=predicted.get(part))
        for part, time_s in measured.items()
    )


def _kinds(profile: Sequence[ProfiledStep]) -> list[str]:
    return sorted({kind for step in profile for kind in step.kinds} - {"communication"})


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
