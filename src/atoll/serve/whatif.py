"""Types of what-if estimates: the conditions that sliders set, and the figures of a design or a
layout under them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from atoll.fabric.network import Network
from atoll.files.yamlfile import FileModel, validate_dict
from atoll.front import ScriptData

GIB = 2.0**30
FACTORS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
CAPACITIES_GIB = (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 141, 160, 192, 256, 288, 384, 512)
MOST_DEVICES = 2**20


Positive = Annotated[float, Field(gt=0, lt=1e15)]
Count = Annotated[int, Field(gt=0, le=MOST_DEVICES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoEstimate:
    """Reason why there is no estimate."""

    problem: str
    changed: bool = False
    answered_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """Training step of one model."""

    step_time_s: float
    samples_per_s: float
    tokens_per_s_per_device: float
    mfu: float
    parts_s: Mapping[str, float]
    memory_bytes: Mapping[str, float]
    """Memory parts of the fullest device."""
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
    """How the schedules of a chip's layers were obtained, in words."""
    refinable: bool = False
    """Whether a longer search could find faster schedules."""
    warning: str = ""
    changed: bool = False
    answered_ms: float = 0.0


class Change(FileModel):
    """Changed conditions; None keeps the stored value."""

    devices: Count | None = None
    link: Positive | None = None
    """Factor on the bandwidth of all network levels."""
    hbm_GiB: Positive | None = None
    hbm_GBps: Positive | None = None
    microbatch: Count | None = None
    tensor: Count | None = None
    sequence: Count | None = None
    batch: Count | None = None
    compute: Positive | None = None
    """Factor on the rate of matrix products."""


def parse_change(query: Mapping[str, Sequence[str]]) -> Change:
    """Parse and check the change in a query."""
    texts = {name: next(iter(query.get(name, ())), "") for name in Change.model_fields}
    return validate_dict({name: text for name, text in texts.items() if text}, Change, "")


def cache_put(cache: dict[Any, Any], key: object, value: object, most: int) -> None:
    """Store a value in a cache of at most `most` entries; the oldest is evicted."""
    if len(cache) >= most:
        del cache[next(iter(cache))]
    cache[key] = value


def slider(
    name: str, label: str, unit: str, values: Sequence[float], now: float, note: str = ""
) -> ScriptData:
    """Build a slider over these values and the current one, with the index of that (`now`)."""
    all_values = sorted({float(value) for value in (*values, now)})
    shown = tuple(int(number) if number.is_integer() else number for number in all_values)
    about, position = {"name": name, "label": label, "unit": unit}, all_values.index(float(now))
    return about | {"values": shown, "now": position, "note": note}


def doublings(value: float, least: float = 0.0) -> list[float]:
    """Return value x 2^k for k = -4..4, without values below `least`."""
    return [n for power in range(-4, 5) if (n := value * 2.0**power) >= least]


def job_sliders(sequence: int, batch: int) -> tuple[ScriptData, ...]:
    """Return sliders for sequence, batch and compute rate."""
    integers = [[n for n in doublings(now, 1) if n.is_integer()] for now in (sequence, batch)]
    return (
        slider("sequence", "Sequence", "tokens", integers[0], sequence),
        slider("batch", "Batch", "sequences", integers[1], batch),
        slider("compute", "Compute rate", "x", FACTORS, 1.0, "of all matrix products"),
    )


def link_slider(network: Network) -> ScriptData:
    """Return the slider for all network levels; its note states their bandwidths at 1 x."""
    bandwidths = (f"{level.name} {level.bandwidth_Bps / 1e9:g} GB/s" for level in network.levels)
    note = f"1 x is {', '.join(bandwidths)} per device"
    return slider("link", "Link bandwidth", "x", FACTORS, 1.0, note)
