"""ZigZag under the contract of Atoll's cost models."""

from dataclasses import fields, replace

import pytest
from atoll_zigzag import ZIGZAG

from atoll.plugins import Shape
from atoll.testing import check_cost_model, some_configs

SHAPES = (Shape(1, 128, 96, 64), Shape(2, 64, 64, 32, fraction=0.5, on_chip=True))


def test_the_contract() -> None:
    """Of few products and configurations: ZigZag takes its time. Its stalls are not monotone in the
    clock: where it doubles, and with it the cycles of every transfer, a product may take 10 % more.
    """
    pytest.importorskip("zigzag", reason="ZigZag is missing: pip install 'atoll-zigzag[zigzag]'")
    configs = some_configs()
    two = replace(configs, **{f.name: getattr(configs, f.name)[:2] for f in fields(configs)})
    check_cost_model(ZIGZAG, SHAPES, two, 1e-3, rates=("hbm_Bps", "glb_Bps"))
