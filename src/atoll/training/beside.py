"""Devices that exist, planned for the job of a searched chip: the same model, batch and number of
devices, each on its own network and under the software that it usually has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from atoll.errors import InfeasibleError
from atoll.hardware.device import load_device
from atoll.hardware.gpu import Gpu
from atoll.training.plan import plan
from atoll.training.request import make_run

TPU_STACK = "xla"


@dataclass(frozen=True, slots=True)
class Beside:
    """The best layout of one device, or why there is none."""

    device: str
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


def plan_beside(
    names: Sequence[str],
    model: str,
    devices: int,
    *,
    global_batch: int,
    sequence: int | None,
    states: str,
    progress: Callable[[str], None] | None = None,
) -> tuple[Beside, ...]:
    """The proven best layout of each device for the same training run."""
    found = []
    for name in names:
        device = load_device(name)
        stack = TPU_STACK if device.name.startswith("tpu") else None
        run = make_run(
            model,
            name,
            devices,
            global_batch=global_batch,
            sequence=sequence,
            states=states,
            stack=stack,
        )
        power_W = device.power_W if isinstance(device, Gpu) else None
        where = run.gpu.name, run.network.name, run.stack.name
        if progress is not None:
            progress(f"planning {name}")
        try:
            best = plan(run, runners_up=0).best
        except InfeasibleError as error:
            found.append(Beside(*where, fits=False, power_W=power_W, reason=str(error)))
            continue
        found.append(
            Beside(
                *where,
                fits=True,
                throughput_samples_per_s=global_batch / best.step.time_s,
                step_time_s=best.step.time_s,
                mfu=best.mfu,
                layout=str(best.layout),
                power_W=power_W,
            )
        )
    return tuple(found)
