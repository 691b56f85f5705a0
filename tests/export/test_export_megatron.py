"""Megatron-LM scripts: what they say, what is refused, and the arguments that they may use."""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
from pathlib import Path

import pytest
from export_cases import DENSE, EXPERTS, LONG, SHARDED, UNEVEN, Case, arguments_of, script_of

from atoll.base.errors import AtollError
from atoll.export import export
from atoll.step.layout import Layout
from atoll.workload.load import load_config, zoo_names

DOCUMENTED = Path(__file__).parents[1] / "data" / "export" / "megatron_arguments.csv"


def test_a_script_says_the_layout(tmp_path: Path) -> None:
    script = script_of(DENSE, tmp_path)
    text = script.read_text()
    assert "# llama3-70b, tp8 pp4 dp8 vpp5" in text
    assert "torchrun --nnodes 32 --nproc-per-node 8" in text
    words, environment = arguments_of(script)
    joined = " ".join(words)
    for part in (
        "--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --normalization RMSNorm",
        "--swiglu --position-embedding-type rope --untie-embeddings-and-output-weights",
        "--ffn-hidden-size 28672 --disable-bias-linear",
        "--group-query-attention --num-query-groups 8",
        "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4",
        "--sequence-parallel --num-virtual-stages-per-pipeline-rank 5",
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
        "--micro-batch-size 1 --global-batch-size 128 --seq-length 4096",
        "--bf16",
        "--mock-data --tokenizer-type NullTokenizer --vocab-size 128255",
    ):
        assert part in joined
    assert environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert "recompute" not in joined


