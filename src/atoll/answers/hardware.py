"""`atoll hardware`: the catalogue, or one entry of it or of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from atoll.answers.answer import Answer, Positive
from atoll.answers.design import SizedChip
from atoll.answers.wafer import WaferFigures
from atoll.hardware.physical.kernel_fits import AttentionFit, FormatFit


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueAnswer(Answer):
    """Every name, by kind."""

    kind: Literal["catalogue"] = "catalogue"
    format: Literal[1] = 1
    devices: tuple[str, ...]
    accelerators: tuple[str, ...]
    networks: tuple[str, ...]
    spaces: tuple[str, ...]
    wafers: tuple[str, ...]
    chip_templates: tuple[str, ...] = ()
    cost_models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareLevel:
    """One level of a network, with what messages reach of its bandwidth."""

    name: str
    devices: int
    bandwidth_GBps: float
    latency_us: float
    efficiency: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAnswer(Answer):
    kind: Literal["hardware-device"] = "hardware-device"
    format: Literal[1] = 1
    device: str
    bf16_TFLOPs: float | None
    fp16_TFLOPs: float | None
    fp8_TFLOPs: float | None
    fp4_TFLOPs: float | None
    hbm_GiB: float
    hbm_TBps: float
    sms: int
    power_W: float | None
    calibration: str
    network: str
    levels: tuple[HardwareLevel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAnswer(Answer):
    kind: Literal["hardware-network"] = "hardware-network"
    format: Literal[1] = 1
    network: str
    levels: tuple[HardwareLevel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorAnswer(SizedChip, Answer):
    kind: Literal["hardware-accelerator"] = "hardware-accelerator"
    format: Literal[1] = 1
    accelerator: str
    rated_power_W: Positive
    """As vendors rate chips, and as `validate --chips` predicts it."""
    area_parts_mm2: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class HbmChoice:
    GiB: float
    TBps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceEntry(Answer):
    """A set of chips: of a file, the values that each parameter may take."""

    kind: Literal["hardware-space"] = "hardware-space"
    format: Literal[1] = 1
    space: str
    designs: int | None = None
    points: int | None = None
    """Before constraints, of a file."""
    template: str | None = None
    parameters: Mapping[str, str] | None = None
    """Of a file: the list of each."""
    hbm: tuple[HbmChoice, ...]
    limits: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateParameter:
    name: str
    label: str
    values: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateAnswer(Answer):
    """A kind of chip: what tells its chips apart, with the values of its own space."""

    kind: Literal["hardware-template"] = "hardware-template"
    format: Literal[1] = 1
    chip_template: str
    about: str
    parameters: tuple[TemplateParameter, ...]
    buffers_before_hbm: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferEntry(WaferFigures, Answer):
    kind: Literal["hardware-wafer"] = "hardware-wafer"
    format: Literal[1] = 1
    wafer: str
    wafers_in_its_space: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationEntry(Answer):
    """How close kernels come to a device's peaks (`hardware.gpu.Calibration`)."""

    kind: Literal["hardware-calibration"] = "hardware-calibration"
    format: Literal[1] = 1
    calibration: str
    matmul: float
    tile_half: float
    epilogue: float
    exposed: float
    misaligned: float
    word_rows: float
    odd_rows: float
    odd_output: float
    split_s: float
    spill: float
    kernel_s: float
    hbm: float
    throttle: float
    throttle_s: float
    forward: AttentionFit
    backward: AttentionFit
    prompt: AttentionFit | None
    step_throttle: float | None
    vector_hbm: float
    vector_kernel_s: float
    traffic: Mapping[str, float]
    formats: Mapping[str, FormatFit]
    tiles: str
    matmul_ratio: float
    source: str


HardwareAnswer = (
    DeviceAnswer
    | NetworkAnswer
    | AcceleratorAnswer
    | SpaceEntry
    | TemplateAnswer
    | WaferEntry
    | CalibrationEntry
)
