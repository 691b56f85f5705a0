"""The driver of every search: chips, layouts on existing hardware, mappings on wafers."""

from atoll.driver.problem import (
    CertifiedAnswer,
    ExecutionOptions,
    PreparedProblem,
    Progress,
    SearchRuntime,
    drive,
)

__all__ = [
    "CertifiedAnswer",
    "ExecutionOptions",
    "PreparedProblem",
    "Progress",
    "SearchRuntime",
    "drive",
]
