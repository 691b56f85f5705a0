"""A block's variables and their cost, shared by the exact solver and the evaluator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from atoll.base.arrays import Floats

FloatT = TypeVar("FloatT", float, Floats)
RECOMPUTE = 0
KEEP, OFFLOAD = 1, 2
"""Fates of a saved tensor between forward and backward: recomputed by its producer, kept, or
offloaded to another stage's memory."""
FATES = ("again", "keep", "offload")
SCHEDULE_1F1B = "1f1b"
SCHEDULES = (SCHEDULE_1F1B, "zb-h1")
"""Pipeline schedules of a mapping."""
EXTERNAL = "external"
HOMES = ("replicated", "optimizer", "gradients", "weights", EXTERNAL)
"""Placements of a weight's copies (`costs.homes`)."""
SEARCHED_HOMES = ("optimizer", "gradients", "weights")
OPTIMIZER = "mixed"
"""Default optimizer states."""


@dataclass(frozen=True)
class BlockMapping:
    """The variables of one block on one rectangle that the exact solver chooses."""

    stream: str
    codes: tuple[str, ...]
    homes: tuple[str, ...]
    keep: tuple[int, ...]
    """Fate of each saved tensor, in the order of the edges."""
    gradients: tuple[tuple[str, str], ...] = ()
    """Codes of each operator's data-gradient and weight-gradient pass; empty: the forward's."""
    collectives: tuple[tuple[bool, str], ...] = ()
    """Of each operator: streamed or not, and the algorithm; empty: those of the mapping."""

    @property
    def passes(self) -> tuple[tuple[str, str, str], ...]:
        """Codes of forward, data gradient and weight gradient by operator."""
        gradients = self.gradients or tuple((code, code) for code in self.codes)
        return tuple((f, d, w) for f, (d, w) in zip(self.codes, gradients, strict=True))

    @property
    def used(self) -> tuple[tuple[str, ...], ...]:
        """The distinct codes of every operator."""
        return tuple(tuple(dict.fromkeys(codes)) for codes in self.passes)


@dataclass(frozen=True)
class HelperPath:
    """Bandwidth and latency from a die of a stage to its helper's memory, in one direction."""

    bandwidth_Bps: float
    latency_s: float

    def journey_s(self, tensor_bytes: FloatT) -> FloatT:
        """Return the seconds of bytes from one die."""
        return tensor_bytes / self.bandwidth_Bps + self.latency_s


@dataclass(frozen=True)
class BlockCost:
    """Seconds per layer and microbatch; bytes per die and layer."""

    time_s: float
    state_bytes: float
    kept_bytes: float
    """Per microbatch in flight."""
    rebuilt_bytes: float
    """Recomputed or fetched for the backward pass of one microbatch of one layer."""
    away_bytes: float = 0.0
    """Per microbatch in flight, offloaded to another stage's memory."""

    def memory_bytes(self, layers: int, in_flight: int) -> float:
        return layers * (self.state_bytes + in_flight * self.kept_bytes) + self.rebuilt_bytes


@dataclass(frozen=True)
class SolvedBlock:
    mapping: BlockMapping
    cost: BlockCost
    bound_s: float
    """Lower bound on the block's time on this rectangle within the memory limit."""
