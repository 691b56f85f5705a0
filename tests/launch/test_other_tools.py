"""nanotron, GPT-NeoX and axolotl: their YAML files, and files in which nothing is understood."""

from __future__ import annotations

from pathlib import Path

import pytest

import atoll
from atoll.base.errors import AtollError
from atoll.printing.training import print_checked
from atoll.questions.verbs import CheckQuestion
from atoll.tools.arguments import Launch
from atoll.tools.read import read_launch
from atoll.workload import load_config

NANOTRON = """
general: {project: p, run: r, seed: 1}
model:
  dtype: bfloat16
  model_config: {is_llama_config: true, hidden_act: silu, hidden_size: 2048,
    intermediate_size: 8192, num_attention_heads: 16, num_key_value_heads: 8,
    num_hidden_layers: 24, vocab_size: 49152,
    max_position_embeddings: 4096, rms_norm_eps: 1.0e-5, tie_word_embeddings: true}
optimizer:
  accumulate_grad_in_fp32: true
  zero_stage: 1
  clip_grad: 1.0
  optimizer_factory: {name: adamW, adam_beta1: 0.9}
parallelism: {dp: 8, pp: 2, tp: 4, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER,
  tp_linear_async_communication: true}
tokens: {micro_batch_size: 2, batch_accumulation_per_replica: 16, sequence_length: 4096,
  train_steps: 500}
"""
NEOX = """{
  "pipe-parallel-size": 4, "model-parallel-size": 2,
  "num-layers": 44, "hidden-size": 6144, "num-attention-heads": 64, "seq-length": 2048,
  "max-position-embeddings": 2048, "norm": "layernorm", "pos-emb": "rotary", "rotary_pct": 0.25,
  "no-weight-tying": true, "gpt_j_residual": true, "make_vocab_size_divisible_by": 256,
  "optimizer": {"type": "Adam", "params": {"lr": 1.0e-4}},
  "zero_optimization": {"stage": 1, "overlap_comm": true},
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 32,
  "checkpoint-activations": true, "hidden_dropout": 0, "attention_dropout": 0,
  "fp16": {"enabled": true}, "train_iters": 1000, "rope_fusion": false,
}
"""
AXOLOTL = """
base_model: some/model
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: true
bf16: auto
fp16:
adapter: lora
lora_r: 32
lora_alpha: 16
lora_target_modules: [q_proj, v_proj]
optimizer: {optimizer}
fsdp: [full_shard, auto_wrap]
learning_rate: 0.0002
num_epochs: 1
"""


def read(tmp_path: Path, text: str, model: str | None = None, vocab: int | None = None) -> Launch:
    path = tmp_path / "run.yml"
    path.write_text(text)
    return read_launch(path, load_config(model) if model else None, {}, vocab)


def test_nanotrons_sections_say_model_and_layout(tmp_path: Path) -> None:
    launch = read(tmp_path, NANOTRON)
    fields, model = launch.fields, launch.model
    assert (launch.software, launch.steps) == ("nanotron", 500)
    assert (model.layers, model.hidden, model.kv_heads, model.vocab) == (24, 2048, 8, 49152)
    assert [fields[n] for n in ("tp", "pp", "zero", "sp", "devices")] == [4, 2, 1, True, 64]
    assert (fields["microbatch"], fields["local_batch"], fields["sequence"]) == (2, 32, 4096)
    assert launch.arguments.not_priced == ()
    checked = atoll.check(tmp_path / "run.yml", device="h100", time_limit=1e-6)
    assert checked.estimate.run.stack.name == "modular-lean" and checked.question.batch == 256


