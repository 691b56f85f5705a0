"""Megatron-LM scripts, run with a stand-in for torchrun and given to Megatron's own parser."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from export_cases import DENSE, EXPERTS, LONG, SHARDED, UNEVEN, Case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.errors import AtollError
from atoll.export import export, write_export
from atoll.training.layout import Layout
from atoll.workload.config import load_config, zoo_names


def arguments_of(script: Path, *more: str) -> tuple[list[str], dict[str, str]]:
    """What the script hands to torchrun after the program's name, and its environment."""
    stand_in = script.parent / "bin" / "torchrun"
    stand_in.parent.mkdir(exist_ok=True)
    stand_in.write_text('#!/bin/sh\necho "$CUDA_DEVICE_MAX_CONNECTIONS"\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    path = f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(script), *more], env={"PATH": path}, capture_output=True, text=True, check=True
    )
    connections, *words = done.stdout.splitlines()
    start = words.index("./pretrain_gpt.py") + 1
    return words[start:], {"CUDA_DEVICE_MAX_CONNECTIONS": connections}


def script_of(case: Case, folder: Path) -> Path:
    return write_export(case.export("megatron"), folder)


def test_a_script_says_the_layout(tmp_path: Path) -> None:
    script = script_of(DENSE, tmp_path)
    text = script.read_text()
    assert "# llama3-70b, tp8 pp4 dp8 vpp5" in text
    assert "torchrun --nnodes 32 --nproc-per-node 8" in text
    words, environment = arguments_of(script)
    joined = " ".join(words)
    for part in (
        "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64",
        "--normalization RMSNorm --swiglu --disable-bias-linear --position-embedding-type rope",
        "--group-query-attention --num-query-groups 8",
        "--untie-embeddings-and-output-weights",
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
        ("llama3-8b", Layout(dp=2, recompute="optimal"), "use none, selective or full"),
        ("llama3-8b", Layout(dp=2, recompute="alternate"), "use none, selective or full"),
        ("llama3-8b", Layout(dp=2, pp=2, schedule="zb-h1"), "1f1b or interleaved, not zb-h1"),
        ("mixtral-8x7b", Layout(tp=2, sp=False), "set sp on"),
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


# --- Megatron's own parser --------------------------------------------------------------------


@pytest.fixture(scope="module")
def parser() -> Any:
    return pytest.importorskip("megatron.training.arguments")


def parsed(
    parser: Any, monkeypatch: pytest.MonkeyPatch, script: Path, layout: Layout
) -> tuple[Any, Any]:
    """Arguments after Megatron's own checks, and the configuration that it makes of them."""
    words, environment = arguments_of(script)
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *words])
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WORLD_SIZE", str(layout.devices))
    monkeypatch.setenv("RANK", "0")
    stand_for_hopper(parser, monkeypatch)
    checked = parser.validate_args(parser.parse_args())
    return checked, parser.core_transformer_config_from_args(checked)


