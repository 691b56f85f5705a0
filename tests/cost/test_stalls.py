"""What chips lose: nothing where a profile has none, each loss by itself, and as measured."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from atoll.calibration.operator_rows import H200_OPERATORS, read_operators
from atoll.cost.chips import chips_of_accelerator
from atoll.cost.table import build_costs, flatten, pass_problem
from atoll.hardware.accelerator import GIB, MIB, Accelerator, Hbm
from atoll.hardware.catalog import load_accelerator, load_network
from atoll.hardware.device import TemplateChip, chip_yaml, load_device
from atoll.hardware.silicon.chip import chip_stalls
from atoll.hardware.silicon.systolic import TEMPLATES
from atoll.hardware.template.stalls import CACHED, NO_STALLS, SCRATCHPAD, STALLS, Stalls
from atoll.hardware.wafer_files import load_wafer
from atoll.profiles import DEFAULT, PHAZE
from atoll.questions import WaferQuestion
from atoll.questions.chips import Precision
from atoll.workload import load_config, prepare
from atoll.workload.graph.operator import Matmul
from oracles.mapping import map_matmul

REFERENCE = load_accelerator("phaze-tpuv4")
EXISTING = Path(__file__).parents[2] / "examples/devices/existing"
LAYERS = flatten(layer for layer, _ in prepare(load_config("llama2-7b"), 1, 2048).layers)


def durations_s(chip: Accelerator, profile=DEFAULT) -> np.ndarray:
    """Fastest options of all operators of a model."""
    table = build_costs(
        LAYERS.keys, chips_of_accelerator(chip, profile), load_network("dgx-a100"), profile
    )
    passes = range(2 * len(LAYERS.layers))
    return np.concatenate([pass_problem(table, LAYERS.arrays, p, 0)[0].min(axis=1) for p in passes])


def losing(stalls: Stalls | None) -> Accelerator:
    return replace(REFERENCE, stalls=stalls)


# --- One by one ----------------------------------------------------------------------------------


def test_a_profile_without_losses_prices_chips_as_if_they_had_none() -> None:
    assert not PHAZE.stalls
    for stalls in STALLS.values():
        np.testing.assert_array_equal(
            durations_s(losing(stalls), PHAZE), durations_s(REFERENCE, PHAZE)
        )


def test_chips_that_do_not_say_lose_what_their_kind_does() -> None:
    """Physical templates lose as a scratchpad does; PHAZE's kind of chip nothing."""
    physical = replace(REFERENCE, template=TEMPLATES["physical-7nm"])
    np.testing.assert_array_equal(durations_s(physical), durations_s(losing(SCRATCHPAD)))
    np.testing.assert_array_equal(durations_s(REFERENCE), durations_s(losing(NO_STALLS)))
    assert TemplateChip(physical).stream_Bps == SCRATCHPAD.hbm * TemplateChip(REFERENCE).stream_Bps


@pytest.mark.parametrize("kind", STALLS)
@pytest.mark.parametrize("name", [f.name for f in fields(Stalls) if f.name != "operations"])
def test_no_loss_makes_an_operator_faster(kind: str, name: str) -> None:
    whole, usual = STALLS[kind], getattr(NO_STALLS, name)
    without = replace(whole, **{name: usual})
    assert np.all(durations_s(losing(without)) <= durations_s(losing(whole)) * (1 + 1e-12))


def test_an_operator_pays_its_start_once() -> None:
    late = replace(SCRATCHPAD, start_s=SCRATCHPAD.start_s + 1e-3)
    np.testing.assert_allclose(
        durations_s(losing(late)), durations_s(losing(SCRATCHPAD)) + 1e-3, rtol=1e-12
    )


@pytest.mark.parametrize("stalls", STALLS.values(), ids=list(STALLS))
@pytest.mark.parametrize("factor", [2, 8])
def test_more_of_anything_never_hurts(stalls: Stalls, factor: int) -> None:
    chip = losing(stalls)
    more = (
        replace(chip, hbm=replace(chip.hbm, bandwidth_Bps=factor * chip.hbm.bandwidth_Bps)),
        replace(chip, glb_bandwidth_Bpc=factor * chip.glb_bandwidth_Bpc),
        replace(chip, tensor_cores=factor * chip.tensor_cores, vector_cores=factor * 2),
        replace(chip, clock_Hz=factor * chip.clock_Hz),
    )
    for larger in more:
        assert np.all(durations_s(larger) <= durations_s(chip) * (1 + 1e-12))


