"""What holds for every target: the plan behind a file, and writing it."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from export_cases import DENSE, SHARDED

import atoll
from atoll.base.errors import AtollError
from atoll.export import export
from atoll.step.layout import Layout
from atoll.tools.registry import TOOLS, find_tool
from atoll.workload.load import load_config

TARGETS = [tool.name for tool in TOOLS.values() if tool.write]


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_writes_its_file(target: str, tmp_path: Path) -> None:
    case = replace(SHARDED, more={"method": TOOLS[target].methods[0]})
    made = case.export(target)
    path = made.save(tmp_path)
    assert path == tmp_path / made.file
    assert path.read_text() == made.text
    assert made.target == target
    assert made.notes
    assert os.access(path, os.X_OK) == made.file.endswith(".sh")
    assert list(tmp_path.iterdir()) == [path]
    assert case.export(target) == made


def test_a_file_may_have_another_name(tmp_path: Path) -> None:
    assert DENSE.export("nemo").save(tmp_path / "mine.py").name == "mine.py"


def test_a_name_of_the_users_file_stays_as_it_is(tmp_path: Path) -> None:
    """Only comments that say how to start a file have its name."""
    more = {"carried": {"--seed": 7}, "source": "megatron.sh"}
    text = replace(SHARDED, more=more).export("megatron").save(tmp_path / "new.sh").read_text()
    assert "RUN=(  # as in megatron.sh" in text
    assert "# Start: bash new.sh" in text


@pytest.mark.parametrize("target", ["megatron-lm", "torchtitan", "deepspeed", "nemo", "trl"])
def test_the_interval_of_checkpoints_is_the_computed_one(target: str) -> None:
    method = "sft" if target == "trl" else "pretrain"
    asked = {"device": "h100", "devices": 8, "batch": 64, "zero": 3, "method": method}
    found = atoll.estimate("llama3-8b", **asked, tool=target, tokens="100B", mtbf="365d")
    file = found.export(target)
    assert found.whole_run is not None
    (line,) = [line for line in file.text.splitlines() if line.startswith("SAVE_INTERVAL")]
    assert re.findall(r"[-\"](\d+)[}\"]", line) == [str(found.whole_run.interval_steps)]


def test_the_note_asks_for_a_number_of_steps_only_if_none_is_known() -> None:
    notes = [replace(SHARDED, more=more).export("megatron").notes[0] for more in ({}, {"steps": 9})]
    assert ["TRAIN_ITERS" in note for note in notes] == [True, False]


def test_one_learning_rate_is_the_default_of_pretraining() -> None:
    texts = [SHARDED.export(target).text for target in ("megatron-lm", "torchtitan", "deepspeed")]
    rates = [re.search(r"(?:LR:-|\"LR\", \"|'lr': )([\d.e-]+)", text) for text in texts]
    assert [float(rate[1]) for rate in rates if rate] == [3e-4, 3e-4, 3e-4]


@pytest.mark.parametrize(
    ("target", "file"),
    [("torchtitan", "a.toml"), ("trl", "a"), ("nemo", "a.sh"), ("megatron", "a.py")],
)
def test_a_name_with_the_ending_of_another_tools_files_is_refused(
    target: str, file: str, tmp_path: Path
) -> None:
    case = replace(SHARDED, more={"method": TOOLS[find_tool(target).name].methods[0]})
    with pytest.raises(AtollError, match=r"launch file ends in \.(py|sh); name it .*a\.(py|sh)"):
        case.export(target).save(tmp_path / file)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match=r"cannot write .*no/mine.py: No such file"):
        DENSE.export("nemo").save(tmp_path / "no" / "mine.py")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"precision": "fp64"}, "precision bf16 or fp16 or fp8 or mxfp8 or nvfp4, not fp64"),
        (
            {"method": "lora"},
            "runs pretrain or sft, not lora; change --method, or choose --tool nemo",
        ),
        ({"stages": (10, 10)}, "must be 4 positive numbers"),
        ({"stages": (32, 0, 0, 0)}, "must be 4 positive numbers"),
        ({"devices_per_node": 0}, "devices per node is 0"),
        ({"global_batch": 7}, "global batch 7 is not a multiple"),
        ({"sequence": 0}, "sequence is 0"),
    ],
)
def test_a_plan_that_does_not_add_up_is_refused(change: dict[str, object], words: str) -> None:
    given_values: dict[str, object] = {"sequence": 4096, "global_batch": 64}
    with pytest.raises(AtollError, match=words):
        export(
            "megatron",
            load_config("llama3-8b"),
            Layout(dp=2, pp=4),
            **{**given_values, **change},  # type: ignore[arg-type]
        )


def test_a_small_run_is_one_node_that_is_not_full() -> None:
    made = export("megatron", load_config("llama3-8b"), Layout(dp=2), sequence=4096, global_batch=2)
    assert "--nnodes 1 --nproc-per-node 2" in made.text
