"""`atoll.testing`: what comes with Atoll passes, and what breaks a contract does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from atoll.answers import LaunchFile
from atoll.cost.model import MAPPER
from atoll.explore.proof.objective import AIMS, Aim
from atoll.hardware.silicon.systolic import SYSTOLIC
from atoll.hardware.template.cores import CostModel, ProductCosts
from atoll.testing import (
    check_chip_template,
    check_cost_model,
    check_objective,
    check_stack,
    check_tool,
)
from atoll.tools.registry import TOOLS
from atoll.tools.stack import STACKS
from atoll.tools.tool import Tool


def test_our_mapper_keeps_the_contract() -> None:
    check_cost_model(MAPPER)


@pytest.mark.parametrize("name", [tool.name for tool in TOOLS.values() if tool.write])
def test_our_tools_keep_it(name: str) -> None:
    check_tool(TOOLS[name])


@pytest.mark.parametrize("name", STACKS)
def test_our_stacks_keep_it(name: str) -> None:
    check_stack(STACKS[name])


@pytest.mark.parametrize("name", AIMS)
def test_our_objectives_keep_it(name: str) -> None:
    check_objective(AIMS[name])


def test_our_chip_template_keeps_it() -> None:
    check_chip_template(SYSTOLIC)


def test_a_template_whose_area_falls_is_found_out() -> None:
    def shrinking(chips):  # type: ignore[no-untyped-def]
        return 1e3 / chips["tensor_cores"]

    def parts(chips):  # type: ignore[no-untyped-def]
        return {"all": shrinking(chips)}

    odd = replace(SYSTOLIC, name="odd", area_mm2=shrinking, area_parts=parts)
    with pytest.raises(AssertionError, match="area falls with tensor_cores"):
        check_chip_template(odd)


def test_a_cost_model_below_the_peak_is_found_out() -> None:
    def halved(shapes, configs):  # type: ignore[no-untyped-def]
        found = MAPPER.products(shapes, configs)
        return ProductCosts(found.seconds / 2, found.hbm_bytes / 2, found.glb_bytes / 2)

    with pytest.raises(AssertionError, match=r"less HBM traffic|faster than the arrays' peak"):
        check_cost_model(CostModel("halved", halved))


def test_an_objective_that_punishes_speed_is_found_out() -> None:
    spread = Aim("spread", lambda samples, weights: np.asarray(10.0 - samples.std(axis=1)))
    with pytest.raises(AssertionError, match="a faster chip scores lower"):
        check_objective(spread)


def test_a_tool_with_another_name_and_a_stack_with_too_much_overlap_are_found_out() -> None:
    file = LaunchFile(target="theirs", file="run.sh", text="run")
    other = Tool("mine", "Mine", "megatron", write=lambda plan: file)
    with pytest.raises(AssertionError, match="a file for 'theirs'"):
        check_tool(other)
    ours = STACKS["megatron"]
    with pytest.raises(AssertionError, match=r"overlap\.gradient"):
        check_stack(replace(ours, name="x", overlap=replace(ours.overlap, gradient=1.5)))
