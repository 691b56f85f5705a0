"""Entries of the catalogue, or of a user's file, as data.

The kind of a file follows from its fields: device, accelerator, network, space, wafer or
calibration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from atoll.answers import hardware as answers
from atoll.answers.answer import build_from
from atoll.answers.hardware import HardwareAnswer, HbmChoice, SpaceEntry
from atoll.base.errors import AtollError, as_path
from atoll.cost.model import COST_MODELS
from atoll.fabric.network import Network
from atoll.files.yamlfile import AnyFields, field_by_key, load_yaml, suggestion
from atoll.hardware import catalog, gpu
from atoll.hardware.accelerator import Hbm
from atoll.hardware.catalog import is_file, load_network
from atoll.hardware.device_names import same_device
from atoll.hardware.product_space import phaze_space
from atoll.hardware.silicon.chip import area_parts, peak_power_W, rated_power_W
from atoll.hardware.silicon.systolic import TEMPLATES
from atoll.hardware.spacefile import read_space, space_file
from atoll.hardware.wafer_files import WaferFile, load_wafer, load_wafers, wafer_names

SPACES = ("phaze",)
NETWORK = "network/"
"""Before the name of a network, which some devices have too."""


def _names() -> dict[str, Any]:
    """Return all names that can be described, by the list of the catalogue that has them."""
    return {
        "devices": gpu.gpu_names(),
        "accelerators": catalog.accelerator_names(),
        "networks": catalog.network_names(),
        "spaces": SPACES,
        "wafers": wafer_names(),
        "chip_templates": tuple(TEMPLATES),
    }


def catalogue() -> answers.CatalogueAnswer:
    """Return all names by kind."""
    return answers.CatalogueAnswer(**_names(), cost_models=tuple(COST_MODELS))


def hardware_names() -> tuple[str, ...]:
    """Return all names that can be described."""
    return tuple(chain(*_names().values()))


def describe(name: str) -> HardwareAnswer:
    """Describe a name of the catalogue, a device in free spelling, or a file."""
    name = str(as_path("name", name))
    if name.startswith(NETWORK):
        return _network(name.removeprefix(NETWORK))
    if is_file(name):
        return _FILES[_kind(name)][1](name)
    if "=" in name:  # dgx-h100:infiniband=25GB/s
        return _network(name)
    names = _names()
    for kind, show in _LISTS.items():
        if name in names[kind]:
            return show(name)
    if (device := gpu.gpu_name(name)) is not None:
        return _device(device)
    in_order = chain(*(names[kind] for kind in _LISTS))
    near = same_device(name, names["devices"]) or dict.fromkeys(in_order)
    raise catalog.unknown_entry("hardware", name, suggestion(name.lower(), near))


def describe_file(name: str) -> str:
    """Return the YAML file of an entry of the catalogue, or a user's own."""
    describe(name)  # which refuses unknown names and files
    if is_file(name):
        return Path(name).read_text(encoding="utf-8")
    lists: tuple[str, ...] = ("devices", "networks", "accelerators", "wafers")
    if name.startswith(NETWORK):
        lists, name = ("networks",), name.removeprefix(NETWORK)
    names = _names()
    for listed in lists:
        if name in names[listed]:
            return catalog.entry_text("gpu" if listed == "devices" else listed[:-1], name)
    if (device := gpu.gpu_name(name)) is not None:
        return catalog.entry_text("gpu", device)
    raise AtollError(
        f"yaml: {name} is not kept as a file; those of the catalogue's devices, accelerators, "
        "networks and wafers are"
    )


def _device(name: str) -> answers.DeviceAnswer:
    device = gpu.load_gpu(name)
    flops = {kind: getattr(device, f"{kind}_flops") for kind in ("bf16", "fp16", "fp8", "fp4")}
    return build_from(
        answers.DeviceAnswer,
        device,
        device=device.name,
        hbm_GiB=device.hbm_bytes / 2**30,
        hbm_TBps=device.hbm_Bps / 1e12,
        calibration=device.calibration.name,
        levels=_levels(load_network(device.network)),
        **{f"{kind}_TFLOPs": rate and rate / 1e12 for kind, rate in flops.items()},
    )


def _network(name: str) -> answers.NetworkAnswer:
    network = load_network(name)
    return answers.NetworkAnswer(network=network.name, levels=_levels(network))


def _levels(network: Network) -> tuple[answers.HardwareLevel, ...]:
    """Return the levels of a network with their efficiency for long messages."""
    return tuple(
        answers.HardwareLevel(
            name=level.name,
            devices=level.devices,
            bandwidth_GBps=level.bandwidth_Bps / 1e9,
            latency_us=level.latency_s * 1e6,
            efficiency=level.share(float("inf")),
        )
        for level in network.levels
    )


def _accelerator(name: str) -> answers.AcceleratorAnswer:
    chip = catalog.load_accelerator(name)
    parts = area_parts(chip)
    return answers.AcceleratorAnswer.of(
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


def _template(name: str) -> answers.TemplateAnswer:
    template = TEMPLATES[name]
    return answers.TemplateAnswer(
        chip_template=template.name,
        about=template.about,
        parameters=tuple(
            answers.TemplateParameter(
                name=p.name, label=p.label, values=", ".join(map(p.shown, p.values))
            )
            for p in template.parameters
        ),
        buffers_before_hbm=template.levels.names if template.levels else (),
    )


def _hbm(options: tuple[Hbm, ...]) -> tuple[HbmChoice, ...]:
    return tuple(
        HbmChoice(GiB=option.capacity_bytes / 2**30, TBps=option.bandwidth_Bps / 1e12)
        for option in options
    )


def _wafer(name: str) -> answers.WaferEntry:
    wafer, count = load_wafer(name), len(load_wafers(name))
    space_size = None if count == 1 else count
    return answers.WaferEntry.of(wafer, wafer=wafer.name, wafers_in_its_space=space_size)


def _calibration(name: str) -> answers.CalibrationEntry:
    calibration = gpu.load_calibration(name)
    tables = {"traffic": dict(calibration.traffic), "formats": dict(calibration.formats)}
    return build_from(answers.CalibrationEntry, calibration, calibration=calibration.name, **tables)


_LISTS: dict[str, Callable[[str], HardwareAnswer]] = {
    "devices": _device,
    "networks": _network,
    "accelerators": _accelerator,
    "wafers": _wafer,
    "spaces": _space,
    "chip_templates": _template,
}
"""Functions that describe an entry, by its list, in the order in which names are looked up."""
_FILES: dict[str, tuple[type[BaseModel], Callable[[str], HardwareAnswer]]] = {
    "device": (gpu.GpuFile, _device),
    "accelerator": (catalog.AcceleratorFile, _accelerator),
    "network": (catalog.NetworkFile, _network),
    "space": (space_file(), _space),
    "wafer": (WaferFile, _wafer),
    "calibration": (gpu.CalibrationFile, _calibration),
}
_COMMON = {"name", "source"}
_CHOICES = ("tensor_cores", "vector_cores", "width", "depth", "glb", "hbm")
"""Fields with one value in an accelerator, and a list or a rule in a space."""


def _kind(path: str) -> str:
    """Return the kind of a file: the one with most of its fields."""
    fields = load_yaml(path, AnyFields).model_extra or {}
    matches = {
        kind: len(fields.keys() & (field_by_key(model).keys() - _COMMON))
        for kind, (model, _) in _FILES.items()
    }
    kind = max(matches, key=matches.__getitem__)
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
