"""Contracts of the doors, for authors of plug-ins.

Each function takes what a plug-in offers and asserts what Atoll relies on. In a test of yours:

    from atoll.testing import check_cost_model
    from my_package import MODEL

    def test_the_contract() -> None:
        check_cost_model(MODEL)
"""

from atoll.testing.cost_model import check_cost_model, some_configs
from atoll.testing.doors import (
    check_family,
    check_objective,
    check_predictor,
    check_stack,
    check_tool,
)
from atoll.testing.template import check_chip_template

__all__ = [
    "check_chip_template",
    "check_cost_model",
    "check_family",
    "check_objective",
    "check_predictor",
    "check_stack",
    "check_tool",
    "some_configs",
]
