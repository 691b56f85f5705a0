"""Logs of runs: steps and peaks as frameworks write them, beside the estimate."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.errors import AtollError
from atoll.launch.files.logs import read_run_log, steady
from atoll.validation.written_row import append_run

EXAMPLES = Path(__file__).parents[2] / "examples" / "check"
JOB, LOG = EXAMPLES / "qwen3-1.7b.toml", EXAMPLES / "qwen3-1.7b.log"
TRACE = EXAMPLES / "qwen3-1.7b-trace.json.gz"

MEGATRON = """\
 [2026-01-01 00:00:{n:02}] iteration {n:8}/     500 | consumed samples: 256 | elapsed time per \
iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 401.0 | global batch size: 256 |
"""
MEMORY = "[Rank {rank}] (after 5 iterations) memory (MB) | allocated: 9.0 | max allocated: 20000.0 \
| reserved: 1.0 | max reserved: {mib}\n"
LINES = {
    "megatron": (MEGATRON.format(n=4, ms=2500), 2.5),
    "nemo": ("iteration 3/9 | lr: 1e-4 | train_step_timing in s: 2.5 | consumed_samples: 9\n", 2.5),
    "torchtitan": ("step:  4  loss:  9.1  memory: 80.00GiB(57.2%)  tps: 1,024  mfu: 40%\n", 2.0),
    "deepspeed": ("global_step=4, RunningAvgSamplesPerSec=1, CurrSamplesPerSec=2.0, MemAll\n", 4.0),
    "mlperf": (':::MLLOG {"key": "tracked_stats", "value": {"train_step_time": 2.5}}\n', 2.5),
}


@pytest.mark.parametrize("software", LINES)
def test_each_framework_is_known_by_its_words(software: str, tmp_path: Path) -> None:
    line, time_s = LINES[software]
    log = tmp_path / "run.log"
    log.write_text("".join(["starting\n", *[f"\x1b[32m0: {line}\x1b[0m\n"] * 4]))
    found = read_run_log(log)
    assert found.software == software
    assert found.step_times_s(batch=8, sequence=2048, devices=8) == pytest.approx([time_s] * 4)


def test_ranks_of_a_pipeline_report_their_own_stage(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(
        MEGATRON.format(n=1, ms=900)
        + MEMORY.format(rank=0, mib=30000.0)
        + MEMORY.format(rank=4, mib=20000.0)
    )
    assert read_run_log(log).peaks == ((0, 30000.0 * 2**20), (4, 20000.0 * 2**20))


def test_packed_logs_are_read(tmp_path: Path) -> None:
    packed = tmp_path / "run.log.gz"
    packed.write_bytes(gzip.compress(LOG.read_bytes()))
    assert read_run_log(packed).tokens_per_s == read_run_log(LOG).tokens_per_s


@pytest.mark.parametrize("content", [b"", b"no steps here\n", bytes(range(256)), b"\x1f\x8bxx"])
def test_what_is_no_log_is_a_sentence(content: bytes, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_bytes(content)
    with pytest.raises(AtollError, match=r"no line has|cannot be read"):
        read_run_log(log)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40))
def test_steady_steps_are_some_of_the_steps(times_s: list[float]) -> None:
    kept = steady(times_s)
    assert kept and set(kept) <= set(times_s)


def test_warm_up_and_checkpoints_are_left_out() -> None:
    assert steady([9.0, 3.0, 1.0, 1.01, 1.0, 7.0, 0.99, 1.0]) == (1.0, 1.01, 1.0, 0.99, 1.0)


def test_a_measured_run_stands_beside_its_estimate() -> None:
    """An exported job of torchtitan on an H200: within 8 % of time and 5 % of memory."""
    measured = atoll.check(JOB, device="h200", devices=1, log=LOG, trace=TRACE).answer.measured
    assert measured is not None and measured.software == "torchtitan"
    assert measured.steps == 13 and measured.step_time_s == pytest.approx(1.12, rel=1e-2)
    assert abs(measured.error) < 0.08 and abs(measured.memory_error or 1) < 0.05
    assert measured.slack is not None and measured.slack[1] < 1.0 < measured.slack[0]
    parts = {part.part: part for part in measured.parts}
    assert {"products", "attention", "streaming", "waiting for the host"} <= parts.keys()
    total_s = sum(part.measured_s for part in measured.parts)
    assert total_s == pytest.approx(1.062, rel=0.01)


def test_a_measured_run_becomes_a_row_that_validates(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    for _ in range(2):
        atoll.check(JOB, device="h200", devices=1, log=LOG, append=table)
    found = atoll.validate(data=table)
    assert found.rows == 2 and (found.step_time.mean_ape or 1) < 0.08


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "llama3-8b", "method": "lora", "lora_targets": "q_proj,v_proj,down_proj"},
        {"model": "mixtral-8x7b", "ep": 4, "tp": 2},
        {"model": "llama3-8b", "tp": 2, "recompute": "full"},
    ],
)
def test_a_row_reads_back_as_the_run(asked: dict[str, Any], tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    found = atoll.estimate(device="h200", devices=8, batch=64, **asked)
    append_run(table, "mine", found, {"measured_iter_time_s": 2 * found.step.time_s})
    assert atoll.validate(data=table).step_time.mean_ape == pytest.approx(0.5, abs=1e-3)


def test_a_table_needs_something_measured(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="nothing was measured"):
        atoll.check(JOB, device="h200", devices=1, append=tmp_path / "mine.csv")
