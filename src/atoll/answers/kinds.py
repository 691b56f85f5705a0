"""What each command answers under `--json`: the types, and their JSON Schema."""

from __future__ import annotations

from typing import Union, get_args

from pydantic import JsonValue

from atoll.answers.answer import Answer, adapter
from atoll.answers.design import MixedAnswer, TablePlan
from atoll.answers.designs import CompareAnswer, DesignsAnswer, SweepAnswer
from atoll.answers.hardware import CatalogueAnswer, HardwareAnswer
from atoll.answers.layout import LaunchFile
from atoll.answers.models import CaptureAnswer, ModelAnswer, ModelsAnswer
from atoll.answers.plan import EstimateAnswer, MeasureAnswer, PlanAnswer, PlanExplanation
from atoll.answers.search import SearchAnswer, SearchExplanation
from atoll.answers.validation import (
    BenchAnswer,
    CalibrationAnswer,
    CheckAnswer,
    ChipsValidation,
    FiguresValidation,
    NodesValidation,
    OperatorsValidation,
    RunsValidation,
    SiteCalibration,
)
from atoll.answers.wafer import MappingAnswer, WaferAnswer, WaferExplanation

__all__ = [
    "Answer",
    "BenchAnswer",
    "CalibrationAnswer",
    "CaptureAnswer",
    "CatalogueAnswer",
    "CheckAnswer",
    "ChipsValidation",
    "CompareAnswer",
    "DesignsAnswer",
    "EstimateAnswer",
    "FiguresValidation",
    "HardwareAnswer",
    "LaunchFile",
    "MappingAnswer",
    "MeasureAnswer",
    "MixedAnswer",
    "ModelAnswer",
    "ModelsAnswer",
    "NodesValidation",
    "OperatorsValidation",
    "PlanAnswer",
    "PlanExplanation",
    "RunsValidation",
    "SearchAnswer",
    "SearchExplanation",
    "SiteCalibration",
    "SweepAnswer",
    "TablePlan",
    "WaferAnswer",
    "WaferExplanation",
]

ANSWERS: dict[str, tuple[type[Answer], ...]] = {
    "search": (SearchAnswer, WaferAnswer, SweepAnswer),
    "explain": (SearchExplanation, WaferExplanation, PlanExplanation),
    "designs": (DesignsAnswer,),
    "plan": (PlanAnswer, MixedAnswer, SweepAnswer),
    "estimate": (EstimateAnswer, MappingAnswer, SweepAnswer),
    "compare": (CompareAnswer,),
    "place": (TablePlan,),
    "capture": (CaptureAnswer,),
    "models": (ModelAnswer, ModelsAnswer),
    "hardware": (CatalogueAnswer, *get_args(HardwareAnswer)),
    "calibrate": (CalibrationAnswer, SiteCalibration),
    "check": (CheckAnswer,),
    "measure": (MeasureAnswer, CalibrationAnswer),
    "bench": (BenchAnswer,),
    "validate": (
        OperatorsValidation,
        RunsValidation,
        ChipsValidation,
        NodesValidation,
        FiguresValidation,
    ),
}
"""By command; each answer says its `kind`."""


def answer_schema(command: str) -> JsonValue:
    """JSON Schema of a command's answers; none for those that write files or pages."""
    kinds = ANSWERS.get(command, ())
    if not kinds:
        return None
    schema: JsonValue = adapter(Union[kinds]).json_schema(  # noqa: UP007
        by_alias=True, mode="serialization"
    )
    return schema
