"""Summaries and details of runs that the explorer receives as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll.answers.answer import Summary
from atoll.answers.certificate import ArchitectureProof
from atoll.answers.designs import ShownParameter
from atoll.answers.plan import EstimateAnswer, PlanAnswer
from atoll.store import Identity, StatusAnswer


@dataclass(frozen=True, slots=True)
class ModelJob:
    """Fields of a wafer's or a plan's stored job that the explorer reads."""

    devices: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Progress of a search at one time."""

    seconds: float
    phase: str
    left: int
    evaluated: int
    score: float
    bound: float | None
    """None where nothing is bounded yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSummary:
    """An answer without its large parts."""

    summary: Summary
    certificate: ArchitectureProof
    baseline_remarks: Mapping[str, str]
    baselines: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of the list of runs."""

    id: str
    kind: str
    folder: str
    state: str
    models: tuple[str, ...]
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSummary(RunSummary):
    parameters: tuple[ShownParameter, ...]
    """Columns of its designs that are chip parameters."""
    loaded: int
    """Designs in memory; `reading`: designs read by the update under way."""
    reading: int
    version: int
    trouble: str
    phase: str
    left: int
    total: int
    evaluated: int
    designs: int
    score: float
    bound: float | None
    gap: float | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchDetails(SearchSummary):
    job: Identity
    status: StatusAnswer
    result: AnswerSummary | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary(RunSummary):
    device: str
    step_time_s: float
    mfu: float
    layouts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSummary:
    """One line of the list of runs: a sweep, of which models and devices may be fields."""

    id: str
    kind: str
    folder: str
    state: str
    axes: tuple[str, ...]
    """Names of the swept fields."""
    questions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDetails(PlanSummary):
    plan: PlanAnswer | EstimateAnswer
