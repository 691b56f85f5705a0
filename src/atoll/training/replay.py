"""A planned step replayed pass by pass, and how far the closed form is from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from atoll.training.estimate import Estimate, Estimator
from atoll.training.pipeline import Replay, StagePass, replay
from atoll.training.stages import stage_shares
from atoll.training.step import Stepper

MOST_PASSES = 100_000  # of all stages; more microbatches only repeat the steady state


@dataclass(frozen=True)
class ReplayedStep:
    """What the event-driven replay says of a step."""

    time_s: float
    estimate_s: float
    microbatches: int
    """Replayed; the rest of a long step is more of the same steady state."""
    pipeline: Replay

    @property
    def difference(self) -> float:
        """Closed form over replay, less one."""
        return self.estimate_s / self.time_s - 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "time_s": self.time_s,
            "difference": self.difference,
            "microbatches": self.microbatches,
        }


def stage_passes(estimate: Estimate) -> list[list[StagePass]]:
    """Seconds of every chunk of every stage on one microbatch, host time spread over both ways."""
    run, layout = estimate.run, estimate.layout
    if estimate.policy:
        layout = replace(layout, recompute=estimate.policy)
    costs = Estimator(run).costs(layout)
    stepper = Stepper(run, layout)
    found = []
    for chunks in stage_shares(costs, layout.pp, layout.vpp):
        row = []
        for chunk in chunks:
            time = stepper.stage_time([chunk])
            backward_s = time.backward.total_s + time.recompute.total_s - time.weight_s
            row.append(
                StagePass(
                    time.forward.total_s + time.host_s / 2,
                    backward_s + time.host_s / 2,
                    time.weight_s,
                )
            )
        found.append(row)
    return found


def replay_estimate(estimate: Estimate) -> ReplayedStep:
    """Replay the pipeline of an estimate; what follows it (gradients, optimizer) and what each
    microbatch adds to all stages alike (accumulation) are as estimated.
    """
    run, layout, step = estimate.run, estimate.layout, estimate.step
    passes = stage_passes(estimate)
    total = layout.microbatches(run.global_batch)
    most = max(4 * layout.pp, MOST_PASSES // (3 * layout.pp * layout.vpp))
    shown = min(total, most - most % layout.pp) if layout.pp > 1 else min(total, 64)
    sends_s = step.send_s / max(1, 2 * layout.vpp * total)
    result = replay(layout.schedule, passes, shown, sends_s)
    slowest_s = max(sum(p.total_s for p in row) for row in passes)
    pipeline_s = result.time_s + (total - shown) * slowest_s
    after_s = step.accumulate_s + step.gradient_s + step.optimizer_s + run.stack.step_s
    time_s = (pipeline_s + after_s) * run.stack.slack
    return ReplayedStep(time_s, step.time_s, shown, result)
