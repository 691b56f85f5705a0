"""The Spotlight-like baseline: a Bayesian search of the chip for one device alone.

It knows nothing of the distribution: it maximises the speed of one microbatch on one device, as
single-accelerator explorers do (Spotlight, HPCA 2023: Bayesian optimisation over hardware and
mapping). A Gaussian process with a squared-exponential kernel over the logarithms of the design's
parameters, expected improvement over all designs of the space, a fixed seed.
"""

from __future__ import annotations

from dataclasses import replace
from math import erfc

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Floats
from atoll.base.stopping import StopCheck, check_stop, never
from atoll.cost.chips import chips_of_space
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.workloads import Variants, make_variants
from atoll.hardware.space import DesignSpace

FIRST_SAMPLES = 16
ROUNDS = 48
_NOISE = 1e-4  # of the standardised objective, for numerical stability


def spotlight_chip(
    space: DesignSpace,
    variants: Variants,
    setting: SearchSetting,
    seed: int,
    stop: StopCheck = never,
) -> int:
    """Return the index of the design with the fastest single device."""
    microbatch = min(variant.microbatch for variant in variants.variants)
    # The batch is one microbatch here, which need not divide every model's batch.
    single = make_variants(
        [replace(workload, global_batch=microbatch) for workload in variants.workloads],
        microbatches=(microbatch,),
        tps=(1,),
        devices=1,
        recompute="none",
        profile=setting.profile,
        stop=stop,
    )
    rng = np.random.default_rng(seed)
    process = GaussianProcess(_features(space), FIRST_SAMPLES + ROUNDS)
    first = rng.choice(len(space), size=min(FIRST_SAMPLES, len(space)), replace=False)
    for design, value in zip(first, _device_log_s(space, first, single, setting), strict=True):
        process.observe(int(design), value)
    for _ in range(min(ROUNDS, len(space) - len(first))):
        check_stop(stop)
        chosen = process.most_promising()
        process.observe(chosen, _device_log_s(space, np.array([chosen]), single, setting)[0])
    return process.observed[int(np.argmin(process.values))]


def _features(space: DesignSpace) -> Floats:
    columns = [space.columns[parameter.name] for parameter in space.template.parameters]
    logs = np.log2(np.column_stack(columns).astype(np.float64))
    spread = logs.std(axis=0)
    varies = spread > 0
    return np.asarray((logs[:, varies] - logs[:, varies].mean(axis=0)) / spread[varies])


def _device_log_s(
    space: DesignSpace, designs: NDArray[np.int64], single: Variants, setting: SearchSetting
) -> Floats:
    """Return the mean over models of the log time of one microbatch on one device."""
    chips = chips_of_space(space.subset(designs), setting.profile)
    _, first = np.unique(chips.design, return_index=True)
    priced = PricedChips.of(chips.subset(first), single, setting)
    logs = np.zeros(len(designs))
    for v, variant in enumerate(single.variants):
        nodes = np.arange(len(designs))
        _, upper = priced.schedule_bounds(nodes, np.full(len(designs), v))
        step = (upper.sum(axis=2)[:, : variant.layers] * variant.facts.repeats).sum(axis=1)
        logs += np.log(step)
    return logs / len(single.variants)


class GaussianProcess:
    """A Gaussian process over fixed points that are observed one after another.

    The rows of the Cholesky factor of the observed points' covariance are carried on over all
    points, so that an observation costs one row and no system of equations.
    """

    def __init__(self, points: Floats, most: int) -> None:
        """Allocate for at most `most` observations."""
        self.observed: list[int] = []
        self.values: list[float] = []
        self._points = points
        self._squares = (points**2).sum(axis=1)
        self._rows = np.empty((most, len(points)))
        self._variance = np.ones(len(points))
        # The factor's inverse times the values, and times ones: the values' mean and scale change.
        self._whitened = np.empty((2, most))
        self._predicted = np.zeros((2, len(points)))  # `_whitened @ _rows`

    def observe(self, point: int, value: float) -> None:
        """Add the value at a point, by its number."""
        count = len(self.observed)
        rows, points = self._rows[:count], self._points
        column = rows[:, point]
        diagonal = np.sqrt(1.0 + _NOISE - column @ column)
        distance = self._squares + self._squares[point] - 2.0 * points @ points[point]
        row = (np.exp(-0.5 * distance / points.shape[1]) - column @ rows) / diagonal
        self._rows[count] = row
        self._variance -= row**2
        whitened = ([value, 1.0] - self._whitened[:, :count] @ column) / diagonal
        self._whitened[:, count] = whitened
        self._predicted += whitened[:, None] * row
        self.observed.append(point)
        self.values.append(value)

    def most_promising(self) -> int:
        """Return the point with the largest expected decrease of the value below the least one, of
        points that are not observed.

        With the standardised decrease `z` of the mean, the expected decrease is the deviation times
        `z P(z) + p(z)`, at most `max(z, 0) + p(z)`: only points above the best by that bound need
        the error function.
        """
        values = np.array(self.values)
        mean, scale = values.mean(), values.std() or 1.0
        deviation = np.sqrt(np.maximum(self._variance, 1e-12))
        better = (values.min() - mean - (self._predicted[0] - mean * self._predicted[1])) / scale
        density = deviation * np.exp(-0.5 * (better / deviation) ** 2) / np.sqrt(2 * np.pi)
        most = np.maximum(better, 0.0) + density
        most[self.observed] = -1.0

        def expected(points: NDArray[np.int64]) -> Floats:
            z = better[points] / deviation[points]
            probability = 0.5 * np.array([erfc(x) for x in (-z / np.sqrt(2)).tolist()])
            return np.asarray(better[points] * probability + density[points])

        first = np.array([np.argmax(most)])
        hopeful = np.flatnonzero(most >= expected(first)[0])
        return int(hopeful[np.argmax(expected(hopeful))])
