"""Dispatch of measured files to fits and validations by their columns."""

from __future__ import annotations

from dataclasses import replace

from atoll.answers.validation import CalibrationAnswer, SiteCalibration, Validation
from atoll.base.errors import AtollError
from atoll.calibration.energies import is_energy_file, validate_energies
from atoll.calibration.fit import calibrate
from atoll.calibration.many_devices import is_device_table, validate_devices
from atoll.calibration.operator_rows import H200_OPERATORS
from atoll.calibration.site import calibrate_site
from atoll.calibration.validate import validate_operators
from atoll.files.csvfile import read_csv
from atoll.questions.verbs import CalibrateQuestion, ValidateQuestion
from atoll.training.site import load_site
from atoll.validation.chips import validate_chips
from atoll.validation.figures import find_reader, validate_figures
from atoll.validation.nodes import is_node_file, validate_nodes
from atoll.validation.step_rows import H200_STEPS, H200_STEPS_LATER, is_step_file
from atoll.validation.validate import validate_runs, validate_steps


def calibrate_file(question: CalibrateQuestion) -> CalibrationAnswer | SiteCalibration:
    """Fit a site to runs, a profile or NCCL's tests, or a device to timed operators."""
    header = [] if question.data is None else read_csv(question.data)[0]
    operators = _timed_operators(header)
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
    operators, several = data is None or _timed_operators(header), is_device_table(header)
    if expect is not None and (operators or several or is_step_file(header)):
        raise AtollError(
            f"expect is {expect!r}, but is for files of training runs (--data FILE) only"
        )
    if data is None:
        steps = {
            "fitted": validate_steps(H200_STEPS, gpu),
            "later": validate_steps(H200_STEPS_LATER, gpu),
        }
        return replace(validate_operators(gpu=gpu, held_out=True, out=out), steps=steps)
    if is_node_file(header):
        return validate_nodes(data, out)
    if find_reader(header) is not None:
        return validate_figures(data, out)
    if is_energy_file(header):
        return validate_energies(data, gpu, out=out)
    if operators:
        return validate_operators(data, gpu=gpu, out=out)
    if several:
        return validate_devices(data, out=out)
    if is_step_file(header):
        return validate_steps(data, gpu, out=out, site=site)
    return validate_runs(data, expect=expect, out=out, site=site)


def _timed_operators(header: list[str]) -> bool:
    return "kind" in header and "us" in header
