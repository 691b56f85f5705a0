"""Spaces of chips in YAML: a list per parameter, HBM options and constraints.

tensor_cores: {powers_of_two: [1, 64]}     # or a list, or {range: [8, 64], step: 8}, or one value
width: [64, 128]
...
hbm:
  - {capacity: 32 GiB, bandwidth: 1.2 TB/s}
  - hbm3                                   # two, four or six stacks of that generation
  - {generation: hbm3e, stacks: 5}         # or another number of them
links: [300 GB/s, 600 GB/s]                # of template physical-links: one way, of all links
topology: [torus, switch-64]               # that they are tried in
banks: [32, 64]                            # of template physical-banks: of the shared buffer
ports: [1, 2]                              # of each bank
dies: [1, 2]                               # of template physical-dies: per package
die_links: 10 TB/s                         # between them, both ways
spare_cores: [0, 1]                        # tensor cores per die beyond those enabled
defects: {7: 0.09, 5: 0.11}                # per cm2 by process, or one number
constraints: {max_area: 400 mm2}           # at most a reticle, 858 mm2, per die
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, create_model

from atoll.base import units
from atoll.base.errors import AtollError
from atoll.base.units import BANDWIDTH, FREQUENCY, parse_quantity
from atoll.fabric.topology import parse_topology
from atoll.files import ranges
from atoll.files.yamlfile import Density, FileModel, load_yaml
from atoll.hardware.accelerator import GLB_BPC_PER_MIB
from atoll.hardware.catalog import DefectsFile, GlbBandwidthFile, HbmFile, stated_defects
from atoll.hardware.physical.banks import MOST_PORTS
from atoll.hardware.physical.memories import HBM
from atoll.hardware.product_space import MAX_POINTS, ProductSpace
from atoll.hardware.silicon.physical import (
    LINKED,
    PHYSICAL,
    PROCESSES_NM,
    physical_memories,
    template_memories,
)
from atoll.hardware.silicon.systolic import SYSTOLIC, TEMPLATES
from atoll.hardware.space import DEFAULT_GLB, HBM_OPTIONS, DesignAxes, DesignLimits, template_axes

TOPOLOGIES = ("switch-8", "switch-64", "torus", "fat-tree")
"""Topologies tried where a space names none."""


def _expanded(number: Callable[[object], float], base_unit: str) -> BeforeValidator:
    """Turns the short forms of a list into the list, written back in the base unit."""

    def written(values: list[int]) -> list[Any]:
        return [f"{value} {base_unit}" for value in values] if base_unit else list(values)

    def expand(value: Any) -> Any:
        if not isinstance(value, dict):
            return value if isinstance(value, list) else [value]
        form = set(value)
        bounds = value.get("powers_of_two", value.get("range"))
        if form not in ({"powers_of_two"}, {"range", "step"}) or not (
            isinstance(bounds, list) and len(bounds) == 2
        ):
            raise ValueError(
                "expected a list, {powers_of_two: [first, last]} or "
                f"{{range: [first, last], step: ...}}, got {value!r}"
            )
        first, last = (round(number(bound)) for bound in bounds)
        if first < 1 or last < first:
            raise ValueError(f"expected first to last, above zero, got {bounds!r}")
        if "range" in form:
            step = round(number(value["step"]))
            if step < 1 or (last - first) // step >= MAX_POINTS:
                raise ValueError(f"expected at most {MAX_POINTS:,} steps above zero, got {value!r}")
            return written(list(range(first, last + 1, step)))
        powers = [2**k for k in range((first - 1).bit_length(), last.bit_length())]
        if not powers:
            raise ValueError(f"there is no power of two in {bounds!r}")
        return written(powers)

    return BeforeValidator(expand)


def _integer(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"expected a whole number, got {value!r}")
    return value


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        repeated = next(value for value, count in Counter(values).items() if count > 1)
        raise ValueError(f"{repeated:g} is listed twice")
    return values


def _list_of(item: Any, number: Callable[[object], float], base_unit: str = "") -> Any:
    """Return the type of a list of distinct values, which may have a short form."""
    expanded, distinct = _expanded(number, base_unit), AfterValidator(_distinct)
    return Annotated[tuple[item, ...], _List, expanded, distinct]


_List = Field(min_length=1)
_LISTS: dict[str, Any] = {
    "count": _list_of(ranges.CoreCount, _integer),
    "spares": _list_of(Annotated[int, Field(strict=True, ge=0, le=ranges.MOST_CORES)], _integer),
    "bytes": _list_of(ranges.BufferBytes, units.parse_bytes, "B"),
    "frequency": _list_of(ranges.ClockHz, partial(parse_quantity, dimension=FREQUENCY), "Hz"),
    "bandwidth": _list_of(
        ranges.DeviceBandwidth, partial(parse_quantity, dimension=BANDWIDTH), "B/s"
    ),
}


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _stacks(value: Any) -> Any:
    """Replace generation names by two, four and six stacks, after the stated options."""
    if not isinstance(value, list):
        return value
    named = [option for option in value if isinstance(option, str) and option in HBM]
    stacks = [
        HbmFile(generation=option, stacks=hbm.stacks)
        for option in named
        for hbm in physical_memories(option)
    ]
    return [option for option in value if option not in named] + stacks


class ConstraintsFile(FileModel):
    """Constraints on a chip together with its HBM."""

    max_area_mm2: ranges.ChipArea | None = Field(None, alias="max_area")
    min_area_mm2: ranges.ChipArea | None = Field(None, alias="min_area")
    single_cores_may_be_smaller: Annotated[bool, Field(strict=True)] = False
    max_power_W: ranges.ChipPower | None = Field(None, alias="max_power")
    max_W_per_mm2: Density | None = Field(None, alias="cooling")
    min_peak_flops: ranges.PeakFlops | None = Field(None, alias="min_peak")
    min_hbm_capacity_bytes: ranges.MemoryBytes | None = Field(
        default=None, alias="min_hbm_capacity"
    )
    min_hbm_bandwidth_Bps: ranges.DeviceBandwidth | None = Field(
        default=None, alias="min_hbm_bandwidth"
    )

    def limits(self, reticle_mm2: float) -> DesignLimits:
        area_mm2 = min(self.max_area_mm2 or reticle_mm2, reticle_mm2)
        return DesignLimits(
            **dict(self) | {"max_area_mm2": area_mm2, "edge": True, "per_die": True}
        )


class ChipSpaceFile(FileModel):
    """Fields of all space files; the template's parameters add the lists."""

    name: str = Field(min_length=1)
    source: str = ""
    template: str = SYSTOLIC.name
    glb_bandwidth: GlbBandwidthFile = GlbBandwidthFile(per_mib=GLB_BPC_PER_MIB)
    hbm: Annotated[tuple[HbmFile, ...], _List, BeforeValidator(_stacks)]
    defects: DefectsFile = None
    topology: Annotated[tuple[str, ...], _List, BeforeValidator(_listed)] | None = None
    constraints: ConstraintsFile = ConstraintsFile.model_validate({})

    def topologies(self) -> tuple[str, ...]:
        """Topologies in which links are tried; empty for templates without links."""
        if TEMPLATES[self.template].edge_mm is None:
            if self.topology is None:
                return ()
            raise AtollError(
                f"space {self.name}: topology: only chips of template {LINKED.name} have links "
                "that tell them apart."
            )
        names = (parse_topology(name).name for name in self.topology or TOPOLOGIES)
        return tuple(dict.fromkeys(names))

    def axes(self) -> DesignAxes:
        template = TEMPLATES[self.template]
        lists = {p.name: getattr(self, p.key or p.name) for p in template.parameters}
        for node in lists.get("process_nm", ()):
            if node not in PROCESSES_NM:
                nodes = ", ".join(map(str, PROCESSES_NM))
                raise AtollError(f"space {self.name}: node: {node} nm is not known, only {nodes}.")
        if template.banked is not None and "glb_bandwidth" in self.model_fields_set:
            parameters = (p.key or p.name for p in template.parameters if p.banked or p.slows)
            raise AtollError(
                f"space {self.name}: glb_bandwidth: of template {template.name} it follows from "
                f"{' and '.join(parameters)}; leave it out."
            )
        if max(lists.get("ports") or (1,)) > MOST_PORTS:
            raise AtollError(f"space {self.name}: ports: a bank has 1 or 2.")
        template = stated_defects(f"space {self.name}", template, self.defects)
        return DesignAxes.with_defaults(template, **lists)


