"""Tables from which estimates of many layouts are summed up: `batch` builds them, `sums` adds."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from atoll.base.arrays import Bools, Floats, Ints
from atoll.training.run import Run

# Columns of `Tables.rows`.
STAGES, MICROBATCHES, COPIES, ZERO, SPLIT, PIPE, DIVISION, GROUP, SIDE, LOSS = range(10)


class KindColumn(IntEnum):
    """Columns of `Tables.kinds`."""

    DENSE = 0  # trained parameters
    EXPERT = 1
    ALL_DENSE = 2  # with frozen parameters
    ALL_EXPERT = 3
    WAITING_BYTES = 4  # kept for weight gradients
    FP8_BYTES = 5  # fp8 copies of weights
    WEIGHT_S = 6  # weight gradients
    LAUNCH_S = 7  # their launches on the host
    HOST_UPDATE_S = 8  # host time of the optimizer


class PassColumn(IntEnum):
    """Columns of `Tables.passes`."""

    FORWARD_S = 0
    BACKWARD_S = 1  # with recomputation
    HOST_S = 2  # host time that overlaps with the device
    HOST_WAIT_S = 3  # host time that the device waits for
    HOST_FORWARD_S = 4  # share of HOST_S in forward passes
    HIDES_FORWARD_S = 5  # time behind which gathers can hide; not summed over layers
    HIDES_BACKWARD_S = 6


class ContentColumn(IntEnum):
    """Columns of `Tables.contents`."""

    SHARED_PARAMETERS = 0
    BOUNDARY_BYTES = 1
    BUFFER_BYTES = 2  # the first of four, by ZeRO stage
    LOSS_BYTES = 6  # the first of four, likewise (`memory.loss_bytes`)
    PADDED_LOSS_BYTES = 10  # the first of four, likewise (`memory.padded_loss_bytes`)


class LayoutTables(NamedTuple):
    """Arrays by layout, pipeline, stage, mix of layers and kind of layer."""

    rows: Ints
    """(layouts, 10): stages, microbatches, copies, ZeRO stage, 1 for separate weight passes; row
    numbers of pipelines, divisions, groups, sides and losses."""
    starts: Ints
    """(pipelines,): their first stages."""
    order: Ints
    """(pipelines,): number of the order in `ORDERS`."""
    bubbles: Floats
    """(pipelines, 2, 3): `step.bubbles.bubble_terms`."""
    chunks: Ints
    """(pipelines,): chunks per stage."""
    chunk_starts: Ints
    """(pipelines,): their first entry in `chunk_mix`, if they have several chunks per stage."""
    chunk_mix: Ints
    """(chunks of all stages,): row of `chunk_counts`."""
    chunk_counts: Floats
    """(mixes, kinds): layers of each kind in a chunk."""
    mix: Ints
    """(stages,): row of `counts`."""
    counts: Floats
    """(mixes, kinds): layers of each kind in a stage."""
    content: Ints
    """(mixes,): row of `contents`."""
    weighed: Floats
    """(stages, kinds): layers, each chunk weighted by its microbatches in flight."""
    peaks: Floats
    """(stages, 3, 2): `step.bubbles.peaks`."""
    arrivals: Floats
    """(stages, 2): activations and gradients from other stages per microbatch."""
    parameters: Floats
    """(divisions, 5, 2): per dense and per expert parameter, bytes of weights, gradients and
    optimizer, seconds of accumulation and of the update."""
    padding: Floats
    """(divisions,): padding of experts' weights over 1 (`Run.expert_padding`)."""
    spans: Ints
    """(groups, 2): first collective, and the end (exclusive)."""
    sends_s: Floats
    """(groups,): one activation to the next stage."""
    collective: Floats
    """(collectives, 5): 1 for a gather, bytes per dense and per expert parameter, fixed time of a
    ring and of a tree.
    """
    s_per_byte: Floats
    """(collectives, levels)."""
    steps: Floats
    """(collectives, levels): messages per collective, whose size sets the bandwidth it reaches."""
    durations_s: Floats
    shares: Floats
    """(levels, points): share of the bandwidth that messages reach."""
    kinds: Floats
    """(kinds, 9): `KindColumn`."""
    passes: Floats
    """(sides, kinds, choices, 7): `PassColumn`; a side is whether experts are spread over data
    ranks only, and whether weight passes are separate."""
    parts: Floats
    """(sides, kinds, choices, 3, 5): `step.PassSeconds` of forward pass, backward pass and
    recomputation, without gathers of divided weights."""
    kept: Floats
    """(kinds, choices): bytes per microbatch."""
    contents: Floats
    """(contents, 14): `ContentColumn`."""
    transient: Floats
    """(contents, ZeRO stages, choices, phases, 3): `memory.transient_bytes`."""
    logits: Floats
    """(losses, contents): bytes."""
    bounds: Bools
    """(choices,): whether a choice is a lower bound."""
    run: Run
