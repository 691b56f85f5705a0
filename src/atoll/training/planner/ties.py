"""Layouts that take as long as the fastest, as far as a model can tell: the simplest is named.

A step's estimate is off by far more than a percent (`accuracy`), so a percent decides nothing; how
much of the software must work, and how near the memory is to its end, does.
"""

from __future__ import annotations

from atoll.step.layout import Layout
from atoll.training.estimate import Estimate
from atoll.training.planner.search import LayoutSpace

MOST_TRIED = 100  # of layouts that take as long, whose memory is looked at
_POLICIES = {"none": 0, "full": 1, "selective": 1}  # others choose by operator


def complexity(layout: Layout) -> tuple[int, ...]:
    """How much must work for a layout: features in use, then how finely the model is cut, then what
    is sharded.
    """
    features = (
        layout.tp > 1,
        layout.pp > 1,
        layout.cp > 1,
        layout.ep > 1,
        layout.etp != layout.tp,
        layout.vpp > 1,
        layout.hsdp > 1,
        layout.schedule not in ("1f1b", "interleaved"),
        bool(layout.blocks),
    )
    cuts = layout.model_ranks * layout.ep * layout.vpp
    return sum(features) + _POLICIES.get(layout.recompute, 2), cuts, layout.zero, layout.hsdp


def simplest(space: LayoutSpace, fastest: Estimate, ties: float) -> tuple[Estimate, int]:
    """Of the layouts that take at most so much longer than the fastest the simplest that is not
    tight in memory, or the simplest; and how many there are.
    """
    tied = [(space.layout(*at), at) for at in space.within(fastest.step.time_s * (1 + ties))]
    tied.sort(key=lambda pair: complexity(pair[0]))  # stable: the faster first
    tried = (space.estimate(*at) for _, at in tied[:MOST_TRIED])
    fitting = [estimate for estimate in tried if estimate.fits]
    roomy = (estimate for estimate in fitting if not estimate.tight)
    return next(roomy, next(iter(fitting), fastest)), len(tied)
