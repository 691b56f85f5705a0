"""Chips and networks that exist, as data files, and the reading of a user's own.

A name is looked up in the catalogue; anything that ends in .yaml or .yml is read as a file of the
same form.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, model_validator

from atoll.base import units
from atoll.base.errors import AtollError
from atoll.fabric.network import FabricLevel, Network
from atoll.fabric.topology import SWITCHED, TORUS, parse_bandwidth, parse_linked_network
from atoll.files import ranges
from atoll.files.yamlfile import (
    LARGEST_FACTOR,
    Count,
    FileModel,
    Share,
    load_yaml,
    read_shipped,
    suggestion,
)
from atoll.hardware.accelerator import GLB_BPC_PER_MIB, Accelerator, GlbBandwidth, Hbm
from atoll.hardware.physical.memories import HBM
from atoll.hardware.physical.nodes import RETICLE_MM2

if TYPE_CHECKING:
    from atoll.hardware.template.template import ChipTemplate

MOST_AXES = 6  # of a torus; more than any that was built
BytesPerClock = Annotated[float, Field(ge=1 / LARGEST_FACTOR, le=LARGEST_FACTOR, strict=True)]


class GlbBandwidthFile(FileModel):
    """Bytes per clock out of the shared buffer: a fixed number, or so many per MiB of it."""

    per_mib: BytesPerClock | None = None
    fixed: BytesPerClock | None = None

    @model_validator(mode="after")
    def _either_rule(self) -> GlbBandwidthFile:
        if (self.per_mib is None) == (self.fixed is None):
            raise ValueError("expected either per_mib or fixed, in bytes per clock")
        return self

    def rule(self) -> GlbBandwidth:
        return GlbBandwidth(per_mib_Bpc=self.per_mib or 0.0, fixed_Bpc=self.fixed or 0.0)


def _known_generation(name: str) -> str:
    if name not in HBM:
        raise ValueError(f"expected one of {', '.join(HBM)}, got {name!r}")
    return name


class HbmFile(FileModel):
    """Off-chip memory; with `stacks`, the other values are those of one stack. A generation has
    them all, as in the physical model, and products may have another capacity and bandwidth."""

    generation: Annotated[str, AfterValidator(_known_generation)] | None = None
    capacity: ranges.MemoryBytes | None = None
    bandwidth: ranges.DeviceBandwidth | None = None
    area: ranges.ChipArea = 0.0
    power: ranges.ChipPower | None = None
    stacks: ranges.DieCount = 1
    energy: Annotated[float, Field(gt=0, le=100)] = 1.0  # of a byte over the energy model's
    edge_mm: Annotated[float, Field(ge=0, le=1000)] = 0.0  # of the die
    source: str = ""

    @model_validator(mode="after")
    def _stated(self) -> HbmFile:
        if self.generation is None and (self.capacity is None or self.bandwidth is None):
            raise ValueError("expected capacity and bandwidth, or a generation such as hbm3")
        silicon = self.model_fields_set & {"area", "power", "energy", "edge_mm"}
        if self.generation is not None and silicon:
            raise ValueError(f"{min(silicon)} follows from the generation; leave it out")
        return self

    def hbm(self) -> Hbm:
        if self.generation is not None:
            from atoll.hardware.silicon.physical import stacked_memory

            return stacked_memory(self.generation, self.stacks, self.capacity, self.bandwidth)
        return Hbm(
            capacity_bytes=self.stacks * (self.capacity or 0),
            bandwidth_Bps=self.stacks * (self.bandwidth or 0.0),
            area_mm2=self.stacks * self.area,
            power_W=None if self.power is None else self.stacks * self.power,
            energy=self.energy,
            edge_mm=self.stacks * self.edge_mm,
            stacks=self.stacks if "stacks" in self.model_fields_set else 0,
        )


DefectDensity = Annotated[float, Field(gt=0, le=100)]
DefectsFile = DefectDensity | dict[float, DefectDensity] | None
"""Defects per cm2 of every process, or by process in nm; None: those of the nodes."""


def stated_defects(where: str, template: ChipTemplate, stated: DefectsFile) -> ChipTemplate:
    """Return a template with the stated defect densities, in place of those of the nodes."""
    from atoll.hardware.silicon.physical import PROCESSES_NM, is_physical, with_defects

    if stated is None:
        return template
    if not is_physical(template):
        raise AtollError(
            f"{where}: defects: chips of template {template.name} have no price per good die; take "
            "one of the physical model, such as physical-7nm."
        )
    by_process = stated if isinstance(stated, dict) else dict.fromkeys(PROCESSES_NM, stated)
    for node in by_process:
        if node not in PROCESSES_NM:
            raise AtollError(
                f"{where}: defects: {node:g} nm is not known, only "
                f"{', '.join(map(str, PROCESSES_NM))}."
            )
    return with_defects(template, tuple(sorted(by_process.items())))


class PublishedFile(FileModel):
    """Published area and power of an existing chip."""

    area: ranges.ChipArea
    power: ranges.ChipPower


class CoresFile(FileModel):
    """Cores of a chip or die; their buffer has another name in each."""

    tensor_cores: ranges.CoreCount
    vector_cores: ranges.CoreCount
    width: ranges.CoreCount
    depth: ranges.CoreCount
    vector_width: ranges.CoreCount | None = None  # as wide as the tensor cores unless given
    clock_Hz: ranges.ClockHz = Field(alias="clock")

    def core(self, buffer_bytes: int, bandwidth: GlbBandwidthFile, **more: Any) -> Accelerator:
        numbers: dict[str, Any] = {name: getattr(self, name) for name in CoresFile.model_fields}
        numbers["vector_width"] = self.vector_width or self.width
        numbers["glb_bandwidth_Bpc"] = float(bandwidth.rule().bytes_per_clock(buffer_bytes))
        return Accelerator(glb_bytes=buffer_bytes, **numbers, **more)


class AcceleratorFile(CoresFile):
    name: str = Field(min_length=1)
    source: str = ""
    glb: ranges.BufferBytes
    glb_bandwidth: GlbBandwidthFile = GlbBandwidthFile(per_mib=GLB_BPC_PER_MIB)
    core_buffer: ranges.BufferBytes = 0  # of each tensor core; by PHAZE's rule unless given
    kind: Literal["cached", "scratchpad"] | None = None  # what it loses (`STALLS`)
    hbm: HbmFile
    dies: ranges.DieCount = 1
    cores_on_die: ranges.CoreCount | None = None  # tensor cores with those that are switched off
    network: str = "dgx-a100"  # of the catalogue: what such devices sit on unless said otherwise
    published: PublishedFile | None = None
    template: str = "systolic"
    defects: DefectsFile = None
    own: dict[str, float] = {}  # noqa: RUF012  (pydantic copies defaults)
    """Parameters of another template, in base units."""

    def accelerator(self) -> Accelerator:
        # Not for networks and devices that exist: slow to import.
        from atoll.hardware.silicon.chip import rebanked
        from atoll.hardware.silicon.systolic import SYSTOLIC, TEMPLATES
        from atoll.hardware.template.stalls import STALLS

        template = stated_defects(self.name, TEMPLATES[self.template], self.defects)
        own = {p.name: p.values[0] for p in template.extra_parameters if p.name == "register_bytes"}
        own |= {"core_buffer_bytes": float(self.core_buffer)} if self.core_buffer else {}
        own |= self.own
        missing = [p.name for p in template.extra_parameters if p.name not in own]
        if missing:
            raise AtollError(f"{self.name}: own: {', '.join(missing)} of {template.name} missing")
        chip = self.core(
            self.glb,
            self.glb_bandwidth,
            hbm=self.hbm.hbm(),
            name=self.name,
            template=None if template is SYSTOLIC else template,
            more=tuple((p, own[p.name]) for p in template.extra_parameters),
            stated_core_buffer_bytes=self.core_buffer,
            stalls=None if self.kind is None else STALLS[self.kind],
            dies=self.dies,
            spare=max(1.0, (self.cores_on_die or 0) / self.tensor_cores),
        )
        self._refuse_beyond_reticle(chip)
        return chip if "glb_bandwidth" in self.model_fields_set else rebanked(chip)

    def _refuse_beyond_reticle(self, chip: Accelerator) -> None:
        """Refuse dies that no reticle holds, by published area or the physical model's."""
        from atoll.hardware.silicon.chip import accelerator_area_mm2, chip_columns, chip_template
        from atoll.hardware.silicon.physical import is_physical

        if self.published is None and not is_physical(chip_template(chip)):
            return
        area_mm2 = self.published.area if self.published else accelerator_area_mm2(chip)
        dies = round(chip_columns(chip)["dies"].item())
        if area_mm2 > dies * RETICLE_MM2:
            raise AtollError(
                f"{self.name}: {units.counted(dies, 'die')} of {area_mm2 / dies:,.0f} mm2 each: a "
                f"reticle holds at most {RETICLE_MM2:g} mm2 (26 mm x 33 mm); divide the chip into "
                "more dies, make it smaller, or state its published area."
            )

    def area_and_power(self) -> tuple[float, float]:
        """Chip area in mm2 and power in W: published, or by its template."""
        if self.published is not None:
            return self.published.area, self.published.power
        from atoll.hardware.silicon.chip import accelerator_area_mm2, peak_power_W

        chip = self.accelerator()
        return accelerator_area_mm2(chip), peak_power_W(chip)


