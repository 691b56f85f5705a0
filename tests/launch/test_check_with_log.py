"""A launch file compared with a log: what contradicts, and savings by the measured step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.base.errors import AtollError

from .test_check import SCRIPT

ARGUMENTS = (
    "using world size: 8, data-parallel size: 1, hierarchical context-parallel sizes: None, "
    "tensor-model-parallel size: {tp}, pipeline-model-parallel size: 1\n"
)
STEP = (
    " iteration {n}/ 1000 | elapsed time per iteration (ms): {ms} | global batch size: {batch} |\n"
    "[Rank 0] (after 2 iterations) memory (MB) | max reserved: {mib} |\n"
)


def checked(tmp_path: Path, tp: int = 8, ms: float = 0, mib: float = 0, **given: Any) -> Any:
    path, log = tmp_path / "train.sh", tmp_path / "run.log"
    path.write_text(SCRIPT)
    steps = [STEP.format(n=n, ms=ms, batch=given.get("logged", 64), mib=mib) for n in range(20)]
    log.write_text(ARGUMENTS.format(tp=tp) + "".join(steps))
    more = {name: value for name, value in given.items() if name != "logged"}
    return atoll.check(path, device="h100", set=["GPUS=8"], log=log, price=2.0, **more)


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("plain") / "train.sh"
    path.write_text(SCRIPT)
    return atoll.check(path, device="h100", set=["GPUS=8"], time_limit=1e-6).estimate


def milliseconds(predicted: Any, ratio: float) -> float:
    return 1e3 * predicted.step.time_s * ratio


def mebibytes(predicted: Any, ratio: float = 1.0) -> float:
    return predicted.worst.reserved * ratio / 2**20


def test_savings_are_a_share_of_the_measured_step(tmp_path: Path, predicted: Any) -> None:
    ms = milliseconds(predicted, 1.1)
    found = checked(tmp_path, ms=ms, mib=mebibytes(predicted))
    saved = 1 - found.better.step_time_s / found.estimate.step.time_s
    assert found.better.saved_hours == pytest.approx(1000 * 8 * saved * ms / 1e3 / 3600)
    off = found.better.step_time_s / (ms / 1e3) - 1
    words = next(text for label, text in found.summary() if label == "Better")
    assert f"({-off:.1%} below the measured step), saves {saved:.1%} of the predicted step" in words
    assert "; that share of the measured steps is " in words
    assert found.summary()[0][0] == "File", "nothing contradicts"


def test_the_arguments_to_change_are_in_the_answer(tmp_path: Path, predicted: Any) -> None:
    found = checked(tmp_path, ms=milliseconds(predicted, 1.1), mib=mebibytes(predicted))
    tp = found.plan.best.layout.tp
    assert f"--tensor-model-parallel-size 8 -> {tp}" in found.better.changes
    assert "drop --recompute-granularity" in found.better.changes
    assert "--tensor-model-parallel-size 8" in dict(found.summary())["Change"]


def test_a_log_of_another_layout_is_said_first(tmp_path: Path, predicted: Any) -> None:
    found = checked(tmp_path, tp=4, ms=milliseconds(predicted, 1.1), mib=mebibytes(predicted))
    label, words = found.summary()[0]
    assert label == "Note"
    assert "its run has tp 4, the estimate tp 8: two different jobs are compared" in words
    assert "measured" not in dict(found.summary())["Better"]
    predicted_s = found.estimate.step.time_s
    saved_s = predicted_s - found.better.step_time_s
    assert found.better.saved_hours == pytest.approx(1000 * 8 * saved_s / 3600)
    with pytest.raises(AtollError, match=r"append: .* two different jobs"):
        checked(tmp_path, tp=4, ms=9, time_limit=1e-6, append=tmp_path / "rows.csv")


def test_a_log_of_another_batch_names_the_option(tmp_path: Path, predicted: Any) -> None:
    ms = milliseconds(predicted, 1.1)
    found = checked(tmp_path, ms=ms, mib=mebibytes(predicted), logged=32, time_limit=1e-6)
    assert found.summary()[0][1].endswith("add --batch 32")


@pytest.mark.parametrize(
    ("ratio", "memory", "words"),
    [(20.0, 1.0, "its step of"), (0.02, 1.0, "its step of"), (1.1, 3.0, "its memory of")],
)
def test_a_measurement_far_outside_of_the_interval_is_said_first(
    tmp_path: Path, predicted: Any, ratio: float, memory: float, words: str
) -> None:
    ms, mib = milliseconds(predicted, ratio), mebibytes(predicted, memory)
    label, note = checked(tmp_path, ms=ms, mib=mib, time_limit=1e-6).summary()[0]
    assert label == "Note"
    assert words in note
    assert "far outside of" in note
    assert "atoll calibrate" in note


def test_a_warning_of_the_tool_is_in_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT.replace("--bf16", "--bf16 --use-megatron-fsdp"))
    found = atoll.check(path, device="h100", set=["GPUS=8"])
    notes = [words for label, words in found.summary() if label == "Note"]
    assert any("warns against Megatron-FSDP (zero 3) with tensor" in words for words in notes)
    assert "tp 8 -> " in dict(found.summary())["Change"], "though its writer refuses the layout"
