"""Megatron-Bridge scripts, compared with the Bridge's own fields and megatron-core's classes.

The Bridge cannot be imported without GPU packages, so its fields are read from its source.
"""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from export_cases import DENSE, EXPERTS, LONG, SHARDED, UNEVEN, Case

from atoll.base.errors import AtollError
from atoll.step.layout import Layout
from atoll.tools.files.config_files import read_content
from atoll.tools.nemo.write import PRECISION, SUFFIX, TABLE
from atoll.workload.adapters import ATTENTION, Adapters

pytestmark = pytest.mark.filterwarnings("ignore")  # the tools' own


def values(case: Case, folder: Path) -> dict[str, Any]:
    settings = read_content(case.export("nemo").save(folder))["SETTINGS"]
    assert isinstance(settings, dict)
    return settings


def test_a_file_says_the_layout(tmp_path: Path) -> None:
    text = DENSE.export("nemo").text
    assert "from megatron.bridge.recipes import llama3_70b_pretrain_config as recipe" in text
    assert values(DENSE, tmp_path) == {
        "model": {
            "seq_length": 4096,
            "tensor_model_parallel_size": 8,
            "pipeline_model_parallel_size": 4,
            "virtual_pipeline_model_parallel_size": 5,
            "pipeline_model_parallel_layout": None,
            "account_for_embedding_in_pipeline_split": False,
            "account_for_loss_in_pipeline_split": False,
            "context_parallel_size": 1,
            "sequence_parallel": True,
            "mtp_num_layers": None,
            "recompute_granularity": None,
            "recompute_method": None,
            "recompute_num_layers": None,
            "recompute_modules": None,
        },
        "train": {"micro_batch_size": 1, "global_batch_size": 128, "train_iters": 20},
        "scheduler": {"lr_warmup_iters": 2, "lr_decay_iters": 20},
        "dataset": {"seq_length": 4096},
        "ddp": {
            "use_distributed_optimizer": True,
            "overlap_grad_reduce": True,
            "overlap_param_gather": True,
        },
        "optimizer": {"use_distributed_optimizer": True},
        "comm_overlap": {"tp_comm_overlap": False},
        "mixed_precision": "bf16_mixed",
    }


def test_full_sharding_is_megatron_fsdp(tmp_path: Path) -> None:
    settings = values(SHARDED, tmp_path)
    assert settings["ddp"]["data_parallel_sharding_strategy"] == "optim_grads_params"
    assert settings["dist"] == {"use_megatron_fsdp": True}
    assert settings["checkpoint"] == {"ckpt_format": "fsdp_dtensor"}


def test_a_model_without_a_recipe_is_bridged_or_asks_for_one(tmp_path: Path) -> None:
    bridged = Case("llama2-13b", Layout(dp=2)).export("nemo")
    assert read_content(bridged.save(tmp_path))["MODEL"]["architectures"] == ["LlamaForCausalLM"]
    asking = Case("mixtral-8x7b", Layout(dp=2)).export("nemo")
    assert 'os.environ["RECIPE"]' in asking.text
    assert "no recipe of mixtral-8x7b: set RECIPE" in " ".join(asking.notes)


def test_adapters_are_those_of_its_products(tmp_path: Path) -> None:
    case = Case(
        "llama3-8b", Layout(dp=2), more={"method": "lora", "adapters": Adapters(8, ATTENTION)}
    )
    assert values(case, tmp_path)["peft"] == {
        "target_modules": ["linear_qkv", "linear_proj"],
        "dim": 8,
        "alpha": 16,
    }
    assert "import llama3_8b_peft_config as recipe" in case.export("nemo").text
    with pytest.raises(AtollError, match="for queries, keys and values together"):
        replace(case, more={"method": "lora", "adapters": Adapters(8, ("q", "v"))}).export("nemo")


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(dp=2, recompute="optimal"), "none or selective or full, not optimal"),
        (Layout(dp=2, tp=2, zero=3), "warns against Megatron-FSDP"),
        (Layout(dp=2, pp=2, schedule="zb-h2"), "schedule 1f1b, not zb-h2"),
    ],
)
def test_what_the_bridge_cannot_say_is_refused(layout: Layout, words: str) -> None:
    with pytest.raises(AtollError, match=words):
        Case("llama3-8b", layout).export("nemo")


