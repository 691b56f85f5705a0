"""Atoll: the accelerator, the schedule and the training layout, found together and proven.

>>> import atoll
>>> plan = atoll.search(model="bert-large", space="examples/spaces/tiny.yaml")  # doctest: +SKIP
>>> print(plan)  # doctest: +SKIP
"""

from atoll.kernel_cache import use_kernel_cache

use_kernel_cache()

from atoll.api import (  # noqa: E402  (the cache must be set before numba is imported)
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
from atoll.errors import AtollError, InfeasibleError  # noqa: E402
from atoll.identity import VERSION  # noqa: E402
from atoll.questions import (  # noqa: E402
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
