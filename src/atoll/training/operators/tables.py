"""What estimates of many layouts are summed up from: `batch` makes it, `sums` adds it up."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.training.run import Run

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Columns of `Tables.rows`.
STAGES, MICROBATCHES, COPIES, ZERO, SPLIT, PIPE, DIVISION, GROUP, SIDE, LOSS = range(10)


class Tables(NamedTuple):
    """What is summed up."""

    rows: Ints
    """(layouts, 10): stages, microbatches, copies, ZeRO stage, 1 where weight passes run apart;
    rows of pipelines, divisions, groups, sides and losses."""
    starts: Ints
    """(pipelines,): their first stages."""
    order: Ints
    """(pipelines,): number of the order in `ORDERS`."""
    bubbles: Floats
    """(pipelines, 2, 3): `step.bubbles.bubble_terms`."""
    chunks: Ints
    """(pipelines,): chunks per stage."""
    chunk_starts: Ints
    """(pipelines,): where their chunks begin in `chunk_mix`, of those with several per stage."""
    chunk_mix: Ints
    """(chunks of all stages,): which mix of `chunk_counts` it holds."""
    chunk_counts: Floats
    """(mixes, kinds): how many layers of each kind a chunk holds."""
    mix: Ints
    """(stages,): which mix of layers it holds."""
    counts: Floats
    """(mixes, kinds): how many layers of each kind."""
    content: Ints
    """(mixes,): which content it has."""
    weighed: Floats
    """(stages, kinds): how many layers, each chunk weighed by the microbatches that it holds."""
    peaks: Floats
    """(stages, 3, 2): (held, waiting) where a stage may need most."""
    came: Floats
    """(stages, 2): activations and gradients that arrive from other stages."""
    parameters: Floats
    """(divisions, 5, 2): per dense and per expert parameter, bytes of weights, gradients and
    optimizer, seconds of accumulation and of the update."""
    spans: Ints
    """(groups, 2): their collectives, from one to before the other."""
    sends_s: Floats
    """(groups,): one activation to the next stage."""
    collective: Floats
    """(collectives, 5): 1 where it gathers, bytes per dense and per expert parameter, fixed time of
    a ring and of a tree.
    """
    s_per_byte: Floats
    """(collectives, levels)."""
    steps: Floats
    """(collectives, levels): into which each is divided for what it reaches of the bandwidth."""
    durations_s: Floats
    shares: Floats
    """(levels, points): what messages reach of each level's bandwidth."""
    kinds: Floats
    """(kinds, 8): dense and expert parameters, bytes that wait for weight gradients, bytes of fp8
    copies, seconds of weight gradients and of their launches; dense and expert parameters with
    frozen ones."""
    passes: Floats
    """(sides, kinds, choices, 7), a side for where experts lie and whether weight gradients run
    apart: forward and backward (recomputation with it), what gathers may hide behind of both, host
    time beside the device, host time that all wait for, and of the former that of forward passes.
    """
    kept: Floats
    """(kinds, choices): bytes of one microbatch."""
    held: Floats
    """(contents, 6): shared parameters, bytes that enter, buffers by ZeRO stage."""
    transient: Floats
    """(contents, choices)."""
    logits: Floats
    """(losses, contents)."""
    bounds: NDArray[np.bool_]
    """(choices,): those that are bounds."""
    run: Run
