"""What a user may ask, each question defined once; see `question`."""

from atoll.questions import verbs
from atoll.questions.chips import ModelEntry, SearchQuestion
from atoll.questions.devices import (
    EstimateQuestion,
    LayoutQuestion,
    PlanQuestion,
    PodsQuestion,
    RunQuestion,
)
from atoll.questions.question import Question
from atoll.questions.wafer import MappingQuestion, WaferLayout, WaferQuestion

__all__ = [
    "EstimateQuestion",
    "LayoutQuestion",
    "MappingQuestion",
    "ModelEntry",
    "PlanQuestion",
    "PodsQuestion",
    "Question",
    "RunQuestion",
    "SearchQuestion",
    "WaferLayout",
    "WaferQuestion",
]

COMMANDS: dict[str, tuple[type[Question], ...]] = {
    "search": (SearchQuestion, WaferQuestion),
    "explain": (verbs.ExplainQuestion,),
    "designs": (verbs.DesignsQuestion,),
    "serve": (verbs.ServeQuestion,),
    "plan": (PlanQuestion, PodsQuestion),
    "estimate": (EstimateQuestion, MappingQuestion),
    "check": (verbs.CheckQuestion,),
    "report": (verbs.ReportQuestion,),
    "compare": (verbs.CompareQuestion,),
    "trace": (verbs.TraceQuestion,),
    "place": (verbs.PlaceQuestion,),
    "capture": (verbs.CaptureQuestion,),
    "models": (verbs.ModelsQuestion,),
    "hardware": (verbs.HardwareQuestion,),
    "calibrate": (verbs.CalibrateQuestion,),
    "validate": (verbs.ValidateQuestion,),
    "bench": (verbs.BenchQuestion,),
    "mcp": (verbs.McpQuestion,),
    "schema": (verbs.SchemaQuestion,),
    "env": (verbs.EnvQuestion,),
}
"""The questions that each command asks, in the order of `atoll --help`."""
JOBS: dict[str, type[Question]] = {
    "chips": SearchQuestion,
    "devices": PlanQuestion,
    "pods": PodsQuestion,
    "wafer": WaferQuestion,
}
"""What a job file may ask, by its `kind`; without one it asks for chips, or what its fields say."""
