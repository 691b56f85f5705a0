"""Names of the parts of a step's time and of a device's memory, for chips, devices and wafers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

TIME_PARTS = (
    *("compute", "gradient_accumulation", "recompute"),
    *("tensor_parallel", "context_parallel", "expert_parallel", "sharded_weights", "offload"),
    *("pipeline_bubble", "pipeline_sends", "gradient_reduction", "optimizer", "host"),
)
"""Times of the slowest stage, and what all stages wait for. They add up to the step; parts that do
not occur are left out."""

Origin = Literal["measured", "interpolated", "modelled"]
"""Source of an operator's time: measured at its sizes; interpolated between measured sizes (or a
backward pass scaled like its measured forward pass); the model alone."""

MEMORY_PARTS = (
    *("weights", "gradients", "optimizer", "activations"),
    *("logits", "transient", "buffers", "guests"),
)
"""Bytes of one device at its peak: states, activations of microbatches in flight, logits of the
loss, temporaries of one block's backward pass, buffers of collectives and transfers, and on a wafer
tensors of other stages. They add up to the peak; parts that do not occur are left out."""


def in_words(parts: Mapping[str, float]) -> dict[str, float]:
    """Replace underscores in the names by spaces."""
    return {name.replace("_", " "): value for name, value in parts.items()}
