"""What a kind of chip loses between its peak rates and the operators that run on it.

Each number has a meaning of its own and one value for all chips and operators of a kind; how a
product or a fused operator takes them up, and which of them were fitted or chosen on what, is said
in docs/cost-model.md; `benchmarks/template_chips.py` holds H200, A100, B200 and TPUs against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Stalls:
    """Losses of a kind of chip; the defaults lose nothing."""

    start_s: float = 0.0
    """Start and end of an operator, while nothing of it runs."""
    array: float = 1.0
    """Share of the clocks in which an array with operands at hand multiplies."""
    hbm: float = 1.0
    """Share of HBM's bandwidth that streams reach (refresh, turnarounds, row misses)."""
    fill_s: float = 0.0
    """Time for the first operands of a round (core rows x array columns) to reach the core."""
    drained: float = 0.0
    """Share of the output transfer to the shared buffer for which arrays wait."""
    exposed: float = 0.0
    """Share of the shorter of two overlapping activities (compute and HBM traffic, products and
    vector work of a fused operator) that the longer does not hide."""
    mask_rows: int = 0
    """Queries per block of fused attention; blocks that a mask cuts are computed in full."""
    tail: float = 0.0
    """Share of the longest masked block for which other cores wait at the end."""
    operations: str = ""
    """Operation counts of vector functions (`cost.vector`); "": those of the profile."""


NO_STALLS = Stalls()

# What both kinds have in common: array, fill and exposed were fitted on products, tail on attention
# of half of the H200's shapes, and rounded. HBM: streams reach 0.90 to 0.93 of it on A100 and H100.
_BOTH = Stalls(array=0.9, hbm=0.92, fill_s=0.8e-6, exposed=0.14, mask_rows=256, tail=0.5)

# Threads wait for their outputs' way out. Start: fitted with the others. Exponentials: 16 a clock
# beside 128 lanes (CUDA programming guide, arithmetic throughput).
CACHED = replace(_BOTH, start_s=3.7e-6, drained=1.0, operations="special")

# Outputs leave an array as they come. Start: products of 128 to 512 on half a TPU7x take 1.6 to
# 2.6 us in all (github.com/AI-Hypercomputer/tpu-recipes, microbenchmarks).
SCRATCHPAD = replace(_BOTH, start_s=1e-6)

STALLS: Mapping[str, Stalls] = {"cached": CACHED, "scratchpad": SCRATCHPAD}
"""By the kind that files of chips name: caches and threads that wait for them, or buffers that a
compiler fills ahead of time."""
