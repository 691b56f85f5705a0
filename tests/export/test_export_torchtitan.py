"""torchtitan's Python job files, loaded by torchtitan's own configuration manager."""

from __future__ import annotations

import ast
import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from export_cases import DENSE, EXPERTS, LONG, SHARDED, UNEVEN, Case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import atoll
from atoll.base.errors import AtollError
from atoll.step.layout import Layout
from atoll.step.orders import passes
from atoll.tools.files.config_files import read_content
from atoll.tools.torchtitan.flavors import FLAVORS, Flavor
from atoll.tools.torchtitan.write import CONVERTERS
from atoll.workload.builders.model import build_model
from atoll.workload.load import load_config

pytestmark = pytest.mark.filterwarnings("ignore")  # the tools' own
FULL = replace(UNEVEN, layout=replace(UNEVEN.layout, recompute="full"))


def sections(case: Case, folder: Path) -> Any:
    return read_content(case.export("torchtitan").save(folder))["SETTINGS"]


def test_a_file_says_the_layout(tmp_path: Path) -> None:
    job = sections(DENSE, tmp_path)
    assert job["model"] == {"name": "llama3", "flavor": "70B", "attn_backend": "flex"}
    assert job["training"] == {
        "seq_len": 4096,
        "local_batch_size": 16,
        "global_batch_size": 128,
        "steps": 20,
        "mixed_precision_param": "bfloat16",
        "disable_cuda_graphs": True,
    }
    assert job["parallelism"] == {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": 8,
        "fsdp_reshard_after_forward": "never",
        "tensor_parallel_degree": 8,
        "enable_sequence_parallel": True,
        "context_parallel_degree": 1,
        "expert_parallel_degree": 1,
        "pipeline_parallel_degree": 4,
        "pipeline_parallel_schedule": "Interleaved1F1B",
        "pipeline_parallel_microbatch_size": 1,
        "pipeline_parallel_layers_per_stage": 4,
        "pipeline_parallel_first_stage_less_layers": 0,
        "pipeline_parallel_last_stage_less_layers": 0,
    }
    assert job["activation_checkpoint"] == {"mode": "none"}


def test_a_header_says_the_release_and_the_command(tmp_path: Path) -> None:
    """Under the name that the file has."""
    lines = SHARDED.export("torchtitan").save(tmp_path / "mine.py").read_text().splitlines()
    assert lines[1] == "# Written for torchtitan 0.3."
    assert lines[2].endswith(
        "torchrun --nproc-per-node 8 -m torchtitan.train --module mine --config train"
    )


def test_a_near_equivalent_is_noted() -> None:
    notes = " ".join(DENSE.export("torchtitan").notes)
    assert "zero 1 is written as FSDP" in notes
    assert "zero" not in " ".join(SHARDED.export("torchtitan").notes)


def test_without_a_pipeline_a_local_batch_is_a_microbatch(tmp_path: Path) -> None:
    job = sections(replace(SHARDED, layout=Layout(dp=8, zero=3, microbatch=2)), tmp_path)
    assert job["training"]["local_batch_size"] == 2
    assert job["parallelism"]["fsdp_reshard_after_forward"] == "default"


def test_alternate_recomputation_is_torchtitans_selective_mode(tmp_path: Path) -> None:
    case = replace(SHARDED, layout=Layout(dp=8, zero=3, recompute="alternate"))
    assert sections(case, tmp_path)["activation_checkpoint"] == {"mode": "selective"}


def test_a_llama_without_a_flavor_comes_with_its_registration(tmp_path: Path) -> None:
    path = Case("llama2-7b", Layout(dp=8, zero=3)).export("torchtitan").save(tmp_path)
    content = read_content(path)
    assert content["SETTINGS"]["model"]["flavor"] == "llama2-7b"
    assert content["MODEL"]["intermediate_size"] == 11008
    assert "llama3.llama3_configs[" in path.read_text()


