"""Wafers with dead dies and links: what is cut off, tilings, routes and mappings around them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.base.errors import AtollError
from atoll.fabric.mesh import snake
from atoll.fabric.routes import route
from atoll.hardware.accelerator import MIB
from atoll.questions import WaferQuestion
from atoll.wafer.encoding.mapping import problems
from atoll.wafer.run import search_wafer
from atoll.wafer.search import WaferSearch
from atoll.wafer.staging.faults import Faults, map_around, sample_faults, unharmed
from atoll.wafer.staging.planner import Planner
from atoll.wafer.staging.tiling import guillotine

from .wafer_cases import small_file, small_model, small_wafer


def search(wafer, **model):
    return WaferSearch(wafer, small_model(**model), 16, 24, None, (1, 2))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), pieces=st.integers(1, 6), share=st.floats(0, 0.3))
def test_tilings_cover_working_dies_only_once(seed, pieces, share):
    random = np.random.default_rng(seed)
    dead = [(x, y) for x in range(6) for y in range(4) if random.random() < share]
    rectangles = guillotine(4, 6, pieces, dead)
    dies = [die for r in rectangles for die in r.dies()]
    assert len(dies) == len(set(dies))
    assert not set(dies) & set(dead)
    assert len(rectangles) <= pieces
    more = guillotine(4, 6, pieces + 1, dead)
    assert sum(r.size for r in more) >= len(dies)


def test_a_wafer_without_faults_is_cut_evenly_and_beside_a_fault_as_without():
    """Large grids too: parts without faults are tiled once for each pair of sides."""
    assert [r.size for r in guillotine(16, 16, 4)] == [64] * 4
    clean, faulty = guillotine(6, 6, 3), guillotine(6, 7, 3, [(6, y) for y in range(6)])
    assert clean == faulty


def test_a_dead_link_is_never_inside_a_rectangle():
    link = ((1, 0), (2, 0))
    for pieces in (1, 2, 3):
        for r in guillotine(2, 4, pieces, (), [link]):
            assert not set(link) <= set(r.dies())


@pytest.mark.slow
def test_mapping_around_dead_dies_keeps_most_of_the_throughput():
    wafer = small_wafer(4, 4, memory_bytes=64 * MIB)
    whole = search(wafer, layers=16)
    healthy = whole.run().best
    kept = []
    for seed in range(6):
        faults = sample_faults(wafer, 0.05, np.random.default_rng(seed))
        found = map_around(whole.planner, faults, [1, 2])
        assert found is not None
        assert problems(found.mapping, 4, 4, faults.dies) == []
        kept.append(found.samples_per_s / healthy.samples_per_s)
    assert np.median(kept) > 0.7


def test_dies_that_are_cut_off_are_left_out_like_dead_ones():
    """Two dead neighbours take a corner with them, dead links a row: no wafer is lost by that."""
    wafer = small_wafer(3, 3)
    assert {*Faults(((0, 1), (1, 0))).unusable(wafer)} == {(0, 1), (1, 0), (0, 0)}
    row = Faults((), tuple(((x, 0), (x, 1)) for x in range(3)))
    assert {*row.unusable(wafer)} == {(0, 0), (1, 0), (2, 0)}
    for faults in (Faults(((0, 1), (1, 0))), row):
        found = map_around(search(wafer).planner, faults, [1])
        assert not {*found.mapping.dies} & {*faults.unusable(wafer)}


def test_a_dead_link_between_stages_is_no_reason_for_another_mapping():
    wafer = small_wafer(2, 4)
    healthy = Planner(wafer, small_model(), 16, 24).best(snake(2, 4, 2, 2, 2), 1)
    between, inside = ((1, 0), (2, 0)), ((0, 0), (1, 0))
    kept = unharmed(wafer, healthy, Faults((), (between,)))
    assert kept.mapping == healthy.mapping and kept.step_s >= healthy.step_s
    assert unharmed(wafer, healthy, Faults((), (inside,))) is None
    assert unharmed(wafer, healthy, Faults(((3, 1),))) is None


def test_microbatches_around_faults_are_those_of_the_job(tmp_path):
    """And as large as pays: with slow links single samples on the dies that are left do not."""
    asked = {"wafer": str(small_file(tmp_path)), "model": small_model(), "batch": 16}
    job = WaferQuestion.of(sequence=256, baselines=False, dead_dies=((1, 1),), **asked)
    found = search_wafer(job)
    alone = {size: search_wafer(job, microbatch=(size,)) for size in (1, 2)}
    assert all(each.best.mapping.microbatch == size for size, each in alone.items())
    assert found.best.samples_per_s >= max(e.best.samples_per_s for e in alone.values()) * 0.99
    assert found.faults.kept == found.best.samples_per_s / found.certificate.score


def test_stages_around_given_faults_are_solved_with_every_variable_free():
    wafer = small_wafer(2, 3, link_Bps=5e9)
    around, faults = search(wafer, layers=12), Faults(((0, 0),))
    compared = around.pieces.around(faults, (1, 2))
    freed = around.pieces.freed(compared, faults.all_links(wafer))
    assert freed.fits and freed.step_s < compared.step_s
    assert problems(freed.mapping, 2, 3, faults.dies) == []


def test_routes_avoid_what_is_dead():
    wafer = small_wafer(3, 3)
    broken = {((0, 0), (1, 0))}
    path = route((0, 0), (2, 0), wafer.mesh, broken)
    assert not broken & set(path)
    assert path[0][0] == (0, 0) and path[-1][1] == (2, 0)
    faults = Faults(((1, 0),))
    links = faults.all_links(wafer)
    both = {link for a, b in links for link in ((a, b), (b, a))}
    assert not both & set(route((0, 0), (2, 0), wafer.mesh, both))
    corner = {((0, 0), (1, 0)), ((0, 0), (0, 1))}
    with pytest.raises(AtollError, match="cut die"):
        route((0, 0), (2, 2), wafer.mesh, corner)
