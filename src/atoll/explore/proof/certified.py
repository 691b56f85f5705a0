"""The certificate of a search, counted in architectures."""

from __future__ import annotations

import numpy as np

from atoll.explore.proof.branch_and_bound import Search, SearchOutcome
from atoll.step.certificate import Certificate

CONSTRAINTS = "roofline or constraints"
"""Rule for points of a space outside memory, most of which were never built."""


def certificate_of(
    search: Search, outcome: SearchOutcome, tolerance: float, score: float
) -> Certificate:
    """Return the certificate of an outcome for a design of this score."""
    architectures = len(search.space)
    frontier = outcome.frontier
    designs, number = np.unique(frontier.chips.design, return_inverse=True)
    stage = np.zeros(len(designs), np.int64)
    np.maximum.at(stage, number, frontier.stage)
    closed = np.ones(len(designs), np.bool_)
    np.logical_and.at(closed, number, outcome.ruled_out)
    evaluated = int((stage == 2).sum())
    scheduled = designs[closed & (stage == 1)]
    name, elsewhere = "roofline", 0
    if search.reserve is not None:
        # Points of a large space are counted whether or not they satisfy the constraints, as most
        # were never built.
        name = CONSTRAINTS
        gone = np.unique(np.concatenate([scheduled, *search.reserve.scheduled]))
        scheduled = np.setdiff1d(gone, designs[(stage == 2) | ~closed])
        elsewhere = search.reserve.open_points(search.threshold())
        elsewhere = min(elsewhere, architectures - evaluated - len(scheduled))
    left = int((~closed & (stage < 2)).sum()) + elsewhere
    return Certificate(
        score=score,
        bound=outcome.bound,
        tolerance=tolerance,
        items=architectures,
        kind="architecture",
        evaluated=evaluated,
        ruled_out={
            name: architectures - evaluated - len(scheduled) - left,
            "schedule": len(scheduled),
        },
        tightened=outcome.tightened,
    )
