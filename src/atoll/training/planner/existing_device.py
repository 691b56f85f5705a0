"""Plans of the job of a searched chip on existing devices: the same model, batch and number of
devices, with the network and software stack that each device usually has.
"""

from __future__ import annotations

from dataclasses import astuple, replace

from atoll.answers.search import ExistingDevice
from atoll.base.errors import AtollError, InfeasibleError
from atoll.base.registry import import_named
from atoll.base.stopping import Stop, StoppedError
from atoll.hardware.device import load_device
from atoll.hardware.gpu import Gpu
from atoll.questions.chips import Precision
from atoll.training.estimate import Estimate
from atoll.training.planner.plan import plan
from atoll.training.planner.space import Axes
from atoll.training.run import Run


def precision_of(name: str, wanted: Precision) -> Precision | None:
    """Return the wanted precision if the device has it, else fp8 for fp4, else None (16 bits)."""
    narrower: tuple[Precision, ...] = ("nvfp4", "fp8")
    for precision in narrower[narrower.index(wanted) :] if wanted in narrower else (wanted,):
        try:
            load_device(name).peak_flops(precision)
        except AtollError:
            continue
        return precision
    return None


def best_estimate(run: Run, stop: Stop | None = None) -> Estimate:
    """Return the fastest layout of a run that its tool can launch, with its estimate."""
    usable = import_named("atoll.export:refusals")(run)
    device_plan = plan(run, Axes(**run.tool.axes), usable=usable, runners_up=0, stop=stop)
    if device_plan.stopped:
        raise StoppedError
    return device_plan.best


def plan_on_device(name: str, run: Run, stop: Stop | None = None) -> ExistingDevice:
    """Return the best layout of a run on the named device, with its proof."""
    none = ExistingDevice(device=name, network=run.network.name, stack=run.stack.name, fits=False)
    if isinstance(run.gpu, Gpu):
        gpu = run.gpu
        none = replace(none, power_W=gpu.power_W, process_nm=gpu.process_nm, area_mm2=gpu.die_mm2)
    try:
        best = best_estimate(run, stop)
    except InfeasibleError as error:
        return replace(none, reason=str(error))
    return replace(
        none,
        fits=True,
        throughput_samples_per_s=run.global_batch / best.step.time_s,
        step_time_s=best.step.time_s,
        mfu=best.mfu,
        layout=str(best.layout),
        step_time_interval_s=astuple(best.interval.step_time_s),
    )
