"""What "best" means: throughput of one model, or several models taken together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.errors import AtollError

FloatArray = NDArray[np.float64]

KINDS = ("mean", "weighted", "worst")


@dataclass(frozen=True)
class Objective:
    """A score to maximise, from the step times of all models.

    "mean" is the plain mean of samples per second (the fastest model dominates, as in PHAZE);
    "weighted" and "worst" compare each model with a reference chip first, and take the weighted
    mean or the least of those ratios.
    """

    kind: str
    batches: tuple[int, ...]
    weights: tuple[float, ...]
    reference_samples_per_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise AtollError(
                f"objective: unknown objective {self.kind!r}; allowed are {', '.join(KINDS)}."
            )

    @staticmethod
    def single(batch: int) -> Objective:
        """Samples per second of one model."""
        return Objective("mean", (batch,), (1.0,), (1.0,))

    def scores(self, times_s: FloatArray) -> FloatArray:
        """Score of each row of step times (chips, models)."""
        with np.errstate(divide="ignore"):
            samples = np.array(self.batches) / times_s
        if self.kind == "mean":
            return np.asarray(samples.mean(axis=1))
        relative = samples / np.array(self.reference_samples_per_s)
        if self.kind == "worst":
            return np.asarray(relative.min(axis=1))
        weights = np.array(self.weights)
        return np.asarray(relative @ weights / weights.sum())
