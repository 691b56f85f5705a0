"""plan.json: the answer of a plan, or of one estimate, in its folder."""

from __future__ import annotations

from pathlib import Path

from atoll.answers.answer import read_answer
from atoll.answers.plan import EstimateAnswer, PlanAnswer
from atoll.files.wholefile import check_folder, write_folder
from atoll.training.estimate import Estimate
from atoll.training.planner.plan import Plan
from atoll.training.planner.problem import PLAN


def write_plan(result: Plan | Estimate, folder: Path) -> Path:
    """Write plan.json into a folder, whole or not at all."""
    check_folder(folder)
    write_folder(folder, {PLAN: result.answer.to_json()})
    return folder / PLAN


def read_plan(path: Path) -> PlanAnswer | EstimateAnswer:
    """The content of a plan.json; a sentence where it cannot be read."""
    found = read_answer(path, PlanAnswer, EstimateAnswer)
    assert isinstance(found, PlanAnswer | EstimateAnswer)
    return found