@pytest.mark.parametrize(
    ("model", "layout", "words"),
    [
        ("llama3-8b", Layout(dp=8, zero=1), "use zero 2 or 3"),
        ("llama3-8b", Layout(dp=2, cp=2, zero=0), "over context-parallel ranks"),
        ("llama3-8b", Layout(dp=2, pp=2, schedule="zb-h1"), "schedule 1f1b or zb-v, not zb-h1"),
        ("llama3-8b", Layout(dp=2, pp=2, schedule="gpipe"), "schedule 1f1b or zb-v, not gpipe"),
        ("llama3-8b", Layout(dp=2, pp=16, microbatch=4), "but 8 run on pp 16"),
        ("llama3-8b", Layout(dp=1, cp=8, pp=5, vpp=2), "microbatches in groups of 6, 6, 6, 6, 5"),
        ("llama3-8b", Layout(dp=2, cp=2, zero=3, hsdp=4), "unlike hsdp 4; lower hsdp"),
        (
            "llama3-8b",
            Layout(dp=8, zero=3, recompute="selective"),
            "none or alternate or full, not",
        ),
        ("llama3-8b", Layout(dp=8, zero=3, recompute="optimal"), "none or alternate or full"),
        ("llama3-8b", Layout(dp=2, tp=16, zero=3), "does not divide the 8 of llama3-8b"),
        ("mixtral-8x7b", Layout(dp=2, zero=3), "has no model of the kind of mixtral-8x7b"),
        ("qwen3-30b-a3b", Layout(dp=2, ep=2, zero=0), "over sharded data parallelism only"),
        ("deepseek-v3", Layout(dp=4, tp=4, ep=2, etp=2, zero=3), "etp 1 with ep above 1"),
        ("qwen3-30b-a3b", Layout(dp=2, tp=2, ep=2, zero=3), "not etp 2"),
        ("gpt3-175b", Layout(dp=2, zero=3), "has no model of the kind of gpt3-175b"),
        ("mistral-7b", Layout(dp=2, zero=3), "has no model of the kind of mistral-7b"),
    ],
)
def test_what_torchtitan_cannot_say_is_refused(model: str, layout: Layout, words: str) -> None:
    with pytest.raises(AtollError, match=words) as caught:
        Case(model, layout, sequence=2048).export("torchtitan")
    assert "\n" not in str(caught.value)


# --- torchtitan itself ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def manager() -> Any:
    config = pytest.importorskip("torchtitan.config")
    if not hasattr(config, "ParallelismConfig"):
        pytest.skip("the files are for torchtitan 0.3, which is configured in Python")
    return config.ConfigManager


def load(manager: Any, case: Case, folder: Path) -> Any:
    """The file as `torchtitan.train` loads it."""
    name = "job_of_a_test"
    case.export("torchtitan").save(folder / f"{name}.py")
    sys.path.insert(0, str(folder))
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    try:
        return manager().parse_args(["--module", name, "--config", "train"])
    finally:
        sys.path.remove(str(folder))


def read_back(manager: Any, case: Case, folder: Path) -> Any:
    """The file through torchtitan's reader, its mesh, its model's checks and stage division."""
    from torch.distributed.pipelining.schedules import get_schedule_class
    from torchtitan.distributed.parallel_dims import ParallelDims

    layout = case.layout
    job = load(manager, case, folder)
    degrees = job.parallelism
    dims = ParallelDims.from_config(degrees, layout.devices)
    assert dims.dp_replicate * dims.dp_shard == layout.dp
    assert (dims.tp, dims.pp, dims.cp) == (layout.tp, layout.pp, layout.cp)
    assert dims.ep == (layout.ep if load_config(case.model).experts else 1)
    assert dims.dp_shard * dims.cp * dims.tp % dims.ep == 0
    job.model_spec.model.update_from_config(config=job)
    local = job.training.local_batch_size
    steps = job.training.global_batch_size // (local * layout.dp)
    if layout.pp > 1:
        get_schedule_class(degrees.pipeline_parallel_schedule)
        microbatches = local // degrees.pipeline_parallel_microbatch_size
        assert len(stage_names(job, dims)) == layout.pp * layout.rounds
        assert steps == 1
    else:
        microbatches = steps
        assert local == layout.microbatch
    assert microbatches == layout.microbatches(case.global_batch)
    return job