def test_streams_of_a_device_reach_the_share_that_its_chip_does() -> None:
    assert TemplateChip(losing(CACHED)).stream_Bps == CACHED.hbm * REFERENCE.hbm.bandwidth_Bps


@pytest.mark.parametrize("name", sorted(path.stem for path in EXISTING.glob("*.yaml")))
def test_chips_that_exist_are_read_back_as_they_were_written(name: str, tmp_path: Path) -> None:
    device = load_device(EXISTING / f"{name}.yaml")
    assert isinstance(device, TemplateChip)
    assert device.accelerator.stalls in STALLS.values()
    path = tmp_path / "chip.yaml"
    path.write_text(chip_yaml(device.accelerator, device.name, device.network), encoding="utf-8")
    assert load_device(path) == device


# --- Chips that exist ----------------------------------------------------------------------------

PEAKS = {"h200": 989e12 * 1.55 / 1.83, "a100": 312e12, "tpu-v5e": 197e12, "tpu-v5p": 459e12}


@pytest.mark.parametrize("name", PEAKS)
def test_the_peak_follows_from_units_and_clock(name: str) -> None:
    chip = load_accelerator(EXISTING / f"{name}.yaml")
    assert chip.peak_flops == pytest.approx(PEAKS[name], rel=0.005)


def test_the_template_as_an_h200_meets_its_measured_products() -> None:
    """Of 50 us and more, whose rows start at 16-byte addresses; half of the shapes were fitted."""
    chip = load_accelerator(EXISTING / "h200.yaml")
    errors = []
    for row in read_operators(H200_OPERATORS):
        size = {name: int(value) for name, value in row.sizes}
        even = all(size.get(name, 8) % 8 == 0 for name in ("n", "k"))
        if row.kind == "gemm" and row.measured_s >= 50e-6 and even:
            product = Matmul(size.get("batch", 1), size["m"], size["n"], size["k"])
            taken_s = map_matmul(product, chip).time_s + CACHED.start_s
            errors.append(taken_s / row.measured_s - 1)
    assert len(errors) > 500
    assert np.abs(errors).mean() < 0.08
    assert abs(np.mean(errors)) < 0.04


@pytest.mark.parametrize(
    "size, measured_TFLOPs",
    [(512, 105), (1024, 350), (2048, 679), (4096, 893), (16384, 950), (32768, 956)],
)
def test_the_template_as_half_a_tpu7x_meets_its_published_products(
    size: int, measured_TFLOPs: float
) -> None:
    """github.com/AI-Hypercomputer/tpu-recipes, microbenchmarks, one TensorCore: 1153 TFLOP/s as
    four arrays of 256 x 256 at 2.2 GHz, half of the chip's HBM. Only the start was chosen on it.
    """
    memory = Hbm(96 * GIB, 7.37e12 / 2)
    chip = Accelerator(4, 1, 256, 256, 4096, 64 * MIB, 8192.0, 2.2e9, memory, stalls=SCRATCHPAD)
    taken_s = map_matmul(Matmul(1, size, size, size), chip).time_s + SCRATCHPAD.start_s
    assert taken_s == pytest.approx(2 * size**3 / (measured_TFLOPs * 1e12), rel=0.15)


def test_the_page_says_what_is_lost_and_in_which_precisions() -> None:
    """Its limits once denied what its sections have."""
    pages = Path(__file__).parents[2] / "docs"
    limits = (pages / "cost-model.md").read_text(encoding="utf-8").split("## Limits")[1]
    for kind, stalls in STALLS.items():
        assert f"{1e6 * stalls.start_s:g} us {kind}" in limits
    for precision in get_args(Precision):
        assert precision in limits
    assert chip_stalls(load_wafer("default").chip) == SCRATCHPAD
    assert chip_stalls(load_wafer("cs-2").chip) == replace(SCRATCHPAD, hbm=1.0)
    wafers = (pages / "wafer.md").read_text(encoding="utf-8").split("## Limits")[1]
    assert "Of captured modules blocks of attention and an MLP" in wafers
    assert "precision" not in WaferQuestion.model_fields
