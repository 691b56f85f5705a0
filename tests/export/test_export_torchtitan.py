"""torchtitan job files, read by torchtitan's own configuration manager."""

from __future__ import annotations

import copy
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from export_cases import DENSE, EXPERTS, LONG, SHARDED, UNEVEN, Case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.base.errors import AtollError
from atoll.step.layout import Layout
from atoll.step.orders import passes
from atoll.tools.torchtitan.flavors import FLAVORS, Flavor, model_arguments
from atoll.workload.builders.model import build_model
from atoll.workload.load import load_config

pytestmark = pytest.mark.filterwarnings("ignore")  # the tools' own
FULL = replace(UNEVEN, layout=replace(UNEVEN.layout, recompute="full"))


def sections(case: Case) -> dict[str, Any]:
    return tomllib.loads(case.export("torchtitan").text)


def test_a_file_says_the_layout() -> None:
    found = sections(DENSE)
    assert found["model"] == {
        "name": "llama3",
        "flavor": "70B",
        "hf_assets_path": "./assets/hf/llama3-70b",
    }
    assert found["training"]["local_batch_size"] == 16
    assert found["training"]["global_batch_size"] == 128
    assert found["parallelism"] == {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": 8,
        "fsdp_reshard_after_forward": "never",
        "tensor_parallel_degree": 8,
        "context_parallel_degree": 1,
        "pipeline_parallel_degree": 4,
        "pipeline_parallel_schedule": "Interleaved1F1B",
        "pipeline_parallel_microbatch_size": 1,
        "pipeline_parallel_layers_per_stage": 4,
        "pipeline_parallel_first_stage_less_layers": 0,
        "pipeline_parallel_last_stage_less_layers": 0,
    }
    assert found["activation_checkpoint"] == {"mode": "none"}


def test_a_near_equivalent_is_noted() -> None:
    notes = " ".join(DENSE.export("torchtitan").notes)
    assert "zero 1 is written as FSDP" in notes
    assert "zero" not in " ".join(SHARDED.export("torchtitan").notes)


def test_without_a_pipeline_a_local_batch_is_a_microbatch() -> None:
    found = sections(replace(SHARDED, layout=Layout(dp=8, zero=3, microbatch=2)))
    assert found["training"]["local_batch_size"] == 2
    assert found["parallelism"]["fsdp_reshard_after_forward"] == "always"


