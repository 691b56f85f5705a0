"""Contract of cost models: below peak rates, monotone in bandwidth, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from atoll.base.arrays import Floats
from atoll.hardware.accelerator import KIB, MIB
from atoll.hardware.template.cores import CostModel, ProductCosts, ProductShape, TensorConfigs

SHAPES = (
    ProductShape(1, 512, 768, 256),
    ProductShape(1, 96, 1000, 512, extra_bytes=4096.0),
    ProductShape(4, 128, 128, 64, fraction=0.5, on_chip=True),
)
"""Products of a small layer: even, ragged with an epilogue, and one of fused attention."""


def some_configs() -> TensorConfigs:
    """Return one, two and four cores of 32 x 32, with their buffers and memory."""
    count = 3
    return TensorConfigs(
        cores=np.array([1, 2, 4]),
        width=np.full(count, 32),
        depth=np.full(count, 32),
        core_buffer_bytes=np.full(count, 16.0 * KIB),
        glb_budget_bytes=np.full(count, 1.0 * MIB),
        glb_Bps=np.full(count, 256e9),
        hbm_Bps=np.full(count, 100e9),
        clock_Hz=np.full(count, 1e9),
        level_budget_bytes=np.zeros((count, 0)),
        level_Bps=np.zeros((count, 0)),
        fill_s=np.zeros(count),
        drained=np.zeros(count),
        exposed=np.zeros(count),
    )


def check_cost_model(
    model: CostModel,
    shapes: Sequence[ProductShape] = SHAPES,
    configs: TensorConfigs | None = None,
    tolerance: float = 1e-9,
    rates: Sequence[str] = ("hbm_Bps", "glb_Bps", "clock_Hz"),
) -> None:
    """Assert that a search may build on a model's table.

    Entries do not depend on other products of the table; no product is faster than its
    multiply-adds at peak or its bytes at the bandwidths; every operand is read from HBM; raising
    any of `rates` slows nothing down; floors are lower bounds.
    """
    configs = configs or some_configs()
    costs = _costs(model, shapes, configs)
    slack = 1.0 + tolerance
    macs = np.array([s.batch * s.m * s.n * s.k * s.fraction for s in shapes])
    peak = configs.cores * configs.width * configs.depth * configs.clock_Hz
    assert np.all(costs.seconds * slack >= macs[:, None] / peak), "faster than the arrays' peak"
    on_chip = np.array([s.on_chip for s in shapes])
    hbm_s = np.where(on_chip[:, None], 0.0, costs.hbm_bytes) / configs.hbm_Bps
    assert np.all(costs.seconds * slack >= hbm_s), "faster than its HBM bytes"
    assert np.all(costs.seconds * slack >= costs.glb_bytes / configs.glb_Bps), "faster than its GLB"
    moved = np.array([2.0 * s.batch * (s.m * s.k + s.k * s.n + s.m * s.n * s.fraction)
                      + s.extra_bytes for s in shapes])  # fmt: skip
    assert np.all(costs.hbm_bytes[~on_chip] * slack >= moved[~on_chip, None]), (
        "less HBM traffic than operands and outputs once"
    )
    for row, shape in enumerate(shapes):
        single = _costs(model, [shape], configs)
        for (name, values), (_, single_values) in zip(_tables(costs), _tables(single), strict=True):
            assert np.allclose(values[row], single_values[0], rtol=tolerance), (
                f"{name} of {shape} depends on the other products of its table"
            )
    if model.floors is not None:
        floors = model.floors(list(shapes), configs)
        for (name, values), (_, least) in zip(_tables(costs), _tables(floors), strict=True):
            assert np.all(least <= values * slack), f"the floor of {name} is above it"
    for rate in rates:
        faster = replace(configs, **{rate: 2.0 * getattr(configs, rate)})
        assert np.all(_costs(model, shapes, faster).seconds <= costs.seconds * slack), (
            f"slower with twice the {rate}"
        )


def _costs(
    model: CostModel, shapes: Sequence[ProductShape], configs: TensorConfigs
) -> ProductCosts:
    costs = model.products(list(shapes), configs)
    for name, values in _tables(costs):
        assert np.shape(values)[:2] == (len(shapes), len(configs)), f"{name} has another shape"
        assert np.all(np.isfinite(values)), f"{name} is not finite"
    assert np.all(costs.seconds > 0.0), "a product takes time"
    return costs


def _tables(costs: ProductCosts) -> list[tuple[str, Floats]]:
    return [(name, values) for name, values in costs._asdict().items() if values is not None]
