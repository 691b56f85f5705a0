"""Re-sharding between layouts, and what streaming hides of it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.fabric.digits import digit_systems
from atoll.fabric.mesh import Mesh
from atoll.fabric.mesh_collectives import wires
from atoll.wafer.answer.draw import text_map, wafer_picture
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.costs.tables import exposed
from atoll.wafer.evaluate import evaluate
from atoll.wafer.link_loads import link_loads
from atoll.wafer.link_replay import streamed_s

from .test_wafer_encoding import random_mapping
from .wafer_cases import small_file, small_model, small_wafer

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
        kernels.single_transition(
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
    links, overlapped = np.array([gather, scatter]), np.array([compute, compute])
    fast = compute + float(exposed(links, overlapped, np.array([True, True])).sum())
    assert streamed_s(gather, compute, scatter, 4) <= fast + 1e-9


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), shape=st.sampled_from([(2, 1), (1, 2), (2, 2), (3, 2), (4, 2)]))
def test_no_link_carries_more_than_it_could_while_dies_wait_for_links(seed, shape):
    """Of one stage whose collectives hide behind nothing, without latency; on two dies both links
    are busy all that time, whatever the homes of weights, codes and recomputation.
    """
    width, height = shape
    drawn = random_mapping(seed, width, height, stages=1)
    stage = drawn.stages[0]
    ways = tuple((False, way) for _, way in stage.block.collectives)
    alone = replace(stage, block=replace(stage.block, collectives=ways))
    mapping = replace(drawn, streaming=False, stages=(alone,))
    wafer = small_wafer(height, width, link_Bps=1e9, latency_s=0.0)
    instant = small_wafer(height, width, link_Bps=1e30, latency_s=0.0)
    found = evaluate(wafer, mapping)
    waited_s = found.stages[0].load_s - evaluate(instant, mapping).stages[0].load_s
    loads = link_loads(wafer, found)
    longest_s = max(loads.values(), default=0.0) / wafer.link_Bps
    assert longest_s <= waited_s * (1 + 1e-9) + 1e-15
    if width * height == 2:
        assert [size / wafer.link_Bps for size in loads.values()] == pytest.approx(
            [waited_s] * len(loads)
        )
        assert len(loads) == (2 if waited_s > 1e-15 else 0)


def test_stages_send_activations_ahead_and_gradients_back():
    drawn = random_mapping(0, 1, 1, stages=2)
    mapping = replace(drawn, stages=tuple(
        replace(s, helper=None, block=replace(s.block, keep=(0,) * 7)) for s in drawn.stages
    ))  # fmt: skip
    wafer = small_wafer(1, 2)
    stream = mapping.blocks().stream_bytes
    ahead, back = ((0, 0), (1, 0)), ((1, 0), (0, 0))
    assert link_loads(wafer, evaluate(wafer, mapping)) == {ahead: stream, back: stream}


def test_the_picture_of_one_stage_shows_the_load_of_its_links(tmp_path):
    found = atoll.search(
        wafer=str(small_file(tmp_path)), model=small_model(heads=8), batch=8, sequence=64,
        microbatch=(1,), stage_counts=(1,), baselines=False, out=tmp_path / "run",
    )  # fmt: skip
    assert len(found.best.mapping.stages) == 1
    links = json.loads((tmp_path / "run" / "result.json").read_text())["wafer"]["links"]
    assert links and all(link["bytes_per_microbatch"] > 0 for link in links)


def test_a_full_die_is_told_apart_from_its_stage():
    wafer = small_wafer(2, 2)
    picture = wafer_picture(wafer, evaluate(wafer, random_mapping(0, 1, 2, stages=2)))
    used = picture.dies[0].memory_total_bytes
    full = text_map(replace(picture, memory_bytes_per_die=used)).splitlines()
    assert full[0].startswith("0:100% 1:")
