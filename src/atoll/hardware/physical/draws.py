"""Other values that the constants could have: draws from their ranges, and their ends.

Every constant is triangular between the ends of its range, with its value as the mode, and
independent of the others. Draws are a Latin hypercube (McKay et al., Technometrics 1979): each
constant's range is cut into as many parts of equal chance as there are draws, and every part is
drawn from once, so that a few draws already cover every range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from atoll.base.arrays import Floats
from atoll.hardware.physical.constants import PUBLISHED, Constant, Physics


def drawn(constants: Sequence[Constant], count: int, seed: int) -> list[Physics]:
    """Draw `count` sets of constants; those that are not listed keep their values."""
    random = np.random.default_rng(seed)
    strata = np.array([random.permutation(count) for _ in constants]).reshape(-1, count)
    chances = (strata + random.random(strata.shape)) / count
    values = {
        constant.name: triangular(constant, row)
        for constant, row in zip(constants, chances, strict=True)
    }
    return [
        replace(PUBLISHED, **{name: float(row[draw]) for name, row in values.items()})
        for draw in range(count)
    ]


def triangular(constant: Constant, chance: Floats) -> Floats:
    """Quantiles of a constant's triangular distribution."""
    width, rise = constant.high - constant.low, constant.value - constant.low
    below = constant.low + np.sqrt(chance * width * rise)
    above = constant.high - np.sqrt((1.0 - chance) * width * (constant.high - constant.value))
    return np.where(chance * width < rise, below, above)


def at_ends(constant: Constant) -> tuple[Physics, Physics]:
    """Return constants with only this one at the low and at the high end of its range."""
    ends = (constant.low, constant.high)
    low, high = (replace(PUBLISHED, **{constant.name: end}) for end in ends)
    return low, high
