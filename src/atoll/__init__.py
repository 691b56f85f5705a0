"""Atoll: the accelerator, the schedule and the training layout, found together and proven.

Functions ask, what they return has verbs of its own:

>>> import atoll
>>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
>>> plan.best.layout.tp, plan.best.fits
(1, True)
>>> print(plan.explain())  # doctest: +ELLIPSIS
gpt2-xl on 8 h100: tp1 pp1 dp8 ...
>>> plan.export("torchtitan").save("train.toml"), plan.report("report.html")  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from atoll import answers
from atoll.api import (
    calibrate,
    capture,
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
from atoll.errors import AtollError, InfeasibleError
from atoll.identity import VERSION
from atoll.questions import (
    EstimateQuestion,
    PlanQuestion,
    PodsQuestion,
    SearchQuestion,
    WaferQuestion,
)
from atoll.several import bench, compare, sweep

if TYPE_CHECKING:
    from atoll.explore.answer.result import SearchResult
    from atoll.launch.check import Checked
    from atoll.training.estimate import Estimate
    from atoll.training.mixed.plan import MixedPlan
    from atoll.training.planner.plan import Plan
    from atoll.wafer.answer.result import WaferEstimate, WaferResult
    from atoll.workload.stored import StoredModel

__version__ = VERSION

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
    "place",
    "plan",
    "search",
    "sweep",
    "validate",
]

_RETURNED = {
    "Checked": "atoll.launch.check",
    "Estimate": "atoll.training.estimate",
    "MixedPlan": "atoll.training.mixed.plan",
    "Plan": "atoll.training.planner.plan",
    "SearchResult": "atoll.explore.answer.result",
    "StoredModel": "atoll.workload.stored",
    "WaferEstimate": "atoll.wafer.answer.result",
    "WaferResult": "atoll.wafer.answer.result",
}
"""Types of what functions return, imported when they are asked for: `atoll --help` needs none."""


def __getattr__(name: str) -> Any:
    if name not in _RETURNED:
        raise AttributeError(f"module 'atoll' has no attribute {name!r}")
    return getattr(import_module(_RETURNED[name]), name)