def stand_for_hopper(parser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Megatron asks of the machine: an H100 with Transformer Engine."""
    from megatron.core import utils
    from megatron.core.models.common.embeddings import rope_utils

    monkeypatch.setattr(parser, "get_device_arch_version", lambda: 9)
    monkeypatch.setattr(parser.torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(utils, "_te_version", utils.PkgVersion("2.9.0"))
    monkeypatch.setattr(rope_utils, "fused_apply_rotary_pos_emb", lambda: None)


def assert_same(case: Case, found: Any, core: Any) -> None:
    layout, model = case.layout, load_config(case.model)
    assert found.data_parallel_size == layout.dp
    assert found.tensor_model_parallel_size == layout.tp
    assert found.pipeline_model_parallel_size == layout.pp
    assert found.context_parallel_size == layout.cp
    assert (found.virtual_pipeline_model_parallel_size or 1) == layout.vpp
    assert found.sequence_parallel == (layout.sp and layout.tp > 1)
    assert found.micro_batch_size == layout.microbatch
    assert found.global_batch_size == case.global_batch
    assert found.use_distributed_optimizer == (layout.zero > 0)
    assert found.use_megatron_fsdp == (layout.zero >= 2)
    assert core.num_layers == model.layers
    assert core.hidden_size == model.hidden
    assert core.num_attention_heads == model.heads
    assert core.gated_linear_unit == model.gated
    assert core.recompute_granularity == {"none": None}.get(layout.recompute, layout.recompute)
    if not model.latent_kv:
        assert (core.num_query_groups or model.heads) == model.kv_heads
        assert core.kv_channels == model.head_dim
    if model.experts:
        assert core.num_moe_experts == model.experts
        assert core.moe_ffn_hidden_size == model.ffn
        assert core.expert_model_parallel_size == layout.ep
    if core.pipeline_model_parallel_layout is not None:
        rows = core.pipeline_model_parallel_layout.layout
        blocks = [
            sum(kind.name == "decoder" for kind in rows[rank][chunk])
            for chunk in range(layout.vpp)
            for rank in range(layout.pp)
        ]
        assert sum(blocks) == model.layers
        assert case.stages is None or tuple(blocks) == case.stages


ROUND = [
    DENSE,
    UNEVEN,
    SHARDED,
    LONG,
    EXPERTS,
    Case("llama3-8b", Layout(dp=4, zero=2, recompute="selective")),
    Case("llama3-8b", Layout(dp=2, pp=4, vpp=2, zero=0), stages=(3, 4, 4, 5, 4, 4, 4, 4)),
    Case("llama3-8b", Layout(dp=2, tp=2, pp=2, sp=False, microbatch=4)),
    Case("deepseek-v3", Layout(dp=16, tp=2, pp=4, ep=8), stages=(15, 16, 15, 15)),
    Case("llama3-8b", Layout(dp=2), precision="fp16"),
    Case("llama3-8b", Layout(dp=2, tp=2), precision="fp8"),
]


@pytest.mark.parametrize("case", ROUND, ids=lambda case: f"{case.model} {case.layout}")
def test_megatron_reads_the_layout_back(
    case: Case, parser: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert_same(case, *parsed(parser, monkeypatch, script_of(case, tmp_path), case.layout))


def test_every_model_that_is_exported_is_accepted(
    parser: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    exported = []
    for name in zoo_names():
        case = Case(name, Layout(dp=2), sequence=512)
        try:
            script = script_of(case, tmp_path)
        except AtollError:
            continue
        assert_same(case, *parsed(parser, monkeypatch, script, case.layout))
        exported.append(name)
    assert {"gpt3-175b", "llama2-7b", "mistral-7b", "mixtral-8x7b", "qwen2-7b"} <= set(exported)
    assert {"deepseek-v2", "deepseek-v3", "qwen3-8b", "qwen1.5-moe-a2.7b"} <= set(exported)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    degree = st.sampled_from([1, 2, 4])
    return Layout(
        dp=draw(degree),
        tp=draw(degree),
        pp=draw(degree),
        cp=draw(st.sampled_from([1, 2])),
        vpp=draw(st.sampled_from([1, 2])),
        microbatch=draw(st.sampled_from([1, 2])),
        sp=draw(st.booleans()),
        zero=draw(st.sampled_from([0, 1, 2, 3])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        schedule=draw(st.sampled_from(["1f1b", "interleaved"])),
    )


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(layout=layouts())
def test_megatron_accepts_whatever_is_written(
    layout: Layout, parser: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = Case("qwen3-8b", layout)
    try:
        script = script_of(case, tmp_path)
    except AtollError:
        return
    with monkeypatch.context() as patch:
        assert_same(case, *parsed(parser, patch, script, layout))


def test_an_unknown_target_is_named() -> None:
    with pytest.raises(AtollError, match="'megatrno', but must be one of .* did you mean megatron"):
        export(
            "megatrno", load_config("llama3-8b"), Layout(), sequence=4096, global_batch=1
        )
