"""Offload of saved tensors to another stage's memory: pairings of stages and their paths.

In a 1F1B pipeline the first stage holds as many microbatches as there are stages, the last one
holds one. A stage short of memory (sender) offloads saved tensors to one with free memory (helper):
every die of the sender sends its part to the dies at the same position in the helper's rectangle,
along x, then along y, and fetches it back. Dies that share a link share its bandwidth evenly at all
times; the most loaded link of its route sets a die's rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from atoll.fabric.mesh import Rectangle
from atoll.wafer.encoding.block_parts import HelperPath

RESERVED = (0.0625, 0.125, 0.25)  # shares of a helper's memory reserved for offloaded tensors


class StagePipeline(NamedTuple):
    """A pipeline before layers are assigned to its stages."""

    rectangles: tuple[Rectangle, ...]
    microbatch: int
    schedule: str
    helpers: Helpers | None = None

    def ends(self, stage: int) -> tuple[bool, bool]:
        """Whether a stage is the first, and the last."""
        return stage == 0, stage == len(self.rectangles) - 1

    def proportional_layers(self, layers: int, share: float) -> tuple[int, ...]:
        """Return `share` of each stage's layers in proportion to its dies, at least one."""
        sizes = [r.size for r in self.rectangles]
        counts = [max(1, int(share * layers * size / sum(sizes))) for size in sizes]
        while sum(counts) > layers:
            counts[counts.index(max(counts))] -= 1
        return tuple(counts)


@dataclass(frozen=True)
class Helpers:
    """By stage: its helper, the path there, and the bytes reserved for tensors of others."""

    stages: tuple[int | None, ...]
    paths: tuple[HelperPath | None, ...]
    reserved_bytes: tuple[float, ...]

    def offload_limit_bytes(self, stage: int, rectangles: Sequence[Rectangle]) -> float:
        """Return the bytes that a die of the stage may offload."""
        helper = self.stages[stage]
        if helper is None:
            return 0.0
        senders = sum(guest_helper == helper for guest_helper in self.stages)
        ratio = rectangles[helper].size / rectangles[stage].size
        return self.reserved_bytes[helper] * ratio / senders


def pairings(stages: int) -> tuple[tuple[int | None, ...], ...]:
    """Return helpers by stage: mirrored (fullest with emptiest) and shifted by half."""
    half = stages // 2
    distance = stages - half
    mirrored = tuple(stages - 1 - s if s < half else None for s in range(stages))
    shifted = tuple(s + distance if s < half else None for s in range(stages))
    return tuple(dict.fromkeys((mirrored, shifted)))
