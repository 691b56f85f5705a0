"""The parts of a step's time and of a device's memory by name: one list each for searched chips,
devices and wafers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

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

Origin = Literal["measured", "interpolated", "modelled"]
"""How the time of an operator is known: timed at its sizes; between sizes that were timed, or of a
backward pass as far from the model as its forward pass; by the model alone."""

MEMORY_PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "transient",
    "buffers",
    "guests",
)
"""Bytes of one device at its peak: what the states hold, what microbatches in flight keep, the
logits of the loss, what one block rebuilds or uses while its backward pass runs, buffers of
collectives and transfers, and on a wafer other stages' tensors. A part that a program has not is
left out; those that it has add up to the peak."""


def in_words(parts: Mapping[str, float]) -> dict[str, float]:
    """The same parts under names to be read."""
    return {name.replace("_", " "): value for name, value in parts.items()}
