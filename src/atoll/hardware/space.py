"""Spaces of chips: arrays with one entry per design, and the rules that generate them.

A space is a product of lists, one per parameter, cut down by constraints. HBM is kept apart: every
design goes with every HBM option that `hbm_allowed` permits, since neither area of the cores nor
operator times on the array depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Bools, Floats
from atoll.base.units import counted
from atoll.hardware.accelerator import GIB, GLB_BPC_PER_MIB, Accelerator, GlbBandwidth, Hbm
from atoll.hardware.energy import hbm_idle_W, hbm_power_W, template_energy
from atoll.hardware.physical.nodes import RETICLE_MM2
from atoll.hardware.silicon.systolic import SYSTOLIC
from atoll.hardware.template.parameter import Columns
from atoll.hardware.template.template import MACHINE, ChipTemplate

# TPU v4's HBM bandwidth (Jouppi et al., ISCA 2023, Table 4: 1200 GB/s).
HBM_BANDWIDTH_BPS = 1.2e12
HBM_OPTIONS = tuple(Hbm(capacity * GIB, HBM_BANDWIDTH_BPS) for capacity in (32, 64, 80))

DEFAULT_GLB = GlbBandwidth(per_mib_Bpc=GLB_BPC_PER_MIB)


@dataclass(frozen=True, eq=False)
class DesignSpace:
    """One entry per design in every array; the arrays are read-only. Columns are attributes too."""

    name: str
    columns: Columns  # parameters of the template, what follows from them, and `glb_bandwidth_Bpc`
    area_mm2: Floats  # without HBM PHYs; see area_with
    hbm_options: tuple[Hbm, ...]
    hbm_allowed: Bools  # [design, HBM option]: within the constraints together
    template: ChipTemplate = SYSTOLIC

    def __post_init__(self) -> None:
        size = len(self.area_mm2)
        for name, values in (*self.columns.items(), ("area_mm2", self.area_mm2)):
            if values.shape != (size,):
                raise ValueError(f"space {self.name}: {name} has shape {values.shape}, not {size}")
            values.setflags(write=False)
        if self.hbm_allowed.shape != (size, len(self.hbm_options)):
            raise ValueError(f"space {self.name}: hbm_allowed has shape {self.hbm_allowed.shape}")
        self.hbm_allowed.setflags(write=False)

    def __getattr__(self, name: str) -> NDArray[Any]:
        columns: Columns = self.__dict__.get("columns", {})
        if name not in columns:
            raise AttributeError(name)
        return columns[name]

    def __len__(self) -> int:
        return len(self.area_mm2)

    def __repr__(self) -> str:
        return (
            f"Space({self.name}: {counted(len(self), 'design')} x "
            f"{counted(len(self.hbm_options), 'HBM option')}, "
            f"{self.area_mm2.min(initial=np.inf):.2f} to "
            f"{self.area_mm2.max(initial=-np.inf):.2f} mm2)"
        )

    def area_with(self, hbm: Hbm) -> Floats:
        """Areas with the PHYs of one HBM option on the die."""
        return self.area_mm2 + hbm.area_mm2

    def peak_power_with(self, hbm: Hbm) -> Floats:
        """`peak_power_W` of every design with one HBM option."""
        energy = template_energy(self.template)
        dynamic = self.template.power_W(self.columns, energy)
        static = energy.static_W_per_mm2 * self.area_with(hbm)
        return dynamic + hbm_power_W(hbm, energy) + static

    def resting_power_with(self, hbm: Hbm) -> Floats:
        """Idle power of every design with one HBM option."""
        energy = template_energy(self.template)
        return energy.static_W_per_mm2 * self.area_with(hbm) + hbm_idle_W(hbm, energy)

    def values(self, index: int) -> dict[str, float]:
        """The parameters of one design."""
        return {p.name: self.columns[p.name][index].item() for p in self.template.parameters}

    def accelerator(self, index: int, hbm: Hbm | None = None) -> Accelerator:
        """One design as a device; `hbm` defaults to the first option that it may take."""
        if hbm is None:
            hbm = self.hbm_options[int(np.argmax(self.hbm_allowed[index]))]
        machine = {name: self.columns[name][index].item() for name in MACHINE}
        values, stated = self.values(index), self.columns.get("core_buffer_bytes")
        return Accelerator(
            **machine,
            glb_bandwidth_Bpc=float(self.glb_bandwidth_Bpc[index]),
            hbm=hbm,
            name=f"{self.name}/{index}",
            template=None if self.template is SYSTOLIC else self.template,
            stated_core_buffer_bytes=0 if stated is None else int(stated[index]),
            more=tuple((p, values[p.name]) for p in self.template.extra_parameters),
        )

    def subset(self, indices: Sequence[int] | NDArray[Any]) -> DesignSpace:
        """The designs at these indices (or under this mask), in that order."""
        chosen = np.asarray(indices)
        if chosen.size == 0:
            chosen = chosen.astype(np.int64)
        return replace(
            self,
            columns={name: values[chosen] for name, values in self.columns.items()},
            area_mm2=self.area_mm2[chosen],
            hbm_allowed=self.hbm_allowed[chosen],
        )

    def joined(self, *others: DesignSpace) -> DesignSpace:
        """The designs of all, one after the other; all have the same HBM options."""
        every = (self, *others)
        return replace(
            self,
            columns={n: np.concatenate([s.columns[n] for s in every]) for n in self.columns},
            area_mm2=np.concatenate([s.area_mm2 for s in every]),
            hbm_allowed=np.concatenate([s.hbm_allowed for s in every]),
        )


@dataclass(frozen=True)
class DesignAxes:
    """The list of values of each parameter; tied parameters without a list are left out."""

    values: Mapping[str, tuple[float, ...]]
    template: ChipTemplate = SYSTOLIC

    @staticmethod
    def with_defaults(
        template: ChipTemplate = SYSTOLIC, **values: tuple[float, ...] | None
    ) -> DesignAxes:
        """Build axes, with template values for optional parameters that are not listed."""
        stated = {name: tuple(listed) for name, listed in values.items() if listed is not None}
        usual = {p.name: p.values for p in template.parameters if p.optional}
        return DesignAxes(usual | stated, template)

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters that have a list; the first varies slowest in the order of designs."""
        return tuple(p.name for p in self.template.parameters if p.name in self.values)

    def lists(self) -> tuple[tuple[float, ...], ...]:
        return tuple(self.values[name] for name in self.names)

    @property
    def points(self) -> int:
        return prod(len(values) for values in self.lists())

    def columns(self, listed: Iterable[NDArray[Any]]) -> Columns:
        """Columns of designs, from those of the parameters that have a list."""
        by_name = dict(zip(self.names, listed, strict=True))
        tied = {p.name: by_name[p.tied] for p in self.template.parameters if p.name not in by_name}
        return self.template.machine(by_name | tied)


