"""ZigZag under the contract of Atoll's cost models."""

import pytest
from atoll_zigzag import ZIGZAG

from atoll.testing import check_cost_model

pytest.importorskip("zigzag", reason="ZigZag is not installed: pip install 'atoll-zigzag[zigzag]'")


def test_the_contract() -> None:
    check_cost_model(ZIGZAG, tolerance=1e-6)
