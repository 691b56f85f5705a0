"""The mesh event by event: every link is a queue that carries one message at a time.

A message follows a route of links, is stored and forwarded at every die, and starts when the
messages that it waits for have arrived. Collectives are such messages (`mesh_collectives.py`);
their end is measured, not computed. A link serves waiting messages in the order in which they came,
and among those that came at the same time the one with the higher rank.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from atoll.fabric.mesh import Link, Mesh


@dataclass(frozen=True)
class LinkMessage:
    """`bytes` along `route`, once all of `after` (indices of messages) have arrived."""

    route: tuple[Link, ...]
    bytes: float
    after: tuple[int, ...] = ()
    rank: int = 0


@dataclass(frozen=True)
class Simulated:
    end_s: float
    arrival_s: tuple[float, ...]
    busy_s: dict[Link, float]


def simulate(messages: Sequence[LinkMessage], mesh: Mesh) -> Simulated:
    """Simulate all messages on the mesh."""
    waiting = [len(message.after) for message in messages]
    followers: list[list[int]] = [[] for _ in messages]
    for index, message in enumerate(messages):
        for before in message.after:
            followers[before].append(index)
    arrival = [0.0] * len(messages)
    queues: dict[Link, list[tuple[float, int, int, int]]] = {}
    free_at: dict[Link, float] = {}
    busy: dict[Link, float] = {}
    # (time, kind, link or message): arrivals at a queue before links look at their queues.
    events: list[tuple[float, int, int, int]] = []

    def reach(time: float, index: int, hop: int) -> None:
        heapq.heappush(events, (time, 0, index, hop))

    for index, message in enumerate(messages):
        if not message.after:
            reach(0.0, index, 0)
    links: list[Link] = []
    number: dict[Link, int] = {}
    while events:
        time, kind, index, hop = heapq.heappop(events)
        if kind == 0:
            message = messages[index]
            if hop == len(message.route):
                arrival[index] = time
                for follower in followers[index]:
                    waiting[follower] -= 1
                    if waiting[follower] == 0:
                        reach(time, follower, 0)
                continue
            link = message.route[hop]
            if link not in number:
                number[link] = len(links)
                links.append(link)
            heapq.heappush(queues.setdefault(link, []), (time, -message.rank, index, hop))
            heapq.heappush(events, (max(time, free_at.get(link, 0.0)), 1, number[link], 0))
            continue
        link = links[index]
        queue = queues[link]
        if not queue or free_at.get(link, 0.0) > time:
            continue
        _, _, sent, at = heapq.heappop(queue)
        takes = messages[sent].bytes / mesh.link_Bps
        free_at[link] = time + takes
        busy[link] = busy.get(link, 0.0) + takes
        reach(time + takes + mesh.link_latency_s, sent, at + 1)
        if queue:
            heapq.heappush(events, (free_at[link], 1, index, 0))
    return Simulated(max(arrival, default=0.0), tuple(arrival), busy)
