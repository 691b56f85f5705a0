"""Chips of the same machine as `systolic`, sized by the physical model: real square millimetres.

One template for each process, `physical-7nm` and others, and `physical`, whose chips differ in
their process too (`node`): area and power grow with it, no rate changes. A chip of a template is a
chip of the physical model (`physical_columns`), and has the area and the power that `atoll validate
--chips` gives to published ones; HBM's interfaces come with its stacks. A rating has products at
the energy that vendors' ratings leave for them; what a search holds to a limit on power is the same
chip with random data (`sustained`), so that its clock is one that it keeps in long products.

Chips of `physical-links` differ in their links as well: SerDes take area and edge of the die by
their bandwidth, and are part of its rating. What they are worth depends on the network that they
make up (`fabric.topology`). Those of `physical-banks` differ in the banks and ports of their shared
buffer, which say what it serves and take area and energy (`hardware.physical.banks`). Those of
`physical-dies` have one to four dies per package, links between them and spare cores.

Chips of `gpu-like-4nm` and others are multiprocessors behind a cache, as GPUs: each has one array
as wide and deep as its tensor cores' instructions, threaded lanes, registers and shared memory.
They lose what GPUs lose (`hardware.template.stalls.CACHED`): launches, waits for outputs, and work
that does not divide evenly among the multiprocessors.

Of a package with several dies, every die has an equal share of cores, shared buffer and HBM stacks,
and its part of the buffer caches its own stacks, as in MI300X and B200. Addresses are interleaved
over dies, so of n dies a share (n - 1) / n of the bytes that cores take from the shared buffer
crosses a link. Links with L bytes per second in all, both ways, let the buffer serve at most
L n / (n - 1). One die has no such limit. Traffic between HBM and the buffer stays on its die.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from atoll.base.arrays import Floats
from atoll.hardware.accelerator import GIB, GLB_BPC_PER_MIB, KIB, MIB, Hbm
from atoll.hardware.energy import STACK_BYTES
from atoll.hardware.physical import banks
from atoll.hardware.physical.area import PARTS, area_parts_mm2, total
from atoll.hardware.physical.constants import PUBLISHED, Physics
from atoll.hardware.physical.die import Defects, package_dies_usd
from atoll.hardware.physical.memories import HBM
from atoll.hardware.physical.nodes import nodes
from atoll.hardware.physical.physical_chip import Columns as PhysicalColumns
from atoll.hardware.physical.physical_chip import PhysicalChip, columns
from atoll.hardware.physical.power import (
    dynamic_parts_W,
    power_parts_W,
    shared_pJ_per_byte,
    voltage,
)
from atoll.hardware.template.parameter import Columns, Parameter
from atoll.hardware.template.stalls import CACHED, SCRATCHPAD, Stalls
from atoll.hardware.template.template import Banked, ChipTemplate, EnergyModel, unchanged_columns

PROCESSES_NM = (28, 16, 12, 7, 5, 4, 3)
GPU_NM = (7, 5, 4, 3)
GPU = "gpu-like"
LINKS_BPS = 300e9  # one way, of all links: the A100's and TPU v4's
BUDGET_MM2, BUDGET_W = 600.0, 400.0
"""TPU v4's die and an A100's module: large, air-cooled, and a third below the reticle's 858 mm2."""
DIES_MM2, DIES_W = 1600.0, 1000.0
"""The same for packages of several dies: two of 800 mm2, a B200's module."""
_PJ, _BITS = 1e-12, 8
_USUAL_NM = 7.0
_STACKS = (2, 4, 6)
_GENERATIONS: dict[float | None, tuple[str, ...]] = {
    5: ("hbm2e", "hbm3", "hbm3e"),
    4: ("hbm2e", "hbm3", "hbm3e"),
    3: ("hbm2e", "hbm3", "hbm3e", "hbm4"),
}
"""HBM of a template's own space by process, where it is not HBM2e alone: Gaudi 3, H100 and MI325X;
TPU 7x and what is announced for HBM4."""


