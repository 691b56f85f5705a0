"""What a job searches: limits on the whole chip, its memories, and the words for both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from some_job import some_job

import atoll
from atoll.base.errors import AtollError, InfeasibleError
from atoll.explore import run
from atoll.explore.answer.scope import chosen_hbm, open_space
from atoll.explore.run import run_search
from atoll.hardware import product_space
from atoll.hardware.accelerator import GIB, Hbm
from atoll.hardware.physical.nodes import RETICLE_MM2
from atoll.hardware.product_space import ProductSpace, phaze_space
from atoll.hardware.silicon.chip import accelerator_area_mm2
from atoll.hardware.space import DesignSpace
from atoll.questions import SearchQuestion
from designs import position_of

STACKS = """
name: stacks
tensor_cores: [4, 8, 16]
vector_cores: [8, 32]
width: [64, 128]
depth: [64, 128]
glb: [16 MiB, 32 MiB]
hbm:
  - {stacks: 2, capacity: 16 GiB, bandwidth: 410 GB/s, area: 15 mm2}
  - {stacks: 4, capacity: 16 GiB, bandwidth: 410 GB/s, area: 15 mm2}
"""
ALIKE = Path(__file__).with_name("alike.yaml")
MEMORIES = (Hbm(32 * GIB, 820e9, 30.0), Hbm(64 * GIB, 1.64e12, 60.0))


@pytest.fixture
def stacks(tmp_path: Path) -> Path:
    file = tmp_path / "stacks.yaml"
    file.write_text(STACKS)
    return file


# --- Limits ---------------------------------------------------------------------------------------


def test_an_area_limit_holds_with_the_memorys_interfaces_on_the_die(stacks: Path) -> None:
    limit_mm2 = 120.0
    changes: dict[str, Any] = {"space": str(stacks), "max_area": limit_mm2, "pareto": True}
    result = run_search(some_job(**changes))
    assert result.best.area_mm2 <= limit_mm2
    assert result.best.area_mm2 == pytest.approx(accelerator_area_mm2(result.best.accelerator))
    fronts = [row for front in result.pareto.values() for row in front.designs]
    for row in (*result.designs, *fronts, *result.to_dataframe().to_dict("records")):
        interfaces_mm2 = 15.0 * row["hbm_capacity_bytes"] / (16 * GIB)
        space, _ = open_space(SearchQuestion.of(space=str(stacks)))
        assert isinstance(space, DesignSpace)
        names = ("tensor_cores", "vector_cores", "width", "depth", "glb_bytes")
        cores = position_of(space, **{name: row[name] for name in names})
        assert row["area_mm2"] == pytest.approx(space.area_mm2[cores] + interfaces_mm2)
        assert row["area_mm2"] <= limit_mm2
    assert result.designs[0]["area_mm2"] == pytest.approx(result.best.area_mm2)


def test_a_limit_that_excludes_nothing_is_said() -> None:
    idle = some_job(max_area=260.0, max_power=5000.0)
    area, power = open_space(idle)[1].notes
    assert area.startswith("max_area 260 mm2 excludes nothing: no chip of space some takes more")
    assert power.startswith("max_power 5000 W excludes nothing: no chip of space some takes more")
    assert open_space(some_job(max_area=200.0, max_power=300.0))[1].notes == ()
    # The area limit leaves only small chips, none of which draws as much.
    assert len(open_space(some_job(max_area=50.0, max_power=400.0))[1].notes) == 1


@pytest.mark.parametrize("constraints", ["", "constraints: {max_area: 1200 mm2}"])
def test_no_die_of_a_space_file_is_larger_than_a_reticle(tmp_path: Path, constraints: str) -> None:
    file = tmp_path / "large.yaml"
    lists = STACKS.replace("tensor_cores: [4, 8, 16]", "tensor_cores: [16, 64]")
    file.write_text(f"{lists}template: physical-7nm\nvector_width: [128]\n{constraints}")
    asked = {"space": str(file), "model": "bert-large", "devices": 8, "batch": 64}
    result = atoll.search(**asked, microbatch=(8,), tp=(1,), baselines=False)
    assert 500.0 < result.best.area_mm2 <= RETICLE_MM2
    left_out = "chips of space stacks above 858 mm2 are left out: a reticle holds no larger die"
    assert any(note.startswith(left_out) for note in result.answer.notes)
    small = atoll.search(**asked, microbatch=(8,), tp=(1,), baselines=False, max_area="600 mm2")
    assert not any("reticle" in note for note in small.answer.notes)


def test_the_answer_says_what_was_searched(stacks: Path) -> None:
    changes: dict[str, Any] = {"space": str(stacks), "max_area": 900.0, "batch": 36}
    result = run_search(some_job(microbatch=(1, 4, 8), **changes))
    shown = result.to_dict()
    assert shown["space"]["name"] == "stacks"
    assert shown["space"]["designs"] == result.certificate.items == 48
    assert shown["space"]["hbm_GiB"] == [32, 64]
    least, most = shown["space"]["area_mm2"]
    assert 30.0 < least < most < 900.0
    limit, layouts, left_out = shown["notes"]
    assert limit.startswith("max_area 900 mm2 excludes nothing")
    tried = "microbatch other than 1, 4; tp other than 1, 2; cp other than 1, 2"
    assert layouts == f"layouts not tried: {tried}"
    assert left_out == "microbatch 8 left out: not a divisor of bert-large's batch of 36"
    assert all(note in str(result) for note in (limit, left_out)) and layouts not in str(result)


def test_layouts_that_a_job_asks_for_are_not_said_to_be_left_out() -> None:
    notes = run_search(some_job(sp=False, tp=(2,), cp=(1,), microbatch=(2,))).to_dict()["notes"]
    said = "microbatch other than 2; tp other than 2; cp other than 1; sp on"
    assert f"layouts not tried: {said}" in notes


def test_a_space_outside_memory_has_the_same_limits_and_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = [
        some_job(max_area=limit_mm2, max_power=limit_W)
        for limit_mm2, limit_W in ((200.0, 300.0), (260.0, 9000.0))
    ]
    built = [open_space(job) for job in jobs]
    monkeypatch.setattr(product_space, "RESIDENT_POINTS", 0)
    for job, (whole, known) in zip(jobs, built, strict=True):
        space, scope = open_space(job)
        assert isinstance(space, ProductSpace) and isinstance(whole, DesignSpace)
        designs, _ = space.designs(np.arange(len(space)))
        assert len(designs) == len(whole)
        assert np.array_equal(designs.hbm_allowed, whole.hbm_allowed)
        assert len(scope.notes) == len(known.notes)
        assert scope.area_mm2[0] <= known.area_mm2[0]
        assert scope.area_mm2[1] >= known.area_mm2[1]


def test_without_a_word_chips_are_of_7_nm_within_the_templates_budget() -> None:
    space, scope = open_space(SearchQuestion.of())
    assert space.template.name == scope.space == "physical-7nm"
    assert (scope.max_area_mm2, scope.max_power_W) == (600.0, 400.0)
    assert scope.area_mm2[1] <= 600.0 and not scope.notes
    assert "and at most 400 W" in scope.sentence()
    _, own = open_space(SearchQuestion.of(template="physical-5nm", max_area=300.0, max_power=250.0))
    assert (own.space, own.max_area_mm2, own.max_power_W) == ("physical-5nm", 300.0, 250.0)
    _, reticle = open_space(SearchQuestion.of(max_area=1e4, max_power=1e4))
    assert reticle.area_mm2[1] <= RETICLE_MM2 == reticle.max_area_mm2


def test_phazes_chips_are_asked_for_by_name() -> None:
    for named in ({"space": "phaze"}, {"template": "systolic"}, {"profile": "phaze"}):
        space, scope = open_space(SearchQuestion.of(**named))
        assert (len(space), scope.space, scope.max_power_W) == (29_360, "phaze", None)
    with pytest.raises(AtollError, match="chips of space phaze are of template systolic"):
        open_space(SearchQuestion.of(space="phaze", template="physical-7nm"))


def test_a_budget_beyond_phazes_space_widens_it_and_says_so() -> None:
    space, scope = open_space(SearchQuestion.of(space="phaze", max_area=300.0))
    assert len(space) > 29_360
    assert scope.space == "phaze widened to 300 mm2"
    assert scope.notes == (
        "PHAZE's space ends at 278.8 mm2: beyond that, chips of finer lists up to 300 mm2 were "
        "searched with it",
    )
    _, beyond = open_space(SearchQuestion.of(space="phaze", max_area=1e4))
    assert "more than a reticle holds (26 mm x 33 mm)" in beyond.notes[0]


def test_the_seeds_profile_keeps_the_seeds_space() -> None:
    space, scope = open_space(SearchQuestion.of(max_area=300.0, profile="phaze"))
    assert len(space) == len(phaze_space()) == 29_360
    assert scope.notes[0].startswith("max_area 300 mm2 excludes nothing")


# --- Memories -------------------------------------------------------------------------------------

sizes = st.lists(st.sampled_from([16, 32, 48, 64, 80, 96]), min_size=1, max_size=4, unique=True)


@given(sizes, st.sampled_from([16, 32, 48, 64, 80, 96]), st.booleans())
def test_one_more_capacity_only_adds_choices(wanted: list[int], more: int, alike: bool) -> None:
    options = tuple(Hbm(size * GIB, 1.2e12, 8.0, 20.0) for size in (32, 64)) if alike else MEMORIES
    try:
        many = chosen_hbm("some", options, [size * GIB for size in (*wanted, more)])
        few = chosen_hbm("some", options, [size * GIB for size in wanted])
    except AtollError as error:
        assert not alike and "32 GiB at 820 GB/s, 64 GiB at 1.64 TB/s" in str(error)
        return
    assert set(few) <= set(many)
    assert {option.capacity_bytes // GIB for option in many} == {*wanted, more}
    assert all(option in options for option in many) or alike
    assert {(o.bandwidth_Bps, o.area_mm2, o.power_W) for o in many} <= {
        (o.bandwidth_Bps, o.area_mm2, o.power_W) for o in options
    }


@settings(max_examples=6, deadline=None)
@given(st.sets(st.sampled_from([1, 2, 4, 8, 80]), min_size=1), st.sampled_from([1, 3, 80]))
def test_one_more_capacity_never_slows_the_answer(wanted: set[int], more: int) -> None:
    def score(capacities_gib: set[int]) -> float:
        job = SearchQuestion.of(
            model="gpt2-xl",
            devices=8,
            batch=16,
            microbatch=(1,),
            tp=(1, 2),
            space=str(ALIKE),
            hbm=tuple(size * GIB for size in sorted(capacities_gib)),
            baselines=False,
            tolerance=1e-6,
        )
        try:
            return run_search(job).score
        except InfeasibleError:
            return 0.0

    assert score(wanted | {more}) >= score(wanted) * (1 - 1e-6)


def test_a_number_without_a_unit_is_no_capacity() -> None:
    for size in ("80", 80, ["80"]):
        with pytest.raises(AtollError, match=r'hbm.*: 80 bytes hold no model; did you mean "80'):
            atoll.search(hbm=size)


@pytest.mark.parametrize("profile", ["default", "phaze"])
def test_a_model_that_fits_no_memory_is_refused_before_anything_is_priced(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def priced(*_: Any, **__: Any) -> None:
        raise AssertionError("the search began")

    monkeypatch.setattr(run, "Search", priced)
    with pytest.raises(InfeasibleError, match="llama2-7b fits no chip of space phaze on 1024"):
        run_search(
            SearchQuestion.of(profile=profile, space="phaze", hbm=(GIB // 4,), baselines=False)
        )
