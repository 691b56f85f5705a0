"""What every device must do that prices layers, whatever it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.cost.pricer import Pricer, total
from atoll.fabric.digits import Digits
from atoll.hardware.catalog import load_accelerator, load_network
from atoll.hardware.gpu import load_gpu
from atoll.hardware.wafer_files import load_wafer
from atoll.profiles import DEFAULT
from atoll.schedule.chip import ChipPricer
from atoll.tools.stack import STACKS
from atoll.training.operators.gpu_pricer import GpuPricer
from atoll.wafer.costs.die_pricer import DiePricer
from atoll.wafer.costs.tables import BlockTables, CostSetting
from atoll.wafer.encoding.block import make_block
from atoll.workload import build_model, load_config, load_model, prepare
from atoll.workload.graph.layer import Layer

NETWORK = load_network("dgx-a100")


def gpu(faster: float = 1.0) -> Pricer:
    device = load_gpu("a100-80")
    assert device.bf16_flops is not None
    quick = replace(device, hbm_Bps=device.hbm_Bps * faster, bf16_flops=device.bf16_flops * faster)
    return GpuPricer(quick, STACKS["megatron"])


def chip(faster: float = 1.0) -> Pricer:
    device = load_accelerator("phaze-tpuv4")
    memory = replace(device.hbm, bandwidth_Bps=device.hbm.bandwidth_Bps * faster)
    return ChipPricer(
        replace(device, clock_Hz=device.clock_Hz * faster, hbm=memory), NETWORK, DEFAULT
    )


def layers(pricer: Pricer, sequence: int = 256, tensor: int = 1) -> list[Layer]:
    model = prepare(load_model("llama2-7b"), 1, sequence, tensor, tensor > 1, fusion=pricer.fusion)
    return [layer for layer, _ in model.layers]


pricers = pytest.mark.parametrize("make", [gpu, chip])


@pricers
def test_a_pass_takes_no_less_than_its_longest_operator_and_no_more_than_all(make) -> None:
    pricer = make()
    for layer in layers(pricer, tensor=2):
        times = pricer.layer(layer, 1, 1)
        for operators, seconds in (
            (layer.forward, times.forward.total_s),
            (layer.backward, times.backward.total_s),
        ):
            alone = [times.operators[op.name] for op in operators]
            assert max(cost.total_s for cost in alone) <= seconds * (1 + 1e-9)
            assert seconds <= total(alone).total_s * (1 + 1e-9)


@pricers
def test_a_faster_device_is_not_slower(make) -> None:
    slow, fast = make(), make(1.7)
    for one, two in zip(layers(slow), layers(fast), strict=True):
        before, after = slow.layer(one, 1, 1), fast.layer(two, 1, 1)
        assert after.forward.total_s <= before.forward.total_s
        assert after.data.total_s + after.weight.total_s <= (
            before.data.total_s + before.weight.total_s
        ) * (1 + 1e-3)  # schedules are proven to a tolerance


@pricers
def test_a_ring_computes_the_attention_of_whole_sequences(make) -> None:
    """Four devices share the sequence: each does a quarter of the attention, and no less."""
    pricer = make()
    block, part = layers(pricer, 2048)[1], layers(pricer, 512)[1]
    whole_s = pricer.layer(block, 1, 1).operators["attention"].total_s
    shared_s = pricer.layer(part, 4, 1).operators["attention"].total_s
    assert whole_s / 4 <= shared_s * (1 + 1e-9) <= whole_s


@pricers
def test_weight_gradients_are_a_part_of_the_backward_pass(make) -> None:
    pricer = make()
    times = pricer.layer(layers(pricer)[1], 1, 1)
    assert 0.0 < times.weight.total_s < times.data.total_s + times.weight.total_s
    assert times.data.total_s > 0.0


@pricers
def test_weight_gradients_apart_take_no_less_than_with_the_rest(make) -> None:
    """Orders that put them off pay for what the two passes no longer share."""
    pricer = make()
    for layer in layers(pricer):
        times = pricer.layer(layer, 1, 1)
        assert times.backward.total_s <= (times.data + times.weight).total_s * (1 + 1e-3)


@pytest.mark.parametrize("model", ["llama2-7b", "gpt2-xl", "mixtral-8x7b"])
def test_a_wafer_of_one_die_computes_what_its_chip_computes(model) -> None:
    """With all losses of its kind of chip. The wafer leaves out biases and the copies of tokens for
    experts, reads and writes between the two passes of a gated activation, and counts the traffic
    of attention's forward pass twice for its gradient.
    """
    wafer = replace(load_wafer("default"), rows=1, columns=1)
    price, block = DiePricer(wafer.chip), make_block(model, 2, 512)
    tables = BlockTables(block, Digits((), ()), CostSetting(wafer, 8, streaming=False), price)
    built = build_model(load_config(model), 2, 512)
    layer = max(built.layers, key=lambda pair: pair[1])[0]
    alone = ChipPricer(wafer.chip, NETWORK, DEFAULT).layer(layer, 1, 1).operators
    total_s = tables.stream_s("") + sum(
        float(node.compute_s[0]) for chain in tables.nodes for node in chain
    )
    attention = next(n for c in tables.nodes for n in c if n.unit.kind == "attention")
    others_s = total_s - float(attention.data_s[0])
    expected_s = total(alone.values()).total_s - alone["attention.bwd"].total_s
    assert others_s == pytest.approx(expected_s, rel=0.003)
    assert float(attention.data_s[0]) == pytest.approx(alone["attention.bwd"].total_s, rel=0.001)
