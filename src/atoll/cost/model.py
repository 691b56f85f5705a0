"""The cost models by name: our mapper, and those of other packages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll.cost import gemm_kernels
from atoll.hardware.template.cores import CostModel, ProductCosts, Shape, TensorConfigs
from atoll.jit import over_ranges
from atoll.registry import Registry


def map_products(shapes: Sequence[Shape], configs: TensorConfigs) -> ProductCosts:
    """By our mapper (`cost.gemm`), on all of this machine's cores."""
    columns = list(zip(*shapes, strict=True))
    arguments = (
        np.array(columns[:4], np.int64).T.copy(),
        np.array(columns[4], np.float64),
        np.array(columns[5], np.float64),
        np.array(columns[6], np.bool_),
        configs.cores,
        configs.width,
        configs.depth,
        configs.core_buffer_bytes,
        configs.glb_budget_bytes,
        configs.hbm_Bps,
        configs.glb_Bps,
        configs.clock_Hz,
    )
    time_s, hbm, glb = (np.zeros((len(shapes), len(configs))) for _ in range(3))
    over_ranges(
        lambda start, stop: gemm_kernels.map_range(start, stop, *arguments, time_s, hbm, glb),
        len(shapes) * len(configs),
    )
    return ProductCosts(time_s, hbm, glb)


MAPPER = CostModel("mapper", map_products)
COST_MODELS = Registry("cost_models", CostModel, (MAPPER,))
