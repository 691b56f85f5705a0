"""Translate a wafer question for the search: options, tokens, fields of its mapping file."""

from __future__ import annotations

from typing import Any

from atoll.hardware.wafer import Wafer
from atoll.questions import WaferQuestion
from atoll.step.states import load_states
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.block_parts import SEARCHED_HOMES
from atoll.wafer.encoding.mapping import read_mapping
from atoll.wafer.staging.planner import WaferOptions

ABLATIONS = {
    "no-recompute": ("recompute", False),
    "one-axis": ("single_axis", True),
    "volume-only": ("volume_only", True),
    "no-streaming": ("streaming", False),
    "no-zero-bubble": ("zero_bubble", False),
    "no-offload": ("offload", False),
    "shared-codes": ("passes", False),
}
"""Ablations: the search option that each sets."""


def options_of(job: WaferQuestion, wafer: Wafer) -> WaferOptions:
    """Return the options of a search on this wafer."""
    homes: tuple[str, ...] = SEARCHED_HOMES
    if wafer.sram_memory:  # weights with their optimizer state do not live in SRAM
        homes = ("external",)
    elif wafer.parameter_store:
        homes = (*homes, "external")
    switched: Any = dict(ABLATIONS[name] for name in job.ablations)
    return WaferOptions(**switched, states=load_states(job.optimizer), homes=homes)


def tokens_of(job: WaferQuestion) -> int:
    """Return the tokens per sequence; raise for a model that no wafer can train."""
    return make_block(job.model, 1, job.sequence).sequence


def completed(job: WaferQuestion) -> WaferQuestion:
    """Fill the job's unset fields from its mapping file."""
    if job.mapping is None:
        return job
    mapping = read_mapping(job.mapping)
    names = {"model", "batch", "sequence", "optimizer"} - job.model_fields_set
    return job.changed(**{name: getattr(mapping, name) for name in names})
