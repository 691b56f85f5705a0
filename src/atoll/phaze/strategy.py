"""PHAZE's search strategy, for comparison: stop when five buckets did not improve.

PHAZE sorts designs into buckets of 0.01 mm2, visits them from the largest area down, evaluates
every design of a bucket, and stops once the best throughput of the last five buckets has not
increased. It gives no bound on the designs that it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from atoll.base.arrays import Floats, Ints

BUCKET_MM2 = 0.01
PATIENCE = 5
_BATCH = 64  # designs priced at a time; those beyond the stop are not counted


def visit_buckets(
    area_mm2: Floats, evaluate: Callable[[Ints], Floats], accept: Callable[[int, float], None]
) -> Ints:
    """Evaluate chips by area until the rule stops, calling `accept` for each visited one. Return
    the chips that were evaluated but not visited."""
    buckets = (area_mm2 / BUCKET_MM2).astype(np.int64)
    order = np.lexsort((np.arange(len(area_mm2)), -buckets))
    recent: list[float] = []
    bucket_best = -1.0
    current: int | None = None
    for start in range(0, len(order), _BATCH):
        batch = order[start : start + _BATCH]
        for position, (chip, score) in enumerate(zip(batch, evaluate(batch), strict=True)):
            if current is not None and buckets[chip] != current:
                recent.append(bucket_best)
                bucket_best = -1.0
                last = recent[-PATIENCE:]
                if len(last) == PATIENCE and all(
                    after <= before for before, after in pairwise(last)
                ):
                    return batch[position:]
            current = int(buckets[chip])
            accept(int(chip), float(score))
            bucket_best = max(bucket_best, float(score))
    return order[:0]
