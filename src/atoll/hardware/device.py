"""What a training run asks of a device, whoever made it: a GPU of the catalogue or a chip of the
template, such as one that a search found.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from atoll.base.errors import AtollError
from atoll.files.yamlfile import top_level_names
from atoll.hardware.accelerator import Accelerator
from atoll.hardware.catalog import accelerator_names, load_accelerator_file
from atoll.hardware.gpu import Gpu, gpu_names, load_gpu

CLOCK_STEPS = 1000
CELL_PRODUCTS = {"bf16": 1, "fp16": 1, "fp8": 2, "nvfp4": 4}  # multiply-adds per cell and clock


@dataclass(frozen=True, slots=True)
class TemplateChip:
    """A chip of the template. A cell does one 16-bit, two 8-bit or four 4-bit products a clock."""

    accelerator: Accelerator
    network: str = "dgx-a100"
    stack: str = "chip"
    half_dtype: str = "bf16"
    power_W: float | None = None
    cap_W: float | None = None
    optimizer_traffic: float = 1.0
    half_optimizer_traffic: float = 1.0

    @property
    def name(self) -> str:
        return self.accelerator.name or self.accelerator.describe()

    @property
    def clock_Hz(self) -> float:
        return self.accelerator.clock_Hz

    @property
    def hbm_bytes(self) -> int:
        return self.accelerator.hbm.capacity_bytes

    @property
    def hbm_Bps(self) -> float:
        return self.accelerator.hbm.bandwidth_Bps

    @property
    def stream_Bps(self) -> float:
        from atoll.hardware.silicon.chip import chip_stalls

        return self.hbm_Bps * chip_stalls(self.accelerator).hbm

    def peak_flops(self, dtype: str) -> float:
        if dtype not in CELL_PRODUCTS:
            formats = ", ".join(CELL_PRODUCTS)
            raise AtollError(f"device {self.name} has no {dtype} matrix units; it has {formats}")
        return self.accelerator.peak_flops * CELL_PRODUCTS[dtype]

    def with_compute(self, factor: float) -> TemplateChip:
        return replace(self, accelerator=replace(self.accelerator, clock_Hz=self.clock_Hz * factor))

    def capped(self, cap_W: float) -> TemplateChip:
        """Return the chip at the highest clock that keeps its peak power within the cap."""
        from atoll.hardware.silicon.chip import peak_power_W

        at = partial(replace, self.accelerator)
        clocks_Hz = self.clock_Hz / CLOCK_STEPS * np.arange(CLOCK_STEPS + 1)
        least_W, most_W = (peak_power_W(at(clock_Hz=clock)) for clock in clocks_Hz[[0, -1]])
        if not least_W < cap_W <= most_W:
            raise AtollError(
                f"power_cap: {self.name} draws {least_W:.0f} W at rest and {most_W:.0f} W with all "
                f"parts busy; {cap_W:g} W is not between"
            )
        fits = bisect_right(clocks_Hz, cap_W, key=lambda clock: peak_power_W(at(clock_Hz=clock)))
        slower = at(clock_Hz=float(clocks_Hz[max(1, fits - 1)]))
        return replace(self, accelerator=slower, cap_W=cap_W)

    def drawn_W(self, busy: float) -> float | None:
        """None: only a search counts the operations of a chip."""
        return None

    def with_hbm(self, hbm_bytes: int | None = None, hbm_Bps: float | None = None) -> TemplateChip:
        old = self.accelerator.hbm
        memory = replace(
            old,
            capacity_bytes=hbm_bytes or old.capacity_bytes,
            bandwidth_Bps=hbm_Bps or old.bandwidth_Bps,
        )
        return replace(self, accelerator=replace(self.accelerator, hbm=memory))


Device = Gpu | TemplateChip
"""Both have the same interface: peaks, memory, usual network and software, streaming bandwidth, and
optimizer traffic."""


def device_names() -> tuple[str, ...]:
    """Devices and chips of the catalogue."""
    return (*gpu_names(), *accelerator_names())


def load_device(name_or_path: str | Path) -> Device:
    """Load a device of the catalogue or of a YAML file; a chip of the template has tensor cores."""
    path = Path(name_or_path)
    is_yaml = path.suffix in (".yaml", ".yml")
    if str(name_or_path) in accelerator_names() or (
        is_yaml and "tensor_cores" in top_level_names(path)
    ):
        file = load_accelerator_file(name_or_path)
        return TemplateChip(file.accelerator(), file.network)
    return load_gpu(name_or_path)


def chip_yaml(chip: Accelerator, name: str, network: str) -> str:
    """A chip as the file that `load_device` reads, every number in full."""
    hbm = chip.hbm
    content: dict[str, Any] = {
        "name": name,
        "tensor_cores": chip.tensor_cores,
        "width": chip.width,
        "depth": chip.depth,
        "vector_cores": chip.vector_cores,
        "vector_width": chip.vector_width,
        "glb": f"{chip.glb_bytes} B",
        "glb_bandwidth": {"fixed": float(chip.glb_bandwidth_Bpc)},
        "clock": f"{chip.clock_Hz!r} Hz",
        "hbm": {
            "capacity": f"{hbm.capacity_bytes} B",
            "bandwidth": f"{hbm.bandwidth_Bps!r} B/s",
            "area": f"{hbm.area_mm2!r} mm2",
            **({} if hbm.power_W is None else {"power": f"{hbm.power_W!r} W"}),
        },
        "network": network,
    }
    if chip.dies > 1:
        content["dies"] = chip.dies
    if chip.spare > 1.0:
        content["cores_on_die"] = round(chip.spare * chip.tensor_cores)
    if chip.stated_core_buffer_bytes:
        content["core_buffer"] = f"{chip.stated_core_buffer_bytes} B"
    if chip.stalls is not None:
        from atoll.hardware.template.stalls import STALLS

        content["kind"] = next(name for name, stalls in STALLS.items() if stalls == chip.stalls)
    if chip.template is not None:
        content["template"] = chip.template.name
        if chip.template.defects:
            content["defects"] = dict(chip.template.defects)
        content["own"] = {parameter.name: float(value) for parameter, value in chip.more}
    return yaml.safe_dump(content, sort_keys=False)
