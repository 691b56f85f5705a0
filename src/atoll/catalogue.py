"""Entries of the catalogue, or of a user's file, as data.

The kind of a file follows from its fields: device, accelerator, network, space, wafer or
calibration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from atoll.answers.answer import build_from
from atoll.answers.hardware import (
    AcceleratorAnswer,
    CalibrationEntry,
    CatalogueAnswer,
    DeviceAnswer,
    HardwareAnswer,
    HardwareLevel,
    HbmChoice,
    NetworkAnswer,
    SpaceEntry,
    TemplateAnswer,
    TemplateParameter,
    WaferEntry,
)
from atoll.base.errors import AtollError, as_path
from atoll.cost.model import COST_MODELS
from atoll.fabric.network import Network
from atoll.files.yamlfile import field_by_key, load_yaml, suggestion
from atoll.hardware.accelerator import Hbm
from atoll.hardware.catalog import (
    AcceleratorFile,
    NetworkFile,
    accelerator_names,
    entry_text,
    is_file,
    load_accelerator,
    load_network,
    network_names,
    unknown_entry,
)
from atoll.hardware.device_names import same_device
from atoll.hardware.gpu import (
    CalibrationFile,
    GpuFile,
    gpu_name,
    gpu_names,
    load_calibration,
    load_gpu,
)
from atoll.hardware.product_space import phaze_space
from atoll.hardware.silicon.chip import area_parts, peak_power_W, rated_power_W
from atoll.hardware.silicon.systolic import TEMPLATES
from atoll.hardware.spacefile import read_space, space_file
from atoll.hardware.wafer_files import WaferFile, load_wafer, load_wafers, wafer_names

SPACES = ("phaze",)
NETWORK = "network/"
"""Before the name of a network, which some devices have too."""


def catalogue() -> CatalogueAnswer:
    """Return all names by kind."""
    return CatalogueAnswer(
        devices=tuple(gpu_names()),
        accelerators=tuple(accelerator_names()),
        networks=tuple(network_names()),
        spaces=SPACES,
        wafers=tuple(wafer_names()),
        chip_templates=tuple(TEMPLATES),
        cost_models=tuple(COST_MODELS),
    )


def hardware_names() -> tuple[str, ...]:
    """Return all names that can be described."""
    names = catalogue()
    return (
        *names.devices, *names.accelerators, *names.networks, *names.spaces, *names.wafers,
        *names.chip_templates,
    )  # fmt: skip


def describe(name: str) -> HardwareAnswer:
    """Describe a name of the catalogue, a device in free spelling, or a file."""
    name = str(as_path("name", name))
    if name.startswith(NETWORK):
        return _network(name.removeprefix(NETWORK))
    if is_file(name):
        return _FILES[_kind(name)][1](name)
    if "=" in name:  # dgx-h100:infiniband=25GB/s
        return _network(name)
    names: dict[Callable[[str], HardwareAnswer], tuple[str, ...]] = {
        _device: gpu_names(),
        _network: network_names(),
        _accelerator: accelerator_names(),
        _wafer: wafer_names(),
        _space: SPACES,
        _template: tuple(TEMPLATES),
    }
    for show, kind_names in names.items():
        if name in kind_names:
            return show(name)
    if (device := gpu_name(name)) is not None:
        return _device(device)
    near = same_device(name, gpu_names()) or dict.fromkeys(n for k in names.values() for n in k)
    raise unknown_entry("hardware", name, suggestion(name.lower(), near))


def describe_file(name: str) -> str:
    """Return the YAML file of an entry of the catalogue, or a user's own."""
    describe(name)  # which refuses unknown names and files
    if is_file(name):
        return Path(name).read_text(encoding="utf-8")
    kinds = {
        "gpu": gpu_names(),
        "network": network_names(),
        "accelerator": accelerator_names(),
        "wafer": wafer_names(),
    }
    if name.startswith(NETWORK):
        kinds, name = {"network": kinds["network"]}, name.removeprefix(NETWORK)
    for kind, names in kinds.items():
        if name in names:
            return entry_text(kind, name)
    if (device := gpu_name(name)) is not None:
        return entry_text("gpu", device)
    raise AtollError(
        f"yaml: {name} is not kept as a file; those of the catalogue's devices, accelerators, "
        "networks and wafers are"
    )


def _device(name: str) -> DeviceAnswer:
    gpu = load_gpu(name)
    return build_from(
        DeviceAnswer,
        gpu,
        device=gpu.name,
        bf16_TFLOPs=None if gpu.bf16_flops is None else gpu.bf16_flops / 1e12,
        fp16_TFLOPs=None if gpu.fp16_flops is None else gpu.fp16_flops / 1e12,
        fp8_TFLOPs=None if gpu.fp8_flops is None else gpu.fp8_flops / 1e12,
        fp4_TFLOPs=None if gpu.fp4_flops is None else gpu.fp4_flops / 1e12,
        hbm_GiB=gpu.hbm_bytes / 2**30,
        hbm_TBps=gpu.hbm_Bps / 1e12,
        calibration=gpu.calibration.name,
        levels=_levels(load_network(gpu.network)),
    )


