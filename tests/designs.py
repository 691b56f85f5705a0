"""One design of a space, found by its parameters."""

from __future__ import annotations

import numpy as np

from atoll.hardware.space import DesignSpace


def position_of(space: DesignSpace, **wanted: int) -> int:
    """Where the first design with these values stands; vector cores are as wide as tensor cores."""
    wanted.setdefault("vector_width", wanted["width"])
    same = np.logical_and.reduce([getattr(space, name) == value for name, value in wanted.items()])
    return int(np.flatnonzero(same)[0])
