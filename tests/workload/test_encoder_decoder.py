"""T5: an encoder and its decoder as one chain, with what runs along it beside the stream."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.base.errors import AtollError
from atoll.placement.recompute import keep_choices
from atoll.wafer.encoding.block import make_block
from atoll.workload import (
    CollectiveKind,
    Layer,
    Model,
    ModelConfig,
    build_model,
    config_from_hf,
    fuse,
    prepare,
    shard,
    widths,
)

from .published import FOLDER, published
from .strategies import layer_of, vector_elements

BATCH, LENGTH = 3, 128
V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
# d_model, d_kv, d_ff, layers of each stack, heads; what the checkpoints hold.
SIZES: dict[str, tuple[tuple[int, int, int, int, int], dict[str, object], int]] = {
    "t5-small": ((512, 64, 2048, 6, 8), {}, 60_506_624),
    "t5-base": ((768, 64, 3072, 12, 12), {}, 222_903_552),
    "t5-large": ((1024, 64, 4096, 24, 16), {}, 737_668_096),
    "t5-3b": ((1024, 128, 16384, 24, 32), {}, 2_851_598_336),
    "t5-11b": ((1024, 128, 65536, 24, 128), {}, 11_307_321_344),
    "t5-v1.1-small": ((512, 64, 1024, 8, 6), V1_1, 76_961_152),
    "t5-v1.1-base": ((768, 64, 2048, 12, 12), V1_1, 247_577_856),
    "t5-v1.1-large": ((1024, 64, 2816, 24, 16), V1_1, 783_150_080),
    "t5-v1.1-xl": ((2048, 64, 5120, 24, 32), V1_1, 2_849_757_184),
    "t5-v1.1-xxl": ((4096, 64, 10240, 24, 64), V1_1, 11_135_332_352),
}


def t5(sizes: tuple[int, int, int, int, int], **changes: object) -> ModelConfig:
    names = ("d_model", "d_kv", "d_ff", "num_layers", "num_heads")
    shape: dict[str, Any] = dict(zip(names, sizes, strict=True))
    return config_from_hf({"model_type": "t5", "vocab_size": 32128, **shape, **changes}, "here")


def passes(model: Model) -> tuple[int, int]:
    forward = sum(layer.flops_forward * n for layer, n in model.layers)
    return forward, sum(layer.flops_backward * n for layer, n in model.layers)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_parameters_are_the_published_ones(name: str, attention: str) -> None:
    sizes, changes, count = SIZES[name]
    assert build_model(t5(sizes, **changes), 1, LENGTH, attention=attention).parameters == count


@pytest.mark.parametrize("name", SIZES)
def test_products_in_both_passes_are_those_of_the_formula(name: str) -> None:
    """Two FLOPs a weight and token, and two products of the scores' size for each attention; a
    gradient for each of a product's two sides, and flash attention makes its scores again.
    """
    (hidden, head, ffn, layers, heads), changes, _ = SIZES[name]
    config = t5(SIZES[name][0], **changes)
    inner, tokens = heads * head, BATCH * LENGTH
    attention_weights = 4 * hidden * inner
    mlp_weights = (3 if config.gated else 2) * hidden * ffn
    encoder, decoder = (n * attention_weights + mlp_weights for n in (1, 2))
    linear = 2 * tokens * (layers * (encoder + decoder) + hidden * config.vocab)
    scores = layers * 3 * 2 * BATCH * LENGTH**2 * inner
    forward = linear + 2 * scores
    unfused = build_model(config, BATCH, LENGTH, attention="unfused")
    assert passes(unfused) == (forward, 2 * forward)
    assert passes(build_model(config, BATCH, LENGTH)) == (forward, 2 * linear + 5 * scores)


def crossing(layer: Layer) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    entering = (layer.input, *layer.more_inputs)
    leaving = (layer.output, *layer.more_outputs)
    return tuple([layer.tensors[n].shape for n in names] for names in (entering, leaving))  # type: ignore[return-value]


@pytest.mark.parametrize("encoder", [1, 2, 3])
@pytest.mark.parametrize("decoder", [1, 2, 4])
@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_what_leaves_a_layer_enters_the_next(encoder: int, decoder: int, attention: str) -> None:
    config = t5((64, 16, 128, encoder, 4), num_decoder_layers=decoder)
    model = build_model(config, 2, 16, attention=attention)
    chain = [layer for layer, n in model.layers for _ in range(n)]
    assert len(chain) == encoder + decoder + 3 == config.layers + 3
    for before, after in pairwise(chain[:-1]):
        assert crossing(before)[1] == crossing(after)[0]
        assert before.boundary_bytes == sum(
            after.tensors[n].bytes for n in (after.input, *after.more_inputs)
        )


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_gradients_run_back_along_the_chain(
    width: int, sequence_parallel: bool, attention: str
) -> None:
    """Every block adds its own to the gradient that came back, of positions and of the encoder."""
    config = t5((64, 16, 128, 3, 4))
    model = prepare(config, 2, 16, width, sequence_parallel, attention, fusion="none")
    for layer, _ in model.layers[1:-2]:
        written = {name for op in layer.backward for name in op.writes}
        assert {f"d{name}" for name in (layer.input, *layer.more_inputs)} <= written
        read = {name for op in layer.backward for name in op.reads}
        arriving = {
            name for name in read - written if layer.tensors[name].role == "activation_gradient"
        }
        assert arriving == {
            f"d{layer.output}",
            *(f"d{name}.0" for name in layer.more_outputs),
        }


def test_positions_are_one_table_for_each_stack() -> None:
    config = t5((512, 64, 2048, 6, 8), relative_attention_num_buckets=48)
    for attention, crossed in (("flash", (48, 8)), ("unfused", (8, LENGTH, LENGTH))):
        model = build_model(config, 1, LENGTH, attention=attention)
        tables = {
            name: tensor.shape
            for layer, _ in model.layers
            for name, tensor in layer.tensors.items()
            if name.endswith("relative.weight") and tensor.role == "weight"
        }
        assert tables == {
            "encoder_first.relative.weight": (48, 8),
            "decoder_first.relative.weight": (48, 8),
        }
        assert layer_of(model, "decoder_block").tensors["relative"].shape == crossed
        local = layer_of(shard(model, 4), "encoder_first")
        assert local.tensors["encoder_first.relative.weight"].shape == (48, 2)


def test_the_word_table_is_read_in_three_places_and_counted_once() -> None:
    for name, tied in (("t5-small", True), ("t5-v1.1-base", False)):
        model = build_model(published(name), 1, LENGTH)
        holders = [layer.name for layer, _ in model.layers if "word.weight" in layer.tensors]
        assert holders == ["embedding", "decoder_first", *(["head"] if tied else [])]
        scaled = any(op.name == "head_scale" for op in layer_of(model, "head").forward)
        assert scaled == tied


def test_only_the_decoder_attends_causally_and_only_to_itself() -> None:
    model = build_model(published("t5-small"), 1, LENGTH)
    fractions = {
        f"{layer.name} {op.name}": op.matmuls[0].fraction
        for layer, _ in model.layers
        for op in layer.forward
        if op.kind == "attention" and layer.name.endswith("_block")
    }
    assert fractions == {
        "encoder_block attention": 1.0,
        "decoder_block attention": (LENGTH + 1) / (2 * LENGTH),
        "decoder_block cross.attention": 1.0,
    }


def test_dropout_lies_where_t5_has_it() -> None:
    model = build_model(published("t5-small"), 1, LENGTH)
    names = {
        layer.name: [op.name for op in layer.forward if op.kind == "dropout"]
        for layer, _ in model.layers
    }
    block = ["proj_dropout", "act_dropout", "fc2_dropout"]
    assert names["embedding"] == ["embedding_dropout"]
    assert names["encoder_block"] == block
    assert names["encoder_last"] == [*block, "final_dropout"]
    assert names["decoder_first"] == [
        "embedding_dropout", "proj_dropout", "cross.proj_dropout", "act_dropout", "fc2_dropout",
    ]  # fmt: skip
    assert names["head"] == ["final_dropout"]


def test_the_encoders_output_is_held_where_it_begins_and_ends_and_not_in_every_block() -> None:
    model = build_model(published("t5-small"), 1, LENGTH)
    holders = [layer.name for layer, _ in model.layers if "encoded" in layer.saved]
    assert holders == ["decoder_first", "decoder_last"]


@pytest.mark.parametrize("name", ["encoder_last", "decoder_first", "decoder_block", "decoder_last"])
@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_what_enters_beside_the_stream_cannot_be_dropped(name: str, attention: str) -> None:
    config = t5((64, 16, 128, 3, 4), dropout_rate=0.0)
    layer = layer_of(fuse(build_model(config, 1, 16, attention=attention)), name)
    for choice in keep_choices(layer):
        assert {n for n in layer.more_inputs if n in layer.saved} <= set(choice.keep)


shapes = st.tuples(
    st.sampled_from([64, 128]), st.sampled_from([8, 16]), st.sampled_from([128, 256]),
    st.integers(1, 4), st.sampled_from([4, 8]),
)  # fmt: skip


@given(
    sizes=shapes,
    decoder=st.integers(1, 4),
    gated=st.booleans(),
    dropout=st.sampled_from([0.0, 0.1]),
    width=st.sampled_from([2, 4]),
    sequence_parallel=st.booleans(),
    attention=st.sampled_from(["flash", "unfused"]),
)
@settings(max_examples=40, deadline=None)
def test_shards_sum_to_the_whole(
    sizes: tuple[int, int, int, int, int], decoder: int, gated: bool, dropout: float,
    width: int, sequence_parallel: bool, attention: str,
) -> None:  # fmt: skip
    config = t5(sizes, num_decoder_layers=decoder, dropout_rate=dropout, **(V1_1 if gated else {}))
    assert width in widths(config, (width,))
    whole = build_model(config, 2, 32, attention=attention)
    local = shard(whole, width, sequence_parallel)
    for (a, _), (b, _) in zip(whole.layers, local.layers, strict=True):
        assert b.flops_forward * width == a.flops_forward
        assert b.flops_backward * width == a.flops_backward
        for name, tensor in a.tensors.items():
            parts = width if tensor.split == "tensor" else 1
            if tensor.role == "weight":
                assert b.tensors[name].elements * parts == tensor.elements
        if sequence_parallel and b.name != "loss":
            assert vector_elements(b) * width == vector_elements(a)
    assert fuse(local).parameters == local.parameters


def test_the_decoder_reduces_three_times_and_gathers_the_encoders_output() -> None:
    whole = build_model(published("t5-small"), 1, LENGTH)
    block = layer_of(shard(whole, 2), "decoder_block")
    assert [op.kind for op in block.forward if op.collective] == ["all_reduce"] * 3
    block = layer_of(shard(whole, 2, True), "decoder_block")
    gathered = [op.reads[0] for op in block.forward if op.kind == CollectiveKind.ALL_GATHER]
    assert gathered == ["norm1", "cross.norm", "encoded", "norm2"]


def test_estimates_and_plans_divide_both_stacks() -> None:
    model = str(FOLDER / "t5-small.json")
    run = {"model": model, "device": "h100", "devices": 4, "batch": 32}
    one = atoll.estimate(**run, microbatch=2).to_dict()
    four = atoll.estimate(**run, pp=4, microbatch=2, recompute="full").to_dict()
    assert one["step_time_s"] > 0 and four["step_time_s"] > 0
    assert atoll.plan(**run).best.step.time_s <= one["step_time_s"]
    with pytest.raises(AtollError, match="context parallelism of an encoder and its decoder"):
        atoll.estimate(**run, cp=2)


def test_a_wafer_maps_no_encoder() -> None:
    with pytest.raises(AtollError, match="an encoder before them"):
        make_block(str(FOLDER / "t5-small.json"), 1)
