"""Devices that exist, planned for the job of a searched chip: the same model, batch and number of
devices, each on its own network and under the software that it usually has.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from atoll.errors import InfeasibleError
from atoll.hardware.gpu import Gpu
from atoll.stopping import Stop, StoppedError
from atoll.training.planner.plan import plan
from atoll.training.run import Run


@dataclass(frozen=True, slots=True)
class Beside:
    """The best layout of one device, or why there is none."""

    device: str
    """As it was asked for."""
    network: str
    stack: str
    fits: bool
    throughput_samples_per_s: float | None = None
    step_time_s: float | None = None
    mfu: float | None = None
    layout: str | None = None
    power_W: float | None = None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan_beside(name: str, run: Run, stop: Stop | None = None) -> Beside:
    """The proven best layout of a run on the device of that name."""
    where = name, run.network.name, run.stack.name
    power_W = run.gpu.power_W if isinstance(run.gpu, Gpu) else None
    try:
        found = plan(run, runners_up=0, stop=stop)
    except InfeasibleError as error:
        return Beside(*where, fits=False, power_W=power_W, reason=str(error))
    if found.stopped:
        raise StoppedError
    best = found.best
    return Beside(
        *where,
        fits=True,
        throughput_samples_per_s=run.global_batch / best.step.time_s,
        step_time_s=best.step.time_s,
        mfu=best.mfu,
        layout=str(best.layout),
        power_W=power_W,
    )
