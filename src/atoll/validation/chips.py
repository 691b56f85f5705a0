"""Validation of the physical model on published chips: area and rated power, by family left out.

A fit moves the constants in `FITTED_AREA` and `FITTED_POWER` within the ranges of their sources:
least squares of logarithmic errors with soft L1 loss, and a normal prior per constant whose 90 %
interval is its range. Chips without a published figure have less weight and do not count in errors.
The chips of every vendor are predicted by a fit without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from atoll.answers.validation import (
    AreaPowerErrors,
    ChipFigure,
    ChipLine,
    ChipsValidation,
    Errors,
    PhysicalConstant,
)
from atoll.base.arrays import Floats
from atoll.hardware.physical.area import area_mm2, area_parts_mm2
from atoll.hardware.physical.constants import (
    FITTED_AREA,
    FITTED_POWER,
    PUBLISHED,
    Physics,
    constants,
)
from atoll.hardware.physical.physical_chip import PhysicalChip, columns
from atoll.hardware.physical.power import module_W, power_parts_W, rating_W
from atoll.validation.chip_rows import ChipRow, read_chips
from atoll.validation.errors import error_summary
from atoll.validation.tables import write_records

Model = Callable[[dict[str, Floats], Physics], Floats]

_EXPECTED_ERROR = {True: 0.13, False: 0.25}
"""Expected logarithmic error of a chip, by whether its figure is published."""
_INTERVAL_90 = 2 * 1.645


def fit_physics(rows: Sequence[ChipRow], start: Physics = PUBLISHED) -> Physics:
    """Fit the constants of area, then those of power, to these chips."""
    sized = [(row.chip, row.silicon_mm2, row.area_counts) for row in rows if row.silicon_mm2]
    rated = [(row.chip, row.tdp_W, row.power_counts) for row in rows if row.tdp_W]
    return _fit(_fit(start, FITTED_AREA, area_mm2, sized), FITTED_POWER, rating_W, rated)


def _fit(
    start: Physics,
    names: Sequence[str],
    model: Model,
    figures: Sequence[tuple[PhysicalChip, float, bool]],
) -> Physics:
    """Fit constants to figures of chips: the chip, the figure, and whether it is published."""
    ranges = {constant.name: (constant.low, constant.high) for constant in constants(start)}
    low, high = np.log([ranges[name] for name in names]).T
    middle, spread = (low + high) / 2, (high - low) / _INTERVAL_90
    chips = columns([chip for chip, _, _ in figures])
    target = np.log(np.array([figure for _, figure, _ in figures], np.float64))
    trust = np.array([_EXPECTED_ERROR[counted] for _, _, counted in figures])

    def physics_at(log_values: Floats) -> Physics:
        return replace(start, **dict(zip(names, np.exp(log_values).tolist(), strict=True)))

    def residuals(log_values: Floats) -> Floats:
        errors = target
        if figures:
            errors = (np.log(model(chips, physics_at(log_values))) - target) / trust
        return np.concatenate([errors, (log_values - middle) / spread])

    return physics_at(least_squares(residuals, middle, loss="soft_l1", bounds=(low, high)).x)


def validate_chips(path: str | Path, out: str | Path | None = None) -> ChipsValidation:
    """Predict every chip with the shipped model, and with fits to the other families."""
    rows, skipped = read_chips(path)
    families = sorted({row.family for row in rows})
    left_out = {
        family: fit_physics([row for row in rows if row.family != family]) for family in families
    }
    fitted = fit_physics(rows)
    lines = tuple(_line(row, left_out[row.family], fitted) for row in rows)
    records = list(map(_flat, lines))
    write_records(out, tuple(records[0]), records)
    return ChipsValidation(
        rows=len(rows) + sum(skipped.values()),
        predicted=len(rows),
        skipped=skipped,
        area=_errors(lines, "area", "left_out"),
        power=_errors(lines, "power", "left_out"),
        peak=error_summary([line.peak_error for line in lines if line.peak_error is not None]),
        fitted=_area_and_power(lines, "fitted"),
        shipped=_area_and_power(lines, "shipped"),
        families={
            family: _area_and_power([line for line in lines if line.family == family], "left_out")
            for family in families
        },
        constants={
            constant.name: PhysicalConstant(
                value=constant.value, low=constant.low, high=constant.high, source=constant.source,
                fitted=getattr(fitted, constant.name) if constant.name in _FITTED else None,
            )
            for constant in constants()
        },
        chips=lines,
    )  # fmt: skip


_FITTED = FITTED_AREA + FITTED_POWER


def _line(row: ChipRow, left_out: Physics, fitted: Physics) -> ChipLine:
    chip = columns([row.chip])
    constructed_flops, peak_flops = row.constructed_flops, row.peak_flops

    def predicted(model: Model, published: float | None, counts: bool) -> ChipFigure:
        values = (float(model(chip, physics)[0]) for physics in (left_out, fitted, PUBLISHED))
        return ChipFigure(published, counts, *values)

    return ChipLine(
        chip=row.name,
        family=row.family,
        area_mm2=predicted(area_mm2, row.silicon_mm2, row.area_counts),
        power_W=predicted(rating_W, row.tdp_W, row.power_counts),
        area_parts_mm2={k: float(v[0]) for k, v in area_parts_mm2(chip, left_out).items()},
        power_parts_W={k: float(v[0]) for k, v in power_parts_W(chip, left_out).items()},
        module_W=None if row.chip.on_wafer else float(module_W(chip, left_out)[0]),
        peak_flops=peak_flops,
        constructed_flops=constructed_flops,
        peak_error=constructed_flops / peak_flops - 1 if constructed_flops and peak_flops else None,
    )


def _area_and_power(lines: Sequence[ChipLine], physics: str) -> AreaPowerErrors:
    return AreaPowerErrors(
        area=_errors(lines, "area", physics), power=_errors(lines, "power", physics)
    )


def _errors(lines: Sequence[ChipLine], quantity: str, physics: str) -> Errors:
    """Summarise the errors of chips with a published figure."""
    predictions = [line.area_mm2 if quantity == "area" else line.power_W for line in lines]
    errors = [p.error(getattr(p, physics)) for p in predictions if p.counts]
    return error_summary([error for error in errors if error is not None])


_FIGURES = ("published", "counts", "left_out", "fitted", "shipped")


def _flat(line: ChipLine) -> dict[str, object]:
    """Return the written columns of a chip: figures of area and power, and parts of both."""
    flat: dict[str, object] = {"chip": line.chip, "family": line.family}
    for what, figure in (("area_mm2", line.area_mm2), ("power_W", line.power_W)):
        flat |= {f"{what}_{name}": getattr(figure, name) for name in _FIGURES}
        flat[f"{what}_error"] = figure.error(figure.left_out)
    flat |= {f"{name}_mm2": value for name, value in line.area_parts_mm2.items()}
    flat |= {f"{name}_W": value for name, value in line.power_parts_W.items()}
    names = ("module_W", "peak_flops", "constructed_flops")
    return flat | {name: getattr(line, name) for name in names}
