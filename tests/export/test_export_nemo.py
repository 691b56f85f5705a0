"""Megatron-Bridge values, held against the Bridge's own fields and megatron-core's classes.

The Bridge cannot be imported without GPU packages, so its fields are read from its source.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml
from export_cases import DENSE, EXPERTS, LONG, SHARDED, UNEVEN, Case

from atoll.base.errors import AtollError
from atoll.step.layout import Layout
from atoll.tools.nemo.write import PRECISION, RECIPES

pytestmark = pytest.mark.filterwarnings("ignore")  # the tools' own


def values(case: Case) -> dict[str, Any]:
    found = yaml.safe_load(case.export("nemo").text)
    assert isinstance(found, dict)
    return found


def test_a_file_says_the_layout() -> None:
    made = DENSE.export("nemo")
    assert "# overrides megatron.bridge.recipes.llama3_70b_pretrain_config" in made.text
    assert values(DENSE) == {
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
        "train": {"micro_batch_size": 1, "global_batch_size": 128},
        "dataset": {"sequence_length": 4096},
        "ddp": {
            "use_distributed_optimizer": True,
            "overlap_grad_reduce": True,
            "overlap_param_gather": True,
        },
        "optimizer": {"use_distributed_optimizer": True},
        "mixed_precision": "bf16_mixed",
    }


def test_full_sharding_is_megatron_fsdp() -> None:
    found = values(SHARDED)
    assert found["ddp"]["data_parallel_sharding_strategy"] == "optim_grads_params"
    assert found["dist"] == {"use_megatron_fsdp": True}
    assert found["checkpoint"] == {"ckpt_format": "fsdp_dtensor"}


def test_a_model_without_a_recipe_is_noted() -> None:
    made = Case("llama2-13b", Layout(dp=2)).export("nemo")
    assert "no recipe of the name llama2-13b" in " ".join(made.notes)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(dp=2, recompute="optimal"), "use none, selective or full"),
        (Layout(dp=2, pp=2, schedule="zb-h2"), "1f1b or interleaved, not zb-h2"),
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


GROUPED = Case("llama3-8b", Layout(dp=4, pp=4, vpp=2, zero=1, hsdp=2), global_batch=44)
CASES = [DENSE, UNEVEN, SHARDED, LONG, EXPERTS, GROUPED]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model} {case.layout}")
def test_every_value_is_a_field_of_the_bridge(case: Case, bridge: Path) -> None:
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
        "dataset": dataset,
        "ddp": ddp,
        "optimizer": optimizer,
        "dist": set(fields(config, "DistributedInitConfig")),
        "checkpoint": set(fields(config, "CheckpointConfig")),
    }
    for section, body in values(case).items():
        assert section in container
        if section != "mixed_precision":
            assert set(body) <= known[section]


def test_recipes_and_precisions_exist(bridge: Path) -> None:
    recipes = "\n".join(p.read_text() for p in (bridge / "recipes").rglob("*.py"))
    for recipe in RECIPES.values():
        assert f"def {recipe}(" in recipes
    mixed = (bridge / "training" / "mixed_precision.py").read_text()
    for name in PRECISION.values():
        assert f"def {name}(" in mixed


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model} {case.layout}")
def test_megatron_core_takes_the_model_values(case: Case) -> None:
    module = pytest.importorskip("megatron.core.transformer.transformer_config")
    known = set(module.TransformerConfig.__dataclass_fields__)
    given = {k: v for k, v in values(case)["model"].items() if k in known}
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
