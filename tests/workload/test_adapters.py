"""Low-rank adapters: what is trained, what runs and what is kept when weights are frozen."""

from __future__ import annotations

import pytest

from atoll.base.errors import AtollError
from atoll.workload.adapters import (
    ATTENTION,
    Adapters,
    targets_named,
    trained_weights,
    with_adapters,
)
from atoll.workload.flops import model_flops
from atoll.workload.graph.layer import Layer, Model
from atoll.workload.load import load_config
from atoll.workload.prepare import prepare

RANK = 16
CONFIG = load_config("llama3-8b")


def built(words: str = "attention", tp: int = 1, *, apart: bool = True) -> Model:
    whole = prepare(CONFIG, 1, 1024, tp, tp > 1, fusion="none", merge_periods=False)
    return with_adapters(whole, Adapters(RANK, targets_named(words)), apart=apart)


def block(model: Model) -> Layer:
    return next(layer for layer, repeat in model.layers if repeat > 1)


def trained(layer: Layer) -> int:
    return sum(layer.tensors[name].elements for name in trained_weights(layer))


def test_targets_are_known_by_the_names_of_peft_and_of_megatron() -> None:
    assert targets_named("q_proj+v_proj") == ("q", "v")
    assert targets_named("linear_qkv, linear_proj") == targets_named("") == ATTENTION
    with pytest.raises(AtollError, match="'head' is not a projection"):
        targets_named("head")


def test_parameters_are_those_of_peft() -> None:
    """rank x (inputs + outputs) of each projection; our own measured Llama 3 8B with all seven and
    rank 16 has 41,943,040 of them.
    """
    model = built("all")
    assert sum(trained(layer) * repeat for layer, repeat in model.layers) == 41_943_040


def test_frozen_products_have_no_weight_gradient() -> None:
    kinds = [op.kind for op in block(built()).backward]
    assert "linear_wgrad" not in kinds
    assert kinds.count("linear_dgrad") == 4  # qkv, proj, fc1, fc2
    assert kinds.count("adapter_wgrad") == kinds.count("adapter_dgrad") == 2 * len(ATTENTION)


def test_inputs_are_kept_only_where_an_adapter_reads_them() -> None:
    """Of a frozen feed-forward layer the activation's input alone."""
    saved = block(built()).saved
    assert "norm1" in saved and "fc1" in saved
    assert "norm2" not in saved and "act" not in saved
    assert {"norm2", "act"} <= set(block(built("all")).saved)


def test_products_side_by_side_share_an_adapter_where_they_are_one() -> None:
    names = [op.name for op in block(built(apart=False)).forward if op.kind == "adapter"]
    assert names == ["qkv.adapter.down", "qkv.adapter.up", "proj.adapter.down", "proj.adapter.up"]


def test_what_nobody_reads_is_not_gathered_again() -> None:
    """With sequence parallelism a frozen product's gathered input is needed forwards only."""
    gathered = [op.name for op in block(built("o_proj", tp=2)).backward if op.collective]
    assert not any(name.endswith(".again") for name in gathered)
    assert any(op.name.endswith(".again") for op in block(built("all", tp=2)).backward)


def test_flops_are_two_thirds_for_frozen_products() -> None:
    whole = model_flops(CONFIG, 128)
    frozen = model_flops(CONFIG, 128, Adapters(RANK))
    assert 0.66 < frozen / whole < 0.68  # attention is 1 % here
