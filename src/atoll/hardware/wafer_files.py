"""Wafers as YAML files: the catalogue's and a user's own, and spaces of them."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from atoll.base.errors import AtollError
from atoll.files import ranges
from atoll.files.yamlfile import FileModel, Share
from atoll.hardware.accelerator import GLB_BPC_PER_MIB, Hbm
from atoll.hardware.catalog import CoresFile, GlbBandwidthFile, entry_names, load_entry
from atoll.hardware.template.stalls import STALLS
from atoll.hardware.wafer import DramStack, Wafer

EdgeMm = Annotated[float, Field(ge=1e-3, le=1000, strict=True)]
Stacks = Annotated[int, Field(ge=0, le=1000, strict=True)]
Grid = Annotated[tuple[ranges.DieCount, ranges.DieCount], Field(description="rows, columns")]


class DieFile(CoresFile):
    sram: ranges.BufferBytes
    sram_bandwidth: GlbBandwidthFile = GlbBandwidthFile(per_mib=GLB_BPC_PER_MIB)
    area: ranges.ChipArea | None = None
    unit: ranges.CoreCount | None = None
    """Multiply-adds that share their operands, where not the whole array does: they cost power."""
    kind: Literal["cached", "scratchpad"] = "scratchpad"
    """What it loses (`hardware.template.stalls`)."""


class DramFile(FileModel):
    """`stacks` HBM stacks a die; the other values are those of one stack."""

    stacks: Stacks
    capacity_bytes: ranges.MemoryBytes = Field(alias="capacity")
    bandwidth_Bps: ranges.DeviceBandwidth = Field(alias="bandwidth")
    area_mm2: ranges.ChipArea = Field(110.0, alias="area")
    edge_mm: EdgeMm = 11.0


class WaferLinkFile(FileModel):
    """`bandwidth` of one link in one direction, or what a millimetre of die edge carries."""

    bandwidth: ranges.DeviceBandwidth | None = None
    bandwidth_per_mm: ranges.DeviceBandwidth | None = None
    latency: ranges.LatencySeconds
    energy: ranges.LinkEnergy = 5.0e-12


class WaferSpaceFile(FileModel):
    """Values to search over; what is not listed stays as the wafer says."""

    grid: tuple[Grid, ...] | None = None
    tensor_cores: tuple[ranges.CoreCount, ...] | None = None
    sram: tuple[ranges.BufferBytes, ...] | None = None
    stacks: tuple[Stacks, ...] | None = None
    array: tuple[tuple[ranges.CoreCount, ranges.CoreCount], ...] | None = None
    """Width and depth of a core's array."""


class WaferFile(FileModel):
    name: str = Field(min_length=1)
    source: str = ""
    usable_mm2: ranges.WaferArea = Field(alias="usable_area")
    grid: Grid
    die: DieFile
    dram: DramFile | None = None
    sram_memory: bool = False
    parameter_store: bool = False
    efficiency: Share = 1.0
    step_s: ranges.LatencySeconds = Field(0.0, alias="step")
    halo_mm2: ranges.ChipArea = Field(20.0, alias="halo")
    link: WaferLinkFile
    io_Bps: ranges.DeviceBandwidth = Field(alias="io_bandwidth")
    process: str = "7nm"
    bond_yield: Share = 0.99
    max_power_W: ranges.WaferPower | None = Field(None, alias="max_power")
    space: WaferSpaceFile | None = None

    def wafer(self) -> Wafer:
        link = self.link
        if (link.bandwidth is None) == (link.bandwidth_per_mm is None):
            raise AtollError(f"wafer {self.name}: link: give either bandwidth or bandwidth_per_mm.")
        die = self.die
        dram = {"stacks": 0} if self.dram is None else dict(self.dram)
        names = {field.name for field in fields(Wafer)}
        return Wafer(
            rows=self.grid[0],
            columns=self.grid[1],
            core=die.core(
                die.sram,
                die.sram_bandwidth,
                hbm=Hbm(1, 1.0),
                name=self.name,
                stalls=STALLS[die.kind],
            ),
            stacks=dram.pop("stacks"),
            stack=DramStack(**dram) if dram else DramStack(1, 1.0, 0.0, 0.0),
            link_latency_s=link.latency,
            shoreline_Bps_per_mm=link.bandwidth_per_mm or 0.0,
            stated_link_Bps=link.bandwidth,
            stated_die_mm2=die.area,
            unit_cells=die.unit,
            link_J_per_byte=link.energy * 8,
            **{name: value for name, value in self if name in names},
        )


def wafer_names() -> tuple[str, ...]:
    return entry_names("wafer")


def load_wafer(name_or_path: str | Path) -> Wafer:
    """A wafer of the catalogue, or of a user's YAML file."""
    return load_entry("wafer", name_or_path, WaferFile).wafer()


def load_wafers(name_or_path: str | Path) -> tuple[Wafer, ...]:
    """The wafer, or every wafer of its space that can be built; and none that cannot."""
    file = load_entry("wafer", name_or_path, WaferFile)
    if file.space is None:
        return (file.wafer(),)
    space = file.space
    wafers: list[Wafer] = []
    reason: AtollError | None = None
    for grid, cores, sram, stacks, (width, depth) in product(
        space.grid or (file.grid,),
        space.tensor_cores or (file.die.tensor_cores,),
        space.sram or (file.die.sram,),
        space.stacks or (file.dram.stacks if file.dram else 0,),
        space.array or ((file.die.width, file.die.depth),),
    ):
        ratio = file.die.vector_cores / file.die.tensor_cores
        die = file.die.model_copy(
            update={
                "tensor_cores": cores,
                "vector_cores": max(1, round(cores * ratio)),
                "sram": sram,
                "width": width,
                "depth": depth,
            }
        )
        dram = file.dram.model_copy(update={"stacks": stacks}) if file.dram else None
        try:
            wafer = file.model_copy(update={"grid": grid, "die": die, "dram": dram}).wafer()
        except AtollError as error:
            reason = reason or error
            continue
        label = (
            f"{grid[0]}x{grid[1]}, {cores} cores {width}x{depth}, {sram // 2**20} MiB, "
            f"{stacks} stacks"
        )
        wafers.append(replace(wafer, name=f"{file.name} ({label})"))
    if not wafers:
        raise AtollError(f"space: no wafer of it can be built; the first: {reason}")
    return tuple(wafers)
