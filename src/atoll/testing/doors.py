"""Contracts of tools, stacks, predictors, objectives and families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np

from atoll.answers.layout import LaunchFile
from atoll.base.errors import AtollError
from atoll.explore.proof.objective import Aim
from atoll.predictors.predictor import Asked, Predictor
from atoll.step.layout import Layout
from atoll.step.orders import ORDERS
from atoll.tools.launch_plan import make_plan
from atoll.tools.stack import Stack
from atoll.tools.tool import Tool
from atoll.training.estimate import Estimator
from atoll.training.planner.space import Axes
from atoll.training.request import make_run
from atoll.workload import build_model
from atoll.workload.families.config import config_from_hf
from atoll.workload.families.family import FAMILIES, Family
from atoll.workload.load import load_config

LAYOUTS = tuple(
    Layout(tp=tp, pp=pp, dp=8 // (tp * pp), sp=tp > 1, microbatch=1, zero=zero)
    for tp, pp, zero in product((1, 2), (1, 2), (0, 1))
)
"""Layouts of eight devices that most tools support."""


def check_tool(tool: Tool, models: Sequence[str] = ("llama2-7b", "megatron-1.7b")) -> None:
    """Assert that it writes a file for some layout and refuses others with one sentence, that the
    same run gives the same file, and that `axes` names axes of a plan."""
    assert tool.write is not None, "it writes launch files"
    written = 0
    for name, layout in product(models, LAYOUTS):
        config = load_config(name)
        plan = make_plan(config, layout, config.sequence, 16)
        try:
            launch_file = tool.write(plan)
        except AtollError as error:
            assert str(error).strip(), "a refusal says why"
            continue
        written += 1
        assert isinstance(launch_file, LaunchFile)
        assert launch_file.target == tool.name, f"a file for {launch_file.target!r}"
        assert launch_file.text.strip() and launch_file.file and "/" not in launch_file.file
        assert tool.write(plan) == launch_file, "another file for the same run"
    assert written, f"no layout of {', '.join(models)} on eight devices is written"
    unknown = tool.axes.keys() - {axis.name for axis in fields(Axes)}
    assert not unknown, f"values for unknown axes: {', '.join(sorted(unknown))}"


def check_stack(stack: Stack, model: str = "megatron-1.7b", device: str = "h100") -> None:
    """Assert that a run under it has an estimate whose parts are times and bytes, that orders are
    known, and that no overlap or share is above one."""
    assert set(stack.orders) <= set(ORDERS), "an unknown pipeline order"
    for share in fields(stack.overlap):
        assert 0.0 <= getattr(stack.overlap, share.name) <= 1.0, f"overlap.{share.name}"
    assert 0.0 < stack.gather_efficiency <= 1.0 <= stack.slack
    run = replace(make_run(model, device, 8, batch=16), stack=stack)
    estimator = Estimator(run)
    for layout in LAYOUTS:
        estimate = estimator.estimate(layout)
        step_s, parts = estimate.step.time_s, estimate.step.breakdown()
        assert np.isfinite(step_s) and min(parts.values()) >= 0.0, f"a part of {layout}"
        assert np.isclose(sum(parts.values()), step_s), "the parts do not add up"
        assert all(memory.needed > 0 for memory in estimate.memory)
    for name, passes in stack.passes.items():
        assert passes.bytes >= 0 and passes.kernels >= 0, name


def check_predictor(
    predictor: Predictor, models: Sequence[str] = ("llama2-7b", "megatron-1.7b")
) -> None:
    """Assert that it answers for some layout and refuses others with one sentence, that times and
    bytes are above zero, and that it says the same when it is asked again."""
    answered = 0
    for name, layout in product(models, LAYOUTS):
        request = Asked(make_run(name, "h100", 8, batch=16), layout)
        try:
            prediction = predictor.predict(request)
        except AtollError as error:
            assert str(error).strip(), "a refusal says why"
            continue
        figures = [n for n in (prediction.time_s, prediction.peak_bytes) if n is not None]
        assert figures, f"nothing is said of {layout}, and nothing refused"
        assert all(np.isfinite(n) and n > 0 for n in figures), f"{prediction} of {layout}"
        assert predictor.predict(request) == prediction, "another answer to the same question"
        answered += 1
    assert answered, f"no layout of {', '.join(models)} on eight devices is predicted"


def check_objective(aim: Aim, seed: int = 0) -> None:
    """Assert that a faster model never lowers the score (bounds on times are then bounds on it),
    and that rows are scored one by one."""
    rng = np.random.default_rng(seed)
    for models in (1, 2, 5):
        samples = rng.uniform(0.1, 10.0, (64, models))
        weights = rng.uniform(0.5, 2.0, models)
        scores = aim.score(samples, weights)
        assert scores.shape == (64,) and np.all(np.isfinite(scores)) and np.all(scores >= 0.0)
        faster = aim.score(samples * rng.uniform(1.0, 3.0, samples.shape), weights)
        assert np.all(faster >= scores * (1 - 1e-12)), "a faster chip scores lower"
        assert np.allclose(aim.score(samples[5:6], weights), scores[5:6]), "rows are not alone"
        nothing = np.vstack([samples[:1], np.zeros((1, models))])
        assert aim.score(nothing, weights)[1] <= scores[0], "a chip that holds no model scores"


def check_family(family: Family, config: Mapping[str, Any]) -> None:
    """Assert that a configuration of the family is read, and that its model has operators."""
    if any(name not in FAMILIES for name in family.types):
        FAMILIES.accept(family)
    read = config_from_hf(dict(config), "config.json")
    assert read.family in family.types, f"read as {read.family}"
    assert build_model(read, 1).parameters > 0