def test_gpt_neox_has_megatrons_model_and_deepspeeds_sections(tmp_path: Path) -> None:
    """A 20B model on pp4 tp2 was read as tp1 pp1."""
    launch = read(tmp_path, NEOX, vocab=50257)
    fields, model = launch.fields, launch.model
    assert launch.software == "gpt-neox" and launch.arguments.not_priced == ()
    assert [fields[n] for n in ("tp", "pp", "zero", "recompute")] == [2, 4, 1, "full"]
    assert (fields["precision"], fields["attention"], fields["local_batch"]) == (
        "fp16", "unfused", 128,
    )  # fmt: skip
    assert (model.layers, model.parallel, model.rotary_dim, model.tied_embeddings) == (
        44, True, 24, False,
    )  # fmt: skip
    assert {"pipe-parallel-size", "zero_optimization.stage"} <= launch.arguments.used.keys()


@pytest.mark.parametrize(
    ("written", "instead", "field", "value"),
    [
        ('{"enabled": true}', '{"enabled": true, "type": "bfloat16"}', "precision", "bf16"),
        ('"gpt_j_residual": true', '"moe_num_experts": 8, "moe_top_k": 1', "experts", 8),
        ('"hidden_dropout": 0', '"hidden_dropout": 0.0', "dropout", 0.0),
    ],
)
def test_gpt_neox_has_words_of_its_own(
    written: str, instead: str, field: str, value: object, tmp_path: Path
) -> None:
    path = tmp_path / "neox.yml"
    path.write_text(NEOX)
    assert read_launch(path, vocab=50257).model.dropout == 0.0, "0 is a value, not a switch"
    path.write_text(NEOX.replace(written, instead))
    launch = read_launch(path, vocab=50257)
    assert launch.fields.get(field, getattr(launch.model, field, None)) == value
    dense = len(launch.model.dense_layers)
    assert dense == (22 if field == "experts" else 0), "every second block by default"


def test_adapters_of_axolotl_are_not_judged_by_what_deepspeed_can_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "axolotl.yml"
    path.write_text(AXOLOTL.replace("{optimizer}", "adamw_torch_fused"))
    checked = atoll.check(path, model="llama3-8b", device="h100", devices=8)
    assert checked.launch.software == "transformers" and checked.plan is not None
    print_checked(checked, CheckQuestion.of(file=path, device="h100"))
    assert "--launch-file" not in capsys.readouterr().out, "axolotl's files are not written"