@dataclass(frozen=True, slots=True)
class DesignLimits:
    """Constraints on a design with its HBM."""

    max_area_mm2: float | None = None
    min_area_mm2: float | None = None
    single_cores_may_be_smaller: bool = False  # PHAZE spares one-core designs from min_area
    max_power_W: float | None = None
    max_W_per_mm2: float | None = None  # device power per die area
    min_peak_flops: float | None = None
    min_hbm_capacity_bytes: int | None = None
    min_hbm_bandwidth_Bps: float | None = None
    edge: bool = False
    """Whether HBM and link interfaces must fit the edge of a square die (templates with links)."""
    per_die: bool = False
    """Whether each of several dies must fit a reticle and have an equal share of cores and stacks
    (templates with dies)."""


def allowed_options(space: DesignSpace, limits: DesignLimits) -> Bools:
    """[design, HBM option]: which pairs satisfy the limits."""
    allowed = np.ones_like(space.hbm_allowed)
    for _, satisfied in checks(space, limits):
        allowed &= satisfied
    return allowed


def checks(space: DesignSpace, limits: DesignLimits) -> Iterator[tuple[str, Bools]]:
    """Each stated constraint in words, with whether each [design, HBM option] satisfies it."""
    options = space.hbm_options
    shape = space.hbm_allowed.shape
    if limits.max_area_mm2 is not None or limits.min_area_mm2 is not None:
        area = np.stack([space.area_with(hbm) for hbm in options], axis=1)
        if limits.max_area_mm2 is not None:
            reticle = limits.max_area_mm2 == RETICLE_MM2
            name = "a reticle (26 mm x 33 mm) of" if reticle else "max_area"
            yield f"{name} {limits.max_area_mm2:g} mm2", area <= limits.max_area_mm2
        if limits.min_area_mm2 is not None:
            large = area >= limits.min_area_mm2
            if limits.single_cores_may_be_smaller:
                large |= ((space.tensor_cores == 1) | (space.vector_cores == 1))[:, None]
            yield f"min_area {limits.min_area_mm2:g} mm2", large
    if limits.edge and space.template.edge_mm is not None:
        links_mm = space.template.edge_mm(space.columns)
        sides_mm = [4.0 * np.sqrt(space.area_with(hbm)) - hbm.edge_mm for hbm in options]
        yield "edge of the die", np.stack(sides_mm, axis=1) >= links_mm[:, None]
    if limits.per_die and "dies" in space.columns:
        dies = space.columns["dies"][:, None]
        die_mm2 = np.stack([space.area_with(hbm) for hbm in options], axis=1) / dies
        yield f"a reticle (26 mm x 33 mm) of {RETICLE_MM2:g} mm2 per die", die_mm2 <= RETICLE_MM2
        stacks = np.array([hbm.stacks for hbm in options])
        cores = space.columns["tensor_cores"], space.columns["vector_cores"]
        equal = [np.asarray(count)[:, None] % dies == 0 for count in cores]
        yield "an equal share per die", equal[0] & equal[1] & (stacks % dies == 0)
    if limits.max_power_W is not None:
        power = np.stack([space.peak_power_with(hbm) for hbm in options], axis=1)
        yield f"max_power {limits.max_power_W:g} W", power <= limits.max_power_W
    if limits.max_W_per_mm2 is not None:
        dense = [space.peak_power_with(hbm) / space.area_with(hbm) for hbm in options]
        words = f"cooling {limits.max_W_per_mm2:g} W/mm2"
        yield words, np.stack(dense, axis=1) <= limits.max_W_per_mm2
    if limits.min_peak_flops is not None:
        cells = space.tensor_cores * space.width * space.depth
        fast = 2.0 * cells * space.clock_Hz >= limits.min_peak_flops
        yield (
            f"min_peak {limits.min_peak_flops / 1e12:g} TFLOP/s",
            np.broadcast_to(fast[:, None], shape),
        )
    if limits.min_hbm_capacity_bytes is not None:
        enough = np.array([h.capacity_bytes >= limits.min_hbm_capacity_bytes for h in options])
        text = f"min_hbm_capacity {limits.min_hbm_capacity_bytes / GIB:g} GiB"
        yield text, np.broadcast_to(enough, shape)
    if limits.min_hbm_bandwidth_Bps is not None:
        enough = np.array([h.bandwidth_Bps >= limits.min_hbm_bandwidth_Bps for h in options])
        text = f"min_hbm_bandwidth {limits.min_hbm_bandwidth_Bps / 1e9:g} GB/s"
        yield text, np.broadcast_to(enough, shape)


def template_axes(template: ChipTemplate) -> DesignAxes:
    """Return the axes with a template's default lists."""
    return DesignAxes({p.name: p.values for p in template.parameters if not p.tied}, template)
