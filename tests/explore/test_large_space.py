"""A space outside memory gives what the same space in memory gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from some_job import SPACE, answer, some_job, undisturbed

from atoll.base.errors import AtollError
from atoll.base.stopping import Stop
from atoll.explore.prepare import prepare_search
from atoll.explore.proof import reserve
from atoll.explore.proof.boxes import SpaceGrid
from atoll.explore.proof.objective import Objective
from atoll.explore.proof.reserve import Reserve, open_frontier
from atoll.explore.proof.tasks import bound_chips
from atoll.explore.proof.trial import Rule
from atoll.explore.run import run_search
from atoll.hardware import product_space
from atoll.hardware.product_space import ProductSpace
from atoll.hardware.space import DesignSpace, allowed_options
from atoll.hardware.spacefile import read_space
from atoll.questions import SearchQuestion

PHYSICAL = """
template: physical-7nm
name: physical
tensor_cores: {range: [3, 27], step: 8}
vector_cores: [32, 8, 16]
width: [96, 64, 128]
depth: [64, 128]
vector_width: [128, 512]
glb: [24 MiB, 8 MiB, 32 MiB]
clock: [700 MHz, 0.9 GHz, 1.05 GHz]
hbm:
  - {capacity: 32 GiB, bandwidth: 0.82 TB/s, area: 30 mm2, power: 76 W}
  - {capacity: 64 GiB, bandwidth: 1.64 TB/s, area: 60 mm2, power: 152 W}
constraints: {max_area: 560 mm2, max_power: 330 W}
"""


@pytest.fixture
def outside_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every space is large, and comes in small pieces."""
    monkeypatch.setattr(product_space, "RESIDENT_POINTS", 10)
    monkeypatch.setattr(reserve, "PIECE_BOXES", 8)


