"""PHAZE's space beyond its own budget: larger chips, for a larger area.

PHAZE's 29,360 designs stay as they are. Beside them comes every chip that is larger than any of
them and within the new budget, from finer and longer lists: with powers of two alone, much of
a budget between two of them could not be spent. A larger budget only adds designs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from atoll.hardware.accelerator import MIB
from atoll.hardware.area import glb_area_mm2
from atoll.hardware.physical.nodes import RETICLE_MM2
from atoll.hardware.space import (
    DEFAULT_GLB,
    DesignAxes,
    DesignLimits,
    DesignSpace,
    build_space,
    phaze_space,
)

# Lists are finer where a doubling would take much of the budget. Tensor cores: every number up to
# 16, then 18, 20, ... 32, 36, ...; shared buffers: 2, 4, 8, 16, then 24, 32, 48, 64, ... MiB;
# vector cores: powers of two.
_TENSOR_BITS = 4
_FINE_GLB_MIB = 16
_MOST_CORES = 4096
_MOST_GLB_MIB = 1 << 16  # far beyond a reticle


def widened_space(max_area_mm2: float) -> DesignSpace:
    """PHAZE's space, and beyond its largest chip everything up to this area."""
    default = phaze_space()
    largest_mm2 = float(default.area_mm2.max())
    budget_mm2 = min(max_area_mm2, RETICLE_MM2)
    if budget_mm2 <= largest_mm2:
        return default
    # The longest counts grow with the budget, by doublings.
    most = _MOST_CORES << int(np.ceil(np.log2(budget_mm2 / largest_mm2)))
    sides = tuple(int(side) for side in np.unique(default.width))
    coarse, fine = (round_numbers(_MOST_GLB_MIB, bits) for bits in (1, 2))
    sizes = {size for size in coarse if size > 1} | {size for size in fine if size > _FINE_GLB_MIB}
    glb_bytes = np.array(sorted(sizes)) * MIB
    larger = build_space(
        name=default.name,
        axes=DesignAxes.with_defaults(
            tensor_cores=round_numbers(most, _TENSOR_BITS),
            vector_cores=round_numbers(most, 1),
            width=sides,
            depth=sides,
            glb_bytes=tuple(int(b) for b in glb_bytes[glb_area_mm2(glb_bytes) < budget_mm2]),
        ),
        hbm_options=default.hbm_options,
        glb_bandwidth=DEFAULT_GLB,
        limits=DesignLimits(
            min_area_mm2=float(np.nextafter(largest_mm2, np.inf)), max_area_mm2=budget_mm2
        ),
    )
    joined = default.joined(larger)
    return replace(joined, name=f"{default.name} widened to {budget_mm2:g} mm2")


def round_numbers(most: int, bits: int) -> tuple[int, ...]:
    """Whole numbers up to `most` that so many significant binary digits write."""
    shifts = range(most.bit_length())
    numbers = {digits << shift for digits in range(1, 1 << bits) for shift in shifts}
    return tuple(sorted(number for number in numbers if number <= most))
