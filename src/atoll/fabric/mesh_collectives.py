"""Collectives of all groups of a rectangle at once: in closed form, and replayed on links that are
queues, as messages along lines, rings and rectangles of dies.

Reduce-scatter is all-gather with time reversed: as many messages over the same links, and as long
(`tests/fabric/test_mesh.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np

from atoll.base.arrays import Bools, Floats
from atoll.fabric import mesh_kernels as kernels
from atoll.fabric.digits import Digits
from atoll.fabric.mesh import ALGORITHMS, Die, Mesh, Rectangle, rectangle_ring, xy_path
from atoll.fabric.mesh_events import LinkMessage, simulate


def wires(digits: Digits, mesh: Mesh) -> kernels.Wires:
    """Pack the digits and links of a rectangle for the kernels."""
    return kernels.Wires(
        digits.radix, digits.axis, digits.stride, mesh.link_Bps, mesh.link_latency_s,
        np.zeros((3, 8), np.int64),
    )  # fmt: skip


def gather_s(
    digits: Digits, member: Sequence[bool], volume: float, mesh: Mesh, algorithm: str = "auto"
) -> float:
    """Seconds of an all-gather to `volume` bytes per die over the member digits; a reduce-scatter
    of the same volume takes as long, an all-reduce twice that."""
    flags, chosen = np.array(member, np.bool_), ALGORITHMS.index(algorithm)
    return float(kernels.pass_flags(flags, volume, wires(digits, mesh), chosen))


def gathers_s(
    digits: Digits, member: Bools, volume: Floats, mesh: Mesh, algorithm: str = "auto"
) -> Floats:
    """`gather_s` for each row of member digits and its volume."""
    seconds = np.zeros(len(member))
    chosen = ALGORITHMS.index(algorithm)
    kernels.pass_rows(member, volume, wires(digits, mesh), chosen, seconds)
    return seconds


def simulate_pass(
    digits: Digits, member: Sequence[bool], volume: float, mesh: Mesh, algorithm: str = "auto"
) -> float:
    """Simulate an all-gather over the member digits by the algorithm that `gather_s` chooses."""
    halves = pass_messages(digits, member, volume, mesh, algorithm)
    return max((simulate(messages, mesh).end_s for messages in halves), default=0.0)


def pass_messages(
    digits: Digits, member: Sequence[bool], volume: float, mesh: Mesh, algorithm: str = "auto"
) -> list[list[LinkMessage]]:
    """The messages of that all-gather, in parts that share no link at any moment."""
    if not any(member) or volume <= 0.0:
        return []
    fast = gather_s(digits, member, volume, mesh, algorithm)
    if fast == gather_s(digits, member, volume, mesh, "line"):
        return [_line_messages(digits, member, volume, 1.0, False)]
    if fast == gather_s(digits, member, volume, mesh, "ring"):
        schedule = MessageSchedule()
        for group in digits.groups(member):
            columns, rows = {x for x, _ in group}, {y for _, y in group}
            rectangle = Rectangle(min(columns), min(rows), len(columns), len(rows))
            schedule.gather_ring(rectangle_ring(rectangle), volume)
        return [schedule.messages]
    # Two halves with the axes swapped.
    return [_line_messages(digits, member, volume, 0.5, swapped) for swapped in (False, True)]


def _lines(digits: Digits, member: Sequence[bool]) -> list[list[int]]:
    """Runs of member digits on one axis, the widest stride first."""
    runs: list[list[int]] = []
    for d, inside in enumerate(member):
        if not inside:
            continue
        if runs and runs[-1][-1] == d - 1 and digits.axis[d] == digits.axis[d - 1]:
            runs[-1].append(d)
        else:
            runs.append([d])
    return sorted(runs, key=lambda run: -int(digits.stride[run[-1]]))


def _line_messages(
    digits: Digits, member: Sequence[bool], volume: float, share: float, swapped: bool
) -> list[LinkMessage]:
    """Gather line after line, all groups at once; a die continues when all pieces have arrived."""
    schedule = MessageSchedule()
    runs = _lines(digits, member)
    if swapped:
        runs.reverse()
    sizes = [int(np.prod([digits.radix[d] for d in run])) for run in runs]
    size = share * volume / float(np.prod(sizes))
    for run, length in zip(runs, sizes, strict=True):
        began = schedule.arrivals()
        size *= length
        for line in digits.groups([d in run for d in range(digits.count)]):
            schedule.gather_line(sorted(line), size, began)
    return schedule.messages


def simulate_exchange(digits: Digits, member: Sequence[bool], volume: float, mesh: Mesh) -> float:
    return simulate(exchange_messages(digits, member, volume), mesh).end_s


def exchange_messages(digits: Digits, member: Sequence[bool], volume: float) -> list[LinkMessage]:
    """The messages of an all-to-all over the member digits."""
    schedule = MessageSchedule()
    for group in digits.groups(member):
        schedule.exchange(group, volume)
    return schedule.messages


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
                    before = [sent]
                    at += step
                    self._last.setdefault(dies[at], []).append(sent)

    def gather_ring(self, dies: Sequence[Die], volume: float) -> None:
        """All-gather around a ring, half of every piece in each direction."""
        count = len(dies)
        half = volume / count / 2.0
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
        for source, target in permutations(dies, 2):
            far = abs(source[0] - target[0]) + abs(source[1] - target[1])
            self.send(source, target, part, rank=far)

    def arrivals(self) -> dict[Die, list[int]]:
        """Messages sent to each die so far, which a following phase waits for."""
        return {die: list(sent) for die, sent in self._last.items()}
