"""The seed's own way through the space, for comparison: stop when five buckets did not improve.

PHAZE sorts designs into buckets of 0.01 mm2, visits them from the largest area down, evaluates
every design of a bucket, and stops once the best throughput of the last five buckets has not
increased. The bound on the rest is the roofline: the certificate says what this rule cannot.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from atoll.explore.branch_and_bound import Outcome, Search

BUCKET_MM2 = 0.01
PATIENCE = 5
_AHEAD = 64  # designs priced at a time; those beyond the stop are not counted


def seed_search(search: Search) -> Outcome:
    """Visit buckets until the rule stops, and report what is proven then."""
    chips = search.frontier.chips
    buckets = (chips.area_mm2 / BUCKET_MM2).astype(np.int64)
    order = np.lexsort((np.arange(len(chips)), -buckets))
    recent: list[float] = []
    bucket_best: float | None = None
    current: int | None = None
    for start in range(0, len(order), _AHEAD):
        ahead = order[start : start + _AHEAD]
        scores = search.evaluate_all(ahead)
        for position, (chip, score) in enumerate(zip(ahead, scores, strict=True)):
            if current is not None and buckets[chip] != current:
                recent.append(bucket_best if bucket_best is not None else -1.0)
                bucket_best = None
                last = recent[-PATIENCE:]
                if len(last) == PATIENCE and all(
                    after <= before for before, after in pairwise(last)
                ):
                    search.forget(ahead[position:])
                    return search.outcome()
            current = int(buckets[chip])
            search.accept(int(chip), score)
            if score > (bucket_best if bucket_best is not None else -1.0):
                bucket_best = score
    return search.outcome()
