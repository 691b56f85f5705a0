"""Plans for a training tool: layouts that it can run, and nothing is lost where it can run none."""

from __future__ import annotations

from itertools import product

import pytest

import atoll
from atoll.errors import AtollError
from atoll.export import EXPORTERS, export_run
from atoll.training.planner.search import UnusableError


@pytest.mark.parametrize("target", EXPORTERS)
@pytest.mark.parametrize("stack", ["megatron", "fsdp"])
def test_a_plan_for_a_tool_has_layouts_that_it_can_run(target: str, stack: str) -> None:
    job = {"batch": 32, "sequence": 2048, "microbatch": [1, 2], "stack": stack,
           "optimizer": "mixed"}  # fmt: skip
    found = atoll.plan("llama3-8b", "h100", 16, **job, export=target)
    for estimate in (found.best, *found.runners_up):
        assert export_run(target, found.run, estimate.layout).target == target
    proof = found.certificate
    assert f" layouts that {target} can run: " in found.proof()
    assert sum(proof.ruled_out.values()) + proof.evaluated == proof.items
    assert atoll.plan("llama3-8b", "h100", 16, **job).best.step.time_s <= found.best.step.time_s


def test_no_usable_layout_was_missed() -> None:
    job = {"batch": 32, "sequence": 2048, "microbatch": [1], "cp": [1], "pp": [1, 2],
           "hsdp": [1, 2], "vpp": [1, 2]}  # fmt: skip
    found = atoll.plan("llama3-8b", "h100", 16, **job, export="torchtitan")
    usable = []
    space = found.space
    for row, name in product(range(len(space.slot)), range(len(space.names))):
        try:
            export_run("torchtitan", found.run, space.layout(row, name))
        except AtollError:
            continue
        usable.append(space.estimate(row, name))
    assert found.best.step.time_s == min(e.step.time_s for e in usable if e.fits)


def test_a_tool_that_can_run_none_says_why() -> None:
    with pytest.raises(UnusableError, match="has no model of the kind of gpt2-xl") as caught:
        atoll.plan("gpt2-xl", "h100", 8, batch=8, tp=[1], export="torchtitan")
    assert "(so it is with all " in str(caught.value)
