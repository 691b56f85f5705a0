"""How work is cut into tasks of measured size, some of them computed speculatively.

Neither the size of a piece nor speculation changes a result; both only keep the workers busy, the
driver's memory small and every task short enough to stop or to lose.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from atoll.base.arrays import Ints
from atoll.executors import Crew, TaskCall
from atoll.explore.proof.tasks import ChipTask, place_chips
from atoll.explore.proof.trial import SolvedPlacements

PIECE_S = 0.8  # target duration of a task: far longer than sending it, short enough to lose
PIECES_PER_WORKER = 3


class Pacer:
    """Cuts batches into pieces by the measured time per core configuration."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._configs_per_s = 0.0
        self._cold = True
        """Whether no batch was measured; the first one also loads kernels."""
        self._size: dict[int, tuple[int, float]] = {}
        self._begun = 0.0

    def pieces(self, tensor_config: Ints, chips: Ints) -> list[Ints]:
        """Divide chips into pieces for the workers."""
        if len(chips) == 0:
            return []
        total = len(np.unique(tensor_config[chips]))
        target = PIECE_S * self._configs_per_s if self._configs_per_s else np.inf
        if not self._crew.executor.in_process:
            target = min(target, total / (PIECES_PER_WORKER * self._crew.executor.workers))
        pieces = chunks_by_family(tensor_config, chips, max(1.0, target))
        self._begun = time.monotonic()
        self._size = {id(piece): (total, len(piece) / len(chips)) for piece in pieces}
        return pieces

    def finished(self, call: TaskCall) -> None:
        """Update the measured rate with a finished piece, except of the first batch."""
        total, share = self._size.pop(id(call.tag), (0, 0.0))
        if self._cold:
            self._cold = bool(self._size)
            return
        elapsed = time.monotonic() - self._begun
        if self._crew.executor.in_process:
            self._begun = time.monotonic()
            measured = total * share / max(elapsed, 1e-6)
        else:
            done = 1.0 - sum(part for _, part in self._size.values())
            measured = total * done / max(elapsed, 1e-6) / self._crew.executor.workers
        old = self._configs_per_s
        self._configs_per_s = measured if old == 0.0 else 0.7 * old + 0.3 * measured


def chunks_by_family(tensor_config: Ints, chips: Sequence[int] | Ints, target: float) -> list[Ints]:
    """Divide chips into pieces of about `target` core configurations each.

    Chips with the same array, buffer and memory share configurations, which are costed once for a
    piece: they stay together. The largest pieces come first.
    """
    chosen = np.asarray(chips, np.int64)
    configs = tensor_config[chosen]
    order = np.argsort(configs[:, 0], kind="stable")
    pieces: list[Ints] = []
    piece: list[int] = []
    piece_configs: set[int] = set()
    sizes: list[int] = []
    previous = -1
    for position in order:
        family = int(configs[position, 0])
        if piece and len(piece_configs) >= target and family != previous:
            pieces.append(chosen[piece])
            sizes.append(len(piece_configs))
            piece, piece_configs = [], set()
        piece.append(int(position))
        piece_configs.update(configs[position].tolist())
        previous = family
    if piece:
        pieces.append(chosen[piece])
        sizes.append(len(piece_configs))
    return [pieces[i] for i in sorted(range(len(pieces)), key=lambda i: -sizes[i])]


class Speculation:
    """Placements computed in advance, against the incumbent when they were sent."""

    def __init__(
        self, crew: Crew, worth: Callable[[int], bool], task: Callable[[int], ChipTask]
    ) -> None:
        self._crew = crew
        self._worth = worth
        self._task = task
        self._sent: dict[int, tuple[TaskCall, int]] = {}
        self._next = 0
        self._group = 1

    def result(self, chip: int, ranked: Ints) -> SolvedPlacements | None:
        """Return what a worker computed for the chip that is next; None when stopped."""
        if self._crew.executor.in_process:
            return {}
        self._send(ranked, until=chip)
        call, position = self._sent.pop(chip)
        answers = self._crew.result(call)
        if answers is None:
            return None
        placements: SolvedPlacements = answers[position]
        return placements

    def _send(self, ranked: Ints, until: int) -> None:
        """Keep the workers busy with the chips that come next."""
        while self._next < len(ranked):
            calls = {id(call) for call, _ in self._sent.values()}
            if until in self._sent and len(calls) >= self._crew.capacity:
                return
            group: list[int] = []
            while self._next < len(ranked) and len(group) < self._group:
                chip = int(ranked[self._next])
                self._next += 1
                if chip == until or self._worth(chip):
                    group.append(chip)
            if group:
                call = TaskCall(place_chips, ([self._task(chip) for chip in group],))
                self._crew.send(call)
                self._sent |= {chip: (call, i) for i, chip in enumerate(group)}
