"""The wafer template: a grid of dies, each a core-array chip with its DRAM, joined by mesh links.

Couplings. A die's site holds its compute silicon, its HBM stacks and a halo; the grid must fit the
usable wafer. The site's edge is shared: what HBM stacks take of the perimeter is lost to links, so
that die-to-die bandwidth = (perimeter - stacks x stack edge) x shoreline density. More memory means
fewer dies and slower links.

Sources
  [D1]     Talpes et al., "DOJO: The Microarchitecture of Tesla's Exa-Scale Computer", Hot Chips 34:
           645 mm2, 354 nodes of 1.25 MB, 362 TFLOP/s bf16 in 7 nm.
  [Gemini] Cai et al., "Gemini: Mapping and Architecture Co-exploration for Large-scale DNN Chiplet
           Accelerators", HPCA 2024 (released code): bonding yields of 0.95 to 0.99.
Power, yield, wafer prices and DRAM's price are those of every chip (`hardware.physical`). Shoreline
density, the area and edge of an HBM stack are assumptions of this template; a wafer file can state
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot

from atoll.base.errors import AtollError
from atoll.fabric.mesh import Mesh
from atoll.hardware.accelerator import GIB, Accelerator, Hbm
from atoll.hardware.area import area_mm2, columns_area_mm2, columns_area_parts
from atoll.hardware.physical.constants import PUBLISHED
from atoll.hardware.physical.die import die_yield
from atoll.hardware.physical.nodes import nodes
from atoll.hardware.physical.physical_chip import PhysicalChip, columns
from atoll.hardware.physical.power import power_parts_W
from atoll.hardware.physical.price import USUAL_PRICES
from atoll.hardware.silicon.chip import chip_columns, chip_stalls
from atoll.hardware.silicon.physical import PROCESSES_NM

# Die silicon per modelled square millimetre (`hardware.area` is a 22 nm model without control and
# wires): 645 mm2 of [D1] against what the model gives for 354 nodes of 16 x 16 cells and 442.5 MB.
D1_NM = 7.0
_LOGIC = ("tensor_arrays_mm2", "vector_lanes_mm2")
"""Parts that shrink as logic does; others as memories do."""
D1_AREA_SCALE = 645.0 / float(area_mm2(354, 354, 16, 16, 16, 442_500_000))

# A wafer is 300 mm across; with their corners cut, WSE-2 and WSE-3 are squares with a diagonal of
# 304 mm. Sites may be twice as long as wide, more than a reticle field (26 x 33, 17.9 x 30.7 mm).
LARGEST_DIAGONAL_MM = 305.0
LONGEST_SITE = 2.0

PROCESSES = {f"{nm:g}nm": float(nm) for nm in reversed(PROCESSES_NM)}


@dataclass(frozen=True, slots=True)
class DramStack:
    """One HBM stack beside a die: its memory, the area and the edge that it takes."""

    capacity_bytes: int
    bandwidth_Bps: float
    area_mm2: float
    edge_mm: float


@dataclass(frozen=True)
class Wafer:
    """One wafer. `rows` x `columns` dies; `core` is a die's compute without memory."""

    name: str
    rows: int
    columns: int
    core: Accelerator
    stacks: int
    stack: DramStack
    usable_mm2: float
    halo_mm2: float
    link_latency_s: float
    io_Bps: float
    """Into and out of the wafer, one direction: to other wafers, or to memory beside it."""
    shoreline_Bps_per_mm: float = 0.0
    stated_link_Bps: float | None = None
    """One link in one direction; None: what the free edge gives."""
    stated_die_mm2: float | None = None
    """Area of a die's silicon; None: the area model, scaled by Dojo D1's and by the process."""
    unit_cells: int | None = None
    """Multiply-adds that share their operands; None: those of a core's whole array."""
    sram_memory: bool = False  # no DRAM: a die's shared buffer is its main memory (WSE-like)
    parameter_store: bool = False
    """Weights may live in memory behind the wafer's ports (weight streaming); where a die has no
    DRAM, inputs of layers wait there too for their backward pass."""
    efficiency: float = 1.0  # measured share of the modelled rate of a die's operators
    step_s: float = 0.0  # fixed time per step: the host, and its external memory between steps
    process: str = "7nm"
    bond_yield: float = 0.99
    link_J_per_byte: float = 5.0 * 8 * 1e-12
    max_power_W: float | None = None

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise AtollError(f"wafer {self.name}: {problem}")

    def _problems(self) -> Iterator[str]:
        """Yield why the wafer cannot be built; later checks need the earlier ones to pass."""
        if self.process not in PROCESSES:
            yield f"process: allowed are {', '.join(PROCESSES)}; got {self.process!r}."
        for name in ("bond_yield", "efficiency"):
            value = getattr(self, name)
            if not 0.0 < value <= 1.0:
                yield f"{name}: expected more than 0 and at most 1, got {value:g}."
        if self.stacks == 0 and not self.sram_memory:
            yield (
                "dram: no stacks, so that a die has no memory; give at least one stack, or say "
                "sram_memory: true."
            )
        needed, grid = self.site_mm2 * self.dies, f"grid: {self.rows} x {self.columns} dies"
        if needed > self.usable_mm2 * (1 + 1e-9):
            yield (
                f"{grid} of {self.site_mm2:.0f} mm2 take {needed:,.0f} mm2, but "
                f"{self.usable_mm2:,.0f} mm2 are usable; at most "
                f"{int(self.usable_mm2 // self.site_mm2)} such dies fit."
            )
        width, height = self.outline_mm
        if hypot(width, height) > LARGEST_DIAGONAL_MM:
            yield (
                f"{grid} of {self.site_mm2:.0f} mm2 are {width:.0f} x {height:.0f} mm at best, but "
                "a wafer is 300 mm across; choose rows and columns closer to each other."
            )
        edge = self.stacks * self.stack.edge_mm
        if edge >= self.perimeter_mm:
            yield (
                f"dram: {self.stacks} stacks take {edge:.0f} mm of a die's edge, but it has "
                f"{self.perimeter_mm:.0f} mm and links need some of it; use fewer stacks."
            )
        if self.link_Bps <= 0.0:
            yield "link: bandwidth or bandwidth_per_mm must be positive."
        if self.max_power_W is not None and self.peak_power_W > self.max_power_W:
            yield (
                f"max_power: {self.peak_power_W / 1e3:.1f} kW at peak, but "
                f"{self.max_power_W / 1e3:.1f} kW are allowed; lower the clock or the core count."
            )

    @cached_property
    def mesh(self) -> Mesh:
        return Mesh(self.name, self.rows, self.columns, self.link_Bps, self.link_latency_s)

    @property
    def dies(self) -> int:
        return self.rows * self.columns

    @cached_property
    def die_mm2(self) -> float:
        """Silicon of one die, without HBM."""
        if self.stated_die_mm2 is not None:
            return self.stated_die_mm2
        core = chip_columns(self.core)
        d1, node = nodes(D1_NM), nodes(PROCESSES[self.process])
        logic = float(node.logic / d1.logic)
        memory = float(d1.macro_bytes_per_mm2 / node.macro_bytes_per_mm2)
        grown_mm2 = sum(
            float(mm2[0]) * ((logic if name in _LOGIC else memory) - 1.0)
            for name, mm2 in columns_area_parts(core).items()
        )
        return (float(columns_area_mm2(core)[0]) + grown_mm2) * D1_AREA_SCALE

    @cached_property
    def site_mm2(self) -> float:
        return self.die_mm2 + self.stacks * self.stack.area_mm2 + self.halo_mm2

    @property
    def outline_mm(self) -> tuple[float, float]:
        """Width and height of the grid, whose sites are as long as make it most like a square."""
        tall = min(LONGEST_SITE, max(1.0 / LONGEST_SITE, self.columns / self.rows))
        side = float(self.site_mm2**0.5)
        return self.columns * side / float(tall**0.5), self.rows * side * float(tall**0.5)

    @cached_property
    def perimeter_mm(self) -> float:
        """Edge of a square site."""
        return 4.0 * float(self.site_mm2**0.5)

    @cached_property
    def link_Bps(self) -> float:
        """One link, one direction: a quarter of what the free edge carries."""
        if self.stated_link_Bps is not None:
            return self.stated_link_Bps
        free = self.perimeter_mm - self.stacks * self.stack.edge_mm
        return free * self.shoreline_Bps_per_mm / 4.0

    @cached_property
    def chip(self) -> Accelerator:
        """A die for the cost models: its clock scaled by `efficiency`, and its memory."""
        c = replace(self.core, clock_Hz=self.efficiency * self.core.clock_Hz)
        if self.sram_memory:
            memory = Hbm(c.glb_bytes, c.glb_bandwidth_Bpc * c.clock_Hz, power_W=0.0)
            # SRAM has no refreshes and no rows to open.
            c = replace(c, stalls=replace(chip_stalls(c), hbm=1.0))
        else:
            stacks, stack = self.stacks, self.stack
            memory = Hbm(stacks * stack.capacity_bytes, stacks * stack.bandwidth_Bps)
        return replace(c, hbm=memory, name=self.name)

    @property
    def inputs_outside(self) -> bool:
        """Whether the inputs of layers wait outside the wafer for their backward pass."""
        return self.sram_memory and self.parameter_store

    @property
    def memory_bytes(self) -> float:
        """Per die. Without DRAM half of the buffer holds tensors, half feeds the cores."""
        return self.chip.hbm.capacity_bytes * (0.5 if self.sram_memory else 1.0)

    @property
    def peak_flops(self) -> float:
        return self.dies * self.core.peak_flops

    @cached_property
    def power_parts_W(self) -> dict[str, float]:
        """Power of the wafer with all units busy, by part; links with the wafer's link energy,
        static power with the stated area."""
        c = self.core
        array = c.width * c.depth
        die = PhysicalChip(
            process_nm=PROCESSES[self.process],
            clock_Hz=c.clock_Hz,
            bf16_cells=c.tensor_cores * array,
            unit_cells=self.unit_cells or array,
            lanes=c.vector_cores * c.vector_width,
            stacks=self.stacks,
            dram_Bps=self.stacks * self.stack.bandwidth_Bps,
            on_wafer=True,
        )
        die_W = {name: float(watts[0]) for name, watts in power_parts_W(columns([die])).items()}
        die_W["static"] = PUBLISHED.static_W_per_mm2 * self.die_mm2
        links = 2 * (self.rows * (self.columns - 1) + self.columns * (self.rows - 1))
        busy = PUBLISHED.link_share * links * self.link_Bps * self.link_J_per_byte
        return {name: self.dies * watts for name, watts in die_W.items()} | {"links": busy}

    @property
    def peak_power_W(self) -> float:
        """Power with all units busy, memory and links at the traffic of products at peak."""
        return sum(self.power_parts_W.values())

    @cached_property
    def die_yield(self) -> float:
        return float(die_yield(self.die_mm2, PROCESSES[self.process]))

    @property
    def dead_share(self) -> float:
        """Share of dies that fail on a finished wafer of tested dies: those lost in bonding."""
        return 1.0 - self.bond_yield

    @cached_property
    def cost_dollars(self) -> float:
        """Cost of silicon / yield, the carrier wafer and DRAM, divided by the bonding yield."""
        wafer_mm2 = 70_686.0  # a 300 mm wafer
        silicon = self.dies * self.die_mm2 / self.die_yield
        price = float(nodes(PROCESSES[self.process]).wafer_usd)
        dram_GiB = self.dies * self.stacks * self.stack.capacity_bytes / GIB
        dram = dram_GiB * USUAL_PRICES.hbm_usd_per_GiB
        return (silicon / wafer_mm2 * price + price + dram) / self.bond_yield
