"""Fusion keeps the work, saves traffic, and gives the operator counts that kernels have."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.base.errors import AtollError
from atoll.workload import Core, ModelConfig, build_model, fuse, load_config, shard

from .strategies import SHORT, layer_of, sharded_case, traffic, vector_elements

Case = tuple[ModelConfig, int, int, bool, str]


@given(sharded_case(), st.sampled_from(["default", "phaze"]))
@settings(max_examples=60, deadline=None)
def test_fusion_keeps_work_and_adds_no_traffic(case: Case, level: str) -> None:
    config, t, microbatch, sequence_parallel, attention = case
    whole = build_model(config, microbatch, SHORT, attention=attention)
    apart = shard(whole, t, sequence_parallel)
    fused = fuse(apart, level)
    for (a, _), (b, _) in zip(apart.layers, fused.layers, strict=True):
        assert (a.flops_forward, a.flops_backward) == (b.flops_forward, b.flops_backward)
        assert vector_elements(a) == vector_elements(b)
        assert traffic(b) <= traffic(a)
        assert (a.saved, a.parameters) == (b.saved, b.parameters)
        assert len(b.forward) <= len(a.forward) and len(b.backward) <= len(a.backward)
        links = [op for op in (*b.forward, *b.backward) if op.core is Core.LINK]
        assert links == [op for op in (*a.forward, *a.backward) if op.core is Core.LINK]


@given(sharded_case(), st.sampled_from(["default", "phaze"]))
@settings(max_examples=60, deadline=None)
def test_fused_graphs_stay_ordered_and_complete(case: Case, level: str) -> None:
    config, t, microbatch, sequence_parallel, attention = case
    whole = build_model(config, microbatch, SHORT, attention=attention)
    for layer, _ in fuse(shard(whole, t, sequence_parallel), level).layers:
        for operators in (layer.forward, layer.backward):
            written = {n for op in operators for n in op.writes}
            seen: set[str] = set()
            assert len({op.name for op in operators}) == len(operators)
            for op in operators:
                assert {n for n in op.reads if n in written} <= seen
                assert all(n in layer.tensors for n in (*op.reads, *op.writes))
                seen |= set(op.writes)
        made = {n for op in (*layer.forward, *layer.backward) for n in op.writes}
        assert layer.output in made
        if layer.name != "embedding":
            assert f"d{layer.input}" in made


def names(name: str, level: str = "default", t: int = 1) -> tuple[list[str], list[str]]:
    block = fuse(shard(layer_of(build_model(load_config(name), 1), "block"), t), level)
    return [op.name for op in block.forward], [op.name for op in block.backward]


def test_a_gpt_block_is_seven_operators_forward_and_fifteen_backward() -> None:
    forward, backward = names("gpt2-xl")
    assert forward == [
        "norm1",
        "qkv",
        "attention",
        "proj+proj_dropout+residual1",
        "norm2",
        "fc1+act",
        "fc2+fc2_dropout+residual2",
    ]
    assert len(backward) == 15
    assert "fc2.dgrad+act.bwd" in backward


def test_a_llama_block_adds_the_rotation() -> None:
    forward, backward = names("llama2-7b")
    assert len(forward) == 8 and len(backward) == 14
    assert "rotary" in forward and "fc2+residual2" in forward


def test_a_post_norm_takes_in_the_gradient_addition_before_it() -> None:
    _, backward = names("bert-large", t=2)
    assert "dnorm1+norm1.bwd" in backward


def test_behind_a_reduction_bias_dropout_and_addition_run_as_one() -> None:
    forward, _ = names("gpt2-xl", t=5)
    assert "proj.bias+proj_dropout+residual1" in forward


def test_tensors_that_the_backward_pass_needs_are_still_written() -> None:
    block = fuse(layer_of(build_model(load_config("gpt2-xl"), 1), "block"))
    forward = {op.name: op for op in block.forward}
    assert forward["fc1+act"].writes == ("fc1", "act")
    assert forward["fc2+fc2_dropout+residual2"].writes == ("fc2_dropout.mask", "y")
    assert "fc2" not in block.tensors  # it never leaves the chip


def test_phaze_joins_pairs_whose_second_has_no_other_predecessor() -> None:
    forward, _ = names("gpt2-xl", "phaze")
    assert "fc1+act" in forward and "proj+proj_dropout" in forward
    assert "residual2" in forward  # its other operand is made in the same pass
    assert max(name.count("+") for name in forward) == 1


def test_none_changes_nothing_and_other_levels_are_refused() -> None:
    model = build_model(load_config("gpt2-xl"), 1, 128)
    assert fuse(layer_of(model, "block"), "none") is layer_of(model, "block")
    with pytest.raises(AtollError, match="must be one of default, phaze, none"):
        fuse(model, "all")
