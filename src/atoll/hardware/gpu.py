"""Devices that exist, as the operator model sees them: published peaks and calibrated efficiencies.

A device's own values (peaks, HBM, units that take tiles) come from its data file; how close its
kernels come to those peaks comes from a calibration, fitted once on measured operators and carried
to other devices through their peaks. Both are YAML; a calibration is what `calibrate` writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from atoll.base.errors import AtollError
from atoll.files import ranges
from atoll.files.yamlfile import (
    LARGEST_FACTOR,
    Count,
    Factor,
    FileModel,
    Seconds,
    Share,
    load_yaml,
    suggestion,
)
from atoll.hardware.catalog import entry_names, is_file, read_entry, unknown_entry
from atoll.hardware.device_names import catalogue_name, same_device
from atoll.hardware.physical.device_power import Capped, training_W
from atoll.hardware.physical.kernel_fits import AttentionFit, FormatFit

Precision = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
SCALED = ("fp8", "mxfp8", "nvfp4")
"""Formats of fewer than 16 bits: 16-bit tensors are cast to them in front of products, with a scale
for a tensor or for a block of 16 or 32 elements."""
NarrowFormat = Literal["fp8", "fp8_block", "nvfp4"]
"""Formats whose products were measured apart: 8 bits with a scale for a tensor, or for a block of
128 (DeepGEMM's), 4 bits with one for 16."""
ADAM_BYTES = 28  # an element of an fp32 step: parameter, moments read and written, gradient read
ELEMENT_BYTES: Mapping[str, float] = {
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "fp8_block": 33 / 32,
    "mxfp8": 33 / 32,
    "nvfp4": 9 / 16,
}
"""Bytes per element in memory, including its share of a block scale."""


ATTENTION_POWER = 0.5
"""Attention's share of the products' slowdown at the power limit: an H200 with a boost clock of
1.98 GHz sustains 1.70 GHz in attention and 1.48 GHz in products (docs/gpu-model.md)."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How close kernels come to a device's peaks. See docs/gpu-model.md for every meaning."""

    name: str
    # Share of the 16-bit matrix peak in the inner loop of an endless tile; above 1 where bursts run
    # at a clock above the peak's.
    matmul: float
    tile_half: float  # operand delivery: a square tile t runs at 1 / (1 + 2 tile_half / t)
    epilogue: float  # share of the output's write time that no other tile hides
    exposed: float  # of the shorter of moving and multiplying, what the longer does not hide
    misaligned: float  # slowdown where a row is not whole 32-byte sectors
    word_rows: float  # slowdown where a row is not whole 16-byte vectors: no bulk copies
    odd_rows: float  # slowdown where an operand's row is an odd number of 16-bit elements
    odd_output: float  # the same where the output's row is
    split_s: float  # second pass of a split-K product
    spill: float  # share of its partial sums that goes through HBM, not L2
    kernel_s: float  # launch to finish of an empty product, inside a CUDA graph
    hbm: float  # share of the HBM peak that products reach
    throttle: float  # slowdown at the power limit: sustained time = (1 + throttle) x burst time
    throttle_s: float  # kernel length at which half of it shows
    forward: AttentionFit
    backward: AttentionFit
    vector_hbm: float  # share of the HBM peak that streaming kernels reach
    vector_kernel_s: float  # launch to finish of an empty streaming kernel
    traffic: tuple[tuple[str, float], ...]  # bytes per element by kind of streaming operator
    formats: tuple[tuple[str, FormatFit], ...] = ()  # of fewer than 16 bits, by name
    prompt: AttentionFit | None = None  # forward as inference engines run it, where it differs
    tiles: str = "hopper"  # shapes of the library's tiles: of Ampere and Ada, or since Hopper
    onset: int = 4  # sharpness of the power limit: 1 gradual (cards), 4 almost a step (boards)
    held: float = 0.0  # share of L2 that keeps outputs of products timed again and again
    elements_per_cycle: float = 0.0  # of an SM, in kernels that it limits; 0: not measured
    fill_s: float = 0.0  # start and end of a tile that no other of its SM hides
    step_throttle: float | None = None  # of products inside training steps, where it is known
    step_long: float = 0.0  # further slowdown of long products in a step, half of it at throttle_s
    step_attention: bool = False  # the throttle of attention is that inside a training step
    matmul_ratio: float = 0.0  # measured matmul maximum over peak of the calibrated device; 0: none
    source: str = ""

    def traffic_bytes(self, function: str) -> float:
        """Bytes per element of a streaming operator."""
        table = dict(self.traffic)
        if function not in table:
            raise AtollError(
                f"calibration {self.name}: operator {function!r} has no traffic"
                f"{suggestion(function, table)}"
            )
        return table[function]

    def format_fit(self, dtype: str) -> FormatFit:
        """Return the fit of a format; narrow formats that were not measured use fp8's."""
        fits = dict(self.formats)
        if dtype in fits:
            return fits[dtype]
        if dtype in ELEMENT_BYTES and dtype not in ("bf16", "fp16") and "fp8" in fits:
            return fits["fp8"]
        return FormatFit(self.matmul, self.kernel_s, self.throttle)

    def engine_fit(self, dtype: str) -> FormatFit:
        """Return `format_fit` as inference engines run it, where their kernels were timed."""
        return dict(self.formats).get(f"{dtype}_engine") or self.format_fit(dtype)

    @property
    def limit_throttle(self) -> float:
        """Slowdown of products of 16 and of 8 bits inside a training step, at the power limit: on
        an H200 both sustain one clock, 1.48 GHz."""
        return self.throttle if self.step_throttle is None else self.step_throttle

    def attention_throttle(self, direction: AttentionFit) -> float:
        """Slowdown of attention at the power limit."""
        least = 0.0 if self.step_attention else ATTENTION_POWER * self.limit_throttle
        return max(direction.throttle, least)

    def slowed(self, direction: AttentionFit, under: Capped) -> AttentionFit:
        """Attention under a cap."""
        return replace(direction, throttle=under.slowdown(self.attention_throttle(direction)))


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device: dense peaks, memory, and the units over which a product's tiles are dealt."""

    name: str
    bf16_flops: float | None
    fp16_flops: float | None
    fp8_flops: float | None
    fp4_flops: float | None
    hbm_bytes: int
    hbm_Bps: float
    sms: int  # units that take one tile each: SMs, compute units, matrix engines
    clock_Hz: float
    l2_bytes: int
    calibration: Calibration
    launch_s: float = 5e-6  # host time of one eager launch; kernels shorter than it wait
    measured_flops: float | None = None  # best 16-bit product anyone measured
    fp4_gain: float | None = None  # best fp4 product anyone measured over the best fp8 one
    fp8_share: float = 1.0
    """How close to its peak fp8 comes relative to 16 bits, over the calibrated device's."""
    tensor_per_exp: float = 1.0  # matrix FLOPs per exponential, relative to Hopper
    flash2_flops: float | None = None
    """FLOP/s of FlashAttention-2's kernels where they were measured; likewise backwards."""
    flash2_backward_flops: float | None = None
    power_W: float | None = None  # rated
    cap_W: float | None = None  # power cap, where it is below the rating
    clock_share: float | None = None  # of a step over the boost clock; None: the power limit's
    process_nm: float | None = None
    die_mm2: float | None = None  # published; of all dies of the package
    dies: int = 1  # dies with cores and memory that share the work of the package
    host_Bps: float = 25e9
    """Copies to and from the host's memory, in each direction: PCIe 4 of 16 lanes."""
    network: str = "dgx-h100"  # the network of the catalogue that such devices usually sit on
    stack: str = "megatron"  # the software that such devices usually have (`training.stack`)
    overlap_gain: float = 1.0
    """Share of the time of hidden collectives that a step saves: they slow down its products."""
    half_optimizer_traffic: float = 1.65
    """Bytes moved over bytes needed by Adam on 16-bit states, whose kernels go through fp32:
    5.15 ms per 1e9 parameters on an H200 (benchmarks/h200, half `fit`)."""

    def peak_flops(self, dtype: str = "bf16") -> float:
        """Dense matrix FLOP/s of a number format, a multiply-add counted as two."""
        peaks = {
            "bf16": self.bf16_flops,
            "fp16": self.fp16_flops,
            "fp8": self.fp8_flops,
            "fp8_block": self.fp8_flops,
            "mxfp8": self.fp8_flops,
            "nvfp4": self.fp4_flops,
        }
        if dtype not in peaks:
            raise AtollError(f"dtype {dtype!r} is not modelled{suggestion(dtype, peaks)}")
        peak = peaks[dtype]
        if peak is None:
            has = ", ".join(name for name, flops in peaks.items() if flops is not None)
            raise AtollError(f"device {self.name} has no {dtype} matrix units; it has {has}")
        return peak

    @property
    def half_dtype(self) -> str:
        """The 16-bit format that training uses here."""
        return "fp16" if self.bf16_flops is None else "bf16"

    @property
    def stream_Bps(self) -> float:
        """HBM bandwidth that streaming operators reach."""
        return self.calibration.vector_hbm * self.hbm_Bps

    @property
    def slow_elements_per_s(self) -> float:
        """Elements that SMs process in kernels which they limit; 0 where none was measured."""
        return self.calibration.elements_per_cycle * self.sms * self.clock_Hz

    @property
    def optimizer_traffic(self) -> float:
        """Bytes that an fp32 optimizer's step moves over those that it must."""
        return self.calibration.traffic_bytes("adamw_fp32_step") / ADAM_BYTES

    def with_hbm(self, hbm_bytes: int | None = None, hbm_Bps: float | None = None) -> Gpu:
        """The same device with another memory."""
        return replace(self, hbm_bytes=hbm_bytes or self.hbm_bytes, hbm_Bps=hbm_Bps or self.hbm_Bps)

    def with_compute(self, factor: float) -> Gpu:
        """The same device with all of its matrix peaks multiplied."""
        names = ("bf16_flops", "fp16_flops", "fp8_flops", "fp4_flops", "measured_flops", "clock_Hz")
        peaks = {name: peak * factor for name in names if (peak := getattr(self, name)) is not None}
        return replace(self, **peaks)

    def capped(self, cap_W: float) -> Gpu:
        """Return the device under a power cap: products and attention follow the clock, streams
        keep the memory bandwidth as long as the clock can feed it."""
        rated_W = self.power_W
        if rated_W is None:
            raise AtollError(f"power_cap: device {self.name} has no rated power to be capped")
        under = Capped(cap_W / rated_W)
        if under.drawn <= under.least:
            raise AtollError(
                f"power_cap: {self.name} draws {under.least / under.power.held * rated_W:.0f} W "
                f"before anything moves; {cap_W:g} W leaves nothing to train with"
            )
        if cap_W > rated_W:
            raise AtollError(f"power_cap: {self.name} is rated {rated_W:g} W; {cap_W:g} W is more")
        if cap_W == rated_W:
            return self
        fit = self.calibration
        slow = replace(
            fit,
            throttle=under.slowdown(fit.throttle),
            step_throttle=under.slowdown(fit.limit_throttle),
            forward=fit.slowed(fit.forward, under),
            backward=fit.slowed(fit.backward, under),
            formats=tuple(
                (name, replace(format_fit, throttle=under.slowdown(format_fit.throttle)))
                for name, format_fit in fit.formats
            ),
        )
        bandwidth_Bps = self.hbm_Bps * under.bandwidth
        return replace(self, calibration=slow, hbm_Bps=bandwidth_Bps, cap_W=cap_W)

    def drawn_W(self, busy: float) -> float | None:
        """Mean power when busy for this share of the time and waiting otherwise."""
        return None if self.power_W is None else training_W(self.power_W, busy, self.cap_W)

    def loop_flops(self, dtype: str = "bf16") -> float:
        """Rate of the inner loop of an endless tile: the roof of the matrix model.

        Where the best measured product of both devices is known, the calibrated share is scaled by
        how much closer (or less close) than the calibrated device this one comes to its peak.
        """
        fit = self.calibration
        measured = "nvfp4" in dict(fit.formats)
        if dtype == "nvfp4" and not measured and self.fp4_gain and self.fp4_flops:
            return self.fp4_gain * self.loop_flops("fp8")
        share = fit.format_fit(dtype).matmul * self.matmul_scale
        return share * (self.fp8_share if dtype in SCALED else 1.0) * self.peak_flops(dtype)

    @property
    def matmul_scale(self) -> float:
        """How close to its 16-bit peak this device comes, relative to the calibrated one."""
        if self.measured_flops is None or self.calibration.matmul_ratio == 0:
            return 1.0
        ratio = self.measured_flops / self.peak_flops(self.half_dtype)
        return ratio / self.calibration.matmul_ratio


Tiles = Literal["ampere", "hopper", "cublas", "blackwell"]
EngineFormat = Literal["bf16_engine", "fp8_engine"]
"""Products as inference engines ran them, where another library was timed beside."""
Part = Annotated[float, Field(ge=0, le=1)]
Slowdown = Annotated[float, Field(ge=1, le=LARGEST_FACTOR)]
Rate = Annotated[float, Field(ge=1 / LARGEST_FACTOR, le=LARGEST_FACTOR)]
"""A positive factor that may be a divisor."""


class AttentionFile(FileModel):
    matmul: Rate
    min_head: Factor
    block_s: Seconds = Field(alias="block")
    kernel_s: Seconds = Field(alias="kernel")
    throttle: Factor
    exposed: Part = 0.0
    tail: Part = 1.0
    split_s: Seconds | None = Field(None, alias="split")
    fp8_gain: Rate = 1.0
    fp8_heads: dict[Count, Rate] = Field(default_factory=dict)
    fp8_block_s: Seconds | None = Field(None, alias="fp8_block")
    fp8_columns: Factor | None = None
    engine_s: Seconds = Field(0.0, alias="engine")
    fp8_engine_s: Seconds = Field(0.0, alias="fp8_engine")
    narrow_rows: Count = 128
    narrow_head: Count = 96
    head_columns: Count = 16
    causal_rows: Count = 256

    def fit(self) -> AttentionFit:
        return AttentionFit(**dict(self) | {"fp8_heads": tuple(sorted(self.fp8_heads.items()))})


class FormatFile(FileModel):
    matmul: Rate
    kernel_s: Seconds = Field(alias="kernel")
    throttle: Factor
    throttle_s: Annotated[Seconds, Field(gt=0)] | None = Field(None, alias="throttle_half")
    tiles: Tiles | None = None
    splits: bool = True
    fill_s: Seconds | None = Field(None, alias="fill")
    cast_row_s: Seconds = Field(0.0, alias="cast_row")
    idle: Part = 0.0


class CalibrationFile(FileModel):
    name: str = Field(min_length=1)
    source: str = ""
    matmul: Rate
    tile_half: Factor
    epilogue: Part
    exposed: Part = 0.0
    misaligned: Slowdown
    word_rows: Slowdown = 1.0
    odd_rows: Slowdown = 1.0
    odd_output: Slowdown = 1.0
    split_s: Seconds = Field(alias="split")
    spill: Part = 1.0
    kernel_s: Seconds = Field(alias="kernel")
    hbm: Share
    throttle: Factor
    throttle_s: Annotated[Seconds, Field(gt=0)] = Field(alias="throttle_half")
    forward: AttentionFile = Field(alias="attention_forward")
    backward: AttentionFile = Field(alias="attention_backward")
    prompt: AttentionFile | None = Field(None, alias="attention_prompt")
    vector_hbm: Share
    vector_kernel_s: Seconds = Field(alias="vector_kernel")
    formats: dict[NarrowFormat | EngineFormat, FormatFile] = Field(default_factory=dict)
    tiles: Tiles = "hopper"
    onset: Annotated[Count, Field(le=8)] = 4
    held: Part = 0.0
    elements_per_cycle: Factor = 0.0
    fill_s: Seconds = Field(0.0, alias="fill")
    matmul_ratio: Factor = 0.0
    traffic: dict[str, Factor] = Field(min_length=1)

    def calibration(self) -> Calibration:
        values = dict(self) | {
            "forward": self.forward.fit(),
            "backward": self.backward.fit(),
            "prompt": self.prompt and self.prompt.fit(),
            "traffic": tuple(sorted(self.traffic.items())),
            "formats": tuple((name, FormatFit(**dict(fit))) for name, fit in self.formats.items()),
        }
        return Calibration(**values)


class GpuFile(FileModel):
    name: str = Field(min_length=1)
    source: str = ""
    bf16_flops: ranges.PeakFlops | None = Field(None, alias="bf16")
    fp16_flops: ranges.PeakFlops | None = Field(None, alias="fp16")
    fp8_flops: ranges.PeakFlops | None = Field(None, alias="fp8")
    fp4_flops: ranges.PeakFlops | None = Field(None, alias="fp4")
    hbm_bytes: ranges.MemoryBytes = Field(alias="hbm_capacity")
    hbm_Bps: ranges.DeviceBandwidth = Field(alias="hbm_bandwidth")
    sms: ranges.CoreCount
    clock_Hz: ranges.ClockHz = Field(alias="clock")
    l2_bytes: ranges.BufferBytes = Field(alias="l2")
    launch_s: ranges.LatencySeconds = Field(5e-6, alias="launch")
    measured_flops: ranges.PeakFlops | None = Field(None, alias="measured_matmul")
    measured_fp8: ranges.PeakFlops | None = None
    measured_fp4: ranges.PeakFlops | None = None
    tensor_per_exp: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.0
    flash2_flops: ranges.PeakFlops | None = Field(None, alias="flash2")
    flash2_backward_flops: ranges.PeakFlops | None = Field(None, alias="flash2_backward")
    overlap_gain: Factor = 1.0
    power_W: ranges.ChipPower | None = Field(None, alias="power")
    process_nm: ranges.ProcessNm | None = None
    die_mm2: ranges.ChipArea | None = Field(None, alias="die")
    dies: ranges.DieCount = 1
    # Of products inside training steps, fitted on published ones; else as long bursts have it.
    throttle: Factor | None = None
    throttle_long: Factor = 0.0  # of it, what grows with the length of a product, on both sides
    host_Bps: ranges.DeviceBandwidth = Field(25e9, alias="host_link")
    network: str = "dgx-h100"  # of the catalogue: what such devices usually sit on
    stack: str = "megatron"  # what usually runs on them
    calibration: str = "h200"  # of the catalogue, or a .yaml beside this file

    @model_validator(mode="after")
    def _half_peak_stated(self) -> GpuFile:
        if self.bf16_flops is None and self.fp16_flops is None:
            raise ValueError("expected bf16 or fp16, the dense 16-bit matrix peak")
        return self

    def gpu(self, calibration: Calibration) -> Gpu:
        if self.throttle is not None:
            calibration = replace(
                calibration, step_throttle=self.throttle, step_long=self.throttle_long
            )
        names = {field.name for field in fields(Gpu)}
        values = {name: value for name, value in self if name in names}
        values |= {"calibration": calibration, "fp8_share": self._fp8_share(calibration)}
        return Gpu(**values | {"fp4_gain": _over(self.measured_fp4, self.measured_fp8)})

    def _fp8_share(self, calibration: Calibration) -> float:
        """Return `Gpu.fp8_share`; 1 where it is unknown or products of the device were timed."""
        fp8 = _over(self.measured_fp8, self.fp8_flops)
        share = _over(fp8, _over(self.measured_flops, self.bf16_flops or self.fp16_flops))
        return share / H200_FP8_SHARE if share and calibration.name == "h200" else 1.0


def _over(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a / b


_CALIBRATION = "calibration-"
H200_FP8_SHARE = (1453.4 / 1979) / (794.5 / 989)
"""Of an H200: best fp8 and bf16 product (MAMF of github.com/stas00/ml-engineering) over peaks."""


def gpu_names() -> tuple[str, ...]:
    return tuple(name for name in entry_names("gpu") if not name.startswith(_CALIBRATION))


def gpu_name(device: str) -> str | None:
    """The catalogue's name of a device as people write it (H100-SXM, MI300X); None if unknown."""
    names = gpu_names()
    if device in names:
        return device
    return catalogue_name(
        device, names, lambda name: read_entry("gpu", name, GpuFile).hbm_bytes / 2**30
    )


def calibration_names() -> tuple[str, ...]:
    entries = (name for name in entry_names("gpu") if name.startswith(_CALIBRATION))
    return tuple(name.removeprefix(_CALIBRATION) for name in entries)


def load_gpu(name_or_path: str | Path, calibration: str | Path | None = None) -> Gpu:
    """A device of the catalogue or of a user's YAML file, under its own or another calibration."""
    if is_file(name_or_path):
        file = load_yaml(name_or_path, GpuFile)
        sibling = Path(name_or_path).parent / file.calibration
        default: str | Path = sibling if is_file(sibling) else file.calibration
        return file.gpu(load_calibration(default if calibration is None else calibration))
    device = str(name_or_path)
    name = gpu_name(device)
    if name is None:
        near = suggestion(device.lower(), gpu_names())
        if sizes := same_device(device, gpu_names()):
            near = f", did you mean {' or '.join(sizes)}?"
        raise unknown_entry("device", device, near)
    if calibration is None:
        return _catalogued(name)
    return read_entry("gpu", name, GpuFile).gpu(load_calibration(calibration))


@lru_cache(maxsize=64)
def _catalogued(name: str) -> Gpu:
    """Load a catalogue device with its default calibration, cached."""
    file = read_entry("gpu", name, GpuFile)
    return file.gpu(load_calibration(file.calibration))


USUAL_GB = 80  # memory size assumed for a device sold in several sizes when a table does not say


@lru_cache(maxsize=64)
def written_gpu(device: str, memory: str = "") -> Gpu:
    """The catalogue's device for a table's name of it; the memory tells some apart."""
    for spelling in (device + memory, device, f"{device} {USUAL_GB}GB"):
        if (name := gpu_name(spelling)) is not None:
            return load_gpu(name)
    return load_gpu(device)  # which refuses it


def load_calibration(name_or_path: str | Path) -> Calibration:
    """A calibration of the catalogue, or one that `calibrate` wrote."""
    if is_file(name_or_path):
        return load_yaml(name_or_path, CalibrationFile).calibration()
    name = str(name_or_path)
    if name not in calibration_names():
        raise unknown_entry("calibration", name, suggestion(name, calibration_names()))
    return read_entry("gpu", f"{_CALIBRATION}{name}", CalibrationFile).calibration()


def recalibrated(gpu: Gpu, calibration: Calibration) -> Gpu:
    return replace(gpu, calibration=calibration)