def both(job: SearchQuestion, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    whole = undisturbed(job)
    monkeypatch.setattr(product_space, "RESIDENT_POINTS", 10)
    monkeypatch.setattr(reserve, "PIECE_BOXES", 8)
    return whole, run_search(job)


@pytest.mark.slow
def test_the_optimum_is_the_same_and_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    job = some_job(tolerance=1e-4)
    whole, part = both(job, monkeypatch)
    assert part.certificate.status == whole.certificate.status == "optimal"
    assert part.score == pytest.approx(whole.score, rel=2e-4)
    points = part.certificate
    assert points.items == 9 * 9 * 3 * 3 * 2
    assert points.evaluated + sum(points.ruled_out.values()) == points.items


@pytest.mark.slow
def test_the_optimum_is_the_same_where_chips_lose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "physical.yaml"
    file.write_text(PHYSICAL)
    whole, part = both(some_job(space=str(file), tolerance=1e-4), monkeypatch)
    assert part.certificate.status == whole.certificate.status == "optimal"
    assert part.score == pytest.approx(whole.score, rel=2e-4)


@pytest.mark.slow
def test_a_jobs_own_limits_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {
        "max_area": 150.0, "max_power": 300.0, "hbm": (32 * 2**30,),
    }  # fmt: skip
    whole, part = both(some_job(**changes), monkeypatch)
    assert part.score == pytest.approx(whole.score, rel=2e-3)
    assert part.best.area_mm2 <= 150.0
    assert part.best.accelerator.hbm.capacity_bytes == 32 * 2**30


@pytest.mark.slow
@pytest.mark.usefixtures("outside_memory")
def test_workers_and_interruptions_change_nothing(tmp_path: Path) -> None:
    from test_workers import After

    job = some_job()
    whole = run_search(job, workers=0)
    assert answer(run_search(job, workers=2)) == answer(whole)
    parts = [run_search(job, out=tmp_path / "run", stop=After(n)) for n in (300, 400)]
    for part in parts:
        bound = part.score / (1.0 - part.certificate.gap)
        # A proven answer is the smallest chip within the tolerance; without a proof, the fastest.
        assert part.score / (1 + job.tolerance) <= whole.score <= bound * (1 + 1e-12)
    assert parts[0].certificate.bound >= parts[1].certificate.bound
    assert answer(run_search(job, out=tmp_path / "run")) == answer(whole)


@pytest.mark.slow
@pytest.mark.usefixtures("outside_memory")
def test_baselines_draw_from_a_sample() -> None:
    result = run_search(some_job(baselines=True))
    assert result.baselines["random"] is not None
    assert result.baselines["random"] <= result.score * 1.001


@pytest.mark.usefixtures("outside_memory")
@pytest.mark.parametrize("changes", [{"pareto": True}, {"strategy": "phaze"}])
def test_what_needs_the_whole_space_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(AtollError, match=r"not with a space of .* points: "):
        run_search(some_job(**changes))


@pytest.mark.usefixtures("outside_memory")
def test_an_empty_space_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text(SPACE.replace("250 mm2", "1 mm2"))
    with pytest.raises(AtollError, match="space some is empty"):
        run_search(some_job(space=str(file)))


def test_designs_by_their_place_are_those_of_the_built_space(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(SPACE)
    described = read_space(file)
    assert isinstance(described, ProductSpace)
    built: DesignSpace = described.build()
    parts = [described.designs(part) for part in np.array_split(np.arange(len(described)), 7)]
    for name in ("tensor_cores", "vector_width", "glb_bytes", "area_mm2"):
        joined = np.concatenate([getattr(part, name) for part, _ in parts])
        assert np.array_equal(joined, getattr(built, name))
    assert np.array_equal(np.concatenate([p.hbm_allowed for p, _ in parts]), built.hbm_allowed)


@pytest.fixture
def physical(tmp_path: Path) -> ProductSpace:
    file = tmp_path / "physical.yaml"
    file.write_text(PHYSICAL)
    return read_space(file)


def opened(space: ProductSpace) -> Reserve:
    """The space as boxes, under some job."""
    setting, variants = prepare_search(some_job())
    rule = Rule.of(variants, Objective.single(512), 1e-3)
    found = open_frontier(space, variants, setting, rule, Stop())[1]
    assert found is not None
    return found


def test_a_cut_leaves_out_only_what_breaks_a_limit(physical: ProductSpace) -> None:
    memories = [(hbm,) for hbm in physical.hbm_options]
    grid = SpaceGrid(physical, memories)
    sizes = [len(values) for values in physical.axes.lists()]
    every = np.stack([axis.ravel() for axis in np.indices(sizes)], axis=1)
    allowed = allowed_options(grid.designs(every), physical.limits)
    whole = grid.root_boxes(1)
    for box in range(len(whole)):
        inside = ((every >= whole.first[box]) & (every <= whole.last[box])).all(axis=1)
        fits = allowed[:, whole.memory[box]]
        assert fits.any() and not (fits & ~inside).any()
        for axis, end in enumerate(whole.last[box]):  # as tight as ranges one by one can be
            assert fits[every[:, axis] == end].any()
            assert not fits[every[:, axis] > end].any()
    halves = grid.halves(grid.halves(whole))
    held = np.zeros_like(allowed)
    for box in range(len(halves)):
        inside = ((every >= halves.first[box]) & (every <= halves.last[box])).all(axis=1)
        assert not held[inside, halves.memory[box]].any()  # nothing twice
        held[inside, halves.memory[box]] = True
    assert not (allowed & ~held).any()


@pytest.mark.slow
def test_no_chip_of_a_box_beats_the_boxs_bound(physical: ProductSpace) -> None:
    """Each box on the way from the whole space to single chips, against every chip in it."""
    reserve = opened(physical)
    built = reserve.chips_at(np.arange(len(physical)))
    assert built is not None
    chips, ids, _ = built
    rows = np.zeros((len(chips), len(reserve.context.variants.variants)))
    none = np.full(len(chips), -1.0), np.full(len(chips), np.inf)
    rows, _ = bound_chips(reserve.context, chips, rows, rows == 0.0, *none)
    place = {int(number): row for number, row in zip(ids, rows, strict=True)}
    grid, boxes, looked = reserve.grid, reserve.root_boxes, 0
    while len(boxes):
        for box in range(len(boxes)):
            own = boxes.subset(np.array([box]))
            inside = grid.points(own) * len(physical.hbm_options) + own.memory
            for number in inside.tolist():
                if number in place:
                    looked += 1
                    assert (own.lower_s[0] <= place[number] * (1 + 1e-9)).all()
        boxes = reserve.halved(boxes.subset(~grid.differ_in_buffer_only(boxes)), -1.0)
    assert looked > 5 * len(chips)
