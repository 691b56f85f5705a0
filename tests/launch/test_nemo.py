"""Whole configurations: NeMo 1's YAML with its references, and Megatron-LM's arguments as YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from atoll.base.errors import AtollError
from atoll.tools.arguments import Launch, flatten
from atoll.tools.read import read_launch
from atoll.workload import load_config

NEMO = """
run: {name: mine, results_dir: "${base_results_dir}/${.name}", time_limit: 1-00:00:00}
trainer: {num_nodes: 4, devices: 8, precision: bf16, max_steps: 1000, logger: false}
exp_manager: {name: mine, explicit_log_dir: "${training.run.results_dir}/log"}
model:
  micro_batch_size: 1
  global_batch_size: ${multiply:2, ${..trainer.num_nodes}}
  tensor_model_parallel_size: ${oc.env:TP,4}
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: null
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: ${multiply:2, ${.hidden_size}}
  num_attention_heads: 32
  num_query_groups: 8
  normalization: rmsnorm
  activation: fast-swiglu
  bias: false
  share_embeddings_and_output_weights: false
  position_embedding_type: rope
  hidden_dropout: 0.0
  attention_dropout: 0.0
  override_vocab_size: 32000
  sequence_parallel: true
  activations_checkpoint_granularity: selective
  gradient_accumulation_fusion: true
  optim: {name: mcore_distributed_optim, lr: 1e-4, overlap_grad_sync: true}
  data: {data_prefix: [1.0, "${data_dir}/x"], seq_length: 4096}
"""


def read(folder: Path, text: str, **environment: str) -> Launch:
    path = folder / "train.yaml"
    path.write_text(text)
    return read_launch(path, None, environment)


def test_a_configuration_of_nemo_1_is_a_model_and_its_layout(tmp_path: Path) -> None:
    launch = read(tmp_path, NEMO)
    model, fields = launch.model, launch.fields
    assert (model.ffn, model.kv_heads, model.vocab) == (8192, 8, 32000)
    assert model.gated and not model.mlp_bias and not model.tied_embeddings
    assert model.norm == "rmsnorm"
    assert (fields["tp"], fields["pp"], fields["zero"], fields["devices"]) == (4, 2, 1, 32)
    assert (fields["batch"], fields["sequence"], fields["recompute"]) == (8, 4096, "selective")
    assert "grad_reduce" in fields["overlap"].split() and launch.steps == 1000
    assert not launch.arguments.not_understood


def test_every_value_of_the_file_is_accounted_for(tmp_path: Path) -> None:
    said = read(tmp_path, NEMO).arguments
    assert {*said.used, *said.without_effect} == {name for name, _ in flatten(yaml.safe_load(NEMO))}
    assert said.without_effect["model.virtual_pipeline_model_parallel_size"] == "None"


def test_the_environment_is_what_the_user_says(tmp_path: Path) -> None:
    assert read(tmp_path, NEMO, TP="2").fields["tp"] == 2
    with pytest.raises(AtollError, match="depends on a value"):
        read(tmp_path, NEMO.replace("TP,4", "TP"))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("  encoder: {num_layers: 2}", "an encoder with a decoder"),
        ("inference: {greedy: true}", "does not train it"),
        ("a: ${b}\nb: ${a}", "without end"),
        ("a: ${b}${b}${b}\nb: ${c}${c}${c}\nc: ${a}", "without end"),
    ],
)
def test_what_is_no_training_of_a_decoder_is_refused(
    more: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(AtollError, match=sentence):
        read(tmp_path, f"{NEMO}{more}\n")


def test_another_optimizer_than_adam_is_not_read_as_adam(tmp_path: Path) -> None:
    assert read(tmp_path, NEMO).arguments.not_modelled == {}
    muon = read(tmp_path, NEMO.replace("mcore_distributed_optim", "dist_muon"))
    assert list(muon.arguments.not_modelled) == ["model.optim.name"]


def test_megatrons_own_tests_say_arguments_as_yaml(tmp_path: Path) -> None:
    args = {"num-layers": 12, "hidden-size": 512, "num-attention-heads": 8, "seq-length": 1024,
            "micro-batch-size": 4, "global-batch-size": 32, "vocab-size": 1000, "bf16": "true",
            "tensor-model-parallel-size": 2, "sequence-parallel": "false", "lr": 1e-4}  # fmt: skip
    text = "ENV_VARS: {NCCL_ALGO: Ring}\nMODEL_ARGS:\n"
    launch = read(tmp_path, text + "".join(f"  --{n}: {v}\n" for n, v in args.items()))
    assert (launch.software, launch.model.layers, launch.fields["tp"]) == ("megatron-lm", 12, 2)
    assert launch.fields["sp"] is False and "sequence_parallel" in launch.arguments.without_effect


def test_a_recipe_leaves_its_model_to_the_user(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("model: {tensor_model_parallel_size: 2, hidden_dropout: 0.1}\n")
    with pytest.raises(AtollError, match="say it with --model"):
        read_launch(path)
    assert read_launch(path, load_config("llama3-8b")).fields["dropout"] == 0.1