def test_values_that_are_no_number_are_not_defaults_of_deepspeed(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(
        '{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Lion"},'
        ' "bf16": {"enabled": true}, "zenflow": {"mode": "x"},'
        ' "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 5e7,'
        ' "offload_optimizer": {"device": "cpu", "ratio": 0.3, "pin_memory": true}}}'
    )
    account = read_launch(path, load_config("llama3-8b")).arguments
    assert set(account.not_modelled) == {
        "optimizer.type", "zero_optimization.offload_optimizer.ratio"
    }  # fmt: skip
    assert account.not_understood == {"zenflow.mode": "x"}
    assert "zero_optimization.stage3_prefetch_bucket_size" in account.used


def test_axolotls_names_are_the_trainers(tmp_path: Path) -> None:
    launch = read(tmp_path, AXOLOTL.format(optimizer="adamw_torch"), "llama3-8b")
    fields = launch.fields
    assert (fields["microbatch"], fields["local_batch"], fields["sequence"]) == (2, 8, 4096)
    assert (fields["method"], fields["lora_rank"], fields["lora_targets"]) == (
        "lora", 32, "q_proj+v_proj",
    )  # fmt: skip
    assert (fields["zero"], fields["recompute"], fields["precision"]) == (3, "full", "bf16")
    assert launch.arguments.not_priced == ()
    paged = read(tmp_path, AXOLOTL.format(optimizer="paged_adamw_8bit"), "llama3-8b")
    assert list(paged.arguments.not_modelled) == ["optimizer"]
    four_bits = AXOLOTL.format(optimizer="adamw_bnb_8bit").replace(
        "adapter: lora", "adapter: qlora"
    )
    fields = read(tmp_path, four_bits, "llama3-8b").fields
    assert (fields["flags"], fields["optimizer"]) == ("nf4", "8bit")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (AXOLOTL + "rl: dpo\n", "trains on preferences"),
        (NEOX.replace('"fp16"', '"attention_config": [[["mamba"], 44]], "fp16"'), "mamba"),
        ("parallelism: {a: 1}\n", "none of its arguments is understood"),
        ("model: {name: llama3, flavor: 8B}\nparallelism: {new_parallel_degree: 4}\n",
         "new_parallel_degree 4 is unknown, so its layout is too"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_or_not_understood_is_refused(
    text: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(AtollError, match=sentence):
        read(tmp_path, text, None if "llama3, flavor" in text else "llama3-8b", 50257)


PROGRAM = """
from torchtitan.models.qwen3 import model_registry

def base() -> Trainer.Config:
    spec = model_registry("30B-A3B")
    return Trainer.Config(
        loss={loss}, model_spec=spec, optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(local_batch_size=8, seq_len=2 * 4096, steps=100),
        parallelism=ParallelismConfig(data_parallel_shard_degree=8),
        compile=CompileConfig(enable=True), activation_checkpoint=SelectiveAC.Config(),
    )

def larger() -> Trainer.Config:
    config = base()
    config.training.steps = 200
    return config
"""


def test_torchtitans_programs_are_parsed_with_their_chunked_loss(tmp_path: Path) -> None:
    """Qwen3-30B-A3B on 8 B200: 141.8 GiB and 19,500 tokens/s per device were measured; 748.8 GiB
    were predicted, as selective recomputation was Megatron-LM's and the loss took all tokens."""
    path = tmp_path / "config.py"
    path.write_text(PROGRAM.replace("{loss}", "ChunkedLossWrapper.Config(loss_fn=CE.Config())"))
    launch = read_launch(path)
    assert (launch.software, launch.model.name, launch.steps) == (
        "torchtitan", "qwen3-30b-a3b", 200,
    )  # fmt: skip
    assert read_launch(path, arguments=["base"]).steps == 100
    fields = launch.fields
    assert (fields["recompute"], fields["flags"], fields["stack"]) == (
        "alternate", "loss_chunks=8", "torchtitan-compiled",
    )  # fmt: skip
    found = atoll.estimate(from_=path, device="b200")
    assert found.fits and found.worst.reserved / 2**30 == pytest.approx(141.8, rel=0.1)
    assert found.tokens_per_s_per_device == pytest.approx(19_500, rel=0.2)
    path.write_text(PROGRAM.replace("{loss}", "CrossEntropyLoss.Config()"))
    assert read_launch(path).fields["flags"] == "loss_chunks=1"


def test_torchtitans_exchange_of_tokens_and_type_of_states_are_read(tmp_path: Path) -> None:
    path = tmp_path / "config.py"
    more = 'expert_parallel_degree=8, expert_parallel_comm_backend="deepep"),'
    text = PROGRAM.replace("{loss}", "CE.Config()").replace(
        "shard_degree=8),", f"shard_degree=8, {more}"
    )
    path.write_text(text.replace("steps=100", 'steps=100, dtype="bfloat16"'))
    launch = read_launch(path)
    assert launch.fields["ep"] == 8 and launch.arguments.not_priced == ()
    assert (launch.fields["overlap"], launch.fields["optimizer"]) == ("dispatcher=deepep", "bf16")
    path.write_text(text.replace('"deepep"', '"new"'))
    assert list(read_launch(path).arguments.not_modelled) == [
        "parallelism.expert_parallel_comm_backend"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import os\nprint('--num-layers 2 pretrain_gpt.py')\n",
        "def main():\n    model = 'x'\n    model.name = 1\n    return model\n",
    ],
)
def test_other_programs_are_not_read_as_scripts(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.py"
    path.write_text(text)
    with pytest.raises(AtollError, match="no function returns a configuration"):
        read_launch(path)
