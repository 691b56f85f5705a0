"""What a job searches: limits on the whole chip, its memories, and the words for both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from some_job import some_job

from atoll.explore.job import Job
from atoll.explore.run import run_search
from atoll.explore.scope import open_space
from atoll.hardware import GIB, ProductSpace, Space, phaze_space, product
from atoll.hardware.area import accelerator_area_mm2

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


@pytest.fixture
def stacks(tmp_path: Path) -> Path:
    file = tmp_path / "stacks.yaml"
    file.write_text(STACKS)
    return file


# --- Limits ---------------------------------------------------------------------------------------


def test_an_area_limit_holds_with_the_memorys_interfaces_on_the_die(
    tmp_path: Path, stacks: Path
) -> None:
    limit_mm2 = 120.0
    changes: dict[str, Any] = {"space": str(stacks), "max_area_mm2": limit_mm2, "pareto": True}
    result = run_search(some_job(tmp_path, **changes))
    assert result.best.area_mm2 <= limit_mm2
    assert result.best.area_mm2 == pytest.approx(accelerator_area_mm2(result.best.accelerator))
    fronts = [row for front in result.pareto.values() for row in front["designs"]]
    for row in (*result.designs, *fronts, *result.to_dataframe().to_dict("records")):
        interfaces_mm2 = 15.0 * row["hbm_capacity_bytes"] / (16 * GIB)
        space, _ = open_space(str(stacks), "default")
        assert isinstance(space, Space)
        cores = space.index_of(
            **{n: row[n] for n in ("tensor_cores", "vector_cores", "width", "depth", "glb_bytes")}
        )
        assert row["area_mm2"] == pytest.approx(space.area_mm2[cores] + interfaces_mm2)
        assert row["area_mm2"] <= limit_mm2
    assert result.designs[0]["area_mm2"] == pytest.approx(result.best.area_mm2)


def test_a_limit_that_excludes_nothing_is_said(tmp_path: Path) -> None:
    idle = some_job(tmp_path, max_area_mm2=260.0, max_power_W=5000.0)
    area, power = idle.open_space()[1].notes
    assert area.startswith("max_area 260 mm2 excludes nothing: no chip of space some takes more")
    assert power.startswith("max_power 5000 W excludes nothing: no chip of space some takes more")
    assert some_job(tmp_path, max_area_mm2=200.0, max_power_W=300.0).open_space()[1].notes == ()
    # The area limit leaves only small chips, none of which draws as much.
    assert len(some_job(tmp_path, max_area_mm2=50.0, max_power_W=400.0).open_space()[1].notes) == 1


def test_the_answer_says_what_was_searched(tmp_path: Path, stacks: Path) -> None:
    changes: dict[str, Any] = {"space": str(stacks), "max_area_mm2": 900.0, "global_batch": 36}
    result = run_search(some_job(tmp_path, microbatches=(1, 4, 8), **changes))
    shown = result.to_dict()
    assert shown["space"]["name"] == "stacks"
    assert shown["space"]["designs"] == result.certificate.architectures == 48
    assert shown["space"]["hbm_GiB"] == [32, 64]
    least, most = shown["space"]["area_mm2"]
    assert 30.0 < least < most < 900.0
    assert [note.split(" ")[0] for note in shown["notes"]] == ["max_area", "microbatch"]
    assert shown["notes"][1] == "microbatch 8 left out: not a divisor of bert-large's batch of 36"
    assert all(note in str(result) for note in shown["notes"])


def test_a_space_outside_memory_has_the_same_limits_and_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [
        some_job(tmp_path, max_area_mm2=limit_mm2, max_power_W=limit_W)
        for limit_mm2, limit_W in ((200.0, 300.0), (260.0, 9000.0))
    ]
    built = [job.open_space() for job in jobs]
    monkeypatch.setattr(product, "RESIDENT_POINTS", 0)
    for job, (whole, known) in zip(jobs, built, strict=True):
        space, scope = job.open_space()
        assert isinstance(space, ProductSpace) and isinstance(whole, Space)
        designs, _ = space.designs(np.arange(len(space)))
        assert len(designs) == len(whole)
        assert np.array_equal(designs.hbm_allowed, whole.hbm_allowed)
        assert len(scope.notes) == len(known.notes)
        assert scope.area_mm2[0] <= known.area_mm2[0]
        assert scope.area_mm2[1] >= known.area_mm2[1]


def test_a_budget_beyond_the_default_space_widens_it_and_says_so() -> None:
    space, scope = Job(max_area_mm2=300.0).open_space()
    assert len(space) > 29_360
    assert scope.space == "phaze widened to 300 mm2"
    assert scope.notes == (
        "the default space ends at 278.8 mm2: beyond that, chips of finer lists up to 300 mm2 were "
        "searched with it",
    )
    _, beyond = Job(max_area_mm2=1e4).open_space()
    assert "more than a reticle holds (26 mm x 33 mm)" in beyond.notes[0]


def test_the_seeds_profile_keeps_the_seeds_space() -> None:
    space, scope = Job(max_area_mm2=300.0, profile="phaze").open_space()
    assert len(space) == len(phaze_space()) == 29_360
    assert scope.notes[0].startswith("max_area 300 mm2 excludes nothing")
