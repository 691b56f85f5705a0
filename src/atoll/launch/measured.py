"""What a run's log or profile says, beside its estimate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atoll.answers.validation import MeasuredPart, MeasuredRun, ProfiledStep
from atoll.calibration.kineto import read_trace
from atoll.calibration.runs import fit_one
from atoll.errors import AtollError
from atoll.launch.files.logs import Log, read_run_log, steady
from atoll.training.estimate import Estimate
from atoll.training.memory import Memory

KINDS = {"matrix": "products", "attention": "attention", "vector": "streaming"}
"""Units of operators, as kinds of a profile's kernels."""


def measured_run(
    found: Estimate, log: Path | None, trace: Path | None
) -> tuple[MeasuredRun | None, str]:
    """The steps of a log, or of a profile, and the slack that they tell; None without either.

    With it a sentence, where the log says that its steps are of another batch.
    """
    profile = read_trace(trace) if trace else ()
    if log is not None:
        told = read_run_log(log)
    elif profile:
        told = Log(str(trace), "PyTorch profiler", tuple(step.time_s for step in profile))
    else:
        return None, ""
    run = found.run
    times_s = told.step_times_s(run.global_batch, run.sequence, run.devices)
    kept = steady(times_s) if log is not None else times_s
    low_s, time_s, high_s = (float(t) for t in np.quantile(kept, (0.05, 0.5, 0.95)))
    slack = fit_one(run, found.layout, time_s, Path(told.file).name).slack
    peak = max(told.peaks, key=lambda peak: peak[1], default=None)
    expected = None if peak is None else _expected(found, told, peak[0])
    other = ""
    if told.batch not in (None, run.global_batch):
        other = (
            f"{told.file}: its steps are of {told.batch:,} sequences, the estimate's of "
            f"{run.global_batch:,}: two different jobs are compared; add --batch {told.batch}"
        )
    measured = MeasuredRun(
        file=told.file,
        software=told.software,
        steps=len(kept),
        left_out=len(times_s) - len(kept),
        step_time_s=time_s,
        low_s=low_s,
        high_s=high_s,
        error=found.step.time_s / time_s - 1,
        memory_bytes=peak and peak[1],
        memory_counts=told.counts,
        memory_predicted_bytes=expected,
        memory_error=expected / peak[1] - 1 if peak and expected else None,
        slack=None if slack is None else (slack.value, slack.low, slack.high),
        parts=_parts(found, profile),
    )
    return measured, other


def columns_of(measured: MeasuredRun) -> dict[str, Any]:
    """As a table of measured runs has them."""
    peak_bytes = measured.memory_bytes
    return {
        "measured_iter_time_s": measured.step_time_s,
        "measured_peak_mem_GB": "" if peak_bytes is None else peak_bytes / 1e9,
        "peak_counts": "" if peak_bytes is None else measured.memory_counts,
    }


def _expected(found: Estimate, told: Log, rank: int | None) -> float:
    """The prediction of what a log's peak counts, on the stage of the rank that wrote it."""
    stages, devices = found.memory, found.run.devices
    if rank is not None:
        if rank >= devices:
            raise AtollError(f"{told.file}: rank {rank} wrote it, of a run on {devices} devices")
        memory: Memory = stages[rank * len(stages) // devices]  # pipelines are outermost
    else:
        memory = stages[-1 if told.stage == "last" else 0]
    return memory.reserved if told.counts == "reserved" else memory.allocated


def _parts(found: Estimate, profile: Sequence[ProfiledStep]) -> tuple[MeasuredPart, ...]:
    """Kernels by kind, exposed communication and waiting for the host, of a step on the mean."""
    if not profile:
        return ()
    answer, predicted = found.answer, dict.fromkeys(KINDS.values(), 0.0)
    if found.layout.pp > 1:
        predicted = {}  # the profile is of one stage, operators are of all
    else:
        for layer in answer.operators:
            for _, unit, _, time_s in layer.operators:
                predicted[KINDS[unit]] += layer.repeat * answer.pipeline.microbatches * time_s
    breakdown = answer.breakdown_s
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
