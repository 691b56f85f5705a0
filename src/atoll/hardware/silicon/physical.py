"""Chips of the same machine as `systolic`, sized by the physical model: real square millimetres.

One template for each process, `physical-7nm` and others, and `physical`, whose chips differ in
their process too (`node`): area and power grow with it, no rate changes. Area has the parts of
`hardware.physical.area`: cells, lanes, control, buffers, the network between them, links and
uncore; HBM's interfaces come with its stacks. The network is a share of what it joins, or the wires
of the shared buffer's bandwidth over the die's side, whichever is larger: bandwidth is not free.
Power follows the clock twice: by rate, and by the voltage that it takes. So a limit on power leaves
large slow chips and small fast ones, and a search with several clocks finds which is better.

Chips of `physical-links` differ in their links as well: SerDes take area and edge of the die by
their bandwidth, and are part of its rating. What they are worth depends on the network that they
make up (`fabric.topology`). Those of `physical-banks` differ in the banks and ports of their shared
buffer, which say what it serves and take area and energy (`hardware.physical.banks`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from atoll.base.arrays import Floats
from atoll.hardware.accelerator import GIB, KIB, MIB, Hbm
from atoll.hardware.energy import die_power_W
from atoll.hardware.physical import banks
from atoll.hardware.physical.area import PARTS, area_parts_mm2, total
from atoll.hardware.physical.constants import PUBLISHED, Physics
from atoll.hardware.physical.memories import HBM, Dram
from atoll.hardware.physical.nodes import nodes
from atoll.hardware.physical.physical_chip import PhysicalChip, columns
from atoll.hardware.template.parameter import Columns, Parameter
from atoll.hardware.template.stalls import SCRATCHPAD
from atoll.hardware.template.template import Banked, ChipTemplate, EnergyModel

PROCESSES_NM = (28, 16, 12, 7, 5, 4, 3)
REFERENCE_HZ = 1.05e9
"""At nominal voltage: TPU v4's clock; the energies were fitted to chips of 0.7 to 2.1 GHz."""
LINKS_BPS = 300e9
"""One way, of all links: the A100's and TPU v4's."""
BUDGET_MM2, BUDGET_W = 600.0, 400.0
"""TPU v4's die and an A100's module: large, air-cooled, and a third below the reticle's 858 mm2."""
SRAM_J_PER_BYTE = 1.75e-12
"""Access energy of a 1 MB bank at 7 nm (Jouppi et al., ISCA 2021, Table 2)."""
_PJ, _BITS = 1e-12, 8
_STACK_BYTES = 16 * GIB
_USUAL_NM = 7.0
_STACKS = (2, 4, 6)


def physical_energy(process_nm: ArrayLike, physics: Physics = PUBLISHED) -> EnergyModel:
    """Joules per event of a process with random data, at nominal voltage; wires and interfaces do
    not shrink. Of several processes, columns."""
    node_energy = nodes(process_nm).energy
    logic: Any = float(node_energy) if node_energy.ndim == 0 else node_energy
    busy = physics.sustained * logic * _PJ
    wire = physics.wire_pJ_per_bit_mm * physics.wire_mm * _BITS * _PJ
    return EnergyModel(
        mac_J=physics.mac_pJ * busy,
        vector_op_J=physics.static_lane_pJ * busy,
        core_buffer_J_per_byte=physics.operand_pJ_per_byte * busy,
        glb_J_per_byte=SRAM_J_PER_BYTE * logic + wire,
        hbm_J_per_byte=physics.dram_pJ_per_bit * _BITS * _PJ,
        link_J_per_byte=2 * physics.link_pJ_per_bit * _BITS * _PJ,
        static_W_per_mm2=physics.static_W_per_mm2,
        hbm_W_per_byte=physics.hbm_stack_W / _STACK_BYTES,
    )


def voltage(clock_Hz: Floats, physics: Physics = PUBLISHED) -> Floats:
    """Voltage relative to nominal, V = t + (1 - t) f, with f the clock relative to nominal."""
    return np.asarray(physics.threshold + (1 - physics.threshold) * clock_Hz / REFERENCE_HZ)


