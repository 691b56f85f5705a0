"""Logs of nccl-tests (all_reduce_perf and others; those of RCCL are the same).

A log states its ranks and hosts, then a line per size with times out of place and in place. Its bus
bandwidth is that of a ring's links, which the levels of a network state.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from atoll.base.errors import AtollError
from atoll.fabric.nested import all_to_all_s, collective_s
from atoll.fabric.network import Network
from atoll.files.inputs import read_input

MOST_BYTES = 2**26
"""Limit of a log."""
RANK = re.compile(r"^#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\b")
TEST = re.compile(r"\b([a-z_]+?)_perf(?:_mpi)?\b")
KINDS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
LARGE, SMALL = 64 * 2**20, 2**15
"""Bytes from which bandwidth dominates the time, and up to which latency does."""
TIME_COLUMNS, BUS_OFFSET, OPERATION = (5, 9), 2, 3
"""Columns of times; of the bus bandwidth after each; of the operation."""


class Spread(NamedTuple):
    """Range of a measured quantity."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class CollectiveLog:
    """A collective over all ranks of a log, at many sizes."""

    kind: str
    ranks: int
    nodes: int
    sizes: tuple[float, ...]
    """Bytes of the full buffers, one per time."""
    times_s: tuple[float, ...]
    bus_Bps: tuple[float, ...]

    @property
    def level(self) -> str:
        """Level of the slowest links."""
        return "inside" if self.nodes == 1 else "between"

    @property
    def bandwidth_Bps(self) -> Spread | None:
        """Bus bandwidth of large messages."""
        return spread([b for b, s in zip(self.bus_Bps, self.sizes, strict=True) if s >= LARGE])

    @property
    def latency_s(self) -> Spread | None:
        """Time of small messages."""
        return spread([t for t, s in zip(self.times_s, self.sizes, strict=True) if s <= SMALL])

    def ratios_to(self, network: Network) -> tuple[Spread | None, Spread | None]:
        """Return bandwidth and latency over those of a catalogue network."""
        fixed_s = self._predicted_s(network, 1.0)
        measured = list(zip(self.sizes, self.times_s, strict=True))
        latency = spread([time_s / fixed_s for size, time_s in measured if size <= SMALL])
        waits_s = fixed_s * (latency.middle if latency else 1.0)
        bandwidth = spread(
            [
                (self._predicted_s(network, size) - fixed_s) / (time_s - waits_s)
                for size, time_s in measured
                if size >= LARGE and time_s > waits_s
            ]
        )
        return bandwidth, latency

    def _predicted_s(self, network: Network, bytes_: float) -> float:
        if self.kind == "all_to_all":
            return all_to_all_s(network, bytes_, self.ranks)
        return collective_s(network, self.kind, bytes_, self.ranks)


def spread(values: Sequence[float]) -> Spread | None:
    """Return the 5th percentile, the median and the 95th percentile."""
    if not values:
        return None
    return Spread(*map(float, np.quantile(np.array(values), (0.05, 0.5, 0.95))))


def read_log(path: str | Path) -> CollectiveLog:
    """Read the table of a log."""
    lines = read_input(path, MOST_BYTES).decode("utf-8", errors="replace").splitlines()
    hosts = {int(match[1]): match[2] for line in lines if (match := RANK.match(line))}
    rows = [row for line in lines for row in _rows(line)]
    if not rows:
        raise AtollError(f"{path}: not a log of nccl-tests (no line with a size and its times)")
    if len(hosts) < 2:
        raise AtollError(f"{path}: the log names {len(hosts)} ranks in its header, expected more")
    names = [match[1] for line in lines if (match := TEST.search(line))]
    sizes, times_s, bus_Bps = (tuple(column) for column in zip(*rows, strict=True))
    kind = KINDS.get(names[0], "") if names else _kind(lines, sizes, times_s, bus_Bps, len(hosts))
    if not kind:
        raise AtollError(
            f"{path}: {names[0] if names else 'the collective'} is none of {', '.join(KINDS)}"
        )
    return CollectiveLog(kind, len(hosts), len(set(hosts.values())), sizes, times_s, bus_Bps)


def _rows(line: str) -> list[tuple[float, float, float]]:
    """Return (size, time, bus bandwidth) out of place and in place: a line has size, count, type,
    operation, root, then twice time (us), algbw, busbw (GB/s) and errors.
    """
    cells = line.split()
    if len(cells) < 8 or not cells[0].isdigit() or not cells[1].isdigit():
        return []
    rows = []
    for column in TIME_COLUMNS:
        try:
            time_s, bus_Bps = float(cells[column]) * 1e-6, float(cells[column + BUS_OFFSET]) * 1e9
        except (ValueError, IndexError):
            continue
        if 0 < time_s < math.inf and 0 <= bus_Bps < math.inf and int(cells[0]):
            rows.append((float(cells[0]), time_s, bus_Bps))
    return rows


def _kind(
    lines: Sequence[str],
    sizes: Sequence[float],
    times_s: Sequence[float],
    bus_Bps: Sequence[float],
    ranks: int,
) -> str:
    """Infer the collective of a log from its bus bytes per buffer: 2 (n - 1) / n is an all-reduce,
    (n - 1) / n with an operation a reduce-scatter, without one an all-gather.
    """
    large = int(np.argmax(sizes))
    passes = bus_Bps[large] * times_s[large] / sizes[large] / ((ranks - 1) / ranks)
    operations = {line.split()[OPERATION] for line in lines if _rows(line)}
    if abs(passes - 2) < 0.1:
        return "all_reduce"
    if abs(passes - 1) < 0.1:
        return "reduce_scatter" if operations - {"none", ""} else "all_gather"
    return ""
