"""Transfers between pipeline stages: every flow routed over the mesh, loads added link by link."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from atoll.base.errors import AtollError
from atoll.fabric.mesh import Die, Link, Mesh, Rectangle, both_directions, xy_path


@dataclass(frozen=True)
class Boundary:
    """Seconds of the transfer into each stage (0 into the first), and the load of every link."""

    into_s: tuple[float, ...]
    loads: Mapping[Link, float]


def boundaries(
    mesh: Mesh, rectangles: Sequence[Rectangle], stream_bytes: float,
    dead_links: Sequence[Link] = (),
) -> Boundary:  # fmt: skip
    """Time the transfers between stages: all send at once, each waits for its most loaded link."""
    return _boundaries(mesh, tuple(rectangles), stream_bytes, tuple(dead_links))


@lru_cache(maxsize=256)
def _boundaries(
    mesh: Mesh, rectangles: tuple[Rectangle, ...], stream_bytes: float, dead_links: tuple[Link, ...]
) -> Boundary:
    broken = both_directions(dead_links)
    loads: dict[Link, float] = {}
    routes: list[list[tuple[tuple[Link, ...], float]]] = [[]]
    for before, after in pairwise(rectangles):
        sent = []
        for source, target, share in flows(before, after):
            path = route(source, target, mesh, broken)
            sent.append((path, share * stream_bytes))
            for link in path:
                loads[link] = loads.get(link, 0.0) + share * stream_bytes
        routes.append(sent)
    times = []
    for sent in routes:
        slowest = max((loads[link] for path, _ in sent for link in path), default=0.0)
        hops = max((len(path) for path, _ in sent), default=0)
        times.append(slowest / mesh.link_Bps + hops * mesh.link_latency_s)
    return Boundary(tuple(times), loads)


@dataclass(frozen=True)
class Journey:
    """Route of a stage to its helper and back: dies that share its most loaded link, its longest
    path in hops, and bytes per link for each byte that a die sends."""

    sharing: float
    hops: int
    loads: Mapping[Link, float]


def journeys(
    mesh: Mesh, rectangles: Sequence[Rectangle], helpers: Sequence[int | None],
    dead_links: Sequence[Link] = (),
) -> tuple[Journey | None, ...]:  # fmt: skip
    """Route all senders, which share links."""
    broken = both_directions(dead_links)
    stage_loads: list[dict[Link, float]] = []
    hops: list[int] = []
    total_loads: dict[Link, float] = {}
    for stage, helper in enumerate(helpers):
        loads: dict[Link, float] = {}
        longest = 0
        if helper is not None:
            size = rectangles[stage].size
            for source, target, share in flows(rectangles[stage], rectangles[helper]):
                for ends in ((source, target), (target, source)):
                    path = route(*ends, mesh, broken)
                    longest = max(longest, len(path))
                    for link in path:
                        loads[link] = loads.get(link, 0.0) + share * size
        for link, load in loads.items():
            total_loads[link] = total_loads.get(link, 0.0) + load
        stage_loads.append(loads)
        hops.append(longest)
    return tuple(
        None if helper is None else Journey(max(total_loads[link] for link in loads), far, loads)
        for helper, loads, far in zip(helpers, stage_loads, hops, strict=True)
    )


def flows(before: Rectangle, after: Rectangle) -> list[tuple[Die, Die, float]]:
    """List (source, target, share): each die receives from the dies at the same relative position
    of the stage before. Both rectangles are walked so that pieces cross where they touch."""
    sources, targets = before.dies(), after.dies()
    shares = []
    for i, target in enumerate(targets):
        low, high = i / len(targets), (i + 1) / len(targets)
        # Only these overlap; the shares of those at the ends may be zero.
        for j in range(i * len(sources) // len(targets), len(sources)):
            if j / len(sources) >= high:
                break
            share = min(high, (j + 1) / len(sources)) - max(low, j / len(sources))
            if share > 1e-12:
                shares.append((sources[j], target, share))
    return shares


def route(source: Die, target: Die, mesh: Mesh, broken: set[Link]) -> tuple[Link, ...]:
    """Route along x, then along y; around dead links by a shortest path."""
    path = xy_path(source, target)
    if not broken or not broken.intersection(path):
        return path
    return _around(source, target, mesh, broken)


def _around(source: Die, target: Die, mesh: Mesh, broken: set[Link]) -> tuple[Link, ...]:
    came: dict[Die, Die] = {source: source}
    queue = deque([source])
    while queue:
        die = queue.popleft()
        if die == target:
            break
        for step in mesh.neighbours(die):
            if step not in came and (die, step) not in broken:
                came[step] = die
                queue.append(step)
    if target not in came:
        raise AtollError(
            f"wafer {mesh.name}: dead links cut die {target} off from die {source}; leave one of "
            "them out as a dead die."
        )
    path: list[Link] = []
    die = target
    while die != source:
        path.append((came[die], die))
        die = came[die]
    return tuple(path[::-1])
