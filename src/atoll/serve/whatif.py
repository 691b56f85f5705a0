"""What-ifs in types: the conditions that sliders set, and what the explorer is told of a design or
a layout under them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from atoll.fabric.network import Network
from atoll.files.yamlfile import FileModel, validate_dict

GIB = 2.0**30
FACTORS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
CAPACITIES_GIB = (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 141, 160, 192, 256, 288, 384, 512)
MOST_DEVICES = 2**20


Positive = Annotated[float, Field(gt=0, lt=1e15)]
Count = Annotated[int, Field(gt=0, le=MOST_DEVICES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slider:
    """One control: the values it takes, and the place of the present one among them."""

    name: str
    label: str
    unit: str
    values: tuple[int | float, ...]
    now: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What can be changed."""

    sliders: tuple[Slider, ...]
    note: str
    global_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why there is no estimate."""

    problem: str
    changed: bool = False
    answered_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One model's step."""

    step_time_s: float
    samples_per_s: float
    tokens_per_s_per_device: float
    mfu: float
    parts_s: Mapping[str, float]
    memory_bytes: Mapping[str, float]
    """Of the fullest device."""
    memory_capacity_bytes: float
    pipeline: int
    tensor: int
    data: int
    devices: int
    microbatch: int
    microbatches: int
    recompute: str
    layout: str
    power_W: float | None = None
    energy_per_token_J: float | None = None
    schedules: str = ""
    """Where the times of a chip's layers come from, in words."""
    refinable: bool = False
    """Whether more effort would find better ones."""
    warning: str = ""
    changed: bool = False
    answered_ms: float = 0.0


class Change(FileModel):
    """None: as it was."""

    devices: Count | None = None
    link: Positive | None = None
    """Factor on the bandwidth of every level of the network."""
    hbm_GiB: Positive | None = None
    hbm_GBps: Positive | None = None
    microbatch: Count | None = None
    tensor: Count | None = None
    sequence: Count | None = None
    batch: Count | None = None
    compute: Positive | None = None
    """Factor on the rate of matrix products."""


def parse_change(query: Mapping[str, Sequence[str]]) -> Change:
    """The change in a query; every value is checked, and named if it is wrong."""
    texts = {name: next(iter(query.get(name, ())), "") for name in Change.model_fields}
    return validate_dict({name: text for name, text in texts.items() if text}, Change, "")


def keep(cache: dict[Any, Any], key: object, value: object, most: int) -> None:
    """Put a value into a cache of so many, from which the oldest goes first."""
    if len(cache) >= most:
        del cache[next(iter(cache))]
    cache[key] = value


def slider(
    name: str, label: str, unit: str, values: Sequence[float], now: float, note: str = ""
) -> Slider:
    """One control: the values it takes, with the present one among them."""
    all_values = sorted({float(value) for value in values} | {float(now)})
    shown = tuple(int(number) if number.is_integer() else number for number in all_values)
    position = all_values.index(float(now))
    return Slider(name=name, label=label, unit=unit, values=shown, now=position, note=note)


def around(value: float, least: float = 0.0) -> list[float]:
    """Halves and doubles of a value, up to sixteen times."""
    candidates = [value * 2.0**power for power in range(-4, 5)]
    return [candidate for candidate in candidates if candidate >= least]


def job_sliders(sequence: int, batch: int) -> tuple[Slider, ...]:
    """What is trained, and how fast devices multiply."""
    integer_values = [[candidate for candidate in around(present, 1) if candidate.is_integer()] for present in (sequence, batch)]
    return (
        slider("sequence", "Sequence", "tokens", integer_values[0], sequence),
        slider("batch", "Batch", "sequences", integer_values[1], batch),
        slider("compute", "Compute rate", "x", FACTORS, 1.0, "of all matrix products"),
    )


def link_slider(network: Network) -> Slider:
    """All levels together; the label says what they are at 1."""
    levels = ", ".join(f"{level.name} {level.bandwidth_Bps / 1e9:g} GB/s" for level in network.levels)
    note = f"1 x is {levels} per device"
    return slider("link", "Link bandwidth", "x", FACTORS, 1.0, note)
