"""Questions of users, each defined once; see `question`.

Questions are imported on first use: a command needs one or two of them.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

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


_NAMES = (
    *("plan", "estimate", "check", "search", "explain", "report", "compare", "serve", "models"),
    *("hardware", "calibrate", "measure", "validate", "bench", "designs", "trace", "place"),
    *("capture", "mcp", "schema", "env"),
)
_ASKED = {name: (f"{name.capitalize()}Question",) for name in _NAMES} | {
    "plan": ("PlanQuestion", "PodsQuestion"),
    "estimate": ("EstimateQuestion", "MappingQuestion"),
    "search": ("SearchQuestion", "WaferQuestion"),
}
"""Names of the questions of each command; those without a module are in `verbs`."""


class _Commands(Mapping[str, "tuple[type[Question], ...]"]):
    """The questions that each command asks, in the order of `atoll --help`."""

    def __getitem__(self, command: str) -> "tuple[type[Question], ...]":
        return tuple(
            __getattr__(n) if n in _WHERE else getattr(__getattr__("verbs"), n)
            for n in _ASKED[command]
        )

    def __iter__(self) -> Iterator[str]:
        return iter(_ASKED)

    def __len__(self) -> int:
        return len(_ASKED)

    def __contains__(self, command: object) -> bool:
        return command in _ASKED


COMMANDS = _Commands()
