"""The constants of the physical model; `constants.yaml` has value, range and source of each.

Ranges are for robustness: what a value could be.

Every constant is triangular between the ends of its range, with its value as the mode, and
independent of the others. Draws are a Latin hypercube (McKay et al., Technometrics 1979): each
constant's range is cut into as many parts of equal chance as there are draws, and every part is
drawn from once, so that a few draws already cover every range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from atoll.base.arrays import Floats
from atoll.files.yamlfile import shipped_table

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant with its range and source."""

    name: str
    value: float
    low: float
    high: float
    source: str


@dataclass(frozen=True, slots=True)
class Physics:
    """All constants; draws and fits replace field values (`dataclasses.replace`)."""

    cell_um2: float
    fp8_cell: float
    fp4_cell: float
    threaded_lane_um2: float
    static_lane_um2: float
    core_um2: float
    scratchpad: float
    bank_periphery: float
    second_port: float
    cache: float
    shared_wiring: float
    uncore_mm2: float
    further_die: float
    serdes_mm2_per_GBps: float
    serdes_GBps_per_mm: float
    on_wafer_link: float
    die_link_mm2_per_GBps: float
    die_link_pJ_per_bit: float
    dram_channel_mm2: float
    mac_pJ: float
    fp8_mac: float
    operand_pJ_per_byte: float
    threaded_lane_pJ: float
    static_lane_pJ: float
    sustained: float
    static_W_per_mm2: float
    hbm_stack_W: float
    dram_pJ_per_bit: float
    other_dram: float
    dram_share: float
    buffer_share: float
    bank_energy: float
    link_pJ_per_bit: float
    link_share: float
    module_W_2016: float
    module_growth: float
    wire_pJ_per_bit_mm: float
    wire_mm: float
    wire_mm2_per_Bpc_mm: float
    threshold: float
    least_voltage: float
    nominal_Hz: float
    sram_pJ_per_byte: float
    defects_alpha: float
    defects: float


FITTED_AREA = ("threaded_lane_um2", "static_lane_um2", "core_um2", "scratchpad", "uncore_mm2")
FITTED_POWER = ("mac_pJ", "operand_pJ_per_byte", "static_W_per_mm2", "hbm_stack_W")


def published(kind: type[T]) -> T:
    """Return the record of a kind with the values of `constants.yaml`."""
    return kind(**{name: value for name, (value, *_) in _stated(kind).items()})


def _stated(kind: type) -> dict[str, tuple[float, float, float, str]]:
    entries: dict[str, tuple[float, float, float, str]]
    entries = shipped_table("atoll.hardware.physical", "constants.yaml")[kind.__name__]
    return entries


PUBLISHED = published(Physics)


def constants(record: object = PUBLISHED) -> Iterator[Constant]:
    """Yield every constant of a record with its range and source."""
    for name, (_, low, high, source) in _stated(type(record)).items():
        yield Constant(name, float(getattr(record, name)), low, high, source)


# --- Other values that the constants could have ---------------------------------------------------


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
