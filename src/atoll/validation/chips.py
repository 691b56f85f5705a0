"""The physical model held against published chips: area and rated power, a family left out.

A fit moves the constants named in `FITTED_AREA` and `FITTED_POWER` within the ranges of their
sources: least squares of logarithmic errors, robust against single chips, with each constant drawn
to the middle of its range as by a normal prior whose 90 % interval it is. Chips whose figure is not
published weigh less and are not counted. For every vendor the fit is made anew without its chips,
and these are predicted with it: nothing is keyed to a chip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from atoll.answers.validation import (
    ChipLine,
    ChipsValidation,
    ConstantTold,
    Errors,
    Predicted,
    TwoErrors,
)
from atoll.files.csvfile import write_csv
from atoll.hardware.physical.area import area_mm2, area_parts_mm2
from atoll.hardware.physical.chips import columns
from atoll.hardware.physical.constants import (
    FITTED_AREA,
    FITTED_POWER,
    PUBLISHED,
    Physics,
    constants,
)
from atoll.hardware.physical.power import module_W, power_parts_W, rating_W
from atoll.validation.chip_rows import ChipRow, read_chips
from atoll.validation.errors import error_summary

Floats = NDArray[np.float64]
Model = Callable[[dict[str, Floats], Physics], Floats]

_TRUST = {True: 0.13, False: 0.25}
"""Logarithmic error that is expected of a chip whose figure is published, or is not."""
_INTERVAL_90 = 2 * 1.645


def fit_physics(rows: Sequence[ChipRow], start: Physics = PUBLISHED) -> Physics:
    """Constants of area, and with them those of power, that suit these chips."""
    sized = [row for row in rows if row.silicon_mm2]
    found = _fit(
        start, FITTED_AREA, area_mm2, sized, [row.silicon_mm2 for row in sized],
        [row.area_counts for row in sized],
    )  # fmt: skip
    rated = [row for row in rows if row.tdp_W]
    return _fit(
        found, FITTED_POWER, rating_W, rated, [row.tdp_W for row in rated],
        [row.power_counts for row in rated],
    )  # fmt: skip


def _fit(
    start: Physics,
    names: Sequence[str],
    model: Model,
    rows: Sequence[ChipRow],
    published: Sequence[float | None],
    counts: Sequence[bool],
) -> Physics:
    ranges = {one.name: (one.low, one.high) for one in constants(start)}
    low, high = np.log([ranges[name] for name in names]).T
    middle, spread = (low + high) / 2, (high - low) / _INTERVAL_90
    chips = columns([row.chip for row in rows])
    target = np.log(np.array(published, np.float64))
    trust = np.array([_TRUST[counted] for counted in counts])

    def made(x: Floats) -> Physics:
        return replace(start, **dict(zip(names, np.exp(x).tolist(), strict=True)))

    def residuals(x: Floats) -> Floats:
        errors = (np.log(model(chips, made(x))) - target) / trust if rows else target
        return np.concatenate([errors, (x - middle) / spread])

    return made(least_squares(residuals, middle, loss="soft_l1", bounds=(low, high)).x)


def validate_chips(path: str | Path, out: str | Path | None = None) -> ChipsValidation:
    """Every chip of a table: as the model is shipped, and from the other families of the table."""
    rows, skipped = read_chips(path)
    families = sorted({row.family for row in rows})
    left_out = {
        family: fit_physics([row for row in rows if row.family != family]) for family in families
    }
    fitted = fit_physics(rows)
    lines = tuple(_line(row, left_out[row.family], fitted) for row in rows)
    if out is not None:
        _write(lines, out)
    return ChipsValidation(
        rows=len(rows) + sum(skipped.values()),
        predicted=len(rows),
        skipped=skipped,
        area=_errors(lines, "area", "left_out"),
        power=_errors(lines, "power", "left_out"),
        peak=error_summary([line.peak_error for line in lines if line.peak_error is not None]),
        fitted=_both(lines, "fitted"),
        shipped=_both(lines, "shipped"),
        families={
            family: _both([line for line in lines if line.family == family], "left_out")
            for family in families
        },
        constants={
            one.name: ConstantTold(
                value=one.value, low=one.low, high=one.high, source=one.source,
                fitted=getattr(fitted, one.name) if one.name in _FITTED else None,
            )
            for one in constants()
        },
        chips=lines,
    )  # fmt: skip


_FITTED = FITTED_AREA + FITTED_POWER


def _line(row: ChipRow, left_out: Physics, fitted: Physics) -> ChipLine:
    chip = columns([row.chip])
    built, said = row.constructed_flops, row.peak_flops

    def predicted(model: Model, published: float | None, counts: bool) -> Predicted:
        values = (float(model(chip, physics)[0]) for physics in (left_out, fitted, PUBLISHED))
        return Predicted(published, counts, *values)

    return ChipLine(
        chip=row.name,
        family=row.family,
        area_mm2=predicted(area_mm2, row.silicon_mm2, row.area_counts),
        power_W=predicted(rating_W, row.tdp_W, row.power_counts),
        area_parts_mm2={k: float(v[0]) for k, v in area_parts_mm2(chip, left_out).items()},
        power_parts_W={k: float(v[0]) for k, v in power_parts_W(chip, left_out).items()},
        module_W=None if row.chip.on_wafer else float(module_W(chip, left_out)[0]),
        peak_flops=said,
        constructed_flops=built,
        peak_error=built / said - 1 if built and said else None,
    )


def _both(lines: Sequence[ChipLine], which: str) -> TwoErrors:
    return TwoErrors(area=_errors(lines, "area", which), power=_errors(lines, "power", which))


def _errors(lines: Sequence[ChipLine], what: str, which: str) -> Errors:
    """Of the chips whose figure counts."""
    told = [line.area_mm2 if what == "area" else line.power_W for line in lines]
    found = [p.error(getattr(p, which)) for p in told if p.counts]
    return error_summary([error for error in found if error is not None])


def _write(lines: Sequence[ChipLine], path: str | Path) -> None:
    """One line a chip: what is published, what is predicted with its family left out, the parts."""
    area, power = (tuple(getattr(lines[0], name)) for name in ("area_parts_mm2", "power_parts_W"))
    figures = ("published", "counts", "left_out", "error", "fitted", "shipped")
    header = (
        "chip", "family",
        *(f"{what}_{name}" for what in ("area_mm2", "power_W") for name in figures),
        *(f"{name}_mm2" for name in area), *(f"{name}_W" for name in power), "module_W",
        "peak_flops", "constructed_flops",
    )  # fmt: skip
    write_csv(
        path,
        header,
        [
            (
                line.chip, line.family, *_figures(line.area_mm2), *_figures(line.power_W),
                *(f"{v:.5g}" for v in line.area_parts_mm2.values()),
                *(f"{v:.5g}" for v in line.power_parts_W.values()),
                *("" if v is None else f"{v:.6g}"
                  for v in (line.module_W, line.peak_flops, line.constructed_flops)),
            )
            for line in lines
        ],
    )  # fmt: skip


def _figures(told: Predicted) -> tuple[object, ...]:
    error = told.error(told.left_out)
    return (
        "" if told.published is None else told.published,
        int(told.counts),
        f"{told.left_out:.6g}",
        "" if error is None else f"{error:.4f}",
        f"{told.fitted:.6g}",
        f"{told.shipped:.6g}",
    )
