"""What the explorer is told of a design under other conditions: searched chips and plans alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
