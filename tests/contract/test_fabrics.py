"""A collective or a pipeline that a wafer and a cluster can both express takes the same on both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.fabric.digits import digit_systems
from atoll.fabric.mesh import Mesh, snake
from atoll.fabric.mesh_collectives import gather_s
from atoll.fabric.nested import PASSES, collective_s, send_s
from atoll.fabric.network import FabricLevel, Network
from atoll.fabric.routes import boundaries
from atoll.questions import WaferLayout as Layout
from atoll.questions import WaferQuestion
from atoll.step.bubbles import peak_activation_bytes, step_s
from atoll.step.replay import replay
from atoll.wafer.encoding.block_parts import SCHEDULES
from atoll.wafer.estimate import estimate_wafer
from atoll.wafer.evaluate import evaluate

from .questions import SMALL, WAFER

REL = 1e-9
LINK_Bps, LATENCY_S = 40e9, 2e-7
SIZES = (1e3, 1e6, 3e8)


def network(devices: int) -> Network:
    """One level of links as fast as the mesh's, all of their bandwidth reached."""
    return Network("line", (FabricLevel("line", devices, LINK_Bps, LATENCY_S),))


def on_mesh_s(kind: str, bytes_: float, columns: int, rows: int = 1) -> float:
    digits = digit_systems(columns, rows)[0]
    mesh = Mesh("mesh", rows, columns, LINK_Bps, LATENCY_S)
    return PASSES[kind] * gather_s(digits, [True] * digits.count, bytes_, mesh)


@pytest.mark.parametrize("kind", PASSES)
@pytest.mark.parametrize("bytes_", SIZES)
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_a_line_of_dies_takes_what_a_level_of_devices_takes(kind, bytes_, n):
    """A line passes pieces on in n - 1 steps of V / n bytes over its busiest link, as many bytes
    and steps as a ring of n devices, each of which has one link out.
    """
    assert on_mesh_s(kind, bytes_, n) == pytest.approx(
        collective_s(network(n), kind, bytes_, n), rel=REL
    )


@pytest.mark.parametrize("kind", PASSES)
@pytest.mark.parametrize("bytes_", SIZES)
@pytest.mark.parametrize("n", [8, 12, 24])
def test_a_long_line_of_dies_takes_no_less(kind, bytes_, n):
    """Bytes are the same; small messages of many devices take a tree's 2 log2(n) steps where that
    is fewer than n - 1, which a line of neighbours cannot.
    """
    shared = collective_s(network(n), kind, bytes_, n)
    steps = PASSES[kind] * (n - 1) * LATENCY_S
    assert shared * (1 - REL) <= on_mesh_s(kind, bytes_, n) <= shared + steps


@pytest.mark.parametrize("bytes_", SIZES)
@pytest.mark.parametrize(("columns", "rows"), [(2, 2), (4, 2), (4, 4)])
def test_a_rectangle_of_dies_takes_at_least_half_the_wires_of_a_level(bytes_, columns, rows):
    """A die in a rectangle has two links for a group's bytes, in x and in y or in both directions
    of a ring; a device of one level has one.
    """
    n = columns * rows
    free = replace(network(n).levels[0], latency_s=0.0)
    wires = collective_s(Network("free", (free,)), "all_gather", bytes_, n)
    found = on_mesh_s("all_gather", bytes_, columns, rows)
    assert 0.5 * wires * (1 - REL) <= found <= wires + (n - 1) * LATENCY_S


@pytest.mark.parametrize("bytes_", SIZES)
def test_a_message_to_the_next_die_takes_what_one_to_the_next_device_takes(bytes_):
    mesh = Mesh("mesh", 1, 2, LINK_Bps, LATENCY_S)
    stages = snake(1, 2, 1, 1, 2)
    assert stages is not None
    _, into_s = boundaries(mesh, stages, bytes_).into_s
    assert into_s == pytest.approx(send_s(network(2), bytes_, 1), rel=REL)


@pytest.fixture(scope="module")
def pipeline():
    """Four stages on a wafer, everything kept."""
    job = WaferQuestion.of(wafer=WAFER, model=SMALL, batch=16, sequence=256,
                   layout=Layout(rectangle=(2, 1), stages=4))  # fmt: skip
    return estimate_wafer(job)


@pytest.mark.parametrize("microbatches", [1, 3, 4, 16])
@pytest.mark.parametrize("order", SCHEDULES)
def test_a_wafers_pipeline_takes_and_holds_what_the_order_does(pipeline, order, microbatches):
    mapping = replace(pipeline.evaluation.mapping, batch=microbatches, schedule=order)
    found = evaluate(pipeline.wafer, mapping)
    passes = [stage.passes for stage in found.stages]
    assert [p.total_s for p in passes] == pytest.approx([s.load_s for s in found.stages], rel=REL)
    assert found.step_s == pytest.approx(step_s(order, passes, microbatches), rel=REL)
    # A stage in the middle, four times: the formula is exact for equal stages.
    equal = replay(order, [[passes[1]]] * 4, microbatches)
    assert step_s(order, [passes[1]] * 4, microbatches) == pytest.approx(equal.time_s, rel=REL)
    for number, (stage, cost) in enumerate(zip(mapping.stages, found.stages, strict=True)):
        kept = stage.layers * cost.block.kept_bytes
        held = cost.memory_bytes["activations"]
        if order == "1f1b":
            assert held == pytest.approx(equal.peak_before_backward[number] * kept, rel=REL)
        # What waits for a weight pass is held beside, in bytes of its own.
        at = order, 4, number, microbatches
        least = peak_activation_bytes(*at, kept_bytes=kept, waiting_bytes=0.0)
        assert least <= held * (1 + REL)
        assert (held > least * (1 + REL)) == (
            equal.peak_before_weight[number] > equal.peak_before_backward[number]
        )
