"""Clocks between those of a list: the highest within the limit on power, and nothing is better."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_per import MEMORIES, SPACE, search

import atoll
from atoll.answers.answer import read_answer
from atoll.answers.search import SearchAnswer
from atoll.explore.baselines import chip_score
from atoll.explore.explain import explanation
from atoll.explore.proof import reserve
from atoll.explore.run import make_objective, prepare_search
from atoll.hardware import product_space
from atoll.hardware.accelerator import Accelerator
from atoll.hardware.device import TemplateChip, chip_yaml, load_device
from atoll.hardware.product_space import CLOCK_STEP_HZ, ProductSpace
from atoll.hardware.silicon.chip import accelerator_area_mm2, peak_power_W
from atoll.hardware.space import DesignLimits
from atoll.hardware.spacefile import read_space
from atoll.questions import SearchQuestion

CLOCKS, LIMIT = "[0.7 GHz, 1.1 GHz, 1.7 GHz]", "150 W"
FINE = f"[{', '.join(f'{mhz} MHz' for mhz in range(700, 1701, 4))}]"
JOB = {"model": "bert-large", "devices": 4, "batch": 32, "microbatch": [4], "tp": [1]}
MIXED = (*MEMORIES, "{capacity: 32 GiB, bandwidth: 820 GB/s, area: 20 mm2, power: 35 W}")
"""Memories of one bandwidth with other powers: the smaller leaves the higher clock."""
ASKED: tuple[dict[str, object], ...] = (
    {"max_power": LIMIT},
    {"max_power": LIMIT, "max_area": "300 mm2"},
    {"cooling": "0.55 W/mm2"},
    {"max_power": LIMIT, "per": "tco"},
    {"max_power": LIMIT, "per": "watt"},
)


def lists(folder: Path, clocks: str = CLOCKS, **limits: float) -> ProductSpace:
    path = folder / "lists.yaml"
    path.write_text(SPACE.format(cores="[1, 2, 4, 8]", clocks=clocks, hbm=f"[{', '.join(MIXED)}]"))
    space = read_space(path)
    return replace(space, limits=replace(space.limits, **limits))  # type: ignore[arg-type]


def brute_score(folder: Path, **asked: object) -> float:
    """Every design and memory alone, at the clocks of a list and at its highest."""
    job = SearchQuestion.of(**(JOB | asked))
    setting, variants = prepare_search(job)
    space = lists(folder)
    objective, best = make_objective(job, space, setting, variants), 0.0
    top = replace(space.axes, values={**space.axes.values, "clock_Hz": (1.7e9,)})
    designs = replace(space, axes=top).build()
    for design in range(len(designs)):
        for hbm in designs.hbm_options:
            chip = designs.accelerator(design, hbm)
            if job.max_area and accelerator_area_mm2(chip) > job.max_area:
                continue
            clocks = [hz for hz in (0.7e9, 1.1e9, 1.7e9) if kept(chip, hz, job)]
            low, high = 0.7e9, 1.7e9
            for _ in range(60):  # of a clock that keeps to the limit, and one that may not
                middle = (low + high) / 2
                low, high = (middle, high) if kept(chip, middle, job) else (low, middle)
            for clock in {*clocks, *([low] if clocks else [])}:
                score = chip_score(replace(chip, clock_Hz=clock), setting, variants, objective)
                best = max(best, score or 0.0)
    return best


def kept(chip: Accelerator, clock_Hz: float, job: SearchQuestion) -> bool:
    power_W = peak_power_W(replace(chip, clock_Hz=clock_Hz))
    dense = job.cooling or np.inf
    return power_W <= (job.max_power or np.inf) and power_W <= dense * accelerator_area_mm2(chip)


@pytest.mark.parametrize("asked", ASKED)
def test_no_clock_is_better_in_memory_or_outside(
    asked: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = brute_score(tmp_path, **asked)
    whole = search(tmp_path, clocks=CLOCKS, memories=MIXED, **asked)
    assert whole.certificate.proven
    assert best * (1 - 1e-3) <= whole.score <= best * (1 + 1e-6)
    assert whole.certificate.bound >= best * (1 - 1e-5)
    monkeypatch.setattr(product_space, "RESIDENT_POINTS", 2)
    monkeypatch.setattr(reserve, "PIECE_BOXES", 4)
    part = search(tmp_path, clocks=CLOCKS, memories=MIXED, **asked)
    assert part.certificate.proven
    assert best * (1 - 1e-3) <= part.score <= best * (1 + 1e-6)
    assert part.certificate.bound >= best * (1 - 1e-5)
    counted = part.certificate
    assert counted.evaluated + sum(counted.ruled_out.values()) == counted.items


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED[:3])
def test_no_finer_list_and_no_part_of_the_list_is_better(
    asked: dict[str, object], tmp_path: Path
) -> None:
    solved = search(tmp_path, clocks=CLOCKS, memories=MIXED, **asked).score
    fine = search(tmp_path, clocks=FINE, memories=MIXED, **asked).score
    assert solved >= fine * (1 - 1e-3)
    for part in ("[0.7 GHz, 1.1 GHz]", "[0.7 GHz, 1.7 GHz]", "0.7 GHz", "1.1 GHz"):
        fewer = search(tmp_path, clocks=part, memories=MIXED, **asked).score
        assert solved >= fewer * (1 - 1e-3)


def test_each_design_and_memory_has_the_highest_clock_within_the_limit(tmp_path: Path) -> None:
    limits = {"max_power_W": 150.0, "max_W_per_mm2": 0.6, "min_peak_flops": 20e12}
    space = lists(tmp_path, **limits)
    flat = np.arange(len(space))
    designs, places = space.designs(flat)
    assert (np.diff(places) >= 0).all()
    pairs = [
        (place, option)
        for place, allowed in zip(places, designs.hbm_allowed, strict=True)
        for option in np.flatnonzero(allowed)
    ]
    assert len(pairs) == len(set(pairs))  # a point has one clock with each memory
    listed, solved = {0.7e9, 1.1e9, 1.7e9}, 0
    for number, place in enumerate(places):
        assert space.place(designs.values(number)) == place
        for hbm, allowed in zip(designs.hbm_options, designs.hbm_allowed[number], strict=True):
            if not allowed:
                continue
            chip = designs.accelerator(number, hbm)
            most_W = min(150.0, 0.6 * accelerator_area_mm2(chip))
            assert peak_power_W(chip) <= most_W * (1 + 1e-12)
            assert 2.0 * chip.tensor_cores * chip.width * chip.depth * chip.clock_Hz >= 20e12
            if chip.clock_Hz not in listed:
                solved += 1
                faster = replace(chip, clock_Hz=chip.clock_Hz + CLOCK_STEP_HZ)
                assert peak_power_W(faster) > most_W * (1 - 1e-12)
                assert 0.7e9 < chip.clock_Hz < 1.7e9
    assert solved > 10


def test_without_a_limit_or_with_one_clock_designs_are_those_of_the_list(tmp_path: Path) -> None:
    for space in (lists(tmp_path), lists(tmp_path, "1.1 GHz", max_power_W=150.0)):
        designs, places = space.designs(np.arange(len(space)))
        built = space.build()
        assert (designs.clock_Hz == built.clock_Hz).all() and len(places) == len(built)
        used = [space.hbm_options.index(hbm) for hbm in built.hbm_options]
        assert (designs.hbm_allowed[:, used] == built.hbm_allowed).all()


def test_a_solved_clock_is_kept_by_files_runs_and_explanations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanation, "STEPS_S", 600.0)  # beside other tests
    out = tmp_path / "run"
    result = search(tmp_path, clocks=CLOCKS, max_power=LIMIT, out=out, robust=3, pareto=True)
    chip = result.best.accelerator
    assert chip.clock_Hz not in (0.7e9, 1.1e9, 1.7e9)
    device = load_device(out / "chip.yaml")
    assert isinstance(device, TemplateChip) and device.accelerator.clock_Hz == chip.clock_Hz
    again = tmp_path / "again.yaml"
    again.write_text(chip_yaml(replace(chip, clock_Hz=947.3e6), "one", "dgx-a100"))
    slower = load_device(again)
    assert isinstance(slower, TemplateChip) and slower.accelerator.clock_Hz == 947.3e6
    answer = read_answer(out / "result.json", SearchAnswer)
    assert answer.best.accelerator.device().clock_Hz == pytest.approx(chip.clock_Hz, rel=1e-15)
    robustness = json.loads((out / "result.json").read_text())["robustness"]
    assert robustness["draws"] == 3
    assert robustness["chip"] == f"{chip.describe()} at {chip.clock_Hz / 1e9:.4g} GHz"
    resumed = search(tmp_path, clocks=CLOCKS, max_power=LIMIT, out=out, robust=3, pareto=True)
    assert resumed.score == result.score and resumed.best.accelerator == chip
    steps = {row.what: row for row in atoll.load(out / "result.json").explain().steps}
    more = steps["clock"].more
    assert more.stopped_by.startswith("power") and more.capped_gain == pytest.approx(0, abs=2e-3)


def test_a_tighter_limit_is_a_lower_clock_of_the_same_design(tmp_path: Path) -> None:
    clocks = [
        search(tmp_path, cores="4", clocks=CLOCKS, memories=MEMORIES[:1],
               max_power=f"{watts} W").best.accelerator.clock_Hz
        for watts in (130, 140, 150)
    ]  # fmt: skip
    assert clocks == sorted(set(clocks))


def test_limits_of_no_power_solve_nothing(tmp_path: Path) -> None:
    space = replace(lists(tmp_path), limits=DesignLimits(max_area_mm2=200.0))
    assert set(space.designs(np.arange(len(space)))[0].clock_Hz) <= {0.7e9, 1.1e9, 1.7e9}