Axes = Annotated[tuple[Count, ...], Field(min_length=1, max_length=MOST_AXES)]


class LevelFile(FileModel):
    name: str = Field(min_length=1)
    devices: Count | None = None
    shapes: tuple[Axes, ...] = Field((), alias="torus")
    wraps: Count = 1
    bandwidth_Bps: ranges.DeviceBandwidth = Field(alias="bandwidth")
    latency_s: ranges.LatencySeconds = Field(alias="latency")
    efficiency: dict[str, Share] | Share = {}  # noqa: RUF012  (pydantic copies defaults)
    ring: dict[str, Share] = Field({}, alias="steps")
    sums: Annotated[float, Field(ge=0.5, le=2)] = 1.0
    in_network: bool = False
    start_s: ranges.LatencySeconds = Field(0.0, alias="start")
    few: Annotated[float, Field(ge=-2, lt=1)] = Field(0.0, alias="few_members")

    @model_validator(mode="after")
    def _sizes(self) -> LevelFile:
        self.level()
        if (self.devices is None) == (not self.shapes):
            raise ValueError(
                "expected devices, or torus: the lengths of its axes in every size that there is"
            )
        return self

    @property
    def size(self) -> int:
        return self.devices or max(map(prod, self.shapes))

    def level(self) -> FabricLevel:
        curves = {"efficiency": _curve(self.efficiency), "ring": _curve(self.ring)}
        shapes = tuple(sorted(self.shapes, key=prod))
        return FabricLevel(**dict(self) | curves | {"devices": self.size, "shapes": shapes})


