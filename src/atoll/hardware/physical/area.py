"""Square millimetres of a chip by part.

    cells     multiply-adds, the precision that needs most of them, on every unit of the die
    lanes     of vector units, with registers and schedulers
    control   of cores that are no multiprocessors: grows with the root of a core's cells, as
              sequencer, edges and router do
    memories  macro area of the node times a factor for the kind: scratchpad or coherent cache
    network   what joins cores and memories, where there is a memory that they share: a share of
              what it joins, or the wires of that memory's bandwidth over the side of the die,
              whichever is larger; in a mesh without DRAM the routers are in the cores
    dram, links, uncore   interfaces, which do not shrink with the node; links to other packages
              and between the dies of one

HBM sites come in pairs on opposite edges: a fifth stack has a sixth site (A100, H100).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import numpy as np

from atoll.base.arrays import Floats
from atoll.hardware.physical.constants import PUBLISHED, Physics
from atoll.hardware.physical.nodes import nodes
from atoll.hardware.physical.physical_chip import Columns

_UM2 = 1e-6
_GB = 1e9
PARTS = (
    "cells", "lanes", "control", "buffers", "cache", "network", "dram", "links", "uncore",
)  # fmt: skip


def equal_cells(chips: Columns, physics: Physics = PUBLISHED) -> Floats:
    """Number of bf16 cells with the area of the chip's cells."""
    fp8, fp4 = chips["fp8_cells"] * physics.fp8_cell, chips["fp4_cells"] * physics.fp4_cell
    return np.maximum(chips["bf16_cells"] * chips["matrix_units"], np.maximum(fp8, fp4))


def area_parts_mm2(chips: Columns, physics: Physics = PUBLISHED) -> dict[str, Floats]:
    """Area by part, in the order of `PARTS`."""
    node = nodes(chips["process_nm"])
    on_die = chips["spare"]
    logic = node.logic * _UM2 * on_die
    cells, threaded = equal_cells(chips, physics), chips["threaded"]
    cells = cells + chips["spare_cores"] * chips["unit_cells"]
    scratchpad_bytes = chips["scratchpad_bytes"] + chips["spare_cores"] * chips["core_bytes"]
    lane = np.where(threaded, physics.threaded_lane_um2, physics.static_lane_um2)
    cores = np.maximum(chips["cores"], 1.0)
    control = physics.core_um2 * np.sqrt(np.maximum(cells, 1.0) * cores)
    macros = on_die / node.macro_bytes_per_mm2
    joined = {
        "cells": cells * physics.cell_um2 * logic,
        "lanes": chips["lanes"] * lane * logic,
        "control": np.where(threaded, 0.0, control) * logic,
        "buffers": scratchpad_bytes * physics.scratchpad * macros,
        "cache": chips["cache_bytes"] * physics.cache * macros,
    }
    stacks = chips["stacks"]
    sites = np.where((stacks > 1) & (stacks % 2 == 1), stacks + 1, stacks)
    shared = (stacks > 0) | (chips["channels"] > 0)
    host = 1 - chips["on_wafer"]
    link = physics.serdes_mm2_per_GBps * np.where(host, 1.0, physics.on_wafer_link)
    dies = 1 + physics.further_die * (chips["dies"] - 1)
    die_links_Bps = np.where(chips["dies"] > 1, chips["die_link_Bps"], 0.0)
    joined_mm2 = total(joined.values())
    wires = physics.wire_mm2_per_Bpc_mm * chips["shared_Bpc"] * np.sqrt(joined_mm2)
    return joined | {
        "network": np.maximum(physics.shared_wiring * joined_mm2, wires) * shared,
        "dram": sites * chips["stack_mm2"] + chips["channels"] * physics.dram_channel_mm2,
        "links": (chips["link_Bps"] * link + die_links_Bps * physics.die_link_mm2_per_GBps) / _GB,
        "uncore": physics.uncore_mm2 * host * dies,
    }


def area_mm2(chips: Columns, physics: Physics = PUBLISHED) -> Floats:
    return total(area_parts_mm2(chips, physics).values())


def total(parts: Iterable[Floats]) -> Floats:
    """Sum columns, some of which may be scalars."""
    return np.asarray(reduce(np.add, parts))
