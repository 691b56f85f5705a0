"""Logs of runs: steps and peaks as frameworks write them, beside the estimate."""

from __future__ import annotations

import gzip
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.base.errors import AtollError
from atoll.tools.files.logs import read_run_log, steady_times
from atoll.validation.append_run import append_run

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
    "megatron": (MEGATRON.replace("{ms:.1f}", "2500.0"), 2.5),
    "nemo": ("iteration {n}/9 | lr: 1e-4 | train_step_timing in s: 2.5 | reduced_loss: 9\n", 2.5),
    "torchtitan": ("step:  {n}  loss:  9.1  memory: 80.00GiB(57.2%)  tps: 1,024  mfu: 40%\n", 2.0),
    "deepspeed": ("global_step={n}, RunningAvgSamplesPerSec=1, CurrSamplesPerSec=2.0, Mem\n", 4.0),
    "mlperf": (':::MLLOG {{"key": "tracked_stats", "value": {{"train_step_time": 2.5}}}}\n', 2.5),
}


@pytest.mark.parametrize("software", LINES)
def test_each_framework_is_known_by_its_words(software: str, tmp_path: Path) -> None:
    line, time_s = LINES[software]
    log = tmp_path / "run.log"
    lines = (f"\x1b[32m0: {line.format(n=n)}\x1b[0m\n" for n in range(4))
    log.write_text("".join(["starting\n", *lines]))
    found = read_run_log(log)
    assert found.software == software
    assert found.step_times_s(batch=8, sequence=2048, devices=8) == pytest.approx([time_s] * 4)


@pytest.mark.parametrize("software", LINES)
@pytest.mark.parametrize("together", [True, False], ids=["interleaved", "one log after another"])
def test_lines_of_several_ranks_about_one_step_are_one_step(
    software: str, together: bool, tmp_path: Path
) -> None:
    """MLPerf's lines have no number: the nth of every rank is about the same step."""
    line, time_s = LINES[software]
    log = tmp_path / "run.log"
    order = [(rank, n) for n in range(6) for rank in range(4)]
    lines = [
        f"[rank{rank}]:{line.format(n=n)}" for rank, n in (order if together else sorted(order))
    ]
    log.write_text("".join(lines))
    found = read_run_log(log)
    assert found.step_times_s(batch=8, sequence=2048, devices=8) == pytest.approx([time_s] * 6)


def test_the_time_of_a_step_is_the_median_of_its_ranks(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    times_ms = {1: (900, 910, 1300), 2: (800, 800, 830)}
    log.write_text("".join(MEGATRON.format(n=n, ms=ms) for n in times_ms for ms in times_ms[n]))
    assert read_run_log(log).times_s == (0.91, 0.8)


def test_a_rank_before_the_line_says_whose_peak_it_is(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("".join(f"[rank{r}]:{LINES['torchtitan'][0].format(n=1)}" for r in (0, 6)))
    assert [rank for rank, _ in read_run_log(log).peaks] == [0, 6]


BATCHES = {
    "on the line of a step": MEGATRON.format(n=1, ms=900),
    "NeMo": "iteration 0/9 | global_batch_size: 256 | global_step: 0 | train_step_timing in s: 7\n",
    "arguments": "  global_batch_size ............... 256\n" + LINES["torchtitan"][0].format(n=1),
    "torchtitan": "local batch size 8, global batch size 256, gradient accumulation steps 1\n"
    + LINES["torchtitan"][0].format(n=1),
    "DeepSpeed": "[INFO] [config.py:1003:print]   train_batch_size ............. 256\n"
    + LINES["deepspeed"][0].format(n=1),
    "MLPerf": ':::MLLOG {"key": "global_batch_size", "value": 256, "metadata": {}}\n'
    + LINES["mlperf"][0].format(),
    "as samples add up": "".join(
        f"global_step={n}.00, consumed_samples={256 * (n + 1)}.0, train_step_timing in s=3.1\n"
        for n in range(8, 12)
    ),
}


@pytest.mark.parametrize("said", BATCHES)
def test_a_log_says_its_batch(said: str, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(BATCHES[said])
    assert read_run_log(log).job["batch"] == 256


def test_steps_of_a_batch_that_still_grows_are_left_out(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    small = MEGATRON.format(n=1, ms=500).replace("global batch size: 256", "global batch size: 128")
    log.write_text(small + MEGATRON.format(n=2, ms=900))
    assert (read_run_log(log).job["batch"], read_run_log(log).times_s) == (256, (0.9,))


def test_a_log_of_another_batch_is_compared_with_a_warning(tmp_path: Path) -> None:
    """The file's is of 8 sequences; to a table of runs it cannot be added."""
    log = tmp_path / "run.log"
    for batch in (8, 16):
        said = f"Trainer is initialized with local batch size 4, global batch size {batch}\n"
        log.write_text(said + LOG.read_text())
        notes = atoll.check(JOB, device="h200", devices=1, log=log).answer.notes
        assert any("its run has batch 16" in note and "--batch 16" in note for note in notes) == (
            batch > 8
        )
    with pytest.raises(AtollError, match=r"append: .*its run has batch 16"):
        atoll.check(JOB, device="h200", devices=1, log=log, append=tmp_path / "mine.csv")
    assert not (tmp_path / "mine.csv").exists()


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


def test_the_rest_of_an_endless_line_is_not_searched(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(f"step: 1 tps: 10 {' ' * 2**17} tps: 20\nstep: 2 tps: 30\n", encoding="utf-8")
    assert read_run_log(log).tokens_per_s == (10.0, 30.0)


@pytest.mark.slow
def test_a_packed_log_of_zeros_is_refused_in_seconds(tmp_path: Path) -> None:
    log = tmp_path / "run.log.gz"
    log.write_bytes(gzip.compress(bytes(2**20), 1) * 2**11)
    began_s = time.process_time()
    with pytest.raises(AtollError, match="more than 1,073,741,824 characters"):
        read_run_log(log)
    assert time.process_time() - began_s < 10.0  # of the processor; all of it was searched before


@pytest.mark.parametrize("content", [b"", b"no steps here\n", bytes(range(256)), b"\x1f\x8bxx"])
def test_what_is_no_log_is_a_sentence(content: bytes, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_bytes(content)
    with pytest.raises(AtollError, match=r"no line has|cannot be read"):
        read_run_log(log)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40))
def test_steady_steps_are_some_of_the_steps(times_s: list[float]) -> None:
    kept = steady_times(times_s)
    assert kept and set(kept) <= set(times_s)


def test_warm_up_and_checkpoints_are_left_out() -> None:
    assert steady_times([9.0, 3.0, 1.0, 1.01, 1.0, 7.0, 0.99, 1.0]) == (1.0, 1.01, 1.0, 0.99, 1.0)


def test_a_measured_run_stands_beside_its_estimate() -> None:
    """An exported job of torchtitan on an H200: within 8 % of time and 5 % of memory."""
    measured = atoll.check(JOB, device="h200", devices=1, log=LOG, trace=TRACE).answer.measured
    assert measured is not None and measured.software == "torchtitan"
    assert measured.steps == 13 and measured.step_time_s == pytest.approx(1.12, rel=1e-2)
    assert abs(measured.error) < 0.08
    assert abs(measured.memory_error or 1) < 0.05
    assert measured.slack is not None and measured.slack[1] < 1.0 <= measured.slack[0]
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
