"""Atoll: the accelerator, the schedule and the training layout, found together and proven.

Functions ask, what they return has verbs of its own:

>>> import atoll
>>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
>>> plan.best.layout.tp, plan.best.fits
(1, True)
>>> print(plan.explain())  # doctest: +ELLIPSIS
gpt2-xl on 8 h100: tp1 pp1 dp8 ...
>>> plan.export("torchtitan").save("train.py"), plan.report("report.html")  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll import answers
    from atoll.api import (
        calibrate,
        check,
        describe_hardware,
        describe_model,
        estimate,
        list_models,
        load,
        place,
        plan,
        search,
        validate,
    )
    from atoll.base.errors import AtollError, InfeasibleError
    from atoll.base.identity import VERSION as __version__  # noqa: N811
    from atoll.explore.answer.result import SearchResult
    from atoll.launch.check import Checked
    from atoll.questions import (
        EstimateQuestion,
        PlanQuestion,
        PodsQuestion,
        SearchQuestion,
        WaferQuestion,
    )
    from atoll.several import bench, compare, measure, sweep
    from atoll.tracing import capture
    from atoll.training.estimate import Estimate
    from atoll.training.mixed.plan import MixedPlan
    from atoll.training.planner.plan import Plan
    from atoll.wafer.answer.result import WaferEstimate, WaferResult
    from atoll.workload.stored import StoredModel

__all__ = [
    "AtollError",
    "Checked",
    "Estimate",
    "EstimateQuestion",
    "InfeasibleError",
    "MixedPlan",
    "Plan",
    "PlanQuestion",
    "PodsQuestion",
    "SearchQuestion",
    "SearchResult",
    "StoredModel",
    "WaferEstimate",
    "WaferQuestion",
    "WaferResult",
    "__version__",
    "answers",
    "bench",
    "calibrate",
    "capture",
    "check",
    "compare",
    "describe_hardware",
    "describe_model",
    "estimate",
    "list_models",
    "load",
    "measure",
    "place",
    "plan",
    "search",
    "sweep",
    "validate",
]

_PLACES = {
    "atoll.answers": ("answers",),
    "atoll.api": (
        *("calibrate", "check", "describe_hardware", "describe_model", "estimate"),
        *("list_models", "load", "place", "plan", "search", "validate"),
    ),
    "atoll.base.errors": ("AtollError", "InfeasibleError"),
    "atoll.explore.answer.result": ("SearchResult",),
    "atoll.base.identity": ("__version__",),
    "atoll.launch.check": ("Checked",),
    "atoll.questions": (
        *("EstimateQuestion", "PlanQuestion", "PodsQuestion", "SearchQuestion", "WaferQuestion"),
    ),
    "atoll.several": ("bench", "compare", "measure", "sweep"),
    "atoll.tracing": ("capture",),
    "atoll.training.estimate": ("Estimate",),
    "atoll.training.mixed.plan": ("MixedPlan",),
    "atoll.training.planner.plan": ("Plan",),
    "atoll.wafer.answer.result": ("WaferEstimate", "WaferResult"),
    "atoll.workload.stored": ("StoredModel",),
}
_WHERE = {name: place for place, names in _PLACES.items() for name in names}
"""Modules of the public names, imported on first use: `atoll --help` needs few of them, and Ctrl-C
during the import is handled by the command."""


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'atoll' has no attribute {name!r}")
    module = import_module(_WHERE[name])
    special: dict[str, Any] = {"answers": module, "__version__": getattr(module, "VERSION", None)}
    value = special[name] if name in special else getattr(module, name)
    if _WHERE[name] in ("atoll.api", "atoll.several"):
        from atoll.questions.texts import described

        value = described(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
