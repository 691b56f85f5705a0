"""Collectives as messages on the mesh, for the event simulation.

Groups are given as lines, rings and rectangles of dies; several groups may run at once and then
share links. Reduce-scatter is all-gather with time reversed: as many messages over the same links,
and as long (`tests/fabric/test_mesh.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from atoll.fabric.mesh import Die, xy_path
from atoll.fabric.mesh_events import LinkMessage


class MessageSchedule:
    """Messages under construction; phases follow each other die by die."""

    def __init__(self) -> None:
        self.messages: list[LinkMessage] = []
        self._last: dict[Die, list[int]] = {}

    def send(
        self, source: Die, target: Die, size: float, after: Sequence[int] = (), rank: int = 0
    ) -> int:
        self.messages.append(LinkMessage(xy_path(source, target), size, tuple(after), rank))
        return len(self.messages) - 1

    def gather_line(self, dies: Sequence[Die], volume: float, began: dict[Die, list[int]]) -> None:
        """All-gather along a line, pieces outwards in both directions; `volume` when gathered."""
        piece = volume / len(dies)
        for owner in range(len(dies)):
            for step in (1, -1):
                before = began.get(dies[owner], [])
                at = owner
                while 0 <= at + step < len(dies):
                    sent = self.send(dies[at], dies[at + step], piece, before)
                    self._arrived(dies[at + step], sent)
                    before = [sent]
                    at += step

    def gather_ring(self, dies: Sequence[Die], volume: float) -> None:
        """All-gather around a ring, half of every piece in each direction."""
        half = volume / len(dies) / 2.0
        count = len(dies)
        for owner in range(count):
            for step in (1, -1):
                before: list[int] = []
                at = owner
                for _ in range(count - 1):
                    following = (at + step) % count
                    before = [self.send(dies[at], dies[following], half, before)]
                    at = following

    def exchange(self, dies: Sequence[Die], volume: float) -> None:
        """All-to-all: every die sends an equal part of `volume` to every other, farthest first."""
        part = volume / len(dies)
        for source in dies:
            for target in dies:
                if source != target:
                    far = abs(source[0] - target[0]) + abs(source[1] - target[1])
                    self.send(source, target, part, rank=far)

    def _arrived(self, die: Die, message: int) -> None:
        self._last.setdefault(die, []).append(message)

    def arrivals(self) -> dict[Die, list[int]]:
        """Messages sent to each die so far, which a following phase waits for."""
        return {die: list(sent) for die, sent in self._last.items()}
