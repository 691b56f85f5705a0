"""The Spotlight-like baseline: a Bayesian search of the chip for one device alone.

It knows nothing of the distribution: it maximises the speed of one microbatch on one device, as
single-accelerator explorers do (Spotlight, HPCA 2023: Bayesian optimisation over hardware and
mapping). A Gaussian process with a squared-exponential kernel over the logarithms of the design's
parameters, expected improvement over all designs of the space, a fixed seed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import ndtr

from atoll.cost.chips import chips_of_space
from atoll.explore.pricing.evaluate import Priced
from atoll.explore.pricing.layouts import Setting
from atoll.explore.pricing.workloads import Variants, make_variants
from atoll.hardware import Space
from atoll.hardware.space import PARAMETERS
from atoll.stopping import Asked, go_on, never

FloatArray = NDArray[np.float64]

FIRST_SAMPLES = 16
ROUNDS = 48
_NOISE = 1e-4  # of the standardised objective: log times repeat exactly, the kernel does not


def spotlight_chip(
    space: Space, variants: Variants, setting: Setting, seed: int, stop: Asked = never
) -> int:
    """Index of the design with the fastest single device found."""
    microbatch = min(variant.microbatch for variant in variants.variants)
    # One microbatch is the whole batch here: it need not divide every model's own.
    single = make_variants(
        [replace(workload, global_batch=microbatch) for workload in variants.workloads],
        microbatches=(microbatch,),
        tensor_widths=(1,),
        devices=1,
        recompute="none",
        profile=setting.profile,
        stop=stop,
    )
    rng = np.random.default_rng(seed)
    features = _features(space)
    first = rng.choice(len(space), size=min(FIRST_SAMPLES, len(space)), replace=False)
    seen = [int(i) for i in first]
    values = list(_device_log_s(space, np.array(seen), single, setting))
    for _ in range(min(ROUNDS, len(space) - len(seen))):
        go_on(stop)
        gain = expected_improvement(features[seen], np.array(values), features)
        gain[seen] = -1.0
        chosen = int(np.argmax(gain))
        seen.append(chosen)
        values.extend(_device_log_s(space, np.array([chosen]), single, setting))
    return seen[int(np.argmin(values))]


def _features(space: Space) -> FloatArray:
    columns = [getattr(space, name) for name in PARAMETERS]
    logs = np.log2(np.column_stack(columns).astype(np.float64))
    spread = logs.std(axis=0)
    kept = spread > 0
    return np.asarray((logs[:, kept] - logs[:, kept].mean(axis=0)) / spread[kept])


def _device_log_s(
    space: Space, designs: NDArray[np.int64], single: Variants, setting: Setting
) -> FloatArray:
    """Log time of one microbatch of every model on one device (geometric mean over models)."""
    chips = chips_of_space(space.subset(designs), setting.profile)
    _, first = np.unique(chips.design, return_index=True)
    priced = Priced.of(chips.subset(first), single, setting)
    logs = np.zeros(len(designs))
    for v, variant in enumerate(single.variants):
        nodes = np.arange(len(designs))
        _, upper = priced.schedule_bounds(nodes, np.full(len(designs), v))
        repeats = np.array([repeat for _, repeat in variant.model.layers])
        step = (upper.sum(axis=2)[:, : variant.layers] * repeats).sum(axis=1)
        logs += np.log(step)
    return logs / len(single.variants)


def expected_improvement(known: FloatArray, values: FloatArray, points: FloatArray) -> FloatArray:
    """Expected decrease below the least known value, at every point."""
    mean, scale = values.mean(), values.std() or 1.0
    standard = (values - mean) / scale
    factor = cho_factor(_kernel(known, known) + _NOISE * np.eye(len(known)))
    cross = _kernel(points, known)
    predicted = cross @ cho_solve(factor, standard)
    variance = 1.0 - np.einsum("ij,ji->i", cross, cho_solve(factor, cross.T))
    deviation = np.sqrt(np.maximum(variance, 1e-12))
    better = standard.min() - predicted
    z = better / deviation
    density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    return np.asarray(better * ndtr(z) + deviation * density)


def _kernel(a: FloatArray, b: FloatArray) -> FloatArray:
    distance = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2.0 * a @ b.T
    return np.asarray(np.exp(-0.5 * distance / a.shape[1]))
