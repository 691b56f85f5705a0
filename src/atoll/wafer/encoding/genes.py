"""A block's variables and what they cost: the words that the exact part and the evaluator share."""

from __future__ import annotations

from dataclasses import dataclass

AGAIN, KEEP, OFFLOAD = range(3)
"""What happens to a saved tensor between forward and backward: its producer runs again; it stays;
it waits in another stage's memory."""
FATES = ("again", "keep", "offload")
ONE_F_ONE_B = "1f1b"
SCHEDULES = (ONE_F_ONE_B, "zb-h1")
"""Pipeline orders that a mapping may have."""
EXTERNAL = "external"
HOMES = ("replicated", "optimizer", "gradients", "weights", EXTERNAL)
"""Where a weight's copies live (`costs.homes`)."""
SEARCHED_HOMES = ("optimizer", "gradients", "weights")
OPTIMIZER = "mixed"
"""Whose states are held where nothing is said."""


@dataclass(frozen=True)
class BlockMapping:
    """One block on one rectangle: the variables that the exact part chooses."""

    stream: str
    codes: tuple[str, ...]
    homes: tuple[str, ...]
    keep: tuple[int, ...]
    """One fate a saved tensor, in the order of the edges."""
    gradients: tuple[tuple[str, str], ...] = ()
    """Codes of every operator's data-gradient and weight-gradient pass; none: as the forward's."""
    collectives: tuple[tuple[bool, str], ...] = ()
    """Of every operator: streamed or not, and the algorithm; none: those of the whole mapping."""

    @property
    def passes(self) -> tuple[tuple[str, str, str], ...]:
        """Codes of forward, data gradient and weight gradient, by operator."""
        gradients = self.gradients or tuple((code, code) for code in self.codes)
        return tuple((f, d, w) for f, (d, w) in zip(self.codes, gradients, strict=True))

    @property
    def used(self) -> tuple[tuple[str, ...], ...]:
        """The distinct codes of every operator."""
        return tuple(tuple(dict.fromkeys(codes)) for codes in self.passes)


@dataclass(frozen=True)
class Away:
    """How a stage reaches the memory of its helper: what a die's tensors travel at, one way."""

    bandwidth_Bps: float
    latency_s: float


@dataclass(frozen=True)
class BlockCost:
    """Seconds a layer and microbatch; bytes a die and layer."""

    time_s: float
    state_bytes: float
    kept_bytes: float
    """Of one microbatch in flight."""
    rebuilt_bytes: float
    """Made again, or brought back, for the backward pass of one microbatch of one layer."""
    away_bytes: float = 0.0
    """Of one microbatch in flight, left in another stage's memory."""

    def memory_bytes(self, layers: int, in_flight: int) -> float:
        return layers * (self.state_bytes + in_flight * self.kept_bytes) + self.rebuilt_bytes


@dataclass(frozen=True)
class Solved:
    mapping: BlockMapping
    cost: BlockCost
    bound_s: float
    """No mapping of this block on this rectangle within the limit is faster."""