def stage_names(job: Any, dims: Any) -> list[list[str]]:
    """The modules of each chunk, as torchtitan's pipeline_llm divides them."""
    from torchtitan.distributed import pipeline_parallel as pipelines

    if job.parallelism.module_fqns_per_model_part is not None:
        given: list[list[str]] = job.parallelism.module_fqns_per_model_part
        return given
    sizes = pipelines._get_pipeline_metadata(dims, job.parallelism, job.model_spec.model)
    divided: list[list[str]] = pipelines._generate_llm_fqn_per_model_part(*sizes)
    return divided


ROUND = [
    DENSE,
    FULL,
    SHARDED,
    LONG,
    EXPERTS,
    Case("llama3-8b", Layout(dp=8, zero=0)),
    Case("llama3-8b", Layout(dp=8, zero=2)),
    Case("llama3-8b", Layout(dp=8, cp=2, zero=3, hsdp=4)),
    Case("llama3-8b", Layout(dp=2, pp=4, zero=1, schedule="zb-v")),
    Case("llama3-8b", Layout(dp=2, pp=4, zero=1, vpp=2), global_batch=20),
    Case("llama3-8b", Layout(dp=4, tp=2, zero=0, sp=False)),
    Case("llama2-7b", Layout(dp=2, pp=2, zero=3, microbatch=4)),
    Case("qwen3-8b", Layout(dp=4, pp=2)),
    Case("deepseek-v3", Layout(dp=2, cp=2, zero=3)),
    Case("deepseek-v3", Layout(dp=16, tp=4, pp=4, ep=8, etp=1, zero=1), stages=(15, 16, 15, 15)),
]


def test_torchs_order_in_a_v_is_the_one_that_is_estimated(manager: Any) -> None:
    """The same passes of every stage, in the same sequence."""
    from torch.distributed.pipelining.schedules import ScheduleZBVZeroBubble

    for stages, microbatches in ((2, 5), (4, 7), (4, 12), (8, 20)):
        order = ScheduleZBVZeroBubble.__new__(ScheduleZBVZeroBubble)
        order.pp_group_size, order.num_stages = stages, 2 * stages
        order._n_microbatches = microbatches
        for stage in range(stages):
            theirs = [
                (action.computation_type.value, action.stage_index // stages, action[2])
                for action in order._calculate_single_rank_operations(stage)
                if action is not None
            ]
            kinds = {"F": "F", "B": "I", "W": "W"}
            ours = [(kinds[p.kind], p.chunk, p.microbatch)
                    for p in passes("zb-v", stage, stages, 2, microbatches)]  # fmt: skip
            assert ours == theirs


@pytest.mark.parametrize("case", ROUND, ids=lambda case: f"{case.model} {case.layout}")
def test_torchtitan_reads_the_layout_back(case: Case, manager: Any, tmp_path: Path) -> None:
    recomputation = read_back(manager, case, tmp_path).activation_checkpoint
    kind = type(recomputation).__qualname__ if recomputation else "none"
    assert kind == {"none": "none", "full": "FullAC.Config"}[case.layout.recompute]


@pytest.mark.parametrize("precision", CONVERTERS)
def test_narrow_products_have_a_converter_of_torchtitan(
    precision: str, manager: Any, tmp_path: Path
) -> None:
    """Its settings exist; to apply it takes torchao and a GPU."""
    module = importlib.import_module("torchtitan.components.quantization")
    case = Case("llama3-70b", Layout(dp=2, tp=2, zero=3), precision=precision)
    assert sections(case, tmp_path)["compile"] == {"enable": True}
    (call,) = [
        node
        for node in ast.walk(ast.parse(case.export("torchtitan").text))
        if isinstance(node, ast.Call) and "Converter" in ast.unparse(node.func)
    ]
    assert eval(ast.unparse(call), vars(module)).model_compile_enabled


def test_uneven_stages_hold_every_block_once(manager: Any, tmp_path: Path) -> None:
    parts = read_back(manager, FULL, tmp_path).parallelism.module_fqns_per_model_part
    assert [len(part) for part in parts] == [8, *[8] * 14, 9]
    names = [name for part in parts for name in part]
    expected = [f"layers.{i}" for i in range(126)]
    assert names == ["tok_embeddings", *expected, "norm", "lm_head"]


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
        zero=draw(st.sampled_from([0, 1, 2, 3])),
        recompute=draw(st.sampled_from(["none", "full"])),
        hsdp=draw(st.sampled_from([1, 2])),
        schedule=draw(st.sampled_from(["1f1b", "interleaved", "zb-v"])),
    )


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(layout=layouts())
def test_torchtitan_accepts_whatever_is_written(
    layout: Layout, manager: Any, tmp_path: Path
) -> None:
    case = Case("llama3-70b", layout)
    try:
        case.export("torchtitan")
    except AtollError:
        return
    read_back(manager, case, tmp_path)


