"""Megatron-LM scripts, given to Megatron's own parser and checks."""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from export_cases import DENSE, EXPERTS, LONG, SHARDED, UNEVEN, Case, script_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from megatron_machine import parsed

from atoll.base.errors import AtollError
from atoll.step.layout import Layout
from atoll.step.orders import groups
from atoll.workload.load import load_config

pytestmark = pytest.mark.filterwarnings("ignore")  # the tools' own
DOCUMENTED = Path(__file__).parents[1] / "data" / "export" / "megatron_arguments.csv"


@pytest.fixture(scope="module")
def parser() -> Any:
    return pytest.importorskip("megatron.training.arguments")


def assert_same(case: Case, found: Any, core: Any) -> None:
    layout, model = case.layout, load_config(case.model)
    assert found.train_iters == case.more.get("steps", 20)
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
    assert found.num_distributed_optimizer_instances == layout.hsdp
    if layout.vpp > 1:
        sizes = groups(layout.pp, layout.microbatches(case.global_batch))
        assert core.microbatch_group_size_per_vp_stage == sizes[0]
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
        assert core.expert_tensor_parallel_size == layout.etp
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
    replace(LONG, layout=replace(LONG.layout, zero=1)),
    replace(LONG, layout=replace(LONG.layout, zero=1), more={"exchanges_heads": True}),
    replace(DENSE, more={"hides_tensor": True, "steps": 500_000}),
    EXPERTS,
    Case("llama3-8b", Layout(dp=4, zero=2, recompute="selective")),
    Case("llama3-8b", Layout(dp=2, pp=4, vpp=2, zero=0), stages=(3, 4, 4, 5, 4, 4, 4, 4)),
    Case("llama3-8b", Layout(dp=8, zero=1, hsdp=4)),
    Case("llama3-8b", Layout(dp=8, zero=3, hsdp=2)),
    Case("llama3-8b", Layout(dp=2, pp=4, vpp=2, zero=1), global_batch=22),
    Case("llama3-8b", Layout(dp=2, tp=2, pp=2, sp=False, microbatch=4)),
    Case("deepseek-v3", Layout(dp=16, tp=2, pp=4, ep=8), stages=(15, 16, 15, 15)),
    Case("deepseek-v3", Layout(dp=16, tp=2, pp=4, ep=32, etp=1), stages=(15, 16, 15, 15)),
    Case("llama3-8b", Layout(dp=2), precision="fp16"),
    Case("llama3-8b", Layout(dp=2, tp=2), precision="fp8"),
    Case("llama3-8b", Layout(dp=2, tp=2), precision="mxfp8"),
    Case("llama3-8b", Layout(dp=2, tp=2, pp=2), more={"software": ("te_loss", "no_grad_reduce")}),
    Case(
        "llama3-8b", Layout(dp=2, tp=2), precision="fp8", more={"software": ("fp8_params", "p2p")}
    ),
    Case("llama3-8b", Layout(dp=4), more={"software": ("local", "no_grad_fusion", "p2p")}),
    Case("llama3-8b", Layout(pp=4, vpp=2), more={"software": ("grad_reduce",)}),
]


@pytest.mark.parametrize("case", ROUND, ids=lambda case: f"{case.model} {case.layout}")
def test_megatron_reads_the_layout_back(
    case: Case, parser: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert_same(case, *parsed(parser, monkeypatch, script_of(case, tmp_path), case.layout))


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
    max_examples=12,
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


def test_the_documented_arguments_are_megatrons(parser: Any) -> None:
    theirs = {
        option: action
        for action in parser.add_megatron_arguments(argparse.ArgumentParser())._actions
        for option in action.option_strings
    }
    with DOCUMENTED.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    for row in rows:
        action = theirs[row["argument"]]
        kind = "flag" if action.nargs == 0 else getattr(action.type, "__name__", "str")
        assert (kind, str(action.nargs or "")) == (row["type"], row["nargs"])
        assert set(row["choices"].split()) <= {str(choice) for choice in action.choices or ()}
