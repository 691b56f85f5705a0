"""Yield and price of dies: the negative binomial rule, and how many of them a wafer holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from atoll.base.arrays import Floats
from atoll.hardware.physical.constants import PUBLISHED, Physics
from atoll.hardware.physical.nodes import nodes

WAFER_MM = 300.0


def die_yield(area_mm2: ArrayLike, process_nm: ArrayLike, physics: Physics = PUBLISHED) -> Floats:
    """(1 + A D / a)^-a: the share of dies without a defect (Stapper 1989)."""
    defects = np.asarray(area_mm2, np.float64) * nodes(process_nm).defects_per_mm2
    return np.asarray((1 + defects / physics.defects_alpha) ** -physics.defects_alpha)


def dies_per_wafer(area_mm2: ArrayLike) -> Floats:
    """Square dies per wafer: wafer area / die area, less edge losses (de Vries 2005)."""
    area = np.asarray(area_mm2, np.float64)
    dies = np.pi * WAFER_MM**2 / 4 / area - np.pi * WAFER_MM / np.sqrt(2 * area)
    return np.maximum(np.floor(dies), 1.0)


def die_usd(area_mm2: ArrayLike, process_nm: ArrayLike, physics: Physics = PUBLISHED) -> Floats:
    """Price of one good die as it leaves the foundry."""
    good = dies_per_wafer(area_mm2) * die_yield(area_mm2, process_nm, physics)
    return np.asarray(nodes(process_nm).wafer_usd / good)
