"""The physical model compared with published chips and with measured nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from atoll.answers.answer import Answer
from atoll.answers.validation import Errors


@dataclass(frozen=True, slots=True)
class Predicted:
    """A figure of one chip as published, and as the model has it."""

    published: float | None
    counts: bool
    """Whether it is a published figure and in the errors."""
    left_out: float
    """With constants from the other families of the table."""
    fitted: float
    """With constants from all chips of the table."""
    shipped: float
    """With the constants that searches take."""

    def error(self, value: float) -> float | None:
        return value / self.published - 1 if self.published else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipLine:
    """One chip; parts are those of `left_out`."""

    chip: str
    family: str
    area_mm2: Predicted
    power_W: Predicted
    area_parts_mm2: Mapping[str, float]
    power_parts_W: Mapping[str, float]
    """At peak, before the limit of its module."""
    module_W: float | None
    """What a module of its year could be cooled at, where it has one."""
    peak_flops: float | None
    constructed_flops: float | None
    """Units x width x 2 x clock."""
    peak_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoErrors:
    area: Errors
    power: Errors


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantTold:
    """A constant of the physical model."""

    value: float
    low: float
    high: float
    source: str
    fitted: float | None
    """On this table; none: it is not fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipsValidation(Answer):
    """Area and rated power of chips, each from the other families of the table."""

    kind: Literal["chips-validation"] = "chips-validation"
    format: Literal[1] = 1
    rows: int
    predicted: int
    skipped: Mapping[str, int]
    area: Errors
    power: Errors
    peak: Errors
    """Peak rate by construction, where the words say units and width."""
    fitted: TwoErrors
    shipped: TwoErrors
    families: Mapping[str, TwoErrors]
    constants: Mapping[str, ConstantTold]
    chips: tuple[ChipLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """Mean power of one node."""

    id: str
    device: str
    devices: int
    workload: str
    measured_W: float
    predicted_W: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesValidation(Answer):
    """Powers of whole nodes in training."""

    kind: Literal["nodes-validation"] = "nodes-validation"
    format: Literal[1] = 1
    rows: int
    predicted: int
    skipped: Mapping[str, int]
    power: Errors
    nodes: tuple[NodeLine, ...]