# --- Megatron-Bridge and megatron-core --------------------------------------------------------


@pytest.fixture(scope="module")
def bridge() -> Path:
    """The Bridge's source folder, found without importing it."""
    core = importlib.util.find_spec("megatron")
    for place in (core.submodule_search_locations or []) if core else []:
        folder = Path(place) / "bridge"
        if folder.is_dir():
            return folder
    pytest.skip("megatron-bridge is not installed")


def fields(path: Path, name: str) -> dict[str, str]:
    """Annotated fields of a class in a source file."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {
                item.target.id: ast.unparse(item.annotation)
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
    raise AssertionError(f"{path.name} has no class {name}")


def core_fields(module: str, name: str) -> set[str]:
    found = getattr(pytest.importorskip(module), name)
    return set(found.__dataclass_fields__)


RING = replace(LONG, layout=replace(LONG.layout, zero=1))
GROUPED = Case("llama3-8b", Layout(dp=4, pp=4, vpp=2, zero=1, hsdp=2), global_batch=44)
CASES = [DENSE, UNEVEN, SHARDED, RING, EXPERTS, GROUPED]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model} {case.layout}")
def test_every_value_is_a_field_of_the_bridge(case: Case, bridge: Path, tmp_path: Path) -> None:
    config = bridge / "training" / "config.py"
    container = fields(config, "ConfigContainer")
    transformer = core_fields("megatron.core.transformer.transformer_config", "TransformerConfig")
    dataset = core_fields("megatron.core.datasets.gpt_dataset", "GPTDatasetConfig")
    optimizer = core_fields("megatron.core.optimizer", "OptimizerConfig")
    ddp = core_fields("megatron.core.distributed", "DistributedDataParallelConfig")
    own = fields(bridge / "models" / "gpt_provider.py", "GPTModelProvider")
    known = {
        "model": transformer | set(own),
        "train": set(fields(config, "TrainingConfig")),
        "scheduler": set(fields(config, "SchedulerConfig")),
        "comm_overlap": set(fields(bridge / "training" / "comm_overlap.py", "CommOverlapConfig")),
        "dataset": dataset | {"seq_length"},  # an alias of its own
        "ddp": ddp,
        "optimizer": optimizer,
        "dist": set(fields(config, "DistributedInitConfig")),
        "checkpoint": set(fields(config, "CheckpointConfig")),
    }
    for section, body in values(case, tmp_path).items():
        assert section in container
        if section != "mixed_precision":
            assert set(body) <= known[section]


def test_recipes_and_precisions_exist(bridge: Path) -> None:
    recipes = "\n".join(p.read_text() for p in (bridge / "recipes").rglob("*.py"))
    for stem in TABLE["recipes"].values():
        for method, suffix in SUFFIX.items():
            written = method == "pretrain" or stem not in TABLE["pretrain_only"]
            assert (f"def {stem}{suffix}(" in recipes) == written
    assert "def _pretrain_common() -> ConfigContainer:" in recipes
    models = "\n".join(p.read_text() for p in (bridge / "models").rglob("*.py"))
    for architecture in TABLE["architectures"].values():
        assert f"source={architecture}" in models
    mixed = (bridge / "training" / "mixed_precision.py").read_text()
    for name in PRECISION.values():
        assert f"def {name}(" in mixed


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model} {case.layout}")
def test_megatron_core_takes_the_model_values(case: Case, tmp_path: Path) -> None:
    module = pytest.importorskip("megatron.core.transformer.transformer_config")
    known = set(module.TransformerConfig.__dataclass_fields__)
    given = {k: v for k, v in values(case, tmp_path)["model"].items() if k in known}
    from atoll.workload.load import load_config

    model = load_config(case.model)
    shape = {
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_moe_experts": model.experts or None,
        "add_bias_linear": False,
    }
    import torch

    found = module.TransformerConfig(**shape, **given, pipeline_dtype=torch.bfloat16)
    assert found.tensor_model_parallel_size == case.layout.tp
    assert found.pipeline_model_parallel_size == case.layout.pp
    assert found.sequence_parallel == (case.layout.sp and case.layout.tp > 1)
