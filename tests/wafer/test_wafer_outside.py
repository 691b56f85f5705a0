"""Wafers without DRAM: weights and inputs of layers live outside, and come through the ports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.fabric.mesh import Rectangle
from atoll.hardware.wafer import Wafer
from atoll.hardware.wafer_files import load_wafer
from atoll.wafer.encoding.block_parts import SEARCHED_HOMES
from atoll.wafer.evaluate import MappingCost
from atoll.wafer.measured_runs import fastest_streamed
from atoll.wafer.staging.planner import Planner, WaferOptions, rough
from atoll.workload.load import load_config

from .wafer_cases import small_wafer

MODEL = replace(
    load_config("gpt2-xl"), layers=4, hidden=512, heads=8, kv_heads=8, ffn=2048, vocab=1024
)


def sram_wafer(**changes: object) -> Wafer:
    """Four dies with 64 MiB each and ports of 100 GB/s."""
    small = small_wafer()
    core = replace(small.core, glb_bytes=64 * 2**20)
    wafer = replace(
        small, core=core, stacks=0, sram_memory=True, parameter_store=True, io_Bps=100e9
    )
    return replace(wafer, **changes)


def priced(wafer: Wafer, microbatch: int, batch: int = 8) -> MappingCost | None:
    planner = Planner(wafer, MODEL, batch, 256, rough(WaferOptions(homes=("external",))))
    return planner.best((Rectangle(0, 0, wafer.columns, wafer.rows),), microbatch)


def test_no_state_and_no_layer_input_stays_on_the_wafer():
    found = priced(sram_wafer(), 2)
    assert found is not None
    held = found.stages[0].memory_bytes
    assert held["weights"] == held["gradients"] == held["optimizer"] == 0.0
    resident = priced(sram_wafer(parameter_store=False), 2)
    assert resident is not None
    inputs = MODEL.layers * found.mapping.blocks().stream_bytes / 4
    assert resident.stages[0].memory_bytes["activations"] >= held["activations"] + inputs


def test_memory_does_not_grow_with_layers_where_everything_is_recomputed():
    """What fits of a layer fits of a model as deep as one likes."""
    deep = replace(MODEL, layers=64)
    found = fastest_streamed(sram_wafer(), deep, 8, 256)
    assert found.fits


def test_a_place_outside_never_takes_memory_from_what_stays_on_the_wafer():
    """Weights may stream where they need not: no wafer gets slower by it, or too small."""
    everywhere = (*SEARCHED_HOMES, "external")
    speeds = []
    for memory in (20, 48, 64, 66, 70, 128):
        wafer = small_wafer(memory_bytes=memory * 2**20)
        wafer = replace(wafer, parameter_store=True, io_Bps=1e9)
        found = {}
        for homes in (everywhere, SEARCHED_HOMES, ("external",)):
            planner = Planner(wafer, MODEL, 8, 256, rough(WaferOptions(homes=homes)))
            best = planner.best((Rectangle(0, 0, 2, 2),), 1)
            assert best is None or best.fits
            found[homes] = 0.0 if best is None else best.samples_per_s
        assert found[everywhere] >= max(found.values()) * (1 - 1e-3)
        speeds.append(found)
    assert speeds[0][SEARCHED_HOMES] == 0.0 < speeds[0][everywhere]
    assert speeds[-1][SEARCHED_HOMES] > speeds[-1]["external",]


def test_a_layer_takes_at_least_what_the_ports_need():
    slow = sram_wafer(io_Bps=1e9)
    found = priced(slow, 8)
    assert found is not None
    weights = sum(unit.parameters for unit in found.mapping.blocks().units)
    needed_s = (4 * weights + found.mapping.blocks().stream_bytes) / 1e9
    assert found.stages[0].load_s >= MODEL.layers * needed_s


def test_efficiency_slows_operators_and_not_the_peak():
    full, half = sram_wafer(), sram_wafer(efficiency=0.5)
    assert half.peak_flops == full.peak_flops
    assert half.peak_power_W == pytest.approx(full.peak_power_W)
    fast, slow = priced(full, 2), priced(half, 2)
    assert fast is not None and slow is not None
    assert 1.5 < slow.step_s / fast.step_s <= 2.0 + 1e-9


def test_a_step_pays_its_fixed_cost_once():
    once, never = priced(sram_wafer(step_s=0.1), 2), priced(sram_wafer(), 2)
    assert once is not None and never is not None
    assert once.step_s == pytest.approx(never.step_s + 0.1)


@pytest.mark.parametrize("name", ["cs-2", "cs-3"])
def test_measured_wafers_keep_weights_and_inputs_outside(name: str):
    assert load_wafer(name).inputs_outside
