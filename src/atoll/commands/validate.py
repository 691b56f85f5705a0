"""Measured against predicted: `atoll calibrate`, `validate`, `bench`; and placed: `atoll place`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.commands.common import answer
from atoll.printing import search as printing
from atoll.printing import tables
from atoll.printing import training as printing_training
from atoll.questions.verbs import (
    BenchQuestion,
    CalibrateQuestion,
    PlaceQuestion,
    ValidateQuestion,
)

if TYPE_CHECKING:
    from atoll.answers.chips import ChipsValidation, NodesValidation
    from atoll.answers.validation import (
        CalibrationAnswer,
        OperatorsValidation,
        RunsValidation,
        SiteCalibration,
    )


def place(question: PlaceQuestion, as_json: bool) -> None:
    from atoll.api import place as run

    answer(run(**question.asked()), as_json, printing.print_table_plan)


def calibrate(question: CalibrateQuestion, as_json: bool) -> None:
    from atoll.api import calibrate as run

    answer(run(**question.asked()), as_json, _print_calibration)


def _print_calibration(shown: CalibrationAnswer | SiteCalibration) -> None:
    from atoll.answers.validation import SiteCalibration

    if isinstance(shown, SiteCalibration):
        tables.print_site(shown)
    else:
        tables.print_calibration(shown)


def validate(question: ValidateQuestion, as_json: bool) -> None:
    from atoll.api import validate as run

    answer(run(**question.asked()), as_json, _print_validation)


def bench(question: BenchQuestion, as_json: bool) -> None:
    from atoll.several import bench as run

    answer(run(**question.asked()), as_json, tables.print_bench)


def _print_validation(
    shown: OperatorsValidation | RunsValidation | ChipsValidation | NodesValidation,
) -> None:
    from atoll.answers.chips import ChipsValidation, NodesValidation
    from atoll.answers.validation import RunsValidation

    if isinstance(shown, ChipsValidation):
        tables.print_chips(shown)
        return
    if isinstance(shown, NodesValidation):
        tables.print_nodes(shown)
        return
    if isinstance(shown, RunsValidation):
        printing_training.print_runs(shown)
        return
    tables.print_validation(shown)
    for name, steps in shown.steps.items():
        print(f"\nwhole steps ({name}):")
        printing_training.print_runs(steps)
