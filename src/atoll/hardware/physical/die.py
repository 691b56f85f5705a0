"""Yield and price of dies: defects by a negative binomial rule, spare cores, dies per wafer.

Defects fall on a die as a Poisson process whose density differs from die to die by a gamma
distribution of shape `defects_alpha`: the negative binomial rule of Stapper. A defect outside of
the cores loses the die. A defect in a core loses the core, and the die is sold while enough of the
built cores are good: at one density a binomial tail over cores, here its mean over all densities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from atoll.base.arrays import Floats
from atoll.hardware.physical.area import area_parts_mm2, total
from atoll.hardware.physical.constants import PUBLISHED, Physics
from atoll.hardware.physical.nodes import nodes
from atoll.hardware.physical.physical_chip import Columns

WAFER_MM = 300.0
_MM2_PER_CM2 = 100.0
_DENSITIES = 24  # Gauss-Laguerre nodes: yields agree with the closed form within 1e-9
Defects = tuple[tuple[float, float], ...]
"""Stated defect densities: (nm, defects per cm2) of each process."""


@dataclass(frozen=True, slots=True)
class DieCores:
    """Cores of one die, of which `enabled` out of `built` must be good."""

    built: ArrayLike
    enabled: ArrayLike
    core_mm2: ArrayLike


def defects_per_mm2(
    process_nm: ArrayLike, physics: Physics = PUBLISHED, stated: Defects = ()
) -> Floats:
    """Return the stated density of a process or that of its node, times the drawn factor."""
    density = nodes(process_nm).defects_per_mm2
    for node_nm, per_cm2 in stated:
        density = np.where(np.asarray(process_nm) == node_nm, per_cm2 / _MM2_PER_CM2, density)
    return np.asarray(density * physics.defects)


def die_yield(
    area_mm2: ArrayLike,
    process_nm: ArrayLike,
    physics: Physics = PUBLISHED,
    cores: DieCores | None = None,
    stated: Defects = (),
) -> Floats:
    """Return the share of dies without a defect, (1 + A D / a)^-a (Stapper 1989), or with enough
    good cores."""
    alpha, density = physics.defects_alpha, defects_per_mm2(process_nm, physics, stated)
    area = np.asarray(area_mm2, np.float64)
    flawless = np.asarray((1 + area * density / alpha) ** -alpha)
    if cores is None or not np.any(np.asarray(cores.built) > cores.enabled):
        return flawless
    # Takes a fifth of the imports of a search, and few spaces have spare cores.
    from scipy.special import betainc, gamma, roots_genlaguerre

    built, enabled, core_mm2 = (
        np.asarray(values, np.float64) for values in (cores.built, cores.enabled, cores.core_mm2)
    )
    rest_mm2 = np.maximum(area - built * core_mm2, 0.0)
    good = np.zeros(np.broadcast_shapes(area.shape, density.shape, built.shape, core_mm2.shape))
    for node, weight in zip(*roots_genlaguerre(_DENSITIES, alpha - 1.0), strict=True):
        defects = density * (node / alpha)
        enough = betainc(enabled, np.maximum(built - enabled, 0.0) + 1, np.exp(-defects * core_mm2))
        good += weight / gamma(alpha) * np.exp(-defects * rest_mm2) * enough
    return np.where(built > enabled, good, flawless)


def dies_per_wafer(area_mm2: ArrayLike) -> Floats:
    """Square dies per wafer: wafer area / die area, less edge losses (de Vries 2005)."""
    area = np.asarray(area_mm2, np.float64)
    dies = np.pi * WAFER_MM**2 / 4 / area - np.pi * WAFER_MM / np.sqrt(2 * area)
    return np.maximum(np.floor(dies), 1.0)


def die_usd(
    area_mm2: ArrayLike,
    process_nm: ArrayLike,
    physics: Physics = PUBLISHED,
    cores: DieCores | None = None,
    stated: Defects = (),
) -> Floats:
    """Return the price of one good die as it leaves the foundry."""
    good = dies_per_wafer(area_mm2) * die_yield(area_mm2, process_nm, physics, cores, stated)
    return np.asarray(nodes(process_nm).wafer_usd / good)


def die_cores(chips: Columns, physics: Physics = PUBLISHED) -> DieCores:
    """Return the cores of each die of a package: arrays with their buffers where spare cores are
    counted, all units and memories where only their share on the die is given."""
    parts, dies = area_parts_mm2(chips, physics), chips["dies"]
    arrays = np.maximum(chips["bf16_cells"] / chips["unit_cells"], 1.0)
    built = arrays * chips["spare"] + chips["spare_cores"]
    macro_mm2 = physics.scratchpad / nodes(chips["process_nm"]).macro_bytes_per_mm2
    array_mm2 = parts["cells"] / built + chips["core_bytes"] * macro_mm2
    units_mm2 = total(parts[n] for n in ("cells", "lanes", "control", "buffers", "cache")) / built
    core_mm2 = np.where(chips["spare"] > 1.0, units_mm2, array_mm2)
    return DieCores(built / dies, arrays / dies, core_mm2)


def package_dies_usd(
    chips: Columns, area_mm2: ArrayLike, physics: Physics = PUBLISHED, stated: Defects = ()
) -> Floats:
    """Return the price of the good dies of a package with this area in all."""
    dies = chips["dies"]
    cores = die_cores(chips, physics)
    return dies * die_usd(np.asarray(area_mm2) / dies, chips["process_nm"], physics, cores, stated)
