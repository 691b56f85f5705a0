"""Tensors that wait in another stage's memory: who helps whom, and what the way there costs.

In a 1F1B pipeline the first stage holds as many microbatches as there are stages, the last one
holds one. A stage short of memory (sender) leaves saved tensors with one that has room (helper):
every die of the sender sends its part to the dies at the same place in the helper's rectangle,
along x, then along y, and fetches it back. A link over which several dies send divides its
bandwidth evenly between them, whenever they send; the most loaded link of its way is a die's speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from atoll.fabric.mesh import Rectangle
from atoll.wafer.encoding.genes import Away

RESERVED = (0.0625, 0.125, 0.25)  # shares of a helper's memory set aside for guests


class StagePipeline(NamedTuple):
    """A pipeline before its layers are handed out."""

    rectangles: tuple[Rectangle, ...]
    microbatch: int
    schedule: str
    helpers: Helpers | None = None

    def ends(self, stage: int) -> tuple[bool, bool]:
        """Whether a stage is the first, and the last."""
        return stage == 0, stage == len(self.rectangles) - 1

    def proportional_layers(self, layers: int, share: float) -> tuple[int, ...]:
        """So much of the layers of each stage by its dies, at least one."""
        sizes = [r.size for r in self.rectangles]
        counts = [max(1, int(share * layers * size / sum(sizes))) for size in sizes]
        while sum(counts) > layers:
            counts[counts.index(max(counts))] -= 1
        return tuple(counts)


@dataclass(frozen=True)
class Helpers:
    """Who helps whom: stage by stage the helper, the way there, and bytes set aside for guests."""

    stages: tuple[int | None, ...]
    paths: tuple[Away | None, ...]
    reserved_bytes: tuple[float, ...]

    def offload_limit_bytes(self, stage: int, rectangles: Sequence[Rectangle]) -> float:
        """What a die of the stage may leave with its helper."""
        helper = self.stages[stage]
        if helper is None:
            return 0.0
        senders = sum(guest_helper == helper for guest_helper in self.stages)
        ratio = rectangles[helper].size / rectangles[stage].size
        return self.reserved_bytes[helper] * ratio / senders


def pairings(stages: int) -> tuple[tuple[int | None, ...], ...]:
    """The fullest with the emptiest; and each of the first half with the stage half a pipeline on,
    which is nearer.
    """
    half = stages // 2
    distance = stages - half
    mirrored = tuple(stages - 1 - s if s < half else None for s in range(stages))
    shifted = tuple(s + distance if s < half else None for s in range(stages))
    return tuple(dict.fromkeys((mirrored, shifted)))
