"""Parameters and work of the unsharded graphs against published counts and closed formulas."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from atoll.base.errors import AtollError
from atoll.workload import Core, build_model, load_config, predecessors, zoo_names

from .strategies import layer_of

PUBLISHED = {
    "bert-large": 335_174_458,  # BertForMaskedLM: with its head, without pooler
    "gpt2-xl": 1_557_611_200,
    "opt-350m": 331_196_416,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_equal_the_published_count(name: str) -> None:
    config = load_config(name)
    assert build_model(config, 1, 128).parameters == PUBLISHED[name]
    assert config.published_parameters == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("megatron-1.7b", 1.7),
        ("megatron-3.6b", 3.6),
        ("megatron-7.5b", 7.5),
        ("megatron-18.4b", 18.4),
        ("megatron-39.1b", 39.1),
        ("megatron-76.1b", 76.1),
        ("megatron-145.6b", 145.6),
        ("megatron-310.1b", 310.1),
        ("megatron-529.6b", 529.6),
        ("megatron-1t", 1008.0),
        ("megatron-gpt2-2.5b", 2.5),
        ("megatron-gpt2-8.3b", 8.3),
        ("gpt3-175b", 174.6),
    ],
)
def test_megatron_ladder(name: str, billions: float) -> None:
    """Narayanan et al. 2021, equation 2 and table 1."""
    c = load_config(name)
    parameters = build_model(c, 1).parameters
    l, h, v, s = c.layers, c.hidden, c.vocab, c.max_sequence  # noqa: E741
    formula = 12 * l * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * l * h))
    assert parameters == pytest.approx(formula, rel=1e-3)
    assert round(parameters / 1e9, 1) == billions


@pytest.mark.parametrize("attention", ["flash", "unfused"])
@pytest.mark.parametrize("microbatch", [1, 3])
def test_gpt_block_forward_flops(attention: str, microbatch: int) -> None:
    c = load_config("megatron-1.7b")
    block = layer_of(build_model(c, microbatch, attention=attention), "block")
    b, s, h = microbatch, 2048, c.hidden
    assert block.flops_forward == 24 * b * s * h**2 + 4 * b * s**2 * h


def test_head_flops_are_the_vocabulary_product() -> None:
    c = load_config("gpt2-xl")
    assert layer_of(build_model(c, 2), "head").flops_forward == 2 * 2 * 1024 * c.hidden * c.vocab


def test_query_key_value_and_gate_up_are_one_product_each() -> None:
    c = load_config("llama3-8b")
    forward = {op.name: op for op in layer_of(build_model(c, 1), "block").forward}
    assert forward["qkv"].matmuls[0].n == (32 + 2 * 8) * 128
    assert forward["fc1"].matmuls[0].n == 2 * 14336


def test_flash_attention_folds_query_groups_and_skips_the_masked_half() -> None:
    block = layer_of(build_model(load_config("llama3-8b"), 2, 4096), "block")
    flash = next(op for op in block.forward if op.kind == "attention")
    scores, values = flash.matmuls
    assert (scores.batch, scores.m, scores.n, scores.k) == (2 * 8, 4096 * 4, 4096, 128)
    assert (values.batch, values.m, values.n, values.k) == (2 * 8, 4096 * 4, 128, 4096)
    assert scores.fraction == values.fraction == 4097 / 8192
    assert flash.on_chip and block.tensors["context.lse"].bytes == 4 * 2 * 32 * 4096


def test_a_sliding_window_leaves_a_band() -> None:
    c = dataclasses.replace(load_config("llama2-7b"), window=2)
    flash = next(op for op in layer_of(build_model(c, 1, 4), "block").forward if op.on_chip)
    assert flash.matmuls[0].fraction == (1 + 2 + 2 + 2) / 16


def test_bidirectional_attention_skips_nothing() -> None:
    block = layer_of(build_model(load_config("bert-large"), 1), "block")
    assert all(m.fraction == 1 for op in block.forward for m in op.matmuls)


def test_unfused_attention_materialises_its_scores() -> None:
    block = layer_of(build_model(load_config("gpt2-xl"), 1, 256, attention="unfused"), "block")
    for name in ("scores", "probabilities", "probabilities.kept"):
        assert block.tensors[name].bytes == 2 * 25 * 256 * 256
    assert not any(op.on_chip for op in block.forward)


def test_experts_share_the_tokens_evenly() -> None:
    block = layer_of(build_model(load_config("mixtral-8x7b"), 1, 4096), "block")
    fc1 = next(op for op in block.forward if op.name == "fc1")
    (product,) = fc1.matmuls
    assert (product.batch, product.m, product.n, product.k) == (8, 4096 * 2 // 8, 2 * 14336, 4096)
    dispatch = next(op for op in block.forward if op.name == "dispatch")
    assert dispatch.core is Core.NONE


def test_the_embedding_reads_rows_and_not_the_table() -> None:
    layer = layer_of(build_model(load_config("llama3-8b"), 1, 512), "embedding")
    (lookup,) = layer.forward
    assert lookup.core is Core.NONE
    assert layer.traffic_bytes(lookup) == 512 * 8 + 2 * 512 * 4096 * 2
    assert layer.parameters == 128256 * 4096


@pytest.mark.parametrize("name", zoo_names())
def test_work_scales_with_the_microbatch(name: str) -> None:
    config = load_config(name)
    one, two = build_model(config, 1, 128), build_model(config, 2, 128)
    for (a, _), (b, _) in zip(one.layers, two.layers, strict=True):
        # T5's relative positions are the same for every sample.
        table = a.tensors["relative"].bytes if "relative" in a.saved else 0
        assert (a.saved_bytes - table) * 2 == b.saved_bytes - table
        for x, y in zip((*a.forward, *a.backward), (*b.forward, *b.backward), strict=True):
            if all("relative" in name for name in x.writes):
                assert x == y
                continue
            assert (x.name, x.flops * 2) == (y.name, y.flops)
            assert [v.elements * 2 for v in x.vectors] == [v.elements for v in y.vectors]


@pytest.mark.parametrize("name", zoo_names())
def test_operators_follow_their_predecessors(name: str) -> None:
    """Everything an operator reads was written before, or comes from outside its pass."""
    for layer, _ in build_model(load_config(name), 1, 128, attention="unfused").layers:
        for operators in (layer.forward, layer.backward):
            written = {n for op in operators for n in op.writes}
            seen: set[str] = set()
            for op, before in zip(operators, predecessors(operators), strict=True):
                assert {n for n in op.reads if n in written} <= seen
                assert all(operators[i] is not op for i in before)
                seen |= set(op.writes)


def test_layers_chain_by_their_boundary() -> None:
    model = build_model(load_config("bert-large"), 2)
    chain = [layer for layer, _ in model.layers]
    for left, right in itertools.pairwise(chain):
        assert left.tensors[left.output].shape == right.tensors[right.input].shape
    assert model.depth == 24 + 3 and model.tokens == 1024


def test_fused_loss_keeps_the_logits_instead_of_an_fp32_softmax() -> None:
    c = load_config("gpt2-xl")
    kept = layer_of(build_model(c, 1), "loss").saved_bytes
    fused = layer_of(build_model(c, 1, fused_loss=True), "loss").saved_bytes
    assert kept - fused == 2 * 1024 * c.vocab


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"microbatch": 0}, "gpt2-xl: microbatch is 0, but must be a positive integer"),
        ({"microbatch": 1.5}, "gpt2-xl: microbatch is 1.5, but must be"),
        ({"microbatch": 1, "sequence": -1}, "gpt2-xl: sequence is -1"),
        ({"microbatch": 1, "sequence": 1025}, "its position table ends at 1024"),
        ({"microbatch": 1, "attention": "fast"}, "must be one of flash, unfused"),
    ],
)
def test_bad_requests(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(AtollError, match=message):
        build_model(load_config("gpt2-xl"), **arguments)  # type: ignore[arg-type]
