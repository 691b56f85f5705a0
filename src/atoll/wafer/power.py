"""Power of a running step: static watts always, dynamic watts as far as units are busy."""

from __future__ import annotations

from atoll.hardware.energy import DEFAULT_ENERGY
from atoll.wafer.evaluate import Evaluation
from atoll.wafer.template import Wafer


def running_power_W(wafer: Wafer, found: Evaluation) -> float:
    """Average over a step, all dies on. Links count with the bytes between stages only."""
    static = wafer.dies * DEFAULT_ENERGY.static_W_per_mm2 * wafer.die_mm2
    dynamic_peak = wafer.peak_power_W - static
    rounds = found.mapping.microbatches
    busy = 0.0
    for stage, cost in zip(found.mapping.stages, found.stages, strict=True):
        work = cost.parts_s["compute"] + cost.parts_s["recompute"]
        busy += stage.rectangle.size * stage.layers * rounds * work / found.step_s
    return static + dynamic_peak * busy / wafer.dies
