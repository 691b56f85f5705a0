"""The derived backward pass against what is known of it: FLOPs, saved bytes, names."""

from __future__ import annotations

import pytest

from atoll.workload import (
    Matmul,
    Role,
    build_model,
    differentiate,
    load_config,
    predecessors,
    shard,
    zoo_names,
)
from atoll.workload.graph.products import data_gradient, weight_gradient

from .strategies import layer_of


@pytest.mark.parametrize("name", zoo_names())
def test_linears_cost_twice_as_much_backward(name: str) -> None:
    """But for a linear over the data itself (patches of an image): they need no gradient."""
    for layer, _ in build_model(load_config(name), 2, 128).layers:
        forward = sum(op.flops for op in layer.forward if op.kind == "linear")
        data = sum(op.flops for op in layer.forward if op.kind == "data_linear")
        backward = sum(op.flops for op in layer.backward if op.kind.startswith("linear_"))
        assert backward == 2 * forward + data


@pytest.mark.parametrize("name", ["gpt2-xl", "llama3-8b"])
def test_attention_has_five_products_backward_flash_and_four_unfused(name: str) -> None:
    config = load_config(name)
    flash = layer_of(build_model(config, 1, 256), "block")
    forward = sum(op.flops for op in flash.forward if op.kind == "attention")
    (backward,) = [op for op in flash.backward if op.kind == "attention_bwd"]
    assert len(backward.matmuls) == 5
    assert 2 * backward.flops == 5 * forward
    unfused = layer_of(build_model(config, 1, 256, attention="unfused"), "block")
    assert flash.flops_forward == unfused.flops_forward
    assert flash.flops_backward - unfused.flops_backward == forward // 2


@pytest.mark.parametrize("microbatch", [1, 4])
def test_saved_bytes_of_a_gpt_block(microbatch: int) -> None:
    """Korthikanti et al., arXiv:2205.05198, equation 1: s b h (34 + 5 a s / h)."""
    c = load_config("megatron-gpt2-8.3b")
    block = layer_of(build_model(c, microbatch, attention="unfused"), "block")
    s, b, h, a = 1024, microbatch, c.hidden, c.heads
    assert block.saved_bytes == s * b * h * 34 + 5 * a * s * s * b


@pytest.mark.parametrize("t", [2, 4, 8])
def test_saved_bytes_under_tensor_and_sequence_parallelism(t: int) -> None:
    """Equations 2 and 4 of the same paper: what each device keeps."""
    c = load_config("megatron-gpt2-8.3b")
    whole = layer_of(build_model(c, 1, attention="unfused"), "block")
    s, h, a = 1024, c.hidden, c.heads
    scores = 5 * a * s * s // t
    assert shard(whole, t).saved_bytes == s * h * 10 + s * h * 24 // t + scores
    assert shard(whole, t, True).saved_bytes == s * h * 34 // t + scores


def test_saved_bytes_of_the_ends() -> None:
    """Section 4.3 there: dropout mask; norm and projection inputs; logits in fp32."""
    c = load_config("megatron-1.7b")
    model = shard(build_model(c, 1), 4, True)
    s, h, v, t = 2048, c.hidden, c.vocab, 4
    assert layer_of(model, "embedding").saved_bytes == s * h // t + 8 * s  # and the token ids
    assert layer_of(model, "head").saved_bytes == 4 * s * h // t
    assert layer_of(model, "loss").saved_bytes == 4 * s * v // t + 8 * s  # and two fp32 a token


def test_flash_attention_saves_no_square() -> None:
    c = load_config("gpt2-xl")
    block = layer_of(build_model(c, 1), "block")
    assert block.saved_bytes == 1024 * c.hidden * 34 + 4 * c.heads * 1024


@pytest.mark.parametrize(
    ("forward", "data", "weight"), [("n", "k", "n"), ("k", "n", "m"), ("m", "m", "k")]
)
def test_splits_follow_the_gradient_products(forward: str, data: str, weight: str) -> None:
    product = Matmul(1, 8, 16, 32, split=forward)
    dx, dw = data_gradient(product), weight_gradient(product)
    assert (dx.m, dx.n, dx.k, dx.split) == (8, 32, 16, data)
    assert (dw.m, dw.n, dw.k, dw.split) == (32, 16, 8, weight)


@pytest.mark.parametrize("name", zoo_names())
@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_every_gradient_is_made_once_and_named_after_its_tensor(name: str, attention: str) -> None:
    for layer, _ in build_model(load_config(name), 1, 128, attention=attention).layers:
        written = [n for op in layer.backward for n in op.writes]
        assert len(written) == len(set(written))
        for tensor in layer.tensors.values():
            if tensor.role is Role.WEIGHT:
                assert layer.tensors[f"d{tensor.name}"].shape == tensor.shape
        if layer.name != "embedding":  # token ids have no gradient
            assert f"d{layer.input}" in written
            gradient = layer.tensors[f"d{layer.input}"]
            assert gradient.shape == layer.tensors[layer.input].shape


@pytest.mark.parametrize("name", zoo_names())
def test_every_weight_that_is_read_gets_its_gradient(name: str) -> None:
    for layer, _ in build_model(load_config(name), 1, 128).layers:
        written = {n for op in layer.backward for n in op.writes}
        read = {n for op in layer.forward for n in op.reads}
        for tensor in layer.tensors.values():
            if tensor.role is Role.WEIGHT and tensor.name in read:
                assert f"d{tensor.name}" in written


def test_a_tensor_with_two_readers_gets_an_explicit_addition() -> None:
    block = layer_of(build_model(load_config("llama2-7b"), 1), "block")
    by_name = {op.name: op for op in block.backward}
    assert by_name["dmiddle"].reads == ("dy", "dmiddle.1")
    assert by_name["dx"].vectors[0].function == "add"


def test_dropout_keeps_one_byte_an_element() -> None:
    block = layer_of(build_model(load_config("gpt2-xl"), 1), "block")
    assert block.tensors["fc2_dropout.mask"].bytes == 1024 * 1600
    backward = next(op for op in block.backward if op.name == "fc2_dropout.bwd")
    assert backward.reads == ("dy", "fc2_dropout.mask")


def test_differentiating_again_changes_nothing() -> None:
    block = layer_of(build_model(load_config("mixtral-8x7b"), 1, 128), "block")
    assert differentiate(block) == block
    assert predecessors(block.backward) == predecessors(differentiate(block).backward)
