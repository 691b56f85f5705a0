"""Families described in data: counts, shards, both passes and prices of a small model of each."""

from __future__ import annotations

import logging
from functools import cache

import pytest

from atoll.base.errors import AtollError
from atoll.cost.vector import OPERATIONS
from atoll.hardware.gpu import load_gpu
from atoll.tools.stack import STACKS
from atoll.training.operators.gpu_pricer import GpuPricer
from atoll.workload import Layer, Model, Role, build_model, config_from_hf, fuse, shard, widths
from atoll.workload.families.builtin import GROUPS
from atoll.workload.families.model_config import ModelConfig

from .small_families import PARAMETERS, SMALL, given, small

NAMES = sorted(SMALL)
LENGTH = 128
# Counted as a parameter, set by rule.
NO_GRADIENT = ("router.correction",)


@cache
def built(name: str, attention: str = "flash") -> Model:
    return build_model(small(name), 2, LENGTH, attention=attention)


def test_every_family_described_in_data_has_a_small_model() -> None:
    described = {
        t for group in ("dense", "experts", "hybrid") for f in GROUPS[group] for t in f.types
    }
    # As transformers 4 writes the whole of Qwen2.5-VL; DeepSeek's reader reads Kimi.
    assert described - {"qwen2_5_vl"} == set(SMALL) - {"kimi_k2"}
    assert set(PARAMETERS) == set(SMALL)


@pytest.mark.parametrize("name", NAMES)
def test_counts_of_all_and_of_active_parameters(name: str) -> None:
    model = built(name)
    assert (model.parameters, model.active_parameters) == PARAMETERS[name]


@pytest.mark.parametrize("name", NAMES)
def test_counts_are_those_of_the_real_modules(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    fields = {k: v for k, v in given(name).items() if k != "quantization_config"}
    # Kimi K2 is DeepSeek-V3's module; the text model of Qwen2.5-VL alone has no head.
    kind = {"kimi_k2": "deepseek_v3", "qwen2_5_vl_text": "qwen2"}.get(name, name)
    fields["model_type"] = kind
    config = type(transformers.AutoConfig.for_model(kind)).from_dict(fields)
    head = "AutoModelForMaskedLM" if name == "modernbert" else "AutoModelForCausalLM"
    with torch.device("meta"):
        module = getattr(transformers, head).from_config(config)
    module.tie_weights()
    assert module.num_parameters() == PARAMETERS[name][0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_shards_sum_to_the_whole(name: str, sequence_parallel: bool) -> None:
    config, whole = small(name), built(name)
    assert widths(config, (1, 2)) == (1, 2)
    local = shard(whole, 2, sequence_parallel)
    for (a, _), (b, _) in zip(whole.layers, local.layers, strict=True):
        for tensor in (n for n, t in a.tensors.items() if n in b.tensors and t.split == "tensor"):
            assert b.tensors[tensor].elements * 2 >= a.tensors[tensor].elements
        assert a.parameters / 2 <= b.parameters <= a.parameters
        assert a.flops_forward / 2 <= b.flops_forward <= a.flops_forward
        one_group = config.scan is not None and config.scan.groups == 1
        if not one_group:  # whose keys and queries every device has
            same = sum(m.flops for op in b.forward for m in op.matmuls if not m.split)
            assert (b.flops_forward - same) * 2 + same == a.flops_forward


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_every_weight_that_is_read_gets_its_gradient(name: str, width: int, attention: str) -> None:
    for layer, _ in fuse(shard(built(name, attention), width, True)).layers:
        written = {n for op in layer.backward for n in op.writes}
        read = {n for op in layer.forward for n in op.reads}
        for weight in (n for n, t in layer.tensors.items() if t.role is Role.WEIGHT):
            if weight in read:
                assert f"d{weight}" in written
            else:  # a table is read row by row
                assert weight in ("word.weight",) or weight.endswith(NO_GRADIENT)
        assert in_order(layer)


def in_order(layer: Layer) -> bool:
    """Whether every tensor that an operator makes is made before it is read."""
    operators = (*layer.forward, *layer.backward)
    made = {n for op in operators for n in op.writes}
    done: set[str] = {layer.input, *layer.more_inputs}
    for op in operators:
        if any(n in made and n not in done for n in op.reads if n != f"d{layer.output}"):
            return False
        done.update(op.writes)
    return True


@pytest.mark.parametrize("name", NAMES)
def test_backward_has_two_products_for_each_forward_one(name: str) -> None:
    """Scans, as fused attention, make what they did not keep once more."""
    for layer, _ in built(name, "unfused").layers:
        forward = {kind: flops(layer, kind) for kind in ("scan", "scan_bwd")}
        scanned, back = forward["scan"], forward["scan_bwd"]
        assert layer.flops_backward - back == 2 * (layer.flops_forward - scanned)
        assert 2 * scanned <= back <= 3 * scanned


def flops(layer: Layer, kind: str) -> int:
    return sum(op.flops for op in (*layer.forward, *layer.backward) if op.kind == kind)


@pytest.mark.parametrize("name", NAMES)
def test_chips_and_gpus_price_every_operator(name: str) -> None:
    gpu = load_gpu("h100")
    pricers = [GpuPricer(gpu, STACKS[stack]) for stack in ("megatron", "eager")]
    for layer, _ in built(name).layers:
        for op in (*layer.forward, *layer.backward):
            for work in op.vectors:
                assert all(work.function in table for table in OPERATIONS.values())
            for pricer in pricers:
                cost = pricer.cost(layer, op)
                idle = all(v.function in ("bias", "add_bwd") for v in op.vectors)
                assert cost.total_s > 0 or (idle and not op.matmuls)


@pytest.mark.parametrize("name", NAMES)
def test_work_grows_with_the_sequence_as_the_mixer_says(name: str) -> None:
    """Scans, windows and chunks cost the same for each token of a long sequence."""

    def attended(config: ModelConfig, length: int) -> float:
        kinds = ("attention", "scan")
        model = build_model(config, 1, length)
        return sum(
            p.flops * p.fraction * n
            for layer, n in model.layers
            for op in layer.forward
            if op.kind in kinds
            for p in op.matmuls
        )

    config = small(name)
    growth = attended(config, 2048) / max(1.0, attended(config, 1024))
    attends = config.windows or config.mixers or config.mixer.startswith("attention")
    if name in ("phimoe", "starcoder2"):  # a window in every block
        assert 1.9 < growth < 2.2
    elif name == "mamba2":
        assert growth == 2
    elif attends:
        assert 2 < growth < 4.01


ODD: tuple[object, ...] = (None, True, 0, 7, 1.5, "x", [[1]])


@pytest.mark.parametrize("name", NAMES)
def test_an_odd_value_anywhere_is_read_or_refused_in_a_sentence(name: str) -> None:
    for field in given(name):
        for value in ODD:
            try:
                config_from_hf(given(name, **{field: value}), "here")
            except AtollError as error:
                assert str(error).startswith("here") and "\n" not in str(error)