def test_alternate_recomputation_is_torchtitans_selective_mode() -> None:
    found = sections(replace(SHARDED, layout=Layout(dp=8, zero=3, recompute="alternate")))
    assert found["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "op"}


def test_a_llama_without_a_flavor_comes_with_its_registration() -> None:
    made = Case("llama2-7b", Layout(dp=8, zero=3)).export("torchtitan")
    assert tomllib.loads(made.text)["model"]["flavor"] == "llama2-7b"
    assert "llama3_args['llama2-7b'] = TransformerModelArgs(dim=4096" in " ".join(made.notes)


@pytest.mark.parametrize(
    ("model", "layout", "words"),
    [
        ("llama3-8b", Layout(dp=8, zero=1), "use zero 2 or 3"),
        ("llama3-8b", Layout(dp=4, tp=2, zero=0), "only when nothing else is divided"),
        ("llama3-8b", Layout(tp=8), "choose dp above 1"),
        ("llama3-8b", Layout(dp=2, tp=2, sp=False, zero=3), "set sp on"),
        ("llama3-8b", Layout(dp=2, pp=2, schedule="zb-h1"), "two chunks a stage, unlike zb-h1"),
        ("llama3-8b", Layout(dp=2, pp=2, schedule="dualpipe"), "where dualpipe holds two"),
        ("llama3-8b", Layout(dp=2, pp=16, microbatch=4), "but 8 run on pp 16"),
        ("llama3-8b", Layout(dp=1, cp=8, pp=5, vpp=2), "microbatches in groups of 6, 6, 6, 6, 5"),
        ("llama3-8b", Layout(dp=2, cp=2, zero=3, hsdp=4), "unlike hsdp 4; lower hsdp"),
        ("llama3-8b", Layout(dp=8, zero=3, recompute="selective"), "use none, alternate"),
        ("llama3-8b", Layout(dp=8, zero=3, recompute="optimal"), "use none, alternate"),
        ("llama3-8b", Layout(dp=2, tp=16, zero=3), "does not divide the 8 of llama3-8b"),
        ("mixtral-8x7b", Layout(dp=2, zero=3), "has no model of the kind of mixtral-8x7b"),
        ("qwen3-30b-a3b", Layout(dp=2, ep=2, zero=0), "over sharded data parallelism only"),
        ("deepseek-v3", Layout(dp=4, tp=4, ep=2, etp=2, zero=3), "width 1 or tp"),
        ("qwen3-8b", Layout(dp=4, pp=2), "set pp 1"),
        ("deepseek-v3", Layout(dp=2, cp=2, zero=3), "set cp 1"),
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
    if not hasattr(config, "JobConfig"):
        pytest.skip("this torchtitan reads no TOML; the files are for 0.2.2")
    return config.ConfigManager


def read_back(manager: Any, case: Case, folder: Path) -> Any:
    """The file through torchtitan's reader, its mesh check and its stage division."""
    from torch.distributed.pipelining.schedules import get_schedule_class
    from torchtitan.distributed.parallel_dims import ParallelDims

    layout = case.layout
    path = case.export("torchtitan").save(folder)
    found = manager().parse_args(["--job.config_file", str(path)])
    degrees = found.parallelism
    dims = ParallelDims(
        dp_replicate=degrees.data_parallel_replicate_degree,
        dp_shard=degrees.data_parallel_shard_degree,
        cp=degrees.context_parallel_degree,
        tp=degrees.tensor_parallel_degree,
        pp=degrees.pipeline_parallel_degree,
        ep=degrees.expert_parallel_degree,
        etp=degrees.expert_tensor_parallel_degree,
        world_size=layout.devices,
    )
    assert dims.dp_replicate * dims.dp_shard == layout.dp
    assert (dims.tp, dims.pp, dims.cp) == (layout.tp, layout.pp, layout.cp)
    assert dims.ep == (layout.ep if load_config(case.model).experts else 1)
    assert case.sequence % dims.seq_len_divisor == 0
    local = found.training.local_batch_size
    steps = found.training.global_batch_size // (local * layout.dp)
    if layout.pp > 1:
        get_schedule_class(degrees.pipeline_parallel_schedule)
        microbatches = local // degrees.pipeline_parallel_microbatch_size
        assert len(stage_names(found, case)) == layout.pp * layout.rounds
        assert steps == 1
    else:
        microbatches = steps
        assert local == layout.microbatch
    assert microbatches == layout.microbatches(case.global_batch)
    return found


def stage_names(found: Any, case: Case) -> list[list[str]]:
    """The modules of each chunk, as torchtitan's pipeline_llm would divide them."""
    from torchtitan.distributed.pipeline_parallel import generate_llm_fqn_per_model_part

    degrees = found.parallelism
    if degrees.module_fqns_per_model_part is not None:
        given: list[list[str]] = degrees.module_fqns_per_model_part
        return given
    layers = load_config(case.model).layers
    before = degrees.pipeline_parallel_first_stage_less_layers
    after = degrees.pipeline_parallel_last_stage_less_layers
    chunks = -(-(layers + before + after) // degrees.pipeline_parallel_layers_per_stage)
    made: list[list[str]] = generate_llm_fqn_per_model_part(chunks, layers, before, after)
    return made


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
    Case("llama3-8b", Layout(dp=2, pp=2, zero=3, schedule="gpipe", microbatch=4)),
    Case("deepseek-v3", Layout(dp=16, tp=2, pp=4, ep=8, zero=1), stages=(15, 16, 15, 15)),
    Case("deepseek-v3", Layout(dp=16, tp=4, pp=4, ep=8, etp=1, zero=1), stages=(15, 16, 15, 15)),
    Case("llama3-70b", Layout(dp=2, tp=2, zero=3), precision="fp8"),
    Case("llama3-70b", Layout(dp=2, tp=2, zero=3), precision="mxfp8"),
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
    found = read_back(manager, case, tmp_path)
    assert found.activation_checkpoint.mode == case.layout.recompute


@pytest.mark.parametrize(("precision", "module"), [("fp8", "float8"), ("mxfp8", "mx")])
def test_narrow_products_name_a_converter_that_is_registered(
    manager: Any, precision: str, module: str
) -> None:
    pytest.importorskip(f"torchtitan.components.quantization.{module}")
    from torchtitan.protocols import model_converter

    case = Case("llama3-70b", Layout(dp=2, tp=2, zero=3), precision=precision)
    for name in sections(case)["model"]["converters"]:
        assert name in model_converter._registry_model_converter_cls


def test_uneven_stages_hold_every_block_once(manager: Any, tmp_path: Path) -> None:
    parts = stage_names(read_back(manager, FULL, tmp_path), FULL)
    assert [len(part) for part in parts] == [8, *[8] * 14, 9]
    names = [name for part in parts for name in part]
    expected = [f"layers.{i}" for i in range(126)]
    assert names == ["tok_embeddings", *expected, "norm", "output"]


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
        schedule=draw(st.sampled_from(["1f1b", "interleaved", "gpipe", "zb-v"])),
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


def registered(flavor: Flavor) -> Any:
    from importlib import import_module

    module = import_module(f"torchtitan.models.{flavor.name}")
    names = {"llama3": "llama3_args", "qwen3": "qwen3_args", "deepseek_v3": "deepseekv3_args"}
    return getattr(module, names[flavor.name])[flavor.flavor]


@pytest.mark.parametrize("flavor", FLAVORS, ids=lambda f: f"{f.name} {f.flavor}")
def test_flavors_are_those_of_the_registry(flavor: Flavor, manager: Any) -> None:
    found = registered(flavor)
    assert (found.dim, found.n_layers, found.n_heads) == (
        flavor.hidden,
        flavor.layers,
        flavor.heads,
    )
    assert found.vocab_size == flavor.vocab
    assert getattr(found, "enable_weight_tying", False) == flavor.tied_embeddings
    assert getattr(found, "qk_norm", False) == flavor.qk_norm
    if flavor.name == "llama3":
        assert found.n_kv_heads == flavor.kv_heads
        assert llama_columns(found) == flavor.ffn
    elif flavor.name == "qwen3":
        assert (found.n_kv_heads, found.head_dim) == (flavor.kv_heads, flavor.head_dim)
        assert (found.moe_inter_dim if flavor.experts else found.hidden_dim) == flavor.ffn
    else:
        assert (found.kv_lora_rank, found.q_lora_rank) == (flavor.latent_kv, flavor.latent_q)
        assert found.qk_nope_head_dim + found.qk_rope_head_dim == flavor.head_dim
        assert (found.inter_dim, found.moe_inter_dim) == (flavor.dense_ffn, flavor.ffn)
        assert found.moe_args.num_shared_experts * found.moe_inter_dim == flavor.shared_ffn
    if flavor.experts:
        assert found.moe_args.num_experts == flavor.experts
        assert found.moe_args.top_k == flavor.experts_per_token


@pytest.mark.parametrize(
    "name",
    [
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
    from torchtitan.protocols.train_spec import get_train_spec

    case = Case(name, Layout(dp=2, zero=3), sequence=512)
    job = read_back(manager, case, tmp_path)
    spec = get_train_spec(job.model.name)
    arguments = copy.deepcopy(spec.model_args[job.model.flavor])
    arguments.update_from_config(job)
    with torch.device("meta"):
        model = spec.model_cls(arguments)
    count = sum(weight.numel() for weight in model.parameters())
    assert count == build_model(load_config(name), 1, 512).parameters


def llama_columns(arguments: Any) -> int:
    """Feed-forward columns that torchtitan's own layer makes of the arguments."""
    import torch
    from torchtitan.models.llama3.model.model import FeedForward

    with torch.device("meta"):
        layer = FeedForward(
            dim=arguments.dim,
            hidden_dim=4 * arguments.dim,
            multiple_of=arguments.multiple_of,
            ffn_dim_multiplier=arguments.ffn_dim_multiplier,
        )
    return int(layer.w1.weight.shape[0])


@pytest.mark.parametrize("ffn", [11008, 4096, 16384, 28672])
def test_a_registration_makes_the_wanted_columns(ffn: int, manager: Any) -> None:
    from torchtitan.models.llama3 import TransformerModelArgs

    model = replace(load_config("llama2-7b"), ffn=ffn)
    made = eval(model_arguments(model), {"TransformerModelArgs": TransformerModelArgs})
    assert llama_columns(made) == ffn
