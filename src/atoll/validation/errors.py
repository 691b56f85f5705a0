"""Summaries of relative errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from atoll.answers.validation import Errors


def relative_error(predicted: float | None, measured: float | None) -> float | None:
    """Return predicted / measured - 1; None if either is missing."""
    return None if predicted is None or measured is None else predicted / measured - 1


def error_summary(errors: NDArray[np.float64] | Sequence[float]) -> Errors:
    """Return mean, median and 90th percentile of absolute errors, and the signed mean."""
    sizes = np.abs(errors)
    if sizes.size == 0:
        return Errors()
    return Errors(
        rows=int(sizes.size),
        mean_ape=float(sizes.mean()),
        median_ape=float(np.median(sizes)),
        p90_ape=float(np.quantile(sizes, 0.9)),
        bias=float(np.mean(errors)),
    )


def errors_by(
    errors: NDArray[np.float64], names: Sequence[str], order: Sequence[str] = ()
) -> dict[str, Errors]:
    """Return the errors by name, in an order or sorted."""
    table = np.array(names)
    return {
        name: error_summary(errors[table == name])
        for name in order or sorted(set(names))
        if name in names
    }
