"""What a user may ask, each question defined once; see `question`."""

from atoll.questions.chips import ModelEntry, SearchQuestion
from atoll.questions.devices import EstimateQuestion, LayoutQuestion, PlanQuestion, RunQuestion
from atoll.questions.question import Question
from atoll.questions.verbs import (
    CalibrateQuestion,
    CaptureQuestion,
    DesignsQuestion,
    ExplainQuestion,
    HardwareQuestion,
    ModelsQuestion,
    PlaceQuestion,
    ReportQuestion,
    SchemaQuestion,
    ServeQuestion,
    TraceQuestion,
    ValidateQuestion,
)
from atoll.questions.wafer import MappingQuestion, WaferLayout, WaferQuestion

__all__ = [
    "CalibrateQuestion",
    "CaptureQuestion",
    "DesignsQuestion",
    "EstimateQuestion",
    "ExplainQuestion",
    "HardwareQuestion",
    "LayoutQuestion",
    "MappingQuestion",
    "ModelEntry",
    "ModelsQuestion",
    "PlaceQuestion",
    "PlanQuestion",
    "Question",
    "ReportQuestion",
    "RunQuestion",
    "SchemaQuestion",
    "SearchQuestion",
    "ServeQuestion",
    "TraceQuestion",
    "ValidateQuestion",
    "WaferLayout",
    "WaferQuestion",
]

COMMANDS: dict[str, tuple[type[Question], ...]] = {
    "search": (SearchQuestion, WaferQuestion),
    "explain": (ExplainQuestion,),
    "designs": (DesignsQuestion,),
    "serve": (ServeQuestion,),
    "plan": (PlanQuestion,),
    "estimate": (EstimateQuestion, MappingQuestion),
    "report": (ReportQuestion,),
    "trace": (TraceQuestion,),
    "place": (PlaceQuestion,),
    "capture": (CaptureQuestion,),
    "models": (ModelsQuestion,),
    "hardware": (HardwareQuestion,),
    "calibrate": (CalibrateQuestion,),
    "validate": (ValidateQuestion,),
    "schema": (SchemaQuestion,),
}
"""The questions that each command asks, in the order of `atoll --help`."""
JOBS: dict[str, type[Question]] = {
    "chips": SearchQuestion,
    "devices": PlanQuestion,
    "wafer": WaferQuestion,
}
"""What a job file may ask, by its `kind`; without one it asks for chips, or what its fields say."""
KEYWORDS: dict[str, tuple[type[Question], ...]] = {
    "CalibrateFields": (CalibrateQuestion,),
    "EstimateFields": (EstimateQuestion, MappingQuestion),
    "LayoutFields": (LayoutQuestion,),
    "ModelsFields": (ModelsQuestion,),
    "PlaceFields": (PlaceQuestion,),
    "PlanFields": (PlanQuestion,),
    "RunFields": (RunQuestion,),
    "SearchFields": (SearchQuestion, WaferQuestion),
    "ValidateFields": (ValidateQuestion,),
}
"""Types of Python's keywords (`keywords.pyi`)."""