def test_a_script_says_its_release_and_its_name(tmp_path: Path) -> None:
    lines = DENSE.export("megatron").save(tmp_path / "mine.sh").read_text().splitlines()
    assert lines[2] == "# Written for megatron-core 0.17."
    started = "NODE_RANK=i MASTER_ADDR=<address of node 0> bash mine.sh"
    assert lines[3] == f"# On node i of 32, counted from 0: {started}"
    assert "srun bash mine.sh'" in lines[4]
    one_node = SHARDED.export("megatron").text.splitlines()
    assert one_node[3] == "# Start: bash megatron.sh"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"NODE_RANK": "1"}, "MASTER_ADDR: set it to the address of node 0"),
        ({"MASTER_ADDR": "first"}, "NODE_RANK: set it to the number of this node, from 0"),
    ],
)
def test_a_script_for_several_nodes_says_what_is_not_set(
    given: dict[str, str], words: str, tmp_path: Path
) -> None:
    environment = {"PATH": os.environ["PATH"], **given}
    script = script_of(DENSE, tmp_path)
    done = subprocess.run([str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert words in done.stderr


def test_what_a_real_run_needs_stands_at_the_top(tmp_path: Path) -> None:
    script = script_of(SHARDED, tmp_path)
    lines = script.read_text().splitlines()
    at = lines.index("# Set these here or in the environment.")
    names = "DATA", "TOKENIZER", "LR", "TRAIN_ITERS", "SAVE", "SAVE_INTERVAL"
    for name, line in zip(names, lines[at + 1 :], strict=False):
        assert line.startswith(f"{name}=${{{name}:-"), line
        assert "  # " in line
    assert "--save" not in arguments_of(script)[0]
    script.write_text(script.read_text().replace("SAVE=${SAVE:-}", "SAVE='/a folder'"))
    words = arguments_of(script)[0]
    at = words.index("--save")
    expected = ["--save", "/a folder", "--load", "/a folder", "--save-interval", "500"]
    assert words[at : at + 6] == expected


def test_uneven_stages_are_written_out(tmp_path: Path) -> None:
    words, _ = arguments_of(script_of(UNEVEN, tmp_path))
    layout = words[words.index("--pipeline-model-parallel-layout") + 1]
    assert layout == "Et*7|" + "t*8|" * 14 + "t*7L"
    assert " ".join(words).count("--recompute-granularity full --recompute-method uniform") == 1


def test_what_the_user_adds_comes_last(tmp_path: Path) -> None:
    words, _ = arguments_of(script_of(SHARDED, tmp_path), "--rotary-base", "500000")
    assert words[-2:] == ["--rotary-base", "500000"]


@pytest.mark.parametrize(
    ("model", "layout", "words"),
    [
        ("llama3-8b", Layout(dp=2, recompute="optimal"), "none or selective or full"),
        ("llama3-8b", Layout(dp=2, recompute="alternate"), "none or selective or full"),
        ("llama3-8b", Layout(dp=2, pp=2, schedule="zb-h1"), "schedule 1f1b, not zb-h1"),
        ("llama3-8b", Layout(dp=2, pp=2, schedule="zb-v"), "schedule 1f1b, not zb-v"),
        ("llama3-8b", Layout(dp=2, pp=2, schedule="dualpipe"), "schedule 1f1b, not dualpipe"),
        ("llama3-8b", Layout(tp=8, pp=5, vpp=2), "not 64 in groups of 6, 6, 6, 6, 5"),
        ("llama3-8b", Layout(dp=16, pp=8, vpp=2), "not 4 in groups of 4"),
        ("mixtral-8x7b", Layout(tp=2, sp=False), "set sp on"),
        ("llama3-8b", Layout(dp=2, tp=2, zero=3), "warns against Megatron-FSDP"),
        ("llama3-8b", Layout(dp=2, cp=2, zero=2), "warns against Megatron-FSDP"),
        ("bert-large", Layout(dp=2), "pretrain_gpt.py takes no argument"),
        ("bloom-7b1", Layout(dp=2), "a norm on embeddings"),
        ("gemma-7b", Layout(dp=2), "scaled embeddings"),
        ("gpt-neox-20b", Layout(dp=2), "side by side"),
        ("vit-b16", Layout(dp=2), "image patches"),
    ],
)
def test_what_megatron_cannot_say_is_refused(model: str, layout: Layout, words: str) -> None:
    with pytest.raises(AtollError, match=words) as caught:
        Case(model, layout, sequence=512).export("megatron")
    assert "\n" not in str(caught.value)


def test_learned_positions_bound_the_sequence() -> None:
    with pytest.raises(AtollError, match="longer than the 2048 learned positions"):
        Case("gpt3-175b", Layout(tp=8)).export("megatron")


def documented_parser() -> argparse.ArgumentParser:
    """The arguments that Atoll may write, by Megatron's names, types and choices."""
    types = {"int": int, "float": float}
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    with DOCUMENTED.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            if row["type"] == "flag":
                parser.add_argument(row["argument"], action="store_true")
                continue
            parser.add_argument(
                row["argument"],
                type=types.get(row["type"], str),
                nargs=row["nargs"] or None,
                choices=row["choices"].split() or None,
            )
    return parser


def test_scripts_use_documented_arguments_only(tmp_path: Path) -> None:
    parser = documented_parser()
    cases = [DENSE, UNEVEN, SHARDED, LONG, EXPERTS]
    cases += [
        Case("llama3-8b", Layout(dp=2), precision=p) for p in ("fp16", "fp8", "mxfp8", "nvfp4")
    ]
    cases += [Case(name, Layout(dp=2), sequence=512) for name in zoo_names()]
    exported = set()
    for case in cases:
        try:
            script = script_of(case, tmp_path)
        except AtollError:
            continue
        found, unknown = parser.parse_known_args(arguments_of(script)[0])
        assert unknown == []
        assert found.num_layers == load_config(case.model).layers
        exported.add(case.model)
    assert {"gpt3-175b", "llama2-7b", "mistral-7b", "mixtral-8x7b", "qwen2-7b"} <= exported
    assert {"deepseek-v2", "deepseek-v3", "qwen3-8b", "qwen1.5-moe-a2.7b"} <= exported


def test_an_unknown_target_is_named() -> None:
    with pytest.raises(AtollError, match="'megatrno' is not known, did you mean megatron"):
        export("megatrno", load_config("llama3-8b"), Layout(), sequence=4096, global_batch=1)


def test_constants_of_the_model_are_written_or_asked_for(tmp_path: Path) -> None:
    script = script_of(Case("llama3-8b", Layout(dp=2)), tmp_path)
    assert "--rotary-base 500000" in script.read_text()
    assert "--norm-epsilon 1e-05" in script.read_text()
    made = Case("llama3-8b", Layout(dp=2)).export("megatron")
    assert not any("does not say" in note for note in made.notes)
