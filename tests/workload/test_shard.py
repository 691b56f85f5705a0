"""Sharding: shares add up to the whole, collectives sit where Megatron-LM has them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.base.errors import AtollError
from atoll.workload import (
    CollectiveKind,
    Layer,
    ModelConfig,
    build_model,
    differentiate,
    fuse,
    load_config,
    predecessors,
    shard,
    widths,
    zoo_names,
)

from .strategies import CANDIDATES, SHORT, layer_of, sharded_case, vector_elements

Case = tuple[ModelConfig, int, int, bool, str]
GATHER, SCATTER, REDUCE = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_REDUCE,
)


def collectives(layer: Layer, direction: str) -> list[tuple[CollectiveKind, int]]:
    operators = layer.forward if direction == "forward" else layer.backward
    found = [op.collective for op in operators if op.collective is not None]
    return [(c.kind, c.bytes) for c in found]


@given(sharded_case())
@settings(max_examples=60, deadline=None)
def test_flops_of_all_shards_sum_to_the_whole(case: Case) -> None:
    """Exactly, but for what is replicated: a token-wise product without sequence parallelism, key
    and value heads on more devices than there are, rows that pad the vocabulary, patches that pad
    an image's sequence.
    """
    config, t, microbatch, sequence_parallel, attention = case
    whole = build_model(config, microbatch, SHORT, attention=attention)
    local = shard(whole, t, sequence_parallel)
    for (a, _), (b, _) in zip(whole.layers, local.layers, strict=True):
        exact = b.name != "head" or config.vocab % t == 0
        exact &= b.name != "block" or config.kv_heads % t == 0
        exact &= b.name != "embedding" or not config.patch_inputs
        if exact:
            for before, after in ((a.forward, b.forward), (a.backward, b.backward)):
                replicated = [m.flops for op in after for m in op.matmuls if not m.split]
                if t == 1:
                    replicated = []
                divided = sum(op.flops for op in after) - sum(replicated)
                assert divided * t + sum(replicated) == sum(op.flops for op in before)
        else:
            assert b.flops_forward * t >= a.flops_forward


@given(sharded_case())
@settings(max_examples=60, deadline=None)
def test_sharded_graphs_are_ordered_and_smaller(case: Case) -> None:
    config, t, microbatch, sequence_parallel, attention = case
    whole = build_model(config, microbatch, SHORT, attention=attention)
    local = shard(whole, t, sequence_parallel)
    for (a, _), (b, _) in zip(whole.layers, local.layers, strict=True):
        for operators in (b.forward, b.backward):
            written = {n for op in operators for n in op.writes}
            seen: set[str] = set()
            for op in operators:
                assert {n for n in op.reads if n in written} <= seen
                seen |= set(op.writes)
            assert len(predecessors(operators)) == len(operators)
        assert b.parameters <= a.parameters
        assert b.saved_bytes <= a.saved_bytes
        assert vector_elements(b) <= vector_elements(a)
        if sequence_parallel and config.vocab % t == 0 and config.kv_heads % t == 0:
            ends = b.name == "embedding"  # token ids stay whole
            statistics = 8 * microbatch * SHORT if b.name == "loss" else 0
            # Dispatched tokens stay whole, and so does the class token of an image.
            if not ends and not config.experts and not config.patch_inputs:
                assert (b.saved_bytes - statistics) * t == a.saved_bytes - statistics


@given(sharded_case(), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_width_one_is_the_whole(case: Case, microbatch: int) -> None:
    config, _, _, sequence_parallel, attention = case
    whole = build_model(config, microbatch, SHORT, attention=attention)
    assert shard(whole, 1, sequence_parallel) is whole


@pytest.mark.parametrize("name", zoo_names())
def test_widths_are_those_that_shard_accepts(name: str) -> None:
    config = load_config(name)
    whole = build_model(config, 1, 128)
    for t in CANDIDATES:
        if t in widths(config, CANDIDATES):
            assert shard(whole, t).tensor_parallel == t
        else:
            with pytest.raises(AtollError, match=f"tensor_parallel is {t}, but does not divide"):
                shard(whole, t)


def test_widths_of_some_models() -> None:
    assert widths(load_config("gpt2-xl"), (1, 2, 4, 5, 25)) == (1, 5, 25)
    assert widths(load_config("llama3-70b"), (1, 2, 4, 8, 16, 64, 128)) == (1, 2, 4, 8, 16, 64)
    assert widths(load_config("llama2-7b"), (0, -1, 3, 16)) == (16,)


@pytest.mark.parametrize("name", ["megatron-1.7b", "llama2-7b", "bert-large", "opt-350m"])
def test_collectives_of_a_block(name: str) -> None:
    """Two all-reduces of 2 b s h bytes a pass; with sequence parallelism each is a gather and a
    scatter, and the backward pass gathers the two inputs again.
    """
    config = load_config(name)
    whole = layer_of(build_model(config, 2, 256), "block")
    size = 2 * 2 * 256 * config.hidden
    plain = shard(whole, 4)
    assert collectives(plain, "forward") == [(REDUCE, size)] * 2
    assert collectives(plain, "backward") == [(REDUCE, size)] * 2
    sequence = shard(whole, 4, True)
    assert sorted(collectives(sequence, "forward")) == sorted([(GATHER, size), (SCATTER, size)] * 2)
    backward = [(GATHER, size)] * 4 + [(SCATTER, size)] * 2
    assert sorted(collectives(sequence, "backward")) == sorted(backward)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_collectives_of_the_ends(sequence_parallel: bool) -> None:
    config = load_config("llama2-7b")
    model = shard(build_model(config, 1, 256), 4, sequence_parallel)
    size = 2 * 256 * config.hidden
    close, back = (SCATTER, [(GATHER, size)]) if sequence_parallel else (REDUCE, [])
    embedding = layer_of(model, "embedding")
    assert collectives(embedding, "forward") == [(close, size)]
    assert collectives(embedding, "backward") == back
    head = layer_of(model, "head")
    assert collectives(head, "forward") == ([(GATHER, size)] if sequence_parallel else [])
    assert (close, size) in collectives(head, "backward")
    loss = layer_of(model, "loss")
    assert collectives(loss, "forward") == [(REDUCE, 2 * 4 * 256)]
    assert collectives(loss, "backward") == []


def test_a_bias_is_added_once_after_the_reduction() -> None:
    whole = layer_of(build_model(load_config("gpt2-xl"), 1), "block")
    names = [op.name for op in shard(whole, 5).forward]
    at = names.index("proj")
    assert names[at : at + 3] == ["proj", "proj.sum.reduce", "proj.bias"]


def test_gradient_reductions_start_before_the_weight_gradient() -> None:
    """So that a schedule in list order overlaps them, as Megatron-LM does."""
    whole = layer_of(build_model(load_config("llama2-7b"), 1, 256), "block")
    for sequence_parallel, reduction in ((False, "dnorm2.reduce"), (True, "norm2.full.gather.bwd")):
        names = [op.name for op in shard(whole, 4, sequence_parallel).backward]
        assert names.index("fc1.dgrad") < names.index(reduction) < names.index("fc1.wgrad")


def test_scarce_key_heads_are_replicated() -> None:
    """16 devices, 8 key heads: each device holds one of them and a part of its queries."""
    whole = layer_of(build_model(load_config("llama3-8b"), 2, 256), "block")
    local = shard(whole, 16)
    forward = {op.name: op for op in local.forward}
    assert forward["qkv"].matmuls[0].n == (2 + 1 + 1) * 128
    scores = forward["attention"].matmuls[0]
    assert (scores.batch, scores.m) == (2 * 1, 256 * 2)
    assert [v.cols for v in forward["rotary"].vectors] == [2 * 128, 128]
    assert forward["attention"].flops * 16 == next(
        op.flops for op in whole.forward if op.name == "attention"
    )


def test_experts_are_cut_inside() -> None:
    whole = layer_of(build_model(load_config("mixtral-8x7b"), 1, 256), "block")
    local = shard(whole, 4, True)
    forward = {op.name: op for op in local.forward}
    assert forward["fc1"].matmuls[0].batch == 8
    assert forward["fc1"].matmuls[0].n == 2 * 14336 // 4
    assert forward["router"].matmuls[0].m == 256 // 4
    kinds = [kind for kind, size in collectives(local, "forward") if size == 2 * 256 * 4096]
    assert kinds == [GATHER, SCATTER] * 2


def test_the_vocabulary_is_padded_to_the_width() -> None:
    model = shard(build_model(load_config("gpt2-xl"), 1), 5)
    assert layer_of(model, "head").tensors["logits"].shape[-1] == 10052  # 50257 / 5, rounded up
    assert layer_of(model, "embedding").tensors["word.weight"].shape[0] == 10052
    assert model.shared_parameters == 10052 * 1600


@pytest.mark.parametrize(
    ("name", "t", "sequence", "message"),
    [
        ("gpt2-xl", 2, 1024, "gpt2-xl, layer block: tensor_parallel is 2, but does not divide the "
         "25 units"),
        ("llama3-8b", 0, 1024, "tensor_parallel is 0, but must be a positive integer"),
        ("gpt2-xl", 5, 1024, "does not divide the sequence of 1024 that sequence parallelism"),
    ],
)  # fmt: skip
def test_refusals(name: str, t: int, sequence: int, message: str) -> None:
    with pytest.raises(AtollError, match=message):
        shard(build_model(load_config(name), 1, sequence), t, t == 5)


def test_key_heads_that_neither_divide_nor_are_divided() -> None:
    odd = replace(load_config("llama3-8b"), heads=24, kv_heads=8, head_dim=128)
    with pytest.raises(AtollError, match="12, but does not divide the 8 key and value heads"):
        shard(build_model(odd, 1, 128), 12)
    assert widths(odd, (12,)) == ()


def test_a_sharded_model_is_not_sharded_again() -> None:
    model = shard(build_model(load_config("llama2-7b"), 1, 128), 2)
    with pytest.raises(AtollError, match="already sharded or fused"):
        shard(model, 2)


def test_fusing_comes_last() -> None:
    fused = fuse(build_model(load_config("gpt2-xl"), 1, 128))
    with pytest.raises(AtollError, match="already sharded or fused"):
        shard(fused, 5)
    with pytest.raises(AtollError, match="has no derivative"):
        differentiate(layer_of(fused, "block"))