def physical_memories(dram: Dram = HBM["hbm2e"], physics: Physics = PUBLISHED) -> tuple[Hbm, ...]:
    """Options of 2, 4 and 6 stacks of a generation, with interface area and rated power."""
    traffic = physics.dram_share * dram.bandwidth_Bps * _BITS * _PJ
    size = dram.GiB * GIB
    idle_W = physics.hbm_stack_W * size / _STACK_BYTES
    stack_W = idle_W + traffic * physics.dram_pJ_per_bit * dram.energy
    area_mm2 = dram.phy_mm2 + dram.controller_mm2
    return tuple(
        Hbm(
            n * size, n * dram.bandwidth_Bps, n * area_mm2, n * stack_W, dram.energy,
            n * dram.edge_mm,
        )
        for n in _STACKS
    )  # fmt: skip


def _area_parts(process_nm: float | None, physics: Physics, chips: Columns) -> dict[str, Floats]:
    """Area by part, without HBM interfaces, which belong to the memory."""
    tensor, vector = chips["tensor_cores"], chips["vector_cores"]
    cells, lanes = chips["width"] * chips["depth"], chips["vector_width"]
    core_bytes = tensor * np.maximum(KIB, cells // 64 * KIB) + vector * np.maximum(
        KIB, lanes // 64 * KIB
    )
    shared, wide_Bpc = chips["glb_bytes"], chips["glb_bandwidth_Bpc"]
    if "banks" in chips:
        shared = banks.single_port_bytes(chips, physics)
        wide_Bpc = banks.port_bytes_per_clock(chips)
    base = columns([PhysicalChip(0.0, REFERENCE_HZ, 0.0, stacks=2.0)])
    parts = area_parts_mm2(
        base
        | {
            "process_nm": np.asarray(process_nm or chips["process_nm"], np.float64),
            "bf16_cells": np.asarray(tensor * cells, np.float64),
            "cores": np.asarray(tensor + vector, np.float64),
            "lanes": np.asarray(vector * lanes, np.float64),
            "scratchpad_bytes": np.asarray(core_bytes + shared, np.float64),
            "link_Bps": np.asarray(chips.get("link_Bps", LINKS_BPS), np.float64),
        },
        physics,
    )
    joined = total(parts[name] for name in PARTS[: PARTS.index("network")])
    wires = physics.wire_mm2_per_Bpc_mm * wide_Bpc * np.sqrt(joined)
    parts["network"] = np.maximum(parts["network"], wires)
    return {
        f"{name}_mm2": np.broadcast_to(parts[name], joined.shape)
        for name in PARTS
        if name not in ("cache", "dram")
    }


def _area_mm2(process_nm: float | None, physics: Physics, chips: Columns) -> Floats:
    return total(_area_parts(process_nm, physics, chips).values())


def _power_W(physics: Physics, chips: Columns, energy: EnergyModel) -> Floats:
    """Power with arrays and lanes busy, the shared buffer (all ports) at `buffer_share` of its
    bandwidth, and links where they are a parameter."""
    used = {"glb_bandwidth_Bpc": chips["glb_bandwidth_Bpc"] * physics.buffer_share}
    if "banks" in chips:
        wide_Bpc = banks.port_bytes_per_clock(chips) * _bank_energy(physics, chips)
        used = {"glb_bandwidth_Bpc": wide_Bpc * physics.buffer_share}
    if "process_nm" in chips:
        energy = physical_energy(chips["process_nm"], physics)
    dynamic_W = die_power_W({**chips, **used}, energy) * voltage(chips["clock_Hz"], physics) ** 2
    moved = physics.link_share * chips.get("link_Bps", np.zeros(1))
    return np.asarray(dynamic_W + moved * 2 * physics.link_pJ_per_bit * _BITS * _PJ)


def _bank_energy(physics: Physics, chips: Columns) -> Floats:
    """Energy per shared-buffer byte relative to the energy model: banks scaled, wires unchanged."""
    bank_J = SRAM_J_PER_BYTE * nodes(chips["process_nm"]).energy
    usual_J = physical_energy(chips["process_nm"], physics).glb_J_per_byte
    return np.asarray(1.0 + (banks.energy(chips, physics) - 1.0) * bank_J / usual_J)


