"""A space outside memory gives what the same space in memory gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from some_job import SPACE, answer, some_job

from atoll.errors import AtollError
from atoll.explore.proof import reserve
from atoll.explore.run import run_search
from atoll.hardware import product
from atoll.hardware.product import ProductSpace
from atoll.hardware.space import Space
from atoll.hardware.spacefile import read_space
from atoll.questions import SearchQuestion


@pytest.fixture
def outside_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every space is large, and comes in small pieces."""
    monkeypatch.setattr(product, "RESIDENT_POINTS", 10)
    monkeypatch.setattr(reserve, "PIECE_POINTS", 64)


def both(job: SearchQuestion, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    whole = run_search(job)
    monkeypatch.setattr(product, "RESIDENT_POINTS", 10)
    monkeypatch.setattr(reserve, "PIECE_POINTS", 64)
    return whole, run_search(job)


@pytest.mark.parametrize("groups", [4, 200, 1 << 17])
def test_the_optimum_is_the_same_and_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: int
) -> None:
    monkeypatch.setattr(reserve, "MOST_GROUPS", groups)
    job = some_job(tmp_path, tolerance=1e-4)
    whole, part = both(job, monkeypatch)
    assert part.certificate.status == whole.certificate.status == "optimal"
    assert part.score == pytest.approx(whole.score, rel=2e-4)
    points = part.certificate
    assert points.items == 9 * 9 * 3 * 3 * 2
    assert points.evaluated + sum(points.ruled_out.values()) == points.items


def test_the_optimum_is_the_same_where_chips_lose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserve, "MOST_GROUPS", 200)
    file = tmp_path / "physical.yaml"
    lists = SPACE.replace("[1, 256]", "[1, 16]").replace("250 mm2", "700 mm2")
    file.write_text(f"template: physical-7nm\nvector_width: [512]{lists}")
    whole, part = both(some_job(tmp_path, space=str(file), tolerance=1e-4), monkeypatch)
    assert part.certificate.status == whole.certificate.status == "optimal"
    assert part.score == pytest.approx(whole.score, rel=2e-4)


def test_a_jobs_own_limits_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {
        "max_area": 150.0, "max_power": 300.0, "hbm": (32 * 2**30,),
    }  # fmt: skip
    whole, part = both(some_job(tmp_path, **changes), monkeypatch)
    assert part.score == pytest.approx(whole.score, rel=2e-3)
    assert part.best.area_mm2 <= 150.0
    assert part.best.accelerator.hbm.capacity_bytes == 32 * 2**30


@pytest.mark.slow
@pytest.mark.usefixtures("outside_memory")
def test_workers_and_interruptions_change_nothing(tmp_path: Path) -> None:
    from test_workers import After

    job = some_job(tmp_path)
    whole = run_search(job, workers=0)
    assert answer(run_search(job, workers=2)) == answer(whole)
    parts = [run_search(job, out=tmp_path / "run", stop=After(n)) for n in (60, 90)]
    for part in parts:
        bound = part.score / (1.0 - part.certificate.gap)
        assert part.score <= whole.score <= bound * (1 + 1e-12)
    assert parts[0].certificate.gap >= parts[1].certificate.gap
    assert answer(run_search(job, out=tmp_path / "run")) == answer(whole)


@pytest.mark.usefixtures("outside_memory")
def test_baselines_draw_from_a_sample(tmp_path: Path) -> None:
    result = run_search(some_job(tmp_path, baselines=True))
    assert result.baselines["random"] is not None
    assert result.baselines["random"] <= result.score * 1.001


@pytest.mark.usefixtures("outside_memory")
@pytest.mark.parametrize("changes", [{"pareto": True}, {"strategy": "phaze"}])
def test_what_needs_the_whole_space_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(AtollError, match="not with a space of 1,458 points"):
        run_search(some_job(tmp_path, **changes))


@pytest.mark.usefixtures("outside_memory")
def test_an_empty_space_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text(SPACE.replace("250 mm2", "1 mm2"))
    with pytest.raises(AtollError, match="space some is empty"):
        run_search(some_job(tmp_path, space=str(file)))


def test_designs_by_their_place_are_those_of_the_built_space(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(SPACE)
    described = read_space(file)
    assert isinstance(described, ProductSpace)
    built: Space = described.build()
    parts = [described.designs(part) for part in np.array_split(np.arange(len(described)), 7)]
    for name in ("tensor_cores", "vector_width", "glb_bytes", "area_mm2"):
        joined = np.concatenate([getattr(part, name) for part, _ in parts])
        assert np.array_equal(joined, getattr(built, name))
    assert np.array_equal(np.concatenate([p.hbm_allowed for p, _ in parts]), built.hbm_allowed)
