"""Parts of an expert layer on a GPU against timings of one H200 and against each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.cost.gpu_experts import EXPERT_KINDS, TILE_ROWS, Routed, expert_times_s
from atoll.hardware.gpu import load_gpu

H200 = load_gpu("h200")


def routed(*sizes: float) -> Routed:
    return Routed(*(np.array([float(size)]) for size in sizes))


def time_s(kind: str, sizes: Routed) -> float:
    return float(expert_times_s(H200, kind, sizes)[0])


# tokens, rows, hidden, width, experts, rows of the largest: (kind, measured microseconds)...
MEASURED = [
    ((4096, 8192, 4096, 14336, 2, 5462),
     {"grouped_up_fwd": 2480, "combine_fwd": 438, "block_fwd": 5210, "block_bwd": 10096}),
    ((8192, 65536, 2048, 768, 64, 4518),
     {"router_fwd": 66, "dispatch_fwd": 124, "grouped_up_wgrad": 686, "block_fwd": 2874}),
    ((16384, 65536, 7168, 2048, 8, 8192),
     {"sort_ids": 78, "grouped_up_dgrad": 6155, "block_bwd": 23379}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "kind", "measured_us"),
    [(sizes, kind, us) for sizes, kinds in MEASURED for kind, us in kinds.items()],
)
def test_parts_take_what_an_h200_takes(
    sizes: tuple[float, ...], kind: str, measured_us: float
) -> None:
    assert time_s(kind, routed(*sizes)) == pytest.approx(measured_us * 1e-6, rel=0.15)


def test_uneven_experts_compute_half_a_tile_more_than_even_ones() -> None:
    even, uneven = routed(1024, 8192, 2048, 768, 64, 128), routed(1024, 8192, 2048, 768, 64, 592)
    assert even.tiled_rows == 128
    assert uneven.tiled_rows == 128 + TILE_ROWS / 2
    assert time_s("grouped_up_fwd", uneven) > time_s("grouped_up_fwd", even)


@given(
    st.integers(1, 2**14), st.integers(1, 2**16), st.integers(1, 2**13), st.integers(1, 2**14),
    st.integers(1, 256),
)  # fmt: skip
def test_a_block_takes_longer_than_its_parts_and_more_rows_never_take_less(
    tokens: int, rows: int, hidden: int, width: int, experts: int
) -> None:
    sizes = routed(tokens, rows, hidden, width, experts, rows)
    more = routed(tokens, 2 * rows, hidden, width, experts, 2 * rows)
    parts = ("dispatch_fwd", "grouped_up_fwd", "grouped_down_fwd", "combine_fwd")
    assert time_s("block_fwd", sizes) >= sum(time_s(kind, sizes) for kind in parts)
    for kind in ("dispatch_fwd", "combine_fwd", "sort_ids"):
        assert 0 < time_s(kind, sizes) <= time_s(kind, more)
    assert all(np.isfinite(time_s(kind, sizes)) for kind in EXPERT_KINDS)