def _curve(efficiency: dict[str, float] | float) -> tuple[tuple[float, float], ...]:
    """Efficiency by bytes, smallest first."""
    if isinstance(efficiency, float):
        return ((1.0, efficiency),)
    return tuple(
        sorted((float(units.parse_bytes(size)), share) for size, share in efficiency.items())
    )


class NetworkFile(FileModel):
    name: str = Field(min_length=1)
    source: str = ""
    levels: list[LevelFile] = Field(min_length=1)

    @model_validator(mode="after")
    def _nested(self) -> NetworkFile:
        for inner, outer in zip(self.levels, self.levels[1:], strict=False):
            if outer.shapes:
                raise ValueError(f"level {outer.name} is a torus, but only the first one may be")
            if outer.size <= inner.size or outer.size % inner.size:
                raise ValueError(
                    f"level {outer.name} has {outer.size} devices, which is not a multiple of "
                    f"level {inner.name} with {inner.size}"
                )
        return self

    def network(self) -> Network:
        return Network(name=self.name, levels=tuple(level.level() for level in self.levels))

    @property
    def left_out(self) -> tuple[str, ...]:
        """Keys of the start of messages that the innermost level lacks, unless it is a torus."""
        inner = self.levels[0]
        stated = inner.model_fields_set if not inner.shapes else {"start_s", "few"}
        keys = {"start_s": "start", "few": "few_members"}
        return tuple(key for name, key in keys.items() if name not in stated)


