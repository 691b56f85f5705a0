"""What sets the families apart, one test each; every mistake is one sentence."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from atoll.base.errors import AtollError
from atoll.workload import (
    CollectiveKind,
    Layer,
    Operator,
    build_model,
    config_from_hf,
    fuse,
    load_config,
    shard,
    widths,
)

from .published import FOLDER, PARAMETERS, published
from .strategies import layer_of


def raw(name: str, **changes: object) -> dict[str, object]:
    given = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert isinstance(given, dict)
    return {**given, **changes}


def sentence(given: dict[str, object]) -> str:
    with pytest.raises(AtollError) as caught:
        config_from_hf(given, "my/config.json")
    return str(caught.value)


def block(name: str, sequence: int = 128) -> Layer:
    return layer_of(build_model(published(name), 1, sequence), "block")


def op(layer: Layer, name: str) -> Operator:
    return next(o for o in (*layer.forward, *layer.backward) if o.name == name)


def links(layer: Layer) -> list[CollectiveKind]:
    return [o.collective.kind for o in layer.forward if o.collective is not None]


def functions(layer: Layer, name: str) -> list[str]:
    return [v.function for v in op(layer, name).vectors]


def test_roberta_leaves_two_rows_of_its_position_table_unused() -> None:
    config = published("roberta-base")
    assert (config.position_rows, config.max_sequence, config.token_types) == (514, 512, 1)


@pytest.mark.parametrize(("name", "columns"), [("gpt-j-6b", 64), ("pythia-6.9b", 32)])
def test_partial_rotary_turns_a_part_of_each_head(name: str, columns: int) -> None:
    config = published(name)
    rotary = op(block(name), "rotary")
    assert [v.cols for v in rotary.vectors] == [config.heads * columns] * 2
    assert config.head_dim > columns


def test_phi_2_rotates_two_fifths_of_a_head() -> None:
    assert load_config("phi-2").rotary_dim == 32


@pytest.mark.parametrize("name", ["gpt-j-6b", "phi-1.5", "pythia-6.9b"])
def test_parallel_branches_are_reduced_together_before_their_biases(name: str) -> None:
    whole = block(name)
    local = shard(whole, 4)
    assert links(local) == [CollectiveKind.ALL_REDUCE]
    names = [o.name for o in local.forward]
    at = names.index("branches.reduce")
    assert "fc2.bias" in names[at:] and names[-1] == "residual2"
    assert ("proj.bias" in names) == published(name).output_bias
    assert links(shard(whole, 4, True)).count(CollectiveKind.REDUCE_SCATTER) == 1


@pytest.mark.parametrize(
    ("name", "norms"), [("gpt-j-6b", 1), ("pythia-6.9b", 2), ("qwen1.5-moe-a2.7b", 2)]
)
def test_what_two_products_read_is_reduced_once_backward(name: str, norms: int) -> None:
    backward = shard(block(name), 4).backward
    reduced = [o.writes[0] for o in backward if o.kind == "all_reduce"]
    assert len([gradient for gradient in reduced if gradient.startswith("dnorm")]) == norms


def test_gpt_j_and_phi_share_one_norm_and_neox_has_two() -> None:
    norms = {
        name: [o.name for o in block(name).forward if o.kind == "norm"]
        for name in ("gpt-j-6b", "phi-1.5", "pythia-6.9b")
    }
    assert norms["gpt-j-6b"] == norms["phi-1.5"] == ["norm1"]
    assert norms["pythia-6.9b"] == ["norm1", "norm2"]


def test_neox_without_parallel_residual_is_an_ordinary_block() -> None:
    config = config_from_hf(raw("pythia-6.9b", use_parallel_residual=False), "here")
    model = build_model(config, 1, 128)
    assert "middle" in layer_of(model, "block").tensors
    assert model.parameters == PARAMETERS["pythia-6.9b"]


def test_parallel_branches_with_dropout_keep_two_masks() -> None:
    layer = layer_of(build_model(load_config("phi-2"), 1, 128), "block")
    assert {"proj_dropout.mask", "fc2_dropout.mask"} <= set(layer.saved)
    assert links(shard(layer, 2)) == [CollectiveKind.ALL_REDUCE] * 2


def test_bloom_adds_its_slopes_to_the_scores_and_has_no_position_table() -> None:
    assert functions(block("bloom-560m"), "attention") == ["add", "softmax"]
    model = build_model(published("bloom-560m"), 1, 128, attention="unfused")
    assert functions(layer_of(model, "block"), "softmax") == ["add", "mul", "add", "softmax"]
    assert not any("positions" in name for name in layer_of(model, "embedding").tensors)
    assert build_model(published("bloom-560m"), 1, 4096).sequence == 4096  # beyond its training


def test_multi_query_attention_copies_its_head_to_every_device() -> None:
    config = published("starcoder")
    assert widths(config, (1, 2, 8, 16)) == (1, 2, 8, 16)
    local = shard(block("starcoder"), 8)
    assert op(local, "qkv").matmuls[0].n == (48 // 8 + 2) * 128


def test_qwen2_has_biases_on_queries_keys_and_values_only() -> None:
    tensors = block("qwen2.5-0.5b").tensors
    assert {n for n in tensors if n.endswith(".bias")} - {n for n in tensors if n[0] == "d"} == {
        "q.bias",
        "k.bias",
        "v.bias",
    }


def test_qwen_windows_cover_the_last_blocks() -> None:
    given = raw("qwen2.5-0.5b", use_sliding_window=True, sliding_window=64, max_window_layers=20)
    model = build_model(config_from_hf(given, "here"), 1, 128)
    chain = [(layer.name, n) for layer, n in model.layers[1:-2]]
    assert chain == [("global_block", 20), ("local_block", 4)]
    assert model.parameters == PARAMETERS["qwen2.5-0.5b"]


def test_qwen3_norms_each_head_wherever_it_lives() -> None:
    whole = block("qwen3-0.6b")
    norm = op(whole, "q_norm")
    assert (norm.vectors[0].rows, norm.vectors[0].cols) == (128 * 16, 128)
    assert whole.tensors["q_norm.weight"].shape == (128,)
    local = op(shard(whole, 4), "k_norm")
    assert (local.vectors[0].rows, local.vectors[0].cols) == (128 * 8 // 4, 128)


def test_gemma_scales_its_embeddings_and_has_wide_heads() -> None:
    config = published("gemma-2b")
    assert config.tied_embeddings and config.heads * config.head_dim == config.hidden
    assert load_config("gemma-7b").heads * load_config("gemma-7b").head_dim == 4096 != 3072
    embedding = layer_of(build_model(config, 1, 128), "embedding")
    assert [o.kind for o in embedding.forward] == ["lookup", "scale"]
    assert [o.kind for o in embedding.backward] == ["scale", "scatter_add"]


def test_gemma_2_alternates_windows_only_where_they_hide_something() -> None:
    config = published("gemma-2-2b")
    short, long = (build_model(config, 1, s).layers[1:-2] for s in (4096, 8192))
    assert [(layer.name, n) for layer, n in short] == [("block", 26)]
    assert [(layer.name, n) for layer, n in long] == [("block", 13)]
    local, wide = (o for o in long[0][0].forward if o.kind == "attention")
    assert (local.name, wide.name) == ("local0.attention", "global1.attention")
    half = (4096 * 4097 // 2 + 4096 * 4096) / 8192**2
    assert (local.matmuls[0].fraction, wide.matmuls[0].fraction) == (half, 8193 / 16384)


def test_gemma_2_caps_scores_and_logits_and_norms_both_ends_of_a_branch() -> None:
    model = build_model(published("gemma-2-2b"), 1, 128, attention="unfused")
    layer, head = layer_of(model, "block"), layer_of(model, "head")
    assert functions(layer, "score_cap") == functions(head, "logit_cap") == ["mul", "tanh", "mul"]
    assert "scores" in layer.saved and "logits" in head.saved
    assert len([o for o in layer.forward if o.kind == "norm"]) == 4


def test_windows_of_mistral_and_phi_3() -> None:
    """A band: the first w rows see 1, 2, ... w tokens, the others w each."""
    for name, s, w in (("mistral-7b-v0.1", 8192, 4096), ("phi-3-mini-4k", 4096, 2047)):
        fraction = op(block(name, s), "attention").matmuls[0].fraction
        assert fraction == (w * (w + 1) // 2 + (s - w) * w) / s**2


def test_latent_attention_has_wider_keys_than_values() -> None:
    layer = block("deepseek-v3")
    scores, values = op(layer, "attention").matmuls
    assert (scores.batch, scores.n, scores.k) == (128, 128, 192)
    assert (values.batch, values.n, values.k) == (128, 128, 128)
    assert layer.tensors["k"].shape[-1] == 128 * 192
    assert layer.tensors["context"].shape[-1] == 128 * 128
    assert [v.cols for v in op(layer, "rotary").vectors] == [128 * 64, 64]


def test_latents_are_gathered_instead_of_the_wide_stream() -> None:
    """Under sequence parallelism attention gathers its latents and the common part of the keys."""
    local = shard(layer_of(build_model(published("deepseek-v3"), 1, 128), "block"), 4, True)
    gathered = [o.reads[0] for o in local.forward if o.kind == "all_gather"]
    assert gathered[:3] == ["q_a_norm", "kv_a_norm", "k_common.rotated"]
    back = [o.name for o in local.backward if o.kind == "reduce_scatter"]
    assert "k_common.rotated.full.gather.bwd" in back


def test_dense_blocks_come_first_and_share_no_weight_with_the_others() -> None:
    model = build_model(published("deepseek-v3"), 1, 128)
    assert [(layer.name, n) for layer, n in model.layers[1:-2]] == [
        ("dense_block", 3),
        ("block", 58),
    ]
    dense = layer_of(model, "dense_block")
    assert dense.tensors["dense.fc1.weight"].shape == (7168, 2 * 18432)
    assert model.shared_parameters == 0
    assert widths(published("deepseek-v2-lite"), (16,)) == (16,)
    assert widths(replace(published("deepseek-v2-lite"), dense_ffn=10940), (8,)) == ()


def test_shared_experts_are_reduced_with_the_routed_ones() -> None:
    for name in ("deepseek-v2-lite", "qwen1.5-moe-a2.7b"):
        local = shard(block(name), 4)
        assert links(local) == [CollectiveKind.ALL_REDUCE] * 2
        assert op(local, "all_experts").exits is False
    gate = op(shard(block("qwen1.5-moe-a2.7b"), 4, True), "shared_gated")
    assert gate.reads == ("shared2", "shared_gate.full")


def test_sparse_steps_and_listed_layers_mix_blocks_in_order() -> None:
    given = raw("qwen3-235b-a22b", num_hidden_layers=6, decoder_sparse_step=2)
    runs = build_model(config_from_hf(given, "here"), 1, 128).layers[1:-2]
    assert [(layer.name, n) for layer, n in runs] == [("block", 3)]  # dense and sparse, in turn
    assert {"dense0.fc1.weight", "block1.fc1.weight"} <= set(runs[0][0].tensors)
    given = raw("qwen3-235b-a22b", num_hidden_layers=8, mlp_only_layers=[0, 3])
    model = build_model(config_from_hf(given, "here"), 1, 128)
    chain = [(layer.name, n) for layer, n in model.layers[1:-2]]
    assert chain == [("dense_block", 1), ("block", 2), ("dense_block2", 1), ("block2", 4)]
    assert model.shared_parameters == 0


def test_an_image_is_a_class_token_and_its_patches() -> None:
    config = published("vit-large-patch16-384")
    model = build_model(config, 2)
    assert model.sequence == 1 + 24 * 24
    embedding, head = layer_of(model, "embedding"), layer_of(model, "head")
    assert op(embedding, "patches").matmuls[0].m == 2 * 576
    assert op(head, "classifier").matmuls[0].m == 2
    assert not any(o.kind == "linear_dgrad" for o in embedding.backward)
    local = fuse(shard(model, 2, True))
    assert layer_of(local, "block").tensors["x"].shape == (2, 289, 1024)  # 577, one of them padded


@pytest.mark.parametrize("model_type", ["umt5", "bart"])
def test_encoder_decoders_are_refused_with_the_reason(model_type: str) -> None:
    message = sentence({"model_type": model_type})
    assert "an encoder-decoder model, but of these only t5 and mt5 have a builder" in message


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_missing_size_is_named(name: str) -> None:
    given = raw(name)
    del given["vocab_size" if "vocab_size" in given else "hidden_size"]
    assert sentence(given).startswith("my/config.json: field ") and "missing" in sentence(given)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gpt-j-6b", {"rotary_dim": 512}, "rotary_dim is 512, but must be at most the 256 columns"),
        ("gpt-j-6b", {"n_head": 7}, "n_head is 7, but must divide n_embd, 4096"),
        ("pythia-6.9b", {"rotary_pct": 1.5}, "must be a number above 0 and at most 1"),
        ("pythia-6.9b", {"rotary_pct": 0.001}, "must be an even number of columns"),
        ("phi-1.5", {"qk_layernorm": True}, "qk_layernorm is true, but a norm of queries"),
        ("bloom-560m", {"num_attention_heads": 3}, "must divide n_embed, 1024"),
        ("gemma-2-2b", {"layer_types": ["full_attention"]}, "must be a list of 26 times"),
        ("gemma-2-2b", {"attn_logit_softcapping": "a"}, "must be a positive number, or null"),
        ("qwen3-235b-a22b", {"mlp_only_layers": [94]}, "a list of layer numbers from 0 to 93"),
        ("deepseek-v3", {"num_experts_per_tok": 300}, "at most n_routed_experts, 256"),
        ("deepseek-v3", {"scoring_func": "relu"}, "must be one of softmax, sigmoid"),
        ("deepseek-v3", {"first_k_dense_replace": -1}, "must be a positive integer"),
        ("t5-small", {"feed_forward_proj": "gated-x"}, "feed_forward_proj is 'gated-x', but must"),
        ("t5-small", {"is_encoder_decoder": False}, "an encoder alone is not modelled"),
        ("t5-small", {"num_decoder_layers": 0}, "must be a positive integer"),
        ("vit-large-patch16-384", {"patch_size": 100}, "patch_size is 100, but must divide"),
        ("roberta-base", {"max_position_embeddings": 2}, "must exceed the 2 rows"),
    ],
)
def test_inconsistent_sizes(name: str, changes: dict[str, object], message: str) -> None:
    assert message in sentence(raw(name, **changes))
