"""Products in fp8: half the words of linear layers, everything else as it was."""

from __future__ import annotations

import pytest

from atoll.errors import AtollError
from atoll.workload import ModelConfig, load_config, prepare
from atoll.workload.fuse import CAST, fuse
from atoll.workload.graph.layer import Layer, Model
from atoll.workload.graph.operator import Operator, Role
from atoll.workload.narrow import check_precision, narrowed


def both(model: str, tensor: int = 1) -> tuple[Model, Model]:
    wide = prepare(load_config(model), 1, 512, tensor, tensor > 1, fusion="none")
    return wide, narrowed(wide, "fp8")


def layers(one: Model, other: Model) -> list[tuple[Layer, Layer]]:
    return [(a, b) for (a, _), (b, _) in zip(one.layers, other.layers, strict=True)]


def is_linear(op: Operator) -> bool:
    return op.kind.startswith("linear") and not op.name.startswith("router")


@pytest.mark.parametrize("tensor", [1, 4])
@pytest.mark.parametrize("model", ["llama2-7b", "gpt2-xl", "mixtral-8x7b", "deepseek-v3"])
def test_linear_layers_of_blocks_have_half_the_words_and_nothing_else_changes(
    model: str, tensor: int
) -> None:
    config = load_config(model)
    if config.heads % tensor:
        pytest.skip("its heads cannot be divided so")
    for wide, narrow in layers(*both(model, tensor)):
        for before, after in ((wide.forward, narrow.forward), (wide.backward, narrow.backward)):
            kept = [op for op in after if op.kind != CAST]
            assert [op.name for op in kept] == [op.name for op in before]
            for old, new in zip(before, kept, strict=True):
                block = narrow.name not in ("embedding", "head", "loss")
                if block and is_linear(old) and not narrow.name.startswith("mtp"):
                    for p, q in zip(old.matmuls, new.matmuls, strict=True):
                        assert (q.batch, q.m, q.n, q.k) == (p.batch, p.m, p.n, -(-p.k // 2))
                else:
                    assert new == old
        assert narrow.parameters == wide.parameters


def test_operands_are_read_as_they_were_cast_and_each_is_cast_once() -> None:
    _, model = both("llama2-7b")
    block = next(layer for layer, _ in model.layers if layer.name == "block")
    casts = [op for op in (*block.forward, *block.backward) if op.kind == CAST]
    assert len({op.writes for op in casts}) == len(casts)
    for op in (*block.forward, *block.backward):
        if is_linear(op):
            for name in op.reads:
                assert block.tensors[name].element_bytes == 1, (op.name, name)
    weights = [t for t in block.tensors.values() if t.role is Role.WEIGHT and len(t.shape) > 1]
    assert weights and all(t.element_bytes == 1 for t in weights)


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
