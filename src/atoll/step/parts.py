"""The parts of a step's time by name: one list for searched chips, devices and wafers."""

from __future__ import annotations

from collections.abc import Mapping

TIME_PARTS = (
    "compute",
    "gradient_accumulation",
    "recompute",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "sharded_weights",
    "offload",
    "pipeline_bubble",
    "pipeline_sends",
    "gradient_reduction",
    "optimizer",
    "host",
)
"""Of the slowest stage, but for what all stages wait for; a part that a program has not is left
out, and those that it has add up to its step."""


def in_words(parts: Mapping[str, float]) -> dict[str, float]:
    """The same parts under names to be read."""
    return {name.replace("_", " "): value for name, value in parts.items()}
