"""Dispatch of measured files to fits and validations by their columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from atoll.answers.validation import CalibrationAnswer, SiteCalibration, Validation
from atoll.base.errors import AtollError
from atoll.calibration.energies import LOADS, validate_energies
from atoll.calibration.fit import calibrate
from atoll.calibration.many_devices import TIMED, validate_devices
from atoll.calibration.operator_rows import H200_OPERATORS
from atoll.calibration.site import calibrate_site
from atoll.calibration.validate import validate_operators
from atoll.files.csvfile import read_csv
from atoll.questions.verbs import CalibrateQuestion, ValidateQuestion
from atoll.training.site import load_site
from atoll.validation.chips import validate_chips
from atoll.validation.figures import (
    NODES,
    POWERS,
    PROCESSES,
    find_reader,
    validate_figures,
    validate_nodes,
)
from atoll.validation.step_rows import H200_STEPS, H200_STEPS_LATER
from atoll.validation.tables import is_step_table
from atoll.validation.validate import validate_runs


def calibrate_file(question: CalibrateQuestion) -> CalibrationAnswer | SiteCalibration:
    """Fit a site to runs, a profile or NCCL's tests, or a device to timed operators."""
    header = [] if question.data is None else read_csv(question.data)[0]
    operators = {"kind", "us"} <= set(header)
    measured = question.trace is not None or question.nccl_tests
    if operators and measured:
        data = question.data
        raise AtollError(f"{data}: timed operators make a device, not a site; fit them alone")
    if measured or (question.data is not None and not operators):
        return calibrate_site(
            question.data, question.trace, question.nccl_tests, str(question.device), question.out
        )
    return calibrate(question.data or H200_OPERATORS, gpu=question.device, out=question.out)


def validate_file(question: ValidateQuestion) -> Validation:
    """Validate predictions of operators, steps, runs, chips or figures."""
    data, gpu, expect, out = question.data, question.device, question.expect, question.out
    if question.chips is not None:
        if data is not None or expect is not None or question.site is not None:
            raise AtollError("chips: a table of chips is judged alone, without data, expect, site")
        if find_reader(read_csv(question.chips)[0]) is not None:
            return validate_figures(question.chips, out)
        return validate_chips(question.chips, out)
    site = None if question.site is None else load_site(question.site)
    header = [] if data is None else read_csv(data)[0]
    validate = next((validate for names, validate in TABLES if set(names) <= set(header)), None)
    if expect is not None and (data is None or validate or is_step_table(header)):
        raise AtollError(
            f"expect is {expect!r}, but is for files of training runs (--data FILE) only"
        )
    if data is None:
        steps = {
            "fitted": validate_runs(H200_STEPS, gpu),
            "later": validate_runs(H200_STEPS_LATER, gpu),
        }
        return replace(validate_operators(gpu=gpu, held_out=True, out=out), steps=steps)
    if validate is not None:
        return validate(data, gpu, out)
    return validate_runs(data, gpu, expect=expect, out=out, site=site)


TABLES: tuple[tuple[tuple[str, ...], Callable[[Path, str, Path | None], Validation]], ...] = (
    (NODES, lambda data, _, out: validate_nodes(data, out)),
    (POWERS, lambda data, _, out: validate_figures(data, out)),
    (PROCESSES, lambda data, _, out: validate_figures(data, out)),
    (LOADS, lambda data, gpu, out: validate_energies(data, gpu, out=out)),
    (("kind", "us"), lambda data, gpu, out: validate_operators(data, gpu, out=out)),
    (TIMED, lambda data, _, out: validate_devices(data, out=out)),
)
"""Tables by their columns, before those of steps and runs."""