def load_accelerator(name_or_path: str | Path) -> Accelerator:
    """A chip of the catalogue, or of a user's YAML file."""
    return load_accelerator_file(name_or_path).accelerator()


def load_accelerator_file(name_or_path: str | Path) -> AcceleratorFile:
    """Load a chip file as written, with the network of such chips."""
    return load_entry("accelerator", name_or_path, AcceleratorFile)


def load_network(name_or_path: str | Path) -> Network:
    """Load a network of the catalogue, of a user's YAML file, or of links (`switch-64@450GB/s`);
    levels may be given another bandwidth: `dgx-h100:infiniband=25GB/s`."""
    name = str(name_or_path)
    if is_file(name):
        file = load_yaml(name, NetworkFile)
        return replace(file.network(), left_out=file.left_out)
    unchanged, colon, change = name.rpartition(":")
    if colon and "=" in change:
        level_name, bandwidth = change.split("=", 1)
        return _with_level(load_network(unchanged), level_name.strip(), bandwidth)
    topology_and_links = parse_linked_network(name)
    if topology_and_links is not None:
        topology, link_Bps = topology_and_links
        return topology.network(link_Bps, load_network(SWITCHED if topology.switched else TORUS))
    try:
        link_Bps = units.parse_quantity(name, units.BANDWIDTH)
    except units.UnitError:
        return load_entry("network", name, NetworkFile).network()
    raise AtollError(
        f"network {name!r} is a bandwidth: name the network and the level that has it, per device, "
        f"such as dgx-h100:infiniband={_bandwidth(link_Bps)}"
    )


def _with_level(network: Network, level_name: str, bandwidth: str) -> Network:
    """Return a network with another bandwidth of one level, its other properties unchanged."""
    names = [level.name for level in network.levels]
    if level_name not in names:
        raise AtollError(
            f"network {network.name} has no level {level_name!r}, only {', '.join(names)}"
        )
    value_Bps = parse_bandwidth(bandwidth, f"network {network.name}:{level_name}")
    index = names.index(level_name)
    changed = network.faster(value_Bps / network.levels[index].bandwidth_Bps, index)
    return replace(changed, name=f"{network.name}:{level_name}={_bandwidth(value_Bps)}")


def _bandwidth(value_Bps: float) -> str:
    return units.format_quantity(value_Bps, units.BANDWIDTH, 12).replace(" ", "")


def accelerator_names() -> tuple[str, ...]:
    return entry_names("accelerator")


def network_names() -> tuple[str, ...]:
    return entry_names("network")


_CATALOG = files("atoll.hardware") / "catalog"
F = TypeVar("F", bound=BaseModel)


def entry_names(kind: str) -> tuple[str, ...]:
    """The catalogue's entries of one kind."""
    entries = (_CATALOG / f"{kind}s").iterdir()
    return tuple(sorted(e.name.removesuffix(".yaml") for e in entries if e.name.endswith(".yaml")))


def entry_text(kind: str, name: str) -> str:
    """Return the file of one catalogue entry."""
    return (_CATALOG / f"{kind}s" / f"{name}.yaml").read_text(encoding="utf-8")


def read_entry(kind: str, name: str, model: type[F]) -> F:
    """Read one catalogue entry."""
    return read_shipped(entry_text(kind, name), model, f"catalogue entry {name}")


def is_file(name_or_path: str | Path) -> bool:
    """Return whether the name is a user's file."""
    return Path(name_or_path).suffix in (".yaml", ".yml")


def unknown_entry(kind: str, name: str, suggested: str) -> AtollError:
    hint = "" if Path(name).name == name else "; a file of your own must end in .yaml"
    return AtollError(f"{kind} {name!r} is not in the catalogue{suggested}{hint}")


def load_entry(kind: str, name_or_path: str | Path, model: type[F]) -> F:
    """An entry, or a file of the same form."""
    if is_file(name_or_path):
        return load_yaml(name_or_path, model)
    name = str(name_or_path)
    if name not in entry_names(kind):
        raise unknown_entry(kind, name, suggestion(name, entry_names(kind)))
    return read_entry(kind, name, model)
