"""Labels of a shortest path with two resources: (seconds, bytes here, bytes elsewhere) at a state.

Exact for one stream layout: labels run along all chains of a block, strung together at the stream.
A label is dropped if another at the same state beats it in all three, if the fewest bytes that must
follow no longer fit, or if the least seconds that must follow (alone, or with bytes at a price: a
Lagrangian bound) cannot beat the best mapping known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from atoll.arrays import FloatArray, IntArray
from atoll.wafer.exact.path_kernels import undominated_sorted
from atoll.wafer.exact.steps import Price, Step, Way


@dataclass(frozen=True)
class Limits:
    """Bytes that a die may hold, and bytes that it may leave elsewhere."""

    own: float
    away: float = 0.0


class _Labels(NamedTuple):
    time: FloatArray
    own: FloatArray
    away: FloatArray
    at: IntArray
    parent: IntArray
    option: IntArray
    fate: IntArray

    def pick(self, order: IntArray) -> _Labels:
        picked: list[Any] = [column[order] for column in self]
        return _Labels(*picked)


def undominated(time: FloatArray, own: FloatArray, away: FloatArray, at: IntArray) -> IntArray:
    """Labels that no other at the same state beats in seconds and both kinds of bytes."""
    order = np.lexsort((away, own, time, at))
    keep = np.zeros(len(order), np.bool_)
    undominated_sorted(at[order], own[order], away[order], keep)
    return np.asarray(order[keep])


def solve_labels(
    chains: list[list[Step]], stream: int, start: tuple[float, float], limits: Limits,
    cap_s: float, price: Price,
) -> Way | None:  # fmt: skip
    """The fastest way within the limits and below `cap_s`; None if there is none. `start` are
    seconds and bytes of the stream layout before the first step.
    """
    steps = [step for chain in chains for step in chain]
    ends = {int(e) for e in np.cumsum([len(chain) for chain in chains]) - 1}
    follow = _completions(stream, steps, ends, price)
    none = np.zeros(1, np.int64)
    labels = _Labels(
        np.array(start[:1]), np.array(start[1:]), np.zeros(1), np.array([stream]),
        none, none, none,
    )  # fmt: skip
    history: list[_Labels] = []
    for index, step in enumerate(steps):
        only = np.array([stream]) if index in ends else np.arange(step.time_s.shape[1])
        left_s, left_own, left_both = (f[only][None, :] for f in follow[index])
        parts = []
        for option in range(step.option_s.shape[0]):
            for fate in step.fates():
                t, m, a = _extended(step, labels, only, option, fate, price)
                dual = t + price.own * (m - limits.own) + price.away * (a - limits.away)
                good = (
                    (t + left_s < cap_s)
                    & (m + left_own <= limits.own)
                    & (a <= limits.away)
                    & (dual + left_both < cap_s)
                )
                rows, columns = np.nonzero(good)
                parts.append(
                    (t[good], m[good], a[good], only[columns], rows,
                     np.full(len(rows), option), np.full(len(rows), fate))
                )  # fmt: skip
        joined = _Labels(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        labels = joined.pick(undominated(joined.time, joined.own, joined.away, joined.at))
        if not len(labels.time):
            return None
        history.append(labels)
    return _walk_back(history, chains, steps, ends, int(labels.time.argmin()))


def _extended(
    step: Step, labels: _Labels, only: IntArray, option: int, fate: int, price: Price
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds and bytes of every label after the step, by (label, state)."""

    def part(value: FloatArray | float) -> FloatArray | float:
        return value[np.ix_(labels.at, only)] if isinstance(value, np.ndarray) else value

    before = np.zeros_like(labels.at) if step.option_s.shape[1] == 1 else labels.at
    pairs = np.ix_(before, only)
    edge_s, own, away = (part(v) for v in step.fate(fate, price.per_kept))
    t = labels.time[:, None] + (part(step.time_s) + step.option_s[option][pairs] + edge_s)
    m = labels.own[:, None] + (own + price.per_state * step.state[option][pairs])
    return t, m, labels.away[:, None] + (away + np.zeros_like(t))


def _walk_back(
    history: list[_Labels], chains: list[list[Step]], steps: list[Step], ends: set[int], last: int
) -> Way:
    states: list[int] = []
    options: list[int] = []
    fates: list[int] = []
    for index in reversed(range(len(steps))):
        labels = history[index]
        if index not in ends:
            states.append(int(labels.at[last]))
            options.append(int(labels.option[last]))
        if steps[index].droppable:
            fates.append(int(labels.fate[last]))
        last = int(labels.parent[last])
    states.reverse()
    by_chain: list[list[int]] = []
    position = 0
    for chain in chains:
        by_chain.append(states[position : position + len(chain) - 1])
        position += len(chain) - 1
    return Way(by_chain, options[::-1], fates[::-1])


def _completions(
    stream: int, steps: list[Step], ends: set[int], price: Price
) -> list[tuple[FloatArray, FloatArray, FloatArray]]:
    """After each step, for each state: the least seconds, the fewest bytes here, and the least
    seconds + price x bytes that must follow.
    """
    free = Price(0.0, 0.0, price.per_kept, price.per_state)
    zero = np.zeros(steps[-1].time_s.shape[1])
    follow = [(zero, zero, zero)] * len(steps)
    for index in range(len(steps) - 2, -1, -1):
        step = steps[index + 1]
        only = (
            np.array([stream]) if index + 1 in ends else np.arange(step.time_s.shape[1])
        )
        weights = (step.scalar(free), step.least_bytes(price.per_state), step.scalar(price))
        after = follow[index + 1]
        seconds, own, both = (
            (weight[:, only] + later[only][None, :]).min(axis=1)
            for weight, later in zip(weights, after, strict=True)
        )
        follow[index] = (seconds, own, both)
    return follow
