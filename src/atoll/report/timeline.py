"""One training step on every pipeline stage, without gaps.

Placements and layouts are replayed by `step.replay`. Idle time is a slice too, so that the slices
of a stage add up to the step.

A wafer's mapping is chosen by a closed form that differs slightly from its replay (the answer says
by how much). Times of the replay are multiplied by `stretch`, so that the step takes the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from atoll.answers.design import PlacementAnswer
from atoll.answers.layout import MOST_PASSES, StepPasses
from atoll.placement.replay import placement_passes, replay_step

FORWARD, BACKWARD, WEIGHT, IDLE, AFTER = "forward", "backward", "weight gradient", "bubble", "after"
_KINDS = {"F": FORWARD, "B": BACKWARD, "W": WEIGHT}
_SHORTEST = 1e-12
"""Share of a step below which a gap is a rounding error."""


@dataclass(frozen=True, slots=True)
class Slice:
    """An interval of one stage: a pass, a bubble, or work after the pipeline."""

    stage: int
    kind: str
    start_s: float
    end_s: float
    name: str = ""
    microbatch: int = -1
    chunk: int = 0

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Timeline:
    """Slices of all stages over one step."""

    step_time_s: float
    stages: tuple[tuple[Slice, ...], ...]
    """Consecutive slices per stage; their durations sum to the step.

    They start at 0, or later for zero-bubble orders, where steps follow without a barrier and later
    stages end after the first one.
    """
    stretch: float
    """Step time / replay time."""
    send_s: float
    shown: int
    """Number of microbatches that are replayed."""
    microbatches: int

    @property
    def end_s(self) -> float:
        """End of the last stage."""
        return max((row[-1].end_s for row in self.stages if row), default=self.step_time_s)

    def idle_s(self) -> list[float]:
        """Return the bubble time per stage."""
        return [sum(s.duration_s for s in row if s.kind == IDLE) for row in self.stages]


def placement_timeline(placement: PlacementAnswer) -> Timeline | None:
    """Return the step of a search's placement; None if a forward time is not recorded or there
    are too many passes to draw."""
    stages, count = placement.stages, placement.microbatches
    timed = all(stage.chunks or stage.forward_s is not None for stage in stages)
    if count * len(stages) > MOST_PASSES or not timed:
        return None
    return plan_timeline(placement_passes(placement))


def plan_timeline(step: StepPasses) -> Timeline:
    """Return the step of these passes: gaps filled with bubbles, the work after the pipeline
    appended, scaled to the step time.

    The scale contains the slack of all parts and the difference between answer and replay."""
    replayed = replay_step(step)
    pipeline_s, after = replayed.pipeline.time_s, list(step.after)
    if step.microbatches > step.replayed:
        words = f"{step.microbatches - step.replayed:,} more microbatches of the steady state"
        after.insert(0, (words, replayed.unreplayed_s))
    total_s = pipeline_s + sum(seconds for _, seconds in after)
    step_time_s, scale = step.step_time_s, step.step_time_s / total_s
    rows = []
    for stage in range(len(step.passes)):
        events = (event for event in replayed.pipeline.events if event.stage == stage)
        stage_slices = [
            Slice(stage, _KINDS[e.kind], e.start_s, e.end_s, "", e.microbatch, e.chunk)
            for e in sorted(events, key=lambda event: event.start_s)
        ]
        row: list[Slice] = []
        late_s = stage_slices[-1].end_s - pipeline_s if stage_slices else 0.0
        begin_s = late_s if late_s > _SHORTEST * total_s else 0.0
        clock, done_s = begin_s, begin_s + pipeline_s
        for busy in stage_slices:
            if busy.start_s - clock > _SHORTEST * total_s:
                row.append(Slice(stage, IDLE, clock, busy.start_s))
            row.append(replace(busy, start_s=row[-1].end_s if row else begin_s))
            clock = busy.end_s
        if done_s - clock > _SHORTEST * total_s:
            row.append(Slice(stage, IDLE, clock, done_s))
        clock = done_s
        for name, seconds in after:
            if seconds > 0.0:
                row.append(Slice(stage, AFTER, clock, clock + seconds, name))
                clock += seconds
        row = [replace(s, start_s=s.start_s * scale, end_s=s.end_s * scale) for s in row]
        if row:
            row[-1] = replace(row[-1], end_s=begin_s * scale + step_time_s)
        rows.append(tuple(row))
    stretch, send_s = scale / step.slack, step.send_s * scale
    return Timeline(step_time_s, tuple(rows), stretch, send_s, step.replayed, step.microbatches)
