"""The objective: throughput of one or several models, or that divided by a price."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from atoll.base.arrays import Floats
from atoll.base.registry import Registry
from atoll.cost.chips import Chips
from atoll.explore.pricing.price import Price
from atoll.hardware.accelerator import Hbm
from atoll.hardware.space import DesignSpace


@dataclass(frozen=True, slots=True)
class Aim:
    """Combines the throughputs of several models into a score."""

    name: str
    score: Callable[[Floats, Floats], Floats]
    """Score from samples per second (chips, models) and the models' weights. It must never fall
    where a model is faster: bounds on step times then bound it."""
    relative: bool = True
    """Whether samples per second are divided by those of the reference chip."""


def _mean(samples: Floats, weights: Floats) -> Floats:
    return np.asarray(samples.mean(axis=1))


def _weighted(relative: Floats, weights: Floats) -> Floats:
    return np.asarray(relative @ weights / weights.sum())


def _worst(relative: Floats, weights: Floats) -> Floats:
    return np.asarray(relative.min(axis=1))


MEAN = Aim("mean", _mean, relative=False)
"""Mean of samples per second: the fastest model dominates, as in PHAZE."""
AIMS = Registry("objectives", Aim, (MEAN, Aim("weighted", _weighted), Aim("worst", _worst)))
"""The others take the weighted mean or the minimum of the models' ratios to a reference chip."""


@dataclass(frozen=True)
class Objective:
    """A score to maximise, from the step times of all models."""

    aim: Aim
    batches: tuple[int, ...]
    weights: tuple[float, ...]
    reference_samples_per_s: tuple[float, ...]
    price: Price | None = None  # divisor of throughput; None: 1
    every_memory: bool = False

    @property
    def by_memory(self) -> bool:
        """Whether chips are searched with every memory of a bandwidth, not only the largest."""
        return self.every_memory or self.price is not None

    @staticmethod
    def single(batch: int, price: Price | None = None) -> Objective:
        """Samples per second of one model."""
        return Objective(MEAN, (batch,), (1.0,), (1.0,), price)

    def prices(
        self, space: DesignSpace, chips: Chips, memories: Sequence[tuple[Hbm, ...]]
    ) -> Floats:
        """Return the divisor of every chip's throughput."""
        if self.price is None:
            return np.ones(len(chips))
        return self.price.of_chips(space, chips, memories)

    def scores(self, times_s: Floats) -> Floats:
        """Return the scores of step times (chips, models), before prices."""
        with np.errstate(divide="ignore"):
            samples = np.array(self.batches) / times_s
        if self.aim.relative:
            samples = samples / np.array(self.reference_samples_per_s)
        return self.aim.score(samples, np.array(self.weights))
