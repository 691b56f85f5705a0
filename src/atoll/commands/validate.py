"""Measured against predicted: `atoll calibrate`, `atoll validate`; and placed: `atoll place`."""

from __future__ import annotations

from atoll.commands.common import answer, print_json
from atoll.printing import search as printing
from atoll.printing import tables
from atoll.printing import training as printing_training
from atoll.questions.verbs import CalibrateQuestion, PlaceQuestion, ValidateQuestion


def place(question: PlaceQuestion, as_json: bool) -> None:
    from atoll.api import place as run

    answer(run(**question.asked()), as_json, printing.print_table_plan)


def calibrate(question: CalibrateQuestion, as_json: bool) -> None:
    from atoll.api import calibrate as run

    shown = run(**question.asked())
    answer(shown, as_json, tables.print_site if "site" in shown else tables.print_calibration)


def validate(question: ValidateQuestion, as_json: bool) -> None:
    from atoll.api import validate as run

    shown = run(**question.asked())
    if as_json:
        print_json(shown)
    elif "by_kind" in shown:
        tables.print_validation(shown)
        for name, steps in shown.get("steps", {}).items():
            print(f"\nwhole steps ({name}):")
            printing_training.print_runs(steps)
    else:
        printing_training.print_runs(shown)
