"""Cost models by name: Atoll's mapper and external ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from atoll.base.arrays import Floats
from atoll.base.registry import Registry
from atoll.cost import gemm_kernels
from atoll.executors.threads import over_ranges
from atoll.hardware.template.cores import CostModel, ProductCosts, ProductShape, TensorConfigs


def map_products(shapes: Sequence[ProductShape], configs: TensorConfigs) -> ProductCosts:
    """Return the costs by Atoll's mapper (`cost.gemm_kernels`), computed on all CPU cores."""
    return _mapped(shapes, configs, np.zeros((0, gemm_kernels.RECORD)))


def mapping_records(
    shapes: Sequence[ProductShape], configs: TensorConfigs
) -> tuple[ProductCosts, Floats]:
    """Return the costs by Atoll's mapper, and its records (shapes, configurations, record)."""
    records = np.zeros((len(shapes) * len(configs), gemm_kernels.RECORD))
    costs = _mapped(shapes, configs, records)
    return costs, records.reshape(len(shapes), len(configs), -1)


def _mapped(
    shapes: Sequence[ProductShape], configs: TensorConfigs, records: Floats
) -> ProductCosts:
    time_s, hbm, glb = (np.zeros((len(shapes), len(configs))) for _ in range(3))
    outputs = *_arguments(shapes, configs), time_s, hbm, glb, records
    over_ranges(lambda start, stop: gemm_kernels.map_range(start, stop, *outputs), time_s.size)
    return ProductCosts(time_s, hbm, glb)


def product_floors(shapes: Sequence[ProductShape], configs: TensorConfigs) -> ProductCosts:
    """Return lower bounds on the costs: cycles before tiling, operands and outputs moved once."""
    arguments = _arguments(shapes, configs)
    size = (len(shapes), len(configs))
    time_s = np.zeros(size)
    over_ranges(
        lambda start, stop: gemm_kernels.floor_range(start, stop, *arguments, time_s), time_s.size
    )
    inputs = np.array([2.0 * s.batch * (s.m * s.k + s.k * s.n) for s in shapes])
    outputs = np.array([2.0 * s.batch * s.m * s.n * s.fraction + s.extra_bytes for s in shapes])
    off_chip = np.array([not s.on_chip for s in shapes])
    part = np.array([s.fraction for s in shapes])
    hbm, glb = off_chip * (inputs + outputs), part * inputs + outputs
    return ProductCosts(time_s, *(np.broadcast_to(b[:, None], size) for b in (hbm, glb)))


def _arguments(shapes: Sequence[ProductShape], configs: TensorConfigs) -> tuple[Any, ...]:
    """Return the products and configurations as arguments of the kernels."""
    *sizes, fractions, extra_bytes, on_chip = zip(*shapes, strict=True)
    return (
        np.array(sizes, np.int64).T.copy(),
        np.array(fractions, np.float64),
        np.array(extra_bytes, np.float64),
        np.array(on_chip, np.bool_),
        gemm_kernels.Cores(*(getattr(configs, name) for name in gemm_kernels.Cores._fields)),
    )


MAPPER = CostModel("mapper", map_products, product_floors)
COST_MODELS = Registry("cost_models", CostModel, (MAPPER,))
