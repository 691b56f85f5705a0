"""Atoll: the accelerator, the schedule and the training layout, found together and proven.

>>> import atoll
>>> plan = atoll.search(model="bert-large", space="examples/spaces/tiny.yaml")  # doctest: +SKIP
>>> print(plan)  # doctest: +SKIP
"""

from atoll.api import (
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
    SearchQuestion,
    WaferQuestion,
)

__version__ = VERSION

__all__ = [
    "AtollError",
    "EstimateQuestion",
    "InfeasibleError",
    "PlanQuestion",
    "SearchQuestion",
    "WaferQuestion",
    "__version__",
    "capture",
    "check",
    "describe_hardware",
    "describe_model",
    "estimate",
    "list_models",
    "load",
    "place",
    "plan",
    "search",
    "validate",
]
