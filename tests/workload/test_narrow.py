"""Products in fp8 and nvfp4: fewer words of linear layers, everything else as it was."""

from __future__ import annotations

import pytest

from atoll.base.errors import AtollError
from atoll.workload import ModelConfig, load_config, prepare
from atoll.workload.fuse import CAST, fuse
from atoll.workload.graph.layer import Layer, Model
from atoll.workload.graph.operator import Operator, Role
from atoll.workload.low_precision import check_precision, narrowed

PACKED = {"fp8": 2, "nvfp4": 4}
narrow_formats = pytest.mark.parametrize("precision", PACKED)


def both(model: str, tensor: int = 1, precision: str = "fp8") -> tuple[Model, Model]:
    wide = prepare(load_config(model), 1, 512, tensor, tensor > 1, fusion="none")
    return wide, narrowed(wide, precision)


def layers(one: Model, other: Model) -> list[tuple[Layer, Layer]]:
    return [(a, b) for (a, _), (b, _) in zip(one.layers, other.layers, strict=True)]


def is_linear(op: Operator) -> bool:
    return op.kind.startswith("linear") and not op.name.startswith("router")


@narrow_formats
@pytest.mark.parametrize("tensor", [1, 4])
@pytest.mark.parametrize("model", ["llama2-7b", "gpt2-xl", "mixtral-8x7b", "deepseek-v3"])
def test_linear_layers_of_blocks_have_fewer_words_and_nothing_else_changes(
    model: str, tensor: int, precision: str
) -> None:
    config = load_config(model)
    if config.heads % tensor:
        pytest.skip("its heads cannot be divided so")
    for wide, narrow in layers(*both(model, tensor, precision)):
        for before, after in ((wide.forward, narrow.forward), (wide.backward, narrow.backward)):
            kept = [op for op in after if op.kind != CAST]
            assert [op.name for op in kept] == [op.name for op in before]
            for old, new in zip(before, kept, strict=True):
                block = narrow.name not in ("embedding", "head", "loss")
                if block and is_linear(old) and not narrow.name.startswith("mtp"):
                    for p, q in zip(old.matmuls, new.matmuls, strict=True):
                        words = -(-p.k // PACKED[precision])
                        assert (q.batch, q.m, q.n, q.k) == (p.batch, p.m, p.n, words)
                else:
                    assert new == old
        assert narrow.parameters == wide.parameters


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_16_bits_of_either_kind_are_not_narrow(precision: str) -> None:
    wide, same = both("llama2-7b", precision=precision)
    assert same == wide


@narrow_formats
def test_operands_are_read_as_they_were_cast_and_each_is_cast_once(precision: str) -> None:
    size = {"fp8": 1, "nvfp4": 0.5625}[precision]  # 4 bits, and 8 for 16 of them
    _, model = both("llama2-7b", precision=precision)
    block = next(layer for layer, _ in model.layers if layer.name == "block")
    casts = [op for op in (*block.forward, *block.backward) if op.kind == CAST]
    assert len({op.writes for op in casts}) == len(casts)
    for op in (*block.forward, *block.backward):
        if is_linear(op):
            for name in op.reads:
                assert block.tensors[name].element_bytes == size, (op.name, name)
    weights = [t for t in block.tensors.values() if t.role is Role.WEIGHT and len(t.shape) > 1]
    assert weights and all(t.element_bytes == size for t in weights)


def test_what_is_kept_for_weight_gradients_is_kept_in_fp8() -> None:
    """Of a Llama block: inputs of the four products; attention and activation keep their own."""
    for wide, narrow in layers(*both("llama2-7b")):
        if wide.name != "block":
            assert narrow is wide
            continue
        own = {"norm1", "norm2", "act"}
        lost = sum(wide.tensors[name].bytes // 2 for name in own)
        twice = wide.tensors["context"].bytes // 2  # attention's backward pass reads 16 bits
        assert narrow.saved_bytes == wide.saved_bytes - lost + twice


def test_scales_by_block_lie_along_the_inner_dimension_of_each_product() -> None:
    """So operands of weight gradients are cast along the tokens as well, in the same pass."""
    wide, model = both("llama2-7b", precision="nvfp4")
    block = next(layer for layer, _ in model.layers if layer.name == "block")
    old = next(layer for layer, _ in wide.layers if layer.name == "block")
    for op in (*block.forward, *block.backward):
        if is_linear(op):
            cast = [name for name in op.reads if block.tensors[name].role is not Role.WEIGHT]
            turned = [name.endswith(".turned") for name in cast]
            assert all(turned) if op.kind == "linear_wgrad" else not any(turned)
        if op.kind == CAST:
            (read,) = op.reads
            assert op.writes == (f"{read}.nvfp4", f"{read}.nvfp4.turned")
            assert [work.function for work in op.vectors] == ["cast_nvfp4"] * 2
    kept = {name for name in block.saved if ".nvfp4" in name}
    assert kept == {f"{name}.nvfp4.turned" for name in ("norm1", "norm2", "act", "context")}
    halves = sum(old.tensors[name].bytes for name in ("norm1", "norm2", "act"))
    more = sum(block.tensors[name].bytes for name in kept)
    assert block.saved_bytes == old.saved_bytes - halves + more
    narrow = block.tensors["norm1.nvfp4"]
    assert narrow.bytes * 16 == narrow.elements * 9 and isinstance(narrow.bytes, int)


def test_a_cast_joins_the_norm_before_it() -> None:
    _, model = both("llama2-7b")
    fused = fuse(model, "default")
    block = next(layer for layer, _ in fused.layers if layer.name == "block")
    names = {op.name for op in block.forward}
    assert {"norm1+norm1.fp8", "norm2+norm2.fp8"} <= names
    assert "norm1" not in block.tensors, "written in fp8 alone"


def test_bf16_changes_nothing() -> None:
    wide, _ = both("bert-large")
    assert narrowed(wide, "bf16") is wide


def test_captured_models_are_refused() -> None:
    config: ModelConfig = load_config("bert-large")
    check_precision(config, "bert-large", "fp8")
    from atoll.workload.stored import StoredModel

    stored = object.__new__(StoredModel)
    check_precision(stored, "mine", "bf16")
    with pytest.raises(AtollError, match="mine was captured"):
        check_precision(stored, "mine", "fp8")
