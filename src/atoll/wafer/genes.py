"""A block's genes and what they cost: the words that the exact part and the evaluator share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockMapping:
    """One block on one rectangle: the genes that the exact part chooses."""

    stream: str
    codes: tuple[str, ...]
    homes: tuple[str, ...]
    keep: tuple[bool, ...]
    """One a saved tensor, in the order of the edges."""


@dataclass(frozen=True)
class BlockCost:
    """Seconds a layer and microbatch; bytes a die and layer."""

    time_s: float
    state_bytes: float
    kept_bytes: float
    """Of one microbatch in flight."""
    rebuilt_bytes: float
    """Made again for the backward pass of one microbatch of one layer."""

    def memory_bytes(self, layers: int, in_flight: int) -> float:
        return layers * (self.state_bytes + in_flight * self.kept_bytes) + self.rebuilt_bytes


@dataclass(frozen=True)
class Solved:
    mapping: BlockMapping
    cost: BlockCost
    bound_s: float
    """No mapping of this block on this rectangle within the limit is faster."""
