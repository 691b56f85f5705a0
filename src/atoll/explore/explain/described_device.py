"""Existing devices as chips of the search's template.

A unit that takes tiles (`Gpu.sms`) becomes a tensor core with the cells that its peak needs, at the
clock of long products in a training step: nominal clock / (1 + throttle of the calibration). Device
files do not say the rest, which is assumed: 128 columns (square arrays above 128 x 128 cells), 228
KiB and 128 lanes per multiprocessor, 512 lanes per larger array, and the shared buffer's bandwidth
by the rule of spaces. Units of at most 4,096 cells lose what threads and caches lose, others what
compiled scratchpads lose (`hardware.template.stalls`).
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from atoll.hardware.accelerator import GLB_BPC_PER_MIB, KIB, MIB, Accelerator
from atoll.hardware.device import Device, TemplateChip
from atoll.hardware.gpu import Gpu
from atoll.hardware.silicon.chip import chip_stalls, chip_template, rebanked
from atoll.hardware.template.stalls import CACHED, NO_STALLS, SCRATCHPAD, Stalls

_COLUMNS, _THREADED_CELLS = 128, 4096
_LANES, _ARRAY_LANES = 128, 512
_CORE_BUFFER_BYTES = 228 * KIB
_KINDS = {
    NO_STALLS: "nothing is lost",
    CACHED: "threads and caches",
    SCRATCHPAD: "compiled buffers",
}


def described_device(device: Device, answer: Accelerator) -> Accelerator:
    """Return a device in the template of the answer, with its own losses."""
    template = chip_template(answer)
    if isinstance(device, TemplateChip):
        chip = device.accelerator
        template = replace(template, stalls=chip_stalls(chip))
        return replace(chip, template=template, more=answer.more, name="")
    threaded = device_cells(device) <= _THREADED_CELLS
    cells = device_cells(device)
    width = _COLUMNS if cells <= _COLUMNS**2 else round(sqrt(cells))
    stated = {"dies": float(device.dies), "core_buffer_bytes": float(_CORE_BUFFER_BYTES)}
    more = tuple((p, stated.get(p.name, value)) for p, value in answer.more)
    lost = template.stalls if template.stalls == NO_STALLS else CACHED if threaded else SCRATCHPAD
    chip = replace(
        answer,
        tensor_cores=device.sms,
        width=width,
        depth=max(1, round(cells / width)),
        vector_cores=device.sms,
        vector_width=_LANES if threaded else _ARRAY_LANES,
        stated_core_buffer_bytes=_CORE_BUFFER_BYTES if threaded else 0,
        glb_bytes=device.l2_bytes,
        glb_bandwidth_Bpc=GLB_BPC_PER_MIB * device.l2_bytes / MIB,
        clock_Hz=device.clock_Hz / (1.0 + device.calibration.limit_throttle),
        hbm=replace(answer.hbm, capacity_bytes=device.hbm_bytes, bandwidth_Bps=device.hbm_Bps),
        template=replace(template, stalls=lost),
        more=more,
    )
    return rebanked(chip) if any(p.name == "dies" for p, _ in more) else chip


def device_cells(device: Gpu) -> float:
    """Return the multiply-adds per clock of one unit, from the peak in 16 bits."""
    return device.peak_flops(device.half_dtype) / (2.0 * device.sms * device.clock_Hz)


def losses_words(stalls: Stalls) -> str:
    """Return the kind of losses in words."""
    return _KINDS.get(stalls, "losses of its own")