def physical_energy(
    process_nm: ArrayLike, physics: Physics = PUBLISHED, *, threaded: bool = False
) -> EnergyModel:
    """Joules per event of a process with random data, at nominal voltage; wires and interfaces do
    not shrink. Of several processes, columns."""
    logic, shared = map(_plain, (nodes(process_nm).energy, shared_pJ_per_byte(process_nm, physics)))
    busy = physics.sustained * logic * _PJ
    return EnergyModel(
        mac_J=physics.mac_pJ * busy,
        vector_op_J=(physics.threaded_lane_pJ if threaded else physics.static_lane_pJ) * busy,
        core_buffer_J_per_byte=physics.operand_pJ_per_byte * busy,
        glb_J_per_byte=shared * _PJ,
        hbm_J_per_byte=physics.dram_pJ_per_bit * _BITS * _PJ,
        link_J_per_byte=2 * physics.link_pJ_per_bit * _BITS * _PJ,
        static_W_per_mm2=physics.static_W_per_mm2,
        hbm_W_per_byte=physics.hbm_stack_W / STACK_BYTES,
    )


def _plain(values: Floats) -> Any:
    return float(values) if values.ndim == 0 else values


def stacked_memory(
    generation: str,
    stacks: int,
    capacity_bytes: int | None = None,
    bandwidth_Bps: float | None = None,
    physics: Physics = PUBLISHED,
) -> Hbm:
    """Stacks of a generation with their interfaces and rated power; capacity and bandwidth are of
    one stack, as products of the generation have them unless given."""
    dram = HBM[generation]
    memory = columns([
        PhysicalChip(
            0.0, 0.0, 0.0, stacks=stacks, stack_mm2=dram.phy_mm2 + dram.controller_mm2,
            dram_Bps=stacks * (bandwidth_Bps or dram.bandwidth_Bps), dram_energy=dram.energy,
        )
    ])  # fmt: skip
    return Hbm(
        stacks * (capacity_bytes or dram.GiB * GIB),
        float(memory["dram_Bps"][0]),
        float(area_parts_mm2(memory, physics)["dram"][0]),
        float(power_parts_W(memory, physics)["dram"][0]),
        dram.energy,
        stacks * dram.edge_mm,
        stacks,
        generation,
    )


def physical_memories(*generations: str) -> tuple[Hbm, ...]:
    """Options of 2, 4 and 6 stacks of these generations, of HBM2e unless any is named."""
    return tuple(stacked_memory(name, n) for name in generations or ("hbm2e",) for n in _STACKS)


def template_memories(template: ChipTemplate) -> tuple[Hbm, ...]:
    """Memories of a physical template's own space: those that its process was built with."""
    return physical_memories(*_GENERATIONS.get(template.process_nm, ()))


@dataclass(frozen=True, slots=True)
class _Silicon:
    """What follows for chips of a template from its process (None: that of each chip), the
    constants and the stated defects."""

    process_nm: float | None
    physics: Physics
    defects: Defects

    def area_parts(self, chips: Columns) -> dict[str, Floats]:
        """Area by part, without HBM interfaces, which belong to the memory."""
        parts = area_parts_mm2(self._described(chips), self.physics)
        shape = np.shape(chips["clock_Hz"])
        return {
            f"{name}_mm2": np.broadcast_to(parts[name], shape)
            for name in PARTS
            if name != "dram" and (name != "cache" or np.any(parts[name]))
        }

    def area_mm2(self, chips: Columns) -> Floats:
        return total(self.area_parts(chips).values())

    def power_W(self, chips: Columns, _: EnergyModel | None = None) -> Floats:
        """Power of cores, shared buffer and links with random data."""
        return self.rating_W(chips, self.physics.sustained)

    def rating_W(self, chips: Columns, load: float = 1.0) -> Floats:
        """The same at the load of a rating."""
        return total(dynamic_parts_W(self._described(chips), self.physics, load).values())

    def dies_usd(self, chips: Columns, area_mm2: Floats) -> Floats:
        """Return the price of the good dies of each package."""
        return package_dies_usd(self._described(chips), area_mm2, self.physics, self.defects)

    def voltage(self, clock_Hz: Floats, process_nm: Floats) -> Floats:
        return voltage(clock_Hz, self.process_nm or process_nm, self.physics)

    def edge_mm(self, chips: Columns) -> Floats:
        """Die edge that links occupy."""
        return np.asarray(chips["link_Bps"] / (1e9 * self.physics.serdes_GBps_per_mm))

    def _described(self, chips: Columns) -> PhysicalColumns:
        return _physical_columns(self.process_nm, self.physics, chips)


