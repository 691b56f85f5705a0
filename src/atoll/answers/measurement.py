"""`atoll measure`: ranks of a layout on one device, predicted and measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from atoll.answers.answer import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRank:
    """A rank that ran on the local device without communication, and what was predicted of it."""

    id: str
    stage: int
    rank: int
    outcome: str
    """ok, oom (it ran out of memory, a result), or error, time, died with the reason in `error`."""
    step_time_s: float | None = None
    predicted_step_time_s: float | None = None
    allocated_bytes: float | None = None
    predicted_allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    predicted_reserved_bytes: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureAnswer(Answer):
    """Ranks of a layout, measured on one device."""

    kind: Literal["measured-ranks"] = "measured-ranks"
    format: Literal[1] = 1
    layout: str
    ranks: tuple[MeasuredRank, ...]
    rows: str
    """Table with a row per rank that has a result."""
    commands: tuple[str, ...] = ()
    """With `--dry-run`: the command; it reads `jobs`, one per line, from jobs.jsonl."""
    jobs: tuple[Mapping[str, JsonValue], ...] = ()