def _edge_mm(physics: Physics, chips: Columns) -> Floats:
    """Die edge that links occupy."""
    return np.asarray(chips["link_Bps"] / (1e9 * physics.serdes_GBps_per_mm))


def physical_template(
    process_nm: float | None,
    physics: Physics = PUBLISHED,
    kind: Literal["", "links", "banks"] = "",
) -> ChipTemplate:
    """The template of a process, under these constants; without one, of several, also with links
    of several bandwidths or several banks."""
    sides, counts = (64, 128, 256), (1, 2, 4, 8, 16, 32, 64)
    fine = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    buffers = tuple(size * MIB for size in (8, 16, 32, 48, 64, 96, 128, 192, 256))
    clocks = (0.7e9, 0.94e9, 1.05e9, 1.2e9, 1.4e9)
    node = Parameter("process_nm", "Process", (7, 5, 3), key="node", unit="nm", silicon=True)
    links = Parameter(
        "link_Bps", "Links", (150e9, 300e9, 600e9), kind="bandwidth", key="links", unit="GB/s",
        per=1e9, silicon=True,
    )  # fmt: skip
    in_banks = (
        Parameter("banks", "Banks", (8, 16, 32, 64, 128, 256), banked=True),
        Parameter("ports", "Ports", (1, 2), unit="a bank", banked=True, optional=True),
    )
    more = {"": (), "links": (links,), "banks": in_banks}[kind]
    banked = Banked(banks.bytes_per_clock, partial(_bank_energy, physics))
    where = "several processes" if process_nm is None else f"{process_nm:g} nm"
    name = f"physical-{kind}" if kind else "physical"
    differing = {"": "", "links": " with several links", "banks": " with a buffer in banks"}[kind]
    return ChipTemplate(
        name=name if process_nm is None else f"physical-{process_nm:g}nm",
        about=f"Systolic chips in {where}{differing}, with all that a die has (docs/chips.md).",
        parameters=(
            *(() if process_nm else (node,)),
            *more,
            Parameter("tensor_cores", "Tensor cores", fine),
            Parameter("vector_cores", "Vector cores", counts),
            Parameter("width", "Array width", sides),
            Parameter("depth", "Array depth", sides),
            Parameter("vector_width", "Vector width", (128, 512, 2048), unit="lanes"),
            Parameter(
                "glb_bytes", "Shared buffer", buffers, kind="bytes", key="glb", unit="MiB", per=MIB
            ),
            Parameter(
                "clock_Hz", "Clock", clocks, kind="frequency", key="clock", unit="GHz", per=1e9,
                optional=True,
            ),
        ),
        area_mm2=partial(_area_mm2, process_nm, physics),
        area_parts=partial(_area_parts, process_nm, physics),
        power_W=partial(_power_W, physics),
        edge_mm=partial(_edge_mm, physics) if kind == "links" else None,
        banked=banked if kind == "banks" else None,
        energy=physical_energy(process_nm or _USUAL_NM, physics),
        energies=None if process_nm else partial(physical_energy, physics=physics),
        voltage=partial(voltage, physics=physics),
        process_nm=process_nm,
        stalls=SCRATCHPAD,
        budget_mm2=BUDGET_MM2,
        budget_W=BUDGET_W,
        reference="physical-tpuv4",
    )  # fmt: skip


LINKED = physical_template(None, kind="links")
BANKED = physical_template(None, kind="banks")
PHYSICAL = (*map(physical_template, (*PROCESSES_NM, None)), LINKED, BANKED)


def redrawn(template: ChipTemplate, physics: Physics) -> ChipTemplate:
    """Rebuild a template with other constants."""
    if template.banked is not None:
        return physical_template(None, physics, "banks")
    linked = template.edge_mm is not None
    return physical_template(template.process_nm, physics, "links" if linked else "")


def redrawn_memories(options: tuple[Hbm, ...], physics: Physics) -> tuple[Hbm, ...]:
    """Rebuild the templates' memories with other constants; memories stated in a file stay."""
    replacements = {
        usual: now
        for dram in HBM.values()
        for usual, now in zip(
            physical_memories(dram), physical_memories(dram, physics), strict=True
        )
    }
    return tuple(replacements.get(option, option) for option in options)