def _physical_columns(
    process_nm: float | None, physics: Physics, chips: Columns
) -> PhysicalColumns:
    """Chips of a template as chips of the physical model, without their memory."""
    tensor, vector = chips["tensor_cores"], chips["vector_cores"]
    width, depth, lanes = chips["width"], chips["depth"], chips["vector_width"]
    tensor_bytes = chips.get("core_buffer_bytes", np.maximum(KIB, width * depth // 64 * KIB))
    tensor_bytes = tensor_bytes + chips.get("register_bytes", 0)
    core_bytes = tensor * tensor_bytes + vector * np.maximum(KIB, lanes // 64 * KIB)
    buffer, wide_Bpc = chips["glb_bytes"], chips["glb_bandwidth_Bpc"]
    energy: ArrayLike = 1.0
    if "banks" in chips:
        buffer = banks.single_port_bytes(chips, physics)
        wide_Bpc = banks.port_bytes_per_clock(chips)
        energy = bank_energy(physics, chips)
    if "die_link_Bps" in chips:
        wide_Bpc = buffer_bytes_per_clock(chips)
        energy = crossing_energy(physics, chips)
    on_dies = chips.get("dies", np.ones(1))
    threaded = chips.get("threaded", np.zeros(1))
    described = {
        "process_nm": process_nm or chips["process_nm"],
        "clock_Hz": chips["clock_Hz"],
        "bf16_cells": tensor * width * depth,
        "unit_cells": width * depth,
        "unit_aspect": width / depth,
        "cores": np.maximum(tensor, vector),
        "lanes": vector * lanes,
        "threaded": threaded,
        "scratchpad_bytes": core_bytes + np.where(threaded, 0.0, buffer),
        "cache_bytes": np.where(threaded, buffer, 0.0),
        "shared_Bpc": wide_Bpc,
        "shared_energy": energy,
        "link_Bps": chips.get("link_Bps", LINKS_BPS),
        "dies": on_dies,
        "die_link_Bps": chips.get("die_link_Bps", 0.0),
        "spare_cores": chips.get("spare_cores", np.zeros(1)) * on_dies,
        "core_bytes": tensor_bytes,
        "spare": chips.get("spare", 1.0),
    }
    base = columns([PhysicalChip(0.0, 0.0, 0.0, stacks=2.0)])
    return base | {name: np.asarray(values, np.float64) for name, values in described.items()}


def buffer_bytes_per_clock(chips: Columns) -> Floats:
    """Return what the banks of all dies serve, 128 bytes per clock and MiB as in the A100's L2."""
    return np.asarray(GLB_BPC_PER_MIB * chips["glb_bytes"] / MIB)


def crossing_bytes_per_clock(chips: Columns) -> Floats:
    """Return what the shared buffer serves to the cores of all dies."""
    crossing_Bpc = chips["die_link_Bps"] / chips["clock_Hz"]
    with np.errstate(divide="ignore"):
        most_Bpc = np.where(crossing_share(chips) > 0, crossing_Bpc / crossing_share(chips), np.inf)
    return np.minimum(buffer_bytes_per_clock(chips), most_Bpc)


def crossing_share(chips: Columns) -> Floats:
    """Return the share of the shared buffer's bytes that crosses a link between dies."""
    return 1.0 - 1.0 / np.asarray(chips["dies"], np.float64)


def crossing_energy(physics: Physics, chips: Columns) -> Floats:
    """Return the energy of a byte of the shared buffer over that on one die."""
    link_pJ = physics.die_link_pJ_per_bit * _BITS
    return 1.0 + crossing_share(chips) * link_pJ / shared_pJ_per_byte(chips["process_nm"], physics)


def bank_energy(physics: Physics, chips: Columns) -> Floats:
    """Energy per shared-buffer byte relative to the energy model: banks scaled, wires unchanged."""
    bank_pJ = physics.sram_pJ_per_byte * nodes(chips["process_nm"]).energy
    usual_pJ = shared_pJ_per_byte(chips["process_nm"], physics)
    return np.asarray(1.0 + (banks.energy(chips, physics) - 1.0) * bank_pJ / usual_pJ)


class _Kind(NamedTuple):
    """What tells templates of the same process, or of several, apart."""

    about: str = ""
    parameters: tuple[Parameter, ...] = ()
    banked: Callable[[Physics], Banked | None] = lambda physics: None
    name: str = "physical"
    stalls: Stalls = SCRATCHPAD


def _multiprocessors(columns: Columns) -> Columns:
    """Each multiprocessor has one array and one vector unit."""
    cores = columns["tensor_cores"]
    return {**columns, "vector_cores": cores, "threaded": np.ones(len(cores))}


_NODE = Parameter(
    "process_nm", "Process", (7, 5, 3), key="node", unit="nm", silicon=True, repriced=True
)


def clock_parameter(*values_Hz: float) -> Parameter:
    return Parameter(
        "clock_Hz", "Clock", values_Hz, kind="frequency", key="clock", unit="GHz", per=1e9,
        optional=True,
    )  # fmt: skip


def buffer_parameter(label: str, *sizes_MiB: int) -> Parameter:
    sizes = tuple(size * MIB for size in sizes_MiB)
    return Parameter("glb_bytes", label, sizes, kind="bytes", key="glb", unit="MiB", per=MIB)


_CLOCK = clock_parameter(0.7e9, 0.94e9, 1.05e9, 1.2e9, 1.4e9, 1.6e9, 1.8e9, 2.1e9)
_MULTIPROCESSORS = (
    Parameter("tensor_cores", "Multiprocessors", (32, 48, 64, 80, 96, 108, 120, 132, 144, 160)),
    Parameter("width", "Tile columns", (64, 128, 256)),
    Parameter("depth", "Multiply-adds per column", (4, 8, 16, 32)),
    Parameter("vector_width", "Lanes", (64, 128, 256), unit="per multiprocessor"),
    Parameter(
        "core_buffer_bytes", "Shared memory", (128 * KIB, 228 * KIB, 456 * KIB), kind="bytes",
        key="core_buffer", unit="KiB", per=KIB,
    ),
    Parameter(
        "register_bytes", "Registers", (256 * KIB,), kind="bytes", key="registers", unit="KiB",
        per=KIB, silicon=True, optional=True,
    ),
    buffer_parameter("L2", 16, 32, 48, 64, 96, 128),
    _CLOCK,
)  # fmt: skip
"""A100: 128 x 8 (four tensor cores of 256 multiply-adds), H100: 128 x 16, B200: 128 x 32; 164 and
228 KiB of shared memory, 64 Ki registers (NVIDIA's whitepapers). L2 comes in slices of 512 KiB with
64 bytes per clock, which is the usual rule of shared buffers."""
_KINDS = {
    "": _Kind(),
    GPU: _Kind(name=GPU, stalls=CACHED),
    "links": _Kind(" with several links", (
        Parameter(
            "link_Bps", "Links", (150e9, 300e9, 600e9), kind="bandwidth", key="links", unit="GB/s",
            per=1e9, silicon=True,
        ),
    )),
    "banks": _Kind(" with a buffer in banks", (
        Parameter("banks", "Banks", (8, 16, 32, 64, 128, 256), banked=True),
        Parameter("ports", "Ports", (1, 2), unit="a bank", banked=True, optional=True),
    ), lambda physics: Banked(banks.bytes_per_clock, partial(bank_energy, physics))),
    "dies": _Kind(" with several dies", (
        Parameter("dies", "Dies", (1, 2, 4), silicon=True, slows=True, repriced=True),
        Parameter(
            "die_link_Bps", "Die links", (5e12, 10e12), kind="bandwidth", key="die_links",
            unit="TB/s", per=1e12, banked=True, optional=True,
        ),
        Parameter(
            "spare_cores", "Spare cores", (0,), kind="spares", unit="per die", silicon=True,
            repriced=True, optional=True,
        ),
    ), lambda physics: Banked(crossing_bytes_per_clock, partial(crossing_energy, physics))),
}  # fmt: skip


def physical_template(
    process_nm: float | None, physics: Physics = PUBLISHED, kind: str = "", defects: Defects = ()
) -> ChipTemplate:
    """The template of a process, under these constants; without one, of several, also with links
    of several bandwidths, several banks or several dies."""
    sides, counts = (64, 128, 256), (1, 2, 4, 8, 16, 32, 64)
    fine = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    of_kind, is_gpu = _KINDS[kind], kind == GPU
    where = f"several processes{of_kind.about}" if process_nm is None else f"{process_nm:g} nm"
    name = f"physical-{kind}" if kind else "physical"
    cores = "Multiprocessors behind a cache, as GPUs," if is_gpu else "Systolic chips"
    silicon = _Silicon(process_nm, physics, defects)
    return ChipTemplate(
        name=name if process_nm is None else f"{of_kind.name}-{process_nm:g}nm",
        about=f"{cores} in {where}, with all that a die has (docs/chips.md).",
        parameters=_MULTIPROCESSORS if is_gpu else (
            *(() if process_nm else (_NODE,)),
            *of_kind.parameters,
            Parameter("tensor_cores", "Tensor cores", fine),
            Parameter("vector_cores", "Vector cores", counts),
            Parameter("width", "Array width", sides),
            Parameter("depth", "Array depth", sides),
            Parameter("vector_width", "Vector width", (128, 512, 2048), unit="lanes"),
            buffer_parameter("Shared buffer", 8, 16, 32, 48, 64, 96, 128, 192, 256),
            _CLOCK,
        ),
        machine=_multiprocessors if is_gpu else unchanged_columns,
        area_mm2=silicon.area_mm2,
        area_parts=silicon.area_parts,
        power_W=silicon.power_W,
        rating_W=silicon.rating_W,
        edge_mm=silicon.edge_mm if kind == "links" else None,
        banked=of_kind.banked(physics),
        energy=physical_energy(process_nm or _USUAL_NM, physics, threaded=is_gpu),
        energies=None if process_nm else partial(physical_energy, physics=physics),
        voltage=silicon.voltage,
        process_nm=process_nm,
        dies_usd=silicon.dies_usd,
        defects=defects,
        stalls=of_kind.stalls,
        budget_mm2=DIES_MM2 if kind == "dies" else BUDGET_MM2,
        budget_W=DIES_W if kind == "dies" else BUDGET_W,
        reference="physical-tpuv4",
    )  # fmt: skip


LINKED = physical_template(None, kind="links")
BANKED = physical_template(None, kind="banks")
IN_DIES = physical_template(None, kind="dies")
PHYSICAL = (
    *map(physical_template, (*PROCESSES_NM, None)), LINKED, BANKED, IN_DIES,
    *(physical_template(process_nm, kind=GPU) for process_nm in GPU_NM),
)  # fmt: skip
_NAMES = {template.name for template in PHYSICAL}


def is_physical(template: ChipTemplate) -> bool:
    """Return whether a template is one of the physical model, with stated defects or without."""
    return template.name in _NAMES


def redrawn(template: ChipTemplate, physics: Physics = PUBLISHED) -> ChipTemplate:
    """Rebuild a template with other constants."""
    kind = template.name.removeprefix("physical").lstrip("-")
    if template.process_nm:
        kind = GPU if template.name.startswith(GPU) else ""
    return physical_template(template.process_nm, physics, kind, template.defects)


def with_defects(template: ChipTemplate, defects: Defects) -> ChipTemplate:
    """Return a template whose dies have the stated defect densities."""
    return redrawn(replace(template, defects=defects)) if defects else template


def redrawn_memories(options: tuple[Hbm, ...], physics: Physics) -> tuple[Hbm, ...]:
    """Rebuild stacks of a generation with other constants; memories stated in a file stay."""
    return tuple(
        stacked_memory(
            hbm.generation, hbm.stacks, hbm.capacity_bytes // hbm.stacks,
            hbm.bandwidth_Bps / hbm.stacks, physics,
        )
        if hbm.generation
        else hbm
        for hbm in options
    )  # fmt: skip
