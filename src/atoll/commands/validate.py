"""Measured against predicted: `atoll calibrate`, `validate`, `bench`; and placed: `atoll place`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
    from atoll.answers.validation import OperatorsValidation


def place(question: PlaceQuestion, as_json: bool) -> None:
    from atoll.api import place as run

    answer(run(**question.asked()), as_json, printing.print_table_plan)


def calibrate(question: CalibrateQuestion, as_json: bool) -> None:
    from atoll.api import calibrate as run

    answer(run(**question.asked()), as_json, _show)


def validate(question: ValidateQuestion, as_json: bool) -> None:
    from atoll.api import validate as run

    answer(run(**question.asked()), as_json, _show)


def bench(question: BenchQuestion, as_json: bool) -> None:
    from atoll.several import bench as run

    answer(run(**question.asked()), as_json, tables.print_bench)


def _print_operators(shown: OperatorsValidation) -> None:
    tables.print_validation(shown)
    for name, steps in shown.steps.items():
        print(f"\nwhole steps ({name}):")
        printing_training.print_runs(steps)


_SHOW: dict[str, Callable[[Any], None]] = {
    "calibration": tables.print_calibration,
    "site-calibration": tables.print_site,
    "chips-validation": tables.print_chips,
    "nodes-validation": tables.print_nodes,
    "runs-validation": printing_training.print_runs,
    "operators-validation": _print_operators,
}
"""By the kind of an answer."""


def _show(found: Any) -> None:
    _SHOW[found.kind](found)
