"""New kinds of models through every program, and what cannot be done with them is said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import atoll
from atoll.base.errors import AtollError
from atoll.wafer.encoding.block import make_block
from atoll.workload.families import FAMILIES

from .small_families import given

ROOT = Path(__file__).parents[2]
TINY = ROOT / "examples" / "spaces" / "tiny.yaml"
KINDS = {
    "dense": "olmo3",
    "experts": "gpt_oss",
    "hybrid": "bamba",
    "state space": "mamba2",
    "encoder": "modernbert",
}


def file(folder: Path, name: str, **changes: object) -> str:
    path = folder / name / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(given(name, **changes)), encoding="utf-8")
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_model_of_each_kind_is_planned_and_searched(kind: str, tmp_path: Path) -> None:
    model = file(tmp_path, KINDS[kind])
    plan = atoll.plan(model, "h100", 4, batch=8, sequence=128)
    assert plan.best.to_dict()["step_time_s"] > 0
    result = atoll.search(
        model=model, space=str(TINY), devices=4, batch=8, sequence=128,
        microbatch=[1], tp=[1, 2], baselines=False, tolerance=0.01,
    )  # fmt: skip
    assert result.certificate.gap <= 0.01


def test_a_pipeline_may_be_cut_inside_a_period(tmp_path: Path) -> None:
    model = file(tmp_path, "qwen3_next", num_hidden_layers=12)
    found = atoll.estimate(
        model, "h100", 8, batch=16, sequence=128, pp=8, microbatch=1, recompute="optimal"
    )
    assert found.to_dict()["step_time_s"] > 0 and len(found.stages) == 8


def test_the_sequence_of_a_state_is_not_divided(tmp_path: Path) -> None:
    model = file(tmp_path, "bamba")
    with pytest.raises(AtollError, match="blocks that carry a state along the sequence"):
        atoll.estimate(model, "h100", 2, batch=8, sequence=128, cp=2)
    with pytest.raises(AtollError, match="does not divide the 8 heads of the state"):
        wide = file(tmp_path, "falcon_h1", num_attention_heads=16, mamba_d_ssm=96)
        atoll.estimate(wide, "h100", 16, batch=16, sequence=128, tp=16)


@pytest.mark.parametrize("name", ["mamba2", "falcon_h1", "qwen3_next"])
def test_wafers_refuse_mixers_other_than_attention(name: str, tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="mixers other than attention"):
        make_block(file(tmp_path, name), 1, 128)


def test_models_show_active_parameters_and_which_part_they_are(tmp_path: Path) -> None:
    shown = atoll.describe_model(file(tmp_path, "olmoe"), sequence=128)
    assert shown.active_parameters < shown.parameters and shown.part == ""
    folder = tmp_path / "whole"
    folder.mkdir()
    whole = {"model_type": "gemma3", "text_config": given("gemma3_text")}
    (folder / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    assert atoll.describe_model(str(folder), sequence=128).part == "language part"


def test_the_documents_have_what_the_registry_has() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert [name for name in FAMILIES if f"`{name}`" not in page] == []
    row = re.search(r"(\d+) model types", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert row is not None and int(row[1]) == len(FAMILIES)
