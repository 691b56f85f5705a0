"""One training step on every pipeline stage, from its first pass to the end, without a hole.

Placements and layouts are replayed alike (`step.replay`). Idle time is a slice of its own, so that
the slices of a stage add up to the step.

A wafer's mapping is chosen by a closed form, which differs a little from its replay (the answer
says by how much). The clock of the replay is stretched so that the step takes what the answer says;
`stretch` is that factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from atoll.answers.design import Placed
from atoll.answers.layout import MOST_PASSES, StepPasses
from atoll.placement.replay import TAIL, messages_s
from atoll.step.replay import PassTime, Replay, replay
from atoll.training.replay import replay_step

FORWARD, BACKWARD, WEIGHT, IDLE, AFTER = "forward", "backward", "weight gradient", "bubble", "after"
_KINDS = {"F": FORWARD, "B": BACKWARD, "W": WEIGHT}
_SHORTEST = 1e-12
"""Of a step: a hole that is a rounding error, and no bubble."""


@dataclass(frozen=True, slots=True)
class Slice:
    """What one stage does for some time."""

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
    """All stages over one step."""

    step_time_s: float
    stages: tuple[tuple[Slice, ...], ...]
    """Each stage's slices, one after the other, as long together as the step.

    They begin at 0, but later where steps follow one another without a barrier (zero bubble) and a
    later stage ends its own after the first one.
    """
    stretch: float
    """The step's time over that of its replay."""
    send_s: float
    shown: int
    """Microbatches replayed one by one."""
    microbatches: int

    @property
    def end_s(self) -> float:
        """When the last stage is done."""
        return max((row[-1].end_s for row in self.stages if row), default=self.step_time_s)

    def idle_s(self) -> list[float]:
        """Each stage's bubbles."""
        return [sum(s.duration_s for s in row if s.kind == IDLE) for row in self.stages]


def placement_timeline(placement: Placed) -> Timeline | None:
    """The step of a search's placement; None where a stage's forward time is not on record, or
    where its passes are too many to draw.
    """
    stages, count = placement.stages, placement.microbatches
    if count * len(stages) > MOST_PASSES:
        return None
    times = []
    for stage in stages:
        if stage.chunks:
            times.append([PassTime(*chunk) for chunk in stage.chunks])
            continue
        if stage.forward_s is None:
            return None
        weight_s = stage.weight_s or 0.0
        data_s = stage.compute_s + stage.recompute_s - stage.forward_s - weight_s
        times.append([PassTime(stage.forward_s, data_s, weight_s)])
    pipeline = replay(placement.schedule, times, count, messages_s(stages))
    parts = placement.time_parts_s
    after = [(name.replace("_", " "), parts.get(name, 0.0)) for name in TAIL]
    return _whole(
        _slices(pipeline),
        len(stages),
        pipeline.time_s,
        after,
        placement.step_time_s,
        max((stage.receive_s for stage in stages[1:]), default=0.0),
        count,
        count,
    )


def plan_timeline(step: StepPasses) -> Timeline:
    """The step of a planned layout."""
    replayed = replay_step(step)
    pipeline, after = replayed.pipeline, list(step.after)
    if step.microbatches > step.replayed:
        remaining_words = f"{step.microbatches - step.replayed:,} more microbatches of the steady state"
        after.insert(0, (remaining_words, replayed.rest_s))
    return _whole(
        _slices(pipeline), len(step.passes), pipeline.time_s, after, step.step_time_s, step.send_s,
        step.replayed, step.microbatches, step.slack,
    )  # fmt: skip


def _slices(pipeline: Replay) -> list[Slice]:
    return [
        Slice(event.stage, _KINDS[event.kind], event.start_s, event.end_s, "", event.microbatch, event.chunk)
        for event in pipeline.events
    ]


def _whole(
    slices: Sequence[Slice],
    stages: int,
    pipeline_s: float,
    after: Sequence[tuple[str, float]],
    step_time_s: float,
    send_s: float,
    shown: int,
    microbatches: int,
    slack: float = 1.0,
) -> Timeline:
    """Fill holes, put what follows the pipeline behind it, and stretch to the step's time: by the
    slack that lengthens all parts alike, and by what the answer and the replay differ in.
    """
    total_s = pipeline_s + sum(seconds for _, seconds in after)
    scale = step_time_s / total_s
    rows = []
    for stage in range(stages):
        stage_slices = sorted((s for s in slices if s.stage == stage), key=lambda s: s.start_s)
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
        rows.append(tuple(_stretched(row, scale, begin_s * scale + step_time_s)))
    return Timeline(step_time_s, tuple(rows), scale / slack, send_s * scale, shown, microbatches)


def _stretched(row: Sequence[Slice], scale: float, end_s: float) -> list[Slice]:
    slices = [replace(piece, start_s=piece.start_s * scale, end_s=piece.end_s * scale) for piece in row]
    if slices:
        slices[-1] = replace(slices[-1], end_s=end_s)
    return slices
