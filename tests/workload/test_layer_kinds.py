"""Blocks of several kinds, masks and scans: what each is made of, counted independently."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from atoll.base.errors import AtollError
from atoll.placement.recompute import keep_choices
from atoll.workload import Layer, Model, Operator, build_model, config_from_hf, prepare, shard
from atoll.workload.families import FAMILIES, Family
from atoll.workload.families.config_fields import Fields
from atoll.workload.graph.products import attention_fraction

from .small_families import SMALL, given, small
from .strategies import layer_of

SEVERAL = ["gemma3_text", "gpt_oss", "jamba", "lfm2", "llama4_text", "qwen3_next"]


def sentence(fields: dict[str, object]) -> str:
    with pytest.raises(AtollError) as caught:
        config_from_hf(fields, "here")
    return str(caught.value)


def operators(model: Model, kind: str) -> list[Operator]:
    return [op for layer, n in model.layers for op in layer.forward if op.kind == kind]


# --- masks and scans ------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 7, 64, 100])
@pytest.mark.parametrize("window", [0, 1, 8, 33, 200])
@pytest.mark.parametrize("form", ["causal", "chunked", "both ways"])
def test_fractions_are_those_of_the_mask(length: int, window: int, form: str) -> None:
    row, col = np.indices((length, length))
    if form == "both ways":
        seen = np.abs(row - col) <= (window // 2 if window else length)
    else:
        seen = col <= row
        if window and form == "chunked":
            seen &= row // window == col // window
        elif window:
            seen &= row - col < window
    counted = attention_fraction(length, form != "both ways", window, chunked=form == "chunked")
    assert counted == pytest.approx(seen.mean())


def test_a_scan_over_chunks_is_four_products() -> None:
    """Mamba-2, token by token of one head: scores and values of its chunk, its state twice."""
    config = small("mamba2")
    assert config.scan is not None
    q, n, p, heads = config.scan.chunk, config.scan.state, config.scan.head_dim, config.scan.heads
    (scan,) = operators(build_model(config, 3, 4 * q), "scan")
    tokens = 3 * 4 * q
    assert scan.flops == 2 * tokens * (q * n * config.scan.groups + heads * (q * p + 2 * n * p))
    assert {m.fraction for m in scan.matmuls} == {1.0, (q + 1) / (2 * q)}


def test_a_delta_rule_solves_within_its_chunk_first() -> None:
    config = small("qwen3_next")
    assert config.scan is not None
    q, k, v, heads = 64, config.scan.state, config.scan.head_dim, config.scan.heads
    scan = operators(build_model(config, 1, 256), "scan")[0]
    inside = 2 * q * k + q * v + q * k + q * v  # keys and queries with keys; values, keys, values
    across = 3 * k * v
    assert scan.flops == 2 * 256 * heads * (inside + across)


def test_scans_keep_what_they_read_and_nothing_of_their_chunks() -> None:
    for name in ("mamba2", "qwen3_next", "minimax"):
        for layer, _ in build_model(small(name), 1, 128).layers:
            for op in (op for op in layer.forward if op.kind == "scan"):
                back = next(o for o in layer.backward if o.name == f"{op.name}.bwd")
                assert set(back.reads) - {f"d{w}" for w in op.writes} == set(op.reads)


def test_state_spaces_are_cut_by_heads_and_copy_what_they_share() -> None:
    whole = layer_of(build_model(small("mamba2"), 1, 128), "block")
    local = shard(whole, 4)
    assert local.tensors["values"].shape[-1] * 4 == whole.tensors["values"].shape[-1]
    assert local.tensors["b"].shape == whole.tensors["b"].shape  # one group for all heads
    assert local.tensors["values.taps"].shape == (32, 4)
    assert [op.kind for op in local.forward].count("all_reduce") == 1


def test_sinks_are_learned_and_windows_alternate_with_full_attention() -> None:
    config = small("gpt_oss", num_hidden_layers=12, **longer("gpt_oss"))
    model = build_model(config, 1, 128)
    local, wide = operators(model, "attention")
    assert local.matmuls[0].fraction < wide.matmuls[0].fraction == 129 / 256
    (layer,) = (layer for layer, n in model.layers if n == 6)
    sinks = [n for n in layer.tensors if n.endswith("sinks")]
    assert len(sinks) == 4  # of two blocks, with their gradients
    assert layer.tensors[local.reads[3]].shape == (4,)


@pytest.mark.parametrize("window", [100, 512, 700])
@pytest.mark.parametrize("name", ["gemma3_text", "gpt_oss", "llama4_text"])
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_windows_are_of_the_whole_sequence_that_several_devices_share(
    name: str, window: int, devices: int
) -> None:
    """A device meets its keys in as many turns as a ring has devices: together they do the work of
    the whole sequence's mask, also where a window is longer than their part of it.
    """
    config, length = small(name), 2048
    config = replace(config, windows=tuple(x and window for x in config.windows))
    assert 0 < sum(map(bool, config.windows)) < config.layers
    whole = build_model(config, 1, length, merge_periods=False)
    part = build_model(replace(config, context=devices), 1, length // devices, merge_periods=False)
    assert [layer.name for layer, _ in part.layers] == [layer.name for layer, _ in whole.layers]
    for (layer, _), (own, _) in zip(whole.layers, part.layers, strict=True):
        work, share = (
            sum(
                p.flops * p.fraction
                for op in x.forward
                if op.kind == "attention"
                for p in op.matmuls
            )
            for x in (layer, own)
        )
        assert share * devices**2 == pytest.approx(work, rel=devices / length)


def test_norms_over_all_heads_are_cut_with_them() -> None:
    layer = layer_of(build_model(small("olmo2"), 1, 128), "block")
    assert layer.tensors["q_norm.weight"].shape == (64,)
    assert shard(layer, 2).tensors["q_norm.weight"].shape == (32,)
    plain = next(x for x, n in build_model(small("llama4_text"), 1, 16).layers if "block" in x.name)
    assert not any("_norm.weight" in n for n in plain.tensors if "q" in n.split(".")[-2])


# --- patterns -------------------------------------------------------------------------------------


def test_layer_types_and_the_older_fields_say_the_same() -> None:
    full, local = "full_attention", "sliding_attention"
    words = [local, local, full] * 2
    newer = small("gemma3_text", layer_types=words)
    assert newer.windows == small("gemma3_text").windows == (32, 32, 0) * 2
    older = small("granitemoehybrid")
    words = ["linear_attention", full, "linear_attention", "linear_attention"]
    assert older.mixers == small("granitemoehybrid", layer_types=words).mixers
    words = ["linear_attention", "moe", full, "linear_attention", "mlp", "linear_attention", "moe"]
    fields = given("nemotron_h", layers_block_type=words)
    del fields["hybrid_override_pattern"], fields["num_hidden_layers"]
    assert config_from_hf(fields, "nemotron_h") == small("nemotron_h")


def test_experts_under_the_names_of_transformers_4_and_5() -> None:
    fields = {**given("olmoe"), "model_type": "qwen3_moe", "moe_intermediate_size": 32}
    del fields["num_experts"]
    four, five = ({**fields, name: 8} for name in ("num_experts", "num_local_experts"))
    assert config_from_hf(four, "here") == config_from_hf(five, "here")


def test_llama_4_has_experts_in_every_second_block_and_positions_in_three_of_four() -> None:
    config = small("llama4_text")
    assert (config.dense_layers, config.dense_ffn, config.shared_ffn) == ((0, 2), 128, 96)
    assert (config.unrotated, config.windows, config.chunked) == ((3,), (32, 32, 32, 0), True)


def test_nemotron_h_has_one_branch_a_block() -> None:
    model = build_model(small("nemotron_h"), 1, 128)
    blocks = [layer for layer, n in model.layers[1:-2] for _ in range(n)]
    assert len(blocks) == 7
    for layer, letter in zip(blocks, "ME*M-ME", strict=True):
        kinds = {op.kind for op in layer.forward}
        assert ("scan" in kinds) == (letter == "M")
        assert ("attention" in kinds) == (letter == "*")
        assert ("dispatch" in kinds) == (letter == "E")
        assert sum(op.kind == "add" for op in layer.forward) - ("dispatch" in kinds) == 1


@pytest.mark.parametrize("name", SEVERAL)
def test_blocks_that_stand_alone_are_the_same_model(name: str) -> None:
    """And equal ones are one layer: built, cut and priced once."""
    config = replace(small(name, num_hidden_layers=12, **longer(name)), name="long")
    for tensor in (1, 2):
        whole, alone = (
            prepare(config, 1, 128, tensor, merge_periods=periods) for periods in (True, False)
        )
        assert sums(whole) == sums(alone)
        assert sum(n for _, n in alone.layers[1:-2]) == 12 > sum(n for _, n in whole.layers[1:-2])
        kinds = {layer.name for layer, _ in alone.layers[1:-2]}
        assert len({id(layer) for layer, _ in alone.layers[1:-2]}) == len(kinds) <= 4


def longer(name: str) -> dict[str, object]:
    types = SMALL[name].get("layer_types")
    return {"layer_types": types * 3} if isinstance(types, list) else {}


def sums(model: Model) -> tuple[int, ...]:
    layers = model.layers
    return (
        model.parameters,
        model.active_parameters,
        sum(layer.flops_forward * n for layer, n in layers),
        sum(layer.flops_backward * n for layer, n in layers),
        sum(layer.saved_bytes * n for layer, n in layers),
    )


def test_a_long_period_recomputes_in_all_of_its_blocks_alike() -> None:
    config = replace(small("jamba", num_hidden_layers=12), name="long")
    model = prepare(config, 1, 128)
    layer: Layer = next(layer for layer, n in model.layers if n == 3)
    choices = keep_choices(layer)
    assert choices[0].kept_bytes < 0.2 * layer.saved_bytes
    assert choices[-1].kept_bytes == layer.saved_bytes and not choices[-1].rerun
    for choice in choices:
        kept = {name for name in choice.keep if name.endswith(".fc1")}
        assert len(kept) in (0, len([n for n in layer.saved if n.endswith(".fc1")]))


# --- files ----------------------------------------------------------------------------------------


def test_of_a_model_with_images_the_language_part_is_read() -> None:
    inner = {**given("gemma3_text"), "sliding_window": 32}
    del inner["tie_word_embeddings"]
    whole = {"model_type": "gemma3", "text_config": inner, "vision_config": {"hidden_size": 9},
             "tie_word_embeddings": True}  # fmt: skip
    config = config_from_hf(whole, "here")
    assert (config.part, config.tied_embeddings) == ("language part", True)
    assert config.not_modelled == (
        "only the language part is planned; vision_config is left out, with its weights, memory "
        "and time",
    )
    bare = replace(config, part="", name="", not_modelled=())
    assert bare == replace(small("gemma3_text"), name="")
    del inner["vocab_size"]  # Gemma's own files leave out even sizes
    assert config_from_hf(whole, "here").vocab == 262_208


def test_how_a_checkpoint_is_quantised_changes_no_operator_and_is_told() -> None:
    packed = given("olmo2", quantization_config={"quant_method": "fp8", "fmt": "e4m3"})
    config = config_from_hf(packed, "olmo2")
    assert replace(config, not_modelled=()) == small("olmo2")
    (words,) = config.not_modelled
    assert "(quantization_config: fp8)" in words


def test_a_misspelt_field_is_named_with_its_near_miss() -> None:
    fields = given("granite")
    fields["num_hiden_layers"] = fields.pop("num_hidden_layers")
    assert "field 'num_hidden_layers' is missing; is 'num_hiden_layers' meant" in sentence(fields)
    fields = given("granite", num_key_value_head=2)
    del fields["num_key_value_heads"]
    assert "num_key_value_head is no field of this family; did you mean num_key_value_heads?" in (
        sentence(fields)
    )
    assert "did you mean granite" in sentence(given("granite", model_type="granit"))


def test_another_package_may_add_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FAMILIES, "_passed", {})
    ours = Family(types=("ours",), about="Llama with tied embeddings", fixed={"qk_norm": True})
    assert FAMILIES.accept(ours) == "ours"
    assert config_from_hf(given("olmo2", model_type="ours"), "here").qk_norm
    with pytest.raises(AtollError, match="'llama' is known already"):
        FAMILIES.accept(Family(types=("llama",), about=""))


def test_fields_know_under_which_name_a_file_has_them() -> None:
    fields = Fields({"b": None, "c": 3}, "here").spelled({"a": ("b", "c")}, {"d": 4})
    assert (fields.size("a"), fields.key("a"), fields.size("d")) == (3, "c", 4)