@cache
def space_file(template: str = SYSTOLIC.name) -> type[ChipSpaceFile]:
    """Return the file model of spaces of a template."""
    fields: dict[str, Any] = {"template": (Literal[template], template)}
    for parameter in TEMPLATES[template].parameters:
        lists = _LISTS[parameter.kind]
        if parameter.tied:
            tied = BeforeValidator(partial(_unless, parameter.tied))
            fields[parameter.key or parameter.name] = (Annotated[lists | None, tied], None)
        else:
            usual = parameter.values if parameter.optional else ...
            fields[parameter.key or parameter.name] = (lists, usual)
    return create_model("SpaceFile", __base__=ChipSpaceFile, **fields)


def _unless(tied: str, value: Any) -> Any:
    return None if value == tied else value


def read_space(path: str | Path, template: str | None = None) -> ProductSpace:
    """The space that a YAML file describes, not built; of that template unless it names one."""

    def form(fields: Mapping[str, str]) -> tuple[type[ChipSpaceFile], Mapping[str, str]]:
        return space_file(fields.get("template", template or SYSTOLIC.name)), {}

    file = load_yaml(path, form)
    space = ProductSpace(
        name=file.name,
        axes=file.axes(),
        hbm_options=tuple(hbm.hbm() for hbm in file.hbm),
        glb_bandwidth=file.glb_bandwidth.rule(),
        topologies=file.topologies(),
    )
    return replace(space, limits=file.constraints.limits(space.reticle_mm2))


def template_space(template: str) -> ProductSpace:
    """A template's own lists up to a reticle, with the memories of PHAZE's space; physical ones
    with stacks that have an interface and a power."""
    named = TEMPLATES[template]
    memories = template_memories(named) if named in PHYSICAL else HBM_OPTIONS
    topologies = () if named.edge_mm is None else TOPOLOGIES
    axes, limits = template_axes(named), DesignLimits(edge=True, per_die=True)
    space = ProductSpace(template, axes, memories, DEFAULT_GLB, limits, topologies)
    return replace(space, limits=replace(limits, max_area_mm2=space.reticle_mm2))
