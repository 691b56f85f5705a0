"""What `sums` adds up of many layouts, in arrays over rows, stages and chunks."""

from __future__ import annotations

from typing import NamedTuple

from atoll.training.batch.paths import Triple
from atoll.training.operators.tables import Floats


class States(NamedTuple):
    """What no choice changes. Of every row: accumulation and update of a step, and the gradients'
    collectives behind the last backward pass and behind each one before; of every stage: bytes that
    are fixed, of gradients, and that wait for weight gradients, and seconds of these and of their
    launches.
    """

    beside_s: Floats
    last_s: Floats
    before_s: Floats
    fixed: Floats
    gradients: Floats
    waiting: Floats
    weight_s: Floats
    launch_s: Floats


class Owned(NamedTuple):
    """(stages,): of every stage seconds of accumulation, of the update, and of its gradients'
    collectives behind the last backward pass and behind each one before; the rest as in `States`.
    """

    accumulate_s: Floats
    update_s: Floats
    last_s: Floats
    each_s: Floats
    fixed: Floats
    gradients: Floats
    waiting: Floats
    weight_s: Floats
    launch_s: Floats


class Held(NamedTuple):
    """What no layer's time changes, but for the weight gradients' seconds in `states`."""

    states: States
    bytes: Floats
    """(stages, choices): what every stage needs."""


class Paces(NamedTuple):
    """(places, choices): seconds of stages or of chunks, without messages. In each pace, forward
    passes, backward passes without weight gradients, and these.
    """

    forward: Floats
    backward: Floats
    weight: Floats
    host_f: Floats
    host_b: Floats
    host_w: Floats
    """At the host's pace, where weight passes run apart (`step.StageTime.paces`); else empty."""
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


class Passes(NamedTuple):
    """Seconds of a microbatch, and bytes."""

    stages: Paces
    chunks: Paces
    """Of pipelines with several chunks per stage, one by one."""
    own: Floats
    """(stages, choices): all of it, and that behind the forward pass."""
    behind: Floats
    bytes: Floats
