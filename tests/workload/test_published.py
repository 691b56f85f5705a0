"""Real configuration files: parameters as published, work as the formulas say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atoll.base.errors import AtollError
from atoll.workload import (
    ModelConfig,
    build_model,
    config_from_hf,
    load_config,
    shard,
    widths,
    zoo_names,
)
from atoll.workload.builders.block_runs import block_runs
from atoll.workload.families.builtin import GROUPS

from .published import FOLDER, PARAMETERS, published

NAMES = sorted(PARAMETERS)
# An encoder and its decoder: test_encoder_decoder.py has their formulas.
ONE_STACK = [name for name in NAMES if not published(name).encoder_layers]
BATCH, LENGTH = 15, 128  # every number of experts here divides the choices of so many tokens


def test_every_file_has_its_count_and_every_family_a_file() -> None:
    assert {file.stem for file in FOLDER.glob("*.json")} == set(PARAMETERS)
    families = {published(name).family for name in NAMES}
    kin = {"megatron-bert", "xlm-roberta", "kimi_k2"}  # BERT's, RoBERTa's and DeepSeek's
    assert {name for family in GROUPS["bases"] for name in family.types} - families == kin


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_the_published_ones(name: str) -> None:
    assert build_model(published(name), 1, LENGTH).parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", [n for n in zoo_names() if load_config(n).published_parameters])
def test_zoo_parameters_are_the_published_ones(name: str) -> None:
    config = load_config(name)
    tolerance = 0.005 if config.approximate else 0
    count = build_model(config, 1, LENGTH).parameters
    assert count == pytest.approx(config.published_parameters, rel=tolerance, abs=0)


@pytest.mark.parametrize("name", NAMES)
def test_the_count_does_not_depend_on_the_sequence(name: str) -> None:
    config = published(name)
    length = min(config.max_sequence, 6144)  # beyond the windows of Gemma 2 and Mistral
    assert build_model(config, 1, length).parameters == PARAMETERS[name]


def attention_weights(c: ModelConfig) -> int:
    """Elements of the projections: each is one multiply-add a token."""
    if not c.latent_kv:
        return c.hidden * c.head_dim * (c.heads + 2 * c.kv_heads) + c.heads * c.head_dim * c.hidden
    own = c.head_dim - c.rotary_dim
    queries = c.hidden * c.heads * c.head_dim
    if c.latent_q:
        queries = c.hidden * c.latent_q + c.latent_q * c.heads * c.head_dim
    down = c.hidden * (c.latent_kv + c.rotary_dim)
    up = c.latent_kv * c.heads * (own + c.value_dim)
    return queries + down + up + c.heads * c.value_dim * c.hidden


def feed_forward_weights(c: ModelConfig) -> int:
    """Elements that one token meets: all of a dense layer, those of its experts in a mixture."""
    linears = 3 if c.gated else 2
    if not c.experts:
        return linears * c.hidden * c.ffn
    routed = c.hidden * c.experts + c.experts_per_token * linears * c.hidden * c.ffn
    shared = linears * c.hidden * c.shared_ffn + (c.hidden if c.shared_gate else 0)
    return routed + shared


@pytest.mark.parametrize("name", ONE_STACK)
@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_forward_flops_are_two_a_weight_and_token_plus_attention(name: str, attention: str) -> None:
    c = published(name)
    tokens, scores = BATCH * LENGTH, 2 * BATCH * LENGTH**2 * c.heads
    expected = 0
    for run in block_runs(c, LENGTH):
        for _, block in run.blocks:
            weights = attention_weights(block) + feed_forward_weights(block)
            work = 2 * tokens * weights + scores * (c.head_dim + c.value_width)
            expected += run.repeat * work
    if c.patch_inputs:  # a linear over each patch, and one over the class token
        expected += 2 * BATCH * (LENGTH - 1) * c.patch_inputs * c.hidden
        expected += 2 * BATCH * c.hidden * c.vocab
    else:
        expected += 2 * tokens * c.hidden * (c.vocab + (c.hidden if c.mlm_head else 0))
    model = build_model(c, BATCH, LENGTH, attention=attention)
    assert sum(layer.flops_forward * n for layer, n in model.layers) == expected


@pytest.mark.parametrize("name", NAMES)
def test_unfused_training_is_three_times_forward(name: str) -> None:
    """Two gradients a product, in linears and in attention; images need none of their own."""
    model = build_model(published(name), 1, LENGTH, attention="unfused")
    for layer, _ in model.layers:
        data = sum(op.flops for op in layer.forward if op.kind == "data_linear")
        assert layer.flops_backward == 2 * layer.flops_forward - data


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_shards_sum_to_the_whole(name: str, sequence_parallel: bool) -> None:
    """Weights and work; what every device holds or does is counted on each."""
    config = published(name)
    whole = build_model(config, 1, LENGTH)
    for t in widths(config, (2, 4)):
        local = shard(whole, t, sequence_parallel)
        for (a, _), (b, _) in zip(whole.layers, local.layers, strict=True):
            cut = [n for n, w in a.tensors.items() if n in b.tensors and w.split == "tensor"]
            scarce = config.kv_heads % t or config.vocab % t
            for tensor in cut:
                parts = b.tensors[tensor].elements * t
                assert parts >= a.tensors[tensor].elements
                assert scarce or parts == a.tensors[tensor].elements
            assert a.parameters / t <= b.parameters <= a.parameters
            padded = config.patch_inputs and b.name == "embedding"  # an odd number of patches
            if not scarce and not padded:
                same = sum(m.flops for op in b.forward for m in op.matmuls if not m.split)
                assert (b.flops_forward - same) * t + same == a.flops_forward


@pytest.mark.parametrize("name", NAMES)
def test_blocks_keep_their_input_and_something_more(name: str) -> None:
    config = published(name)
    model = build_model(config, 1, LENGTH)
    for layer, _ in model.layers[1:-2]:
        assert layer.input in layer.saved
        assert layer.saved_bytes > layer.tensors[layer.input].bytes
        shapes = {layer.tensors[n].shape for n in (layer.input, layer.output, f"d{layer.input}")}
        assert shapes == {(1, LENGTH, config.hidden)}


def test_a_folder_of_any_of_them_is_read_as_well(tmp_path: Path) -> None:
    text = (FOLDER / "deepseek-v3.json").read_text(encoding="utf-8")
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    config = load_config(tmp_path)
    assert config.name == tmp_path.name and config.family == json.loads(text)["model_type"]


ODD: tuple[object, ...] = (None, True, 0, 7, 1.5, "x", [[1]])


@pytest.mark.parametrize("name", NAMES)
def test_an_odd_value_anywhere_is_read_or_refused_in_a_sentence(name: str) -> None:
    given = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    for field in given:
        for value in ODD:
            try:
                config = config_from_hf({**given, field: value}, "here")
                model = build_model(config, 1, min(config.max_sequence, 8))
                for t in widths(config, (2,)):
                    shard(model, t)
            except AtollError as error:
                assert "\n" not in str(error)
