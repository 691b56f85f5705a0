"""Blocks as chains of operators: nothing of the workload's layer is lost or counted twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atoll.base.errors import AtollError
from atoll.questions import WaferQuestion
from atoll.wafer.encoding.block import make_block
from atoll.wafer.run import search_wafer
from atoll.workload import build_model, load_config, zoo_names
from atoll.workload.graph.layer import Layer

from .wafer_cases import small_file, small_model

REFUSED = {
    "deepseek-v2": "latent", "deepseek-v2-lite": "latent", "deepseek-v3": "latent",
    "vit-b16": "patches", "vit-l16": "patches",
}  # fmt: skip


def read(name: str) -> bool:
    config = load_config(name)
    return not (config.latent_kv or config.patch_inputs or config.encoder_layers)


UNLIKE = {"gemma3-1b", "gemma3-4b", "gemma3-27b"}
"""Their layers are no multiple of the pattern of windows, so that no block repeats."""
NAMES = [name for name in zoo_names() if read(name) and name not in UNLIKE]


def repeated(name: str) -> Layer:
    layers = build_model(load_config(name), 1).layers
    return max(layers, key=lambda entry: (entry[1], len(entry[0].forward)))[0]


@pytest.mark.parametrize("name", NAMES)
def test_products_vector_work_and_saved_bytes_are_those_of_the_layer(name):
    block, layer = make_block(name, 1), repeated(name)
    products = sum(
        item.matmul.flops
        for unit in block.units
        for items in (unit.forward, unit.data_gradient, unit.weight_gradient)
        for item in items
    )
    assert products == layer.flops_forward + layer.flops_backward

    passes = [p for u in block.units for p in (*u.forward_passes, *u.backward_passes)]
    passes += [p for c in block.chains for p in (*c.entry_passes, *c.stream_passes)]
    # Vector work inside a product (a bias) rides along with it; attention's has a unit.
    vectors = sum(
        work.elements
        for op in (*layer.forward, *layer.backward)
        if not op.matmuls or op.name.split(".")[-1] == "attention" or "attention.bwd" in op.name
        for work in op.vectors
    )
    assert sum(p.work.elements for p in passes) == vectors

    edges = [edge for chain in block.chains for edge in chain.edges if edge.kept_name]
    kept = block.stream_bytes + block.always_bytes + sum(sum(e.totals) for e in edges)
    assert kept == layer.saved_bytes
    names = [edge.kept_name for edge in edges]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_of_the_layer_but_for_norms(name):
    block, layer = make_block(name, 1), repeated(name)
    norms = sum(
        tensor.elements
        for key, tensor in layer.tensors.items()
        if tensor.role == "weight" and ("norm" in key or key.endswith(".bias"))
    )
    assert 0 <= layer.parameters - sum(unit.parameters for unit in block.units) <= norms


@pytest.mark.parametrize(("name", "words"), REFUSED.items())
def test_other_blocks_are_refused_in_one_sentence(name, words):
    with pytest.raises(AtollError, match=words):
        make_block(name, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("gptj", {"n_embd": 64, "n_layer": 4, "n_head": 8, "n_inner": 96, "n_positions": 64,
                  "rotary_dim": 8}),
        ("bert", {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8,
                  "intermediate_size": 96, "max_position_embeddings": 64, "type_vocab_size": 2}),
        ("gemma2", {"hidden_size": 64, "num_hidden_layers": 12, "num_attention_heads": 8,
                    "num_key_value_heads": 8, "head_dim": 8, "intermediate_size": 96,
                    "max_position_embeddings": 64, "sliding_window": 32}),
        ("qwen2_moe", {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8,
                       "num_key_value_heads": 8, "intermediate_size": 96, "num_experts": 4,
                       "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                       "shared_expert_intermediate_size": 64, "max_position_embeddings": 64}),
    ],
)  # fmt: skip
def test_parallel_post_norm_double_and_shared_expert_blocks_are_mapped(tmp_path, kind, fields):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": kind, "vocab_size": 128, **fields})
    )
    job = WaferQuestion.of(
        wafer=str(small_file(tmp_path)), model=str(tmp_path), batch=8, sequence=64,
        microbatch=(1, 2),
    )  # fmt: skip
    result = search_wafer(job)
    assert result.best.fits
    assert abs(result.detailed.difference) < 0.25
    assert 0 <= result.certificate.gap < 1
    for name, baseline in result.baselines.items():
        assert baseline is not None, name


def test_an_edited_configuration_is_read_again(tmp_path):
    path = tmp_path / "config.json"
    for layers in (4, 12):
        text = Path(small_model()).read_text()
        path.write_text(text.replace('"num_hidden_layers": 4', f'"num_hidden_layers": {layers}'))
        assert make_block(str(path), 1, 24).layers == layers
