"""Re-sharding between layouts, and what streaming hides of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.fabric.digits import digit_systems
from atoll.fabric.mesh import Mesh
from atoll.fabric.mesh_collectives import wires
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.costs.tables import exposed
from atoll.wafer.detailed import streamed_s

VOLUME = 3e6


@settings(max_examples=30, deadline=None)
@given(
    faster=st.floats(1.0, 10.0),
    shape=st.sampled_from([(2, 2), (4, 2), (3, 4), (8, 6)]),
    data=st.data(),
)
def test_time_never_rises_with_link_bandwidth(faster, shape, data):
    digits = digit_systems(*shape)[0]
    roles = [data.draw(st.sampled_from(range(5))) for _ in range(digits.count)]
    source = np.array([data.draw(st.sampled_from([0, 1, 2, 3, 5])) for _ in roles], np.int64)
    target = np.array(roles, np.int64)
    slow, quick = (
        kernels.transition_one(
            VOLUME, source, source, target, wires(digits, Mesh("", *shape, speed * 1e9, 1e-8)), 0, 0
        )
        for speed in (1.0, faster)
    )
    assert all(q <= s * (1 + 1e-12) for q, s in zip(quick[:3], slow[:3], strict=True))
    assert quick[3] == slow[3]


@settings(deadline=None)
@given(gather=st.floats(0, 4), compute=st.floats(0.01, 4), scatter=st.floats(0, 4))
def test_streaming_hides_no_more_than_the_fast_model_says_for_one_side(gather, compute, scatter):
    """The fast model's exposed time is never below what pieces on one link and one core need."""
    links, beside = np.array([gather, scatter]), np.array([compute, compute])
    fast = compute + float(exposed(links, beside, np.array([True, True])).sum())
    assert streamed_s(gather, compute, scatter, 4) <= fast + 1e-9