@pytest.mark.parametrize("flavor", FLAVORS, ids=lambda f: f"{f.name} {f.flavor}")
def test_flavors_are_those_of_the_registry(flavor: Flavor, manager: Any) -> None:
    registry = importlib.import_module(f"torchtitan.models.{flavor.name}").model_registry
    model = registry(flavor.flavor).model
    block, attention = model.layers[-1], model.layers[-1].attention
    assert (model.dim, len(model.layers), attention.n_heads) == (
        flavor.hidden,
        flavor.layers,
        flavor.heads,
    )
    assert model.vocab_size == flavor.vocab
    assert model.enable_weight_tying == flavor.tied_embeddings
    if flavor.latent_kv:
        assert (attention.kv_lora_rank, attention.q_lora_rank) == (
            flavor.latent_kv,
            flavor.latent_q,
        )
        assert attention.qk_nope_head_dim + attention.qk_rope_head_dim == flavor.head_dim
        assert model.layers[0].feed_forward.w1.out_features == flavor.dense_ffn
        assert block.moe.shared_experts.w1.out_features == flavor.shared_ffn
    else:
        assert attention.n_kv_heads == flavor.kv_heads
        assert (attention.qk_norm is not None) == flavor.qk_norm
    if flavor.experts:
        experts = block.moe.routed_experts.inner_experts
        assert (experts.num_experts, experts.hidden_dim) == (flavor.experts, flavor.ffn)
        assert block.moe.router.top_k == flavor.experts_per_token
    else:
        assert block.feed_forward.w1.out_features == flavor.ffn


@pytest.mark.parametrize(
    "name",
    [
        "llama2-7b",
        "llama3-8b",
        "llama3-70b",
        "llama3-405b",
        "qwen3-8b",
        "qwen3-30b-a3b",
        "deepseek-v2-lite",
        "deepseek-v2",
        "deepseek-v3",
    ],
)
def test_torchtitans_models_have_the_parameters_that_atoll_counts(
    name: str, manager: Any, tmp_path: Path
) -> None:
    import torch

    case = Case(name, Layout(dp=2, zero=3), sequence=512)
    with torch.device("meta"):
        model = read_back(manager, case, tmp_path).model_spec.model.build()
    count = sum(weight.numel() for weight in model.parameters())
    assert count == build_model(load_config(name), 1, 512).parameters


@pytest.mark.parametrize("attention, backend", [(None, "flex"), ("flash2", "varlen")])
def test_the_attention_kernel_of_a_plan_is_that_of_its_file(
    attention: str | None, backend: str, tmp_path: Path
) -> None:
    """torchtitan 0.3 attends with FlexAttention by default."""
    question = {"model": "llama3-8b", "device": "h200", "devices": 8, "batch": 64}
    asked = {} if attention is None else {"attention": attention}
    layout = {"tp": 1, "zero": 3, "microbatch": 1, "recompute": "none"}
    answer = atoll.estimate(**question, **asked, **layout, tool="torchtitan")
    file = tmp_path / "torchtitan_job.py"
    file.write_text(answer.export("torchtitan").text)
    assert f"'attn_backend': '{backend}'" in file.read_text()
    checked = atoll.check(file, device="h200", devices=8, time_limit="1 ms").estimate
    assert checked.step.time_s == pytest.approx(answer.step.time_s, rel=1e-9)
