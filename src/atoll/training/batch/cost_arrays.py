"""Intermediate sums of `sums` over many layouts: arrays over rows, stages and chunks."""

from __future__ import annotations

from typing import NamedTuple

from atoll.training.batch.path_bounds import Triple
from atoll.training.operators.tables import Floats


class StateCosts(NamedTuple):
    """Costs that do not depend on the recomputation choice. Per row: accumulation and update of a
    step, and the gradients' collectives after the last backward pass and after each earlier one;
    per stage: fixed bytes, bytes of gradients, bytes that wait for weight passes, and seconds of
    weight passes and of their launches.
    """

    optimizer_s: Floats
    last_s: Floats
    before_s: Floats
    fixed: Floats
    gradients: Floats
    waiting: Floats
    weight_s: Floats
    launch_s: Floats


class StageStateCosts(NamedTuple):
    """(stages,): seconds of accumulation, of the update, and of the gradients' collectives after
    the last backward pass and after each earlier one; the other fields as in `States`.
    """

    accumulate_s: Floats
    update_s: Floats
    last_s: Floats
    before_s: Floats
    fixed: Floats
    gradients: Floats
    waiting: Floats
    weight_s: Floats
    launch_s: Floats


class StateMemory(NamedTuple):
    """State costs and memory: independent of layer times, except weight passes in `states`."""

    states: StateCosts
    bytes: Floats
    """(stages, choices): memory needed per stage."""


class Paces(NamedTuple):
    """(places, choices): seconds of stages or of chunks without messages: forward passes, backward
    passes without weight gradients, and weight passes, with and without host time.
    """

    forward: Floats
    backward: Floats
    weight: Floats
    host_f: Floats
    host_b: Floats
    host_w: Floats
    """Host time, if weight passes are separate (`step.StageTime.paces`); otherwise empty."""
    device_f: Floats
    device_b: Floats
    """Without host time."""

    @property
    def counted(self) -> Triple:
        return self.forward, self.backward, self.weight

    @property
    def host(self) -> Triple:
        return self.host_f, self.host_b, self.host_w

    @property
    def device(self) -> Triple:
        return self.device_f, self.device_b, self.weight


class StagePasses(NamedTuple):
    """Seconds per microbatch, and bytes."""

    stages: Paces
    chunks: Paces
    """Single chunks of pipelines with several per stage."""
    total_s: Floats
    """(stages, choices): all passes."""
    after_forward_s: Floats
    bytes: Floats
