"""Questions of users, each defined once; see `question`.

Questions are imported on first use: a command needs one or two of them.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from atoll.questions import verbs
    from atoll.questions.chips import ModelEntry, SearchQuestion
    from atoll.questions.devices import (
        EstimateQuestion,
        FilesQuestion,
        LayoutQuestion,
        PlanQuestion,
        PodsQuestion,
        RunQuestion,
    )
    from atoll.questions.question import Question
    from atoll.questions.wafer import MappingQuestion, WaferLayout, WaferQuestion

__all__ = [
    "EstimateQuestion",
    "FilesQuestion",
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
    "verbs",
]

_PLACES = {
    "chips": ("ModelEntry", "SearchQuestion"),
    "devices": (
        *("EstimateQuestion", "FilesQuestion", "LayoutQuestion", "PlanQuestion", "PodsQuestion"),
        "RunQuestion",
    ),
    "question": ("Question",),
    "wafer": ("MappingQuestion", "WaferLayout", "WaferQuestion"),
}
_WHERE = {name: place for place, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "verbs":
        return import_module("atoll.questions.verbs")
    if name not in _WHERE:
        raise AttributeError(f"module 'atoll.questions' has no attribute {name!r}")
    globals()[name] = getattr(import_module(f"atoll.questions.{_WHERE[name]}"), name)
    return globals()[name]


T = TypeVar("T")


class _QuestionTable(Mapping[str, T]):
    """Questions by command or job kind; names without a module are in `verbs`."""

    def __init__(self, names: Mapping[str, str | tuple[str, ...]]) -> None:
        self._names = names

    def __getitem__(self, key: str) -> T:
        names = self._names[key]
        question: Any = _question(names) if isinstance(names, str) else tuple(map(_question, names))
        return question  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, key: object) -> bool:
        return key in self._names


def _question(name: str) -> Any:
    return __getattr__(name) if name in _WHERE else getattr(__getattr__("verbs"), name)


COMMANDS: Mapping[str, "tuple[type[Question], ...]"] = _QuestionTable(
    {
        "plan": ("PlanQuestion", "PodsQuestion"),
        "estimate": ("EstimateQuestion", "MappingQuestion"),
        "check": ("CheckQuestion",),
        "search": ("SearchQuestion", "WaferQuestion"),
        "explain": ("ExplainQuestion",),
        "report": ("ReportQuestion",),
        "compare": ("CompareQuestion",),
        "serve": ("ServeQuestion",),
        "models": ("ModelsQuestion",),
        "hardware": ("HardwareQuestion",),
        "calibrate": ("CalibrateQuestion",),
        "measure": ("MeasureQuestion",),
        "validate": ("ValidateQuestion",),
        "bench": ("BenchQuestion",),
        "designs": ("DesignsQuestion",),
        "trace": ("TraceQuestion",),
        "place": ("PlaceQuestion",),
        "capture": ("CaptureQuestion",),
        "mcp": ("McpQuestion",),
        "schema": ("SchemaQuestion",),
        "env": ("EnvQuestion",),
    }
)
"""The questions that each command asks, in the order of `atoll --help`."""
JOBS: Mapping[str, "type[Question]"] = _QuestionTable(
    {
        "chips": "SearchQuestion",
        "devices": "PlanQuestion",
        "pods": "PodsQuestion",
        "wafer": "WaferQuestion",
    }
)
"""What a job file may ask, by its `kind`; without one it asks for chips, or what its fields say."""