def _network(name: str) -> NetworkAnswer:
    network = load_network(name)
    return NetworkAnswer(network=network.name, levels=_levels(network))


def _levels(network: Network) -> tuple[HardwareLevel, ...]:
    """Return the levels of a network with their efficiency for long messages."""
    return tuple(
        HardwareLevel(
            name=level.name,
            devices=level.devices,
            bandwidth_GBps=level.bandwidth_Bps / 1e9,
            latency_us=level.latency_s * 1e6,
            efficiency=level.share(float("inf")),
        )
        for level in network.levels
    )


def _accelerator(name: str) -> AcceleratorAnswer:
    chip = load_accelerator(name)
    parts = area_parts(chip)
    return AcceleratorAnswer.of(
        chip,
        accelerator=chip.name,
        peak_power_W=peak_power_W(chip),
        rated_power_W=rated_power_W(chip),
        area_mm2=sum(parts.values()),
        area_parts_mm2=parts,
    )


def _space(name: str) -> SpaceEntry:
    if name in SPACES:
        built = phaze_space()
        return SpaceEntry(space=built.name, designs=len(built), hbm=_hbm(built.hbm_options))
    space = read_space(name)
    template = space.template
    limits = {field: value for field, value in asdict(space.limits).items() if value}
    return SpaceEntry(
        space=space.name,
        points=len(space),
        template=template.name,
        parameters={name: str(list(space.axes.values[name])) for name in space.axes.names},
        hbm=_hbm(space.hbm_options),
        limits=limits or None,
    )


def _template(name: str) -> TemplateAnswer:
    template = TEMPLATES[name]
    return TemplateAnswer(
        chip_template=template.name,
        about=template.about,
        parameters=tuple(
            TemplateParameter(name=p.name, label=p.label, values=", ".join(map(p.shown, p.values)))
            for p in template.parameters
        ),
        buffers_before_hbm=template.levels.names if template.levels else (),
    )


def _hbm(options: tuple[Hbm, ...]) -> tuple[HbmChoice, ...]:
    return tuple(
        HbmChoice(GiB=option.capacity_bytes / 2**30, TBps=option.bandwidth_Bps / 1e12)
        for option in options
    )


def _wafer(name: str) -> WaferEntry:
    wafer, count = load_wafer(name), len(load_wafers(name))
    space_size = None if count == 1 else count
    return WaferEntry.of(wafer, wafer=wafer.name, wafers_in_its_space=space_size)


def _calibration(name: str) -> CalibrationEntry:
    calibration = load_calibration(name)
    tables = {"traffic": dict(calibration.traffic), "formats": dict(calibration.formats)}
    return build_from(CalibrationEntry, calibration, calibration=calibration.name, **tables)


_FILES: dict[str, tuple[type[BaseModel], Callable[[str], HardwareAnswer]]] = {
    "device": (GpuFile, _device),
    "accelerator": (AcceleratorFile, _accelerator),
    "network": (NetworkFile, _network),
    "space": (space_file(), _space),
    "wafer": (WaferFile, _wafer),
    "calibration": (CalibrationFile, _calibration),
}
_COMMON = {"name", "source"}
_CHOICES = ("tensor_cores", "vector_cores", "width", "depth", "glb", "hbm")
"""Fields with one value in an accelerator, and a list or a rule in a space."""


class _Fields(BaseModel):
    model_config = ConfigDict(extra="allow")


def _kind(path: str) -> str:
    """Return the kind of a file: the one with most of its fields."""
    fields = load_yaml(path, _Fields).model_extra or {}
    matches = {
        kind: len(fields.keys() & (field_by_key(model).keys() - _COMMON))
        for kind, (model, _) in _FILES.items()
    }
    kind = max(matches, key=lambda name: matches[name])
    if matches[kind] == 0 or 2 * matches[kind] < len(fields.keys() - _COMMON):
        *most, last = _FILES
        raise AtollError(
            f"{path}: its fields ({', '.join(list(fields)[:5])}) are not those of a "
            f"{', '.join(most)} or {last}; jobs are for atoll search."
        )
    if kind == "accelerator":
        several = any(isinstance(fields.get(name), list) for name in _CHOICES)
        ruled = any(isinstance(fields.get(name), dict) for name in _CHOICES if name != "hbm")
        return "space" if several or ruled else "accelerator"
    return kind
