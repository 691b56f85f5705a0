"""Intermediate sums of `sums` over many layouts: arrays over rows, stages and chunks."""

from __future__ import annotations

from typing import NamedTuple

from atoll.base.arrays import Floats

Triple = tuple[Floats, Floats, Floats]
"""(places, choices): seconds of forward passes, backward passes and weight passes."""


class StateCosts(NamedTuple):
    """Costs that do not depend on the recomputation choice. The first four are per row, or per
    stage before `Sums.combine_stages`; the others are per stage.
    """

    accumulate_s: Floats
    """Accumulation of a step's gradients, or per stage of one microbatch's."""
    update_s: Floats
    last_s: Floats
    """Gradient collectives after the last backward pass."""
    before_s: Floats
    """Gradient collectives after each earlier one."""
    fixed: Floats
    """(stages, 3): bytes of weights, of optimizer states and of buffers."""
    gradients: Floats
    """Bytes of gradients."""
    waiting: Floats
    """Bytes that wait for weight passes."""
    weight_s: Floats
    """Weight passes of one microbatch."""
    launch_s: Floats
    """Launches of these passes."""
    host_late_s: Floats
    """Time by which the host's part of the update is longer than the device's."""

    @property
    def optimizer_s(self) -> Floats:
        """Accumulation and update of a step."""
        return self.accumulate_s + self.update_s


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
    """Host time, if weight passes are separate; otherwise empty."""
    device_f: Floats
    device_b: Floats
    """Without host time."""
    host_s: Floats
    """Host time of all passes that the device does not hide."""
    once_s: Floats
    """Part of it that is waited for once per step, over the microbatches."""

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
    most_s: Floats
    most_after_forward_s: Floats
    """Upper bounds on the first two, where the seconds are lower bounds; otherwise empty."""
