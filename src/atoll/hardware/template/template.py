"""What a kind of chip is.

Prices and schedules are those of one machine: tensor cores that are systolic arrays, vector cores,
a shared buffer (GLB), HBM, and as many further buffers between the last two as a template has. A
template says which parameters tell its chips apart, how large they are and what they draw, and
gives the machine's numbers (`MACHINE`) for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from numpy.typing import ArrayLike

from atoll.base.arrays import Floats
from atoll.hardware.template.cores import CostModel
from atoll.hardware.template.parameter import Columns, Parameter
from atoll.hardware.template.stalls import NO_STALLS, Stalls

MACHINE = (
    "tensor_cores", "vector_cores", "width", "depth", "vector_width", "glb_bytes", "clock_Hz",
)  # fmt: skip
"""Counts of cores, columns and rows of an array, lanes, bytes of the shared buffer, clock."""


@dataclass(frozen=True, slots=True)
class EnergyModel:
    """Joules per event, and static watts per modelled square millimetre."""

    mac_J: float
    vector_op_J: float
    core_buffer_J_per_byte: float
    glb_J_per_byte: float
    hbm_J_per_byte: float
    link_J_per_byte: float
    static_W_per_mm2: float
    hbm_W_per_byte: float = 0.0
    """Watts per byte of capacity, without traffic."""


@dataclass(frozen=True, slots=True)
class BufferLevels:
    """Buffers between the shared buffer and HBM, the nearest to the cores first."""

    names: tuple[str, ...]
    sizes: Callable[[Columns], tuple[Floats, Floats]]
    """Bytes, and bytes per clock, of each design: (designs, levels)."""
    J_per_byte: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Banked:
    """A shared buffer whose bandwidth follows from parameters of the template."""

    bytes_per_clock: Callable[[Columns], Floats]
    energy: Callable[[Columns], Floats]
    """Energy per byte relative to the energy model."""


def unchanged_columns(columns: Columns) -> Columns:
    return columns


@dataclass(frozen=True, slots=True)
class ChipTemplate:
    """A kind of chip. Its functions take one array per parameter, with one value per design."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    """The first vary slowest in the order of designs. Area, power and every rate grow, or stay as
    they are, with each of them."""
    area_mm2: Callable[[Columns], Floats]
    """Without HBM's interfaces."""
    area_parts: Callable[[Columns], Mapping[str, Floats]]
    """Area by part."""
    power_W: Callable[[Columns, EnergyModel], Floats]
    """Power of cores, buffers and links, all busy in every clock with random data."""
    rating_W: Callable[[Columns], Floats] | None = None
    """The same as vendors rate chips; None: as `power_W`."""
    edge_mm: Callable[[Columns], Floats] | None = None
    """Die edge used by links, where they are a parameter (`link_Bps`); HBM interfaces need the
    remaining edge."""
    machine: Callable[[Columns], Columns] = unchanged_columns
    """The columns with those of `MACHINE` that are no parameters."""
    banked: Banked | None = None
    """None: bytes a clock of the shared buffer follow a space's rule or a chip's own number."""
    levels: BufferLevels | None = None
    cost_model: CostModel | None = None
    """What prices products on its chips; none: our mapper, which knows no further levels."""
    energy: EnergyModel | None = None
    """Energy model at nominal voltage; None: the 7 nm model of `hardware.energy`."""
    energies: Callable[[ArrayLike], EnergyModel] | None = None
    """Energy model by process, where that is a parameter (`process_nm`)."""
    voltage: Callable[[Floats, Floats], Floats] | None = None
    """Voltage relative to nominal by clock and process, which is 0 where it is no parameter; None:
    all designs have one voltage."""
    process_nm: float | None = None
    """Process of the areas; None: no single process, so that chips have no price."""
    dies_usd: Callable[[Columns, Floats], Floats] | None = None
    """Price of the good dies of a package by its columns and area with HBM interfaces; None: one
    die without spare cores."""
    defects: tuple[tuple[float, float], ...] = ()
    """Stated defects per cm2 by process in nm, in place of those of the nodes."""
    stalls: Stalls = NO_STALLS
    """Stalls of chips that do not state their own."""
    budget_mm2: float | None = None
    budget_W: float | None = None
    """Default limits of a search over the template's lists; None: unlimited."""
    reference: str = "phaze-tpuv4"
    """Catalogue chip with which its chips are compared."""

    @property
    def extra_parameters(self) -> tuple[Parameter, ...]:
        """Parameters that are not numbers of the machine."""
        return tuple(p for p in self.parameters if p.name not in MACHINE)
