"""Silicon area of a design, by the model of the PHAZE release (Accelergy + CACTI 7, 22 nm).

    area = tensor_cores x (760.041386 um2 x width x depth + buffer(width x depth / 64 KiB))
         + vector_cores x (759.823853 um2 x vector_width  + buffer(vector_width / 64 KiB))
         + GLB(size)

Buffers of at least 1 KiB. The two tables below are CACTI's areas for the sizes of PHAZE's space;
on those sizes the result is the table's, exactly. Other spaces need other sizes:

* between two table sizes the area is interpolated on log-log axes (a power law per segment);
* below the smallest, the first segment's power law continues (periphery does not shrink away);
* above the largest, the area grows in proportion to the size (more banks of the largest kind).

Not in the model: network on chip, I/O, control, and HBM PHYs unless the `Hbm` states their area.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from atoll.base.arrays import Floats, Ints
from atoll.hardware.accelerator import KIB, MIB
from atoll.hardware.template.parameter import Columns

UM2_PER_MM2 = 1e6
_SILICON = ("tensor_cores", "vector_cores", "width", "depth", "vector_width", "glb_bytes")

# One array cell or lane: 16-bit multiply-add with its registers (Accelergy, 22 nm).
TENSOR_CELL_MM2 = 760.041386 / UM2_PER_MM2
VECTOR_LANE_MM2 = 759.823853 / UM2_PER_MM2

# CACTI 7 areas of the buffer beside a core, 1 KiB to 1 MiB.
_CORE_BUFFER_BYTES = np.array([KIB * 2.0**k for k in range(11)])
_CORE_BUFFER_UM2 = (
    6133.98, 8248.43, 12610.5, 22139.9, 38583.0, 63338.4,
    115579.0, 204764.0, 446565.0, 897890.0, 1634130.0,
)  # fmt: skip
# CACTI 7 areas of the shared buffer, 2 to 128 MiB.
_GLB_BYTES = np.array([MIB * 2.0**k for k in range(1, 8)])
_GLB_MM2 = (3.33822, 6.07864, 11.9524, 23.7452, 46.7509, 88.6057, 175.423)


def _table_lookup(sizes_bytes: Floats, areas_mm2: Floats) -> Callable[[ArrayLike], Floats]:
    log_sizes, log_areas = np.log2(sizes_bytes), np.log2(areas_mm2)
    slopes = np.diff(log_areas) / np.diff(log_sizes)
    # slope used left of each size, and right of the last: proportional growth
    slopes = np.concatenate([slopes[:1], slopes, [1.0]])

    def lookup(size_bytes: ArrayLike) -> Floats:
        size = np.asarray(size_bytes, dtype=np.float64)
        if np.any(size <= 0):
            raise ValueError("a buffer's size must be positive")
        segment = np.searchsorted(sizes_bytes, size, side="right")
        anchor = np.maximum(segment - 1, 0)
        # exact on the table: the factor is 2^0 = 1 there
        return np.asarray(
            areas_mm2[anchor] * np.exp2(slopes[segment] * np.log2(size / sizes_bytes[anchor]))
        )

    return lookup


core_buffer_area_mm2 = _table_lookup(_CORE_BUFFER_BYTES, np.array(_CORE_BUFFER_UM2) / UM2_PER_MM2)
"""Area of one buffer beside a core, by its size in bytes."""

glb_area_mm2 = _table_lookup(_GLB_BYTES, np.array(_GLB_MM2))
"""Area of the shared on-chip buffer, by its size in bytes."""


def _buffer_sizes_bytes(cells: Ints) -> Ints:
    """The array form of `accelerator.core_buffer_bytes`."""
    return np.maximum(KIB, cells // 64 * KIB)


def area_mm2(
    tensor_cores: ArrayLike,
    vector_cores: ArrayLike,
    width: ArrayLike,
    depth: ArrayLike,
    vector_width: ArrayLike,
    glb_bytes: ArrayLike,
) -> Floats:
    """Areas of many designs at once, without HBM PHYs; arguments broadcast against each other."""
    cells = np.asarray(width, dtype=np.int64) * np.asarray(depth, dtype=np.int64)
    lanes = np.asarray(vector_width, dtype=np.int64)
    tensor_core = TENSOR_CELL_MM2 * cells + core_buffer_area_mm2(_buffer_sizes_bytes(cells))
    vector_core = VECTOR_LANE_MM2 * lanes + core_buffer_area_mm2(_buffer_sizes_bytes(lanes))
    return np.asarray(
        np.asarray(tensor_cores) * tensor_core
        + np.asarray(vector_cores) * vector_core
        + glb_area_mm2(glb_bytes)
    )


def columns_area_mm2(chips: Columns) -> Floats:
    """Area of designs given as columns."""
    return area_mm2(*(chips[name] for name in _SILICON))


def columns_area_parts(chips: Columns) -> dict[str, Floats]:
    """Area of designs by part."""
    cells, lanes = chips["width"] * chips["depth"], chips["vector_width"]
    tensor_cores, vector_cores = chips["tensor_cores"], chips["vector_cores"]
    return {
        "tensor_arrays_mm2": tensor_cores * TENSOR_CELL_MM2 * cells,
        "tensor_buffers_mm2": tensor_cores * core_buffer_area_mm2(_buffer_sizes_bytes(cells)),
        "vector_lanes_mm2": vector_cores * VECTOR_LANE_MM2 * lanes,
        "vector_buffers_mm2": vector_cores * core_buffer_area_mm2(_buffer_sizes_bytes(lanes)),
        "glb_mm2": glb_area_mm2(chips["glb_bytes"]),
    }
