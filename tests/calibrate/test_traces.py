"""Traces of the PyTorch profiler: where a step's time went, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from atoll.base.errors import AtollError
from atoll.validation import kineto
from atoll.validation.kineto import read_trace

OURS = Path(__file__).parents[1] / "data" / "h200_compiled_steps.json.gz"
"""Two steps of four blocks of Llama 3 8B on one H200, compiled: what ran there and was launched."""


def kernel(name: str, start: float, length: float, number: int, stream: int = 7) -> dict[str, Any]:
    told = {"correlation": number, "device": 0, "stream": stream}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": length, "args": told}


def launch(start: float, number: int, length: float = 5.0) -> dict[str, Any]:
    told = {"correlation": number}
    shown = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": told}
    return {**shown, "ts": start, "dur": length}


def mark(name: str, start: float, length: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": start, "dur": length}


def written(folder: Path, events: list[Any], name: str = "trace.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_steps_of_our_h200_take_what_its_log_says() -> None:
    first, second = read_trace(OURS)
    # the log of the same model without a profiler: 147.6 to 154.9 ms
    assert first.time_s == pytest.approx(0.1464, rel=1e-3)
    assert second.time_s == pytest.approx(0.1527, rel=1e-3)
    for step in (first, second):
        assert list(step.kinds)[:2] == ["products", "attention"]
        assert sum(step.kinds.values()) + step.host_gap_s + step.other_gap_s == pytest.approx(
            step.time_s, rel=1e-3
        )
        assert step.launches == 359


def test_gaps_belong_to_the_host_where_the_next_kernel_was_not_launched_yet(
    tmp_path: Path,
) -> None:
    events = [
        launch(0, 1),
        kernel("gemm", 10, 100, 1),
        launch(150, 2),  # 45 us after the device ran dry
        kernel("gemm", 160, 40, 2),
        launch(158, 3),
        kernel("softmax", 220, 80, 3),  # launched in time: something else held it up
    ]
    (step,) = read_trace(written(tmp_path, events))
    assert step.time_s == pytest.approx(300e-6)
    assert step.kinds == pytest.approx({"products": 140e-6, "softmax/loss": 80e-6})
    # 5 us until the first launch returned, 45 until the second did
    assert step.host_gap_s == pytest.approx(50e-6)
    assert step.other_gap_s == pytest.approx(30e-6)


def test_communication_is_hidden_as_far_as_others_run(tmp_path: Path) -> None:
    events = [
        launch(0, 1), kernel("gemm", 10, 100, 1),
        launch(5, 2), kernel("ncclDevKernel_ReduceScatter_Sum", 60, 100, 2, stream=20),
        launch(10, 3), kernel("ncclDevKernel_AllGather_RING_LL", 170, 20, 3, stream=20),
    ]  # fmt: skip
    (step,) = read_trace(written(tmp_path, events))
    assert step.exposed_s == pytest.approx(70e-6)
    assert step.hidden["gradient"] == pytest.approx((100e-6, 50e-6))
    assert step.hidden["gather"] == pytest.approx((20e-6, 20e-6))


def test_the_process_group_tells_whose_a_collective_is(tmp_path: Path) -> None:
    event = kernel("ncclDevKernel_AllGather_RING_LL", 10, 20, 1)
    event["args"]["Process Group Description"] = "TENSOR_MODEL_PARALLEL_GROUP"
    (step,) = read_trace(written(tmp_path, [launch(0, 1), event]))
    assert list(step.hidden) == ["tensor_products"]


def test_steps_are_the_profilers_or_end_with_the_optimizers(tmp_path: Path) -> None:
    work = [launch(0, 1), kernel("gemm", 10, 10, 1), launch(100, 2), kernel("gemm", 110, 30, 2)]
    named = [mark("ProfilerStep#7", 0, 50), mark("ProfilerStep#8", 50, 100)]
    updates = [mark("Optimizer.step#AdamW.step", at, 5) for at in (40, 140)]
    for marks in (named, updates):
        first, second = read_trace(written(tmp_path, work + marks))
        assert first.time_s == pytest.approx(20e-6)
        assert second.time_s == pytest.approx(120e-6)


def test_a_trace_is_read_in_pieces_packed_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_trace(OURS)
    monkeypatch.setattr(kineto, "CHUNK", 1000)
    plain = tmp_path / "plain.json"
    plain.write_bytes(gzip.decompress(OURS.read_bytes()))
    assert read_trace(plain) == whole == read_trace(OURS)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no \"traceEvents\""),
        (b"step,time\n1,2\n", "no \"traceEvents\""),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b'{"traceEvents": [{"ph": "X"}', "cut off or damaged"),
        (b'{"traceEvents": [' + b"[" * 100_000, "too deep"),
        (b'{"traceEvents": []}', "no kernels"),
        (b"\x1f\x8b\x08\x00broken", "cannot be read"),
    ],
)  # fmt: skip
def test_other_files_are_refused_in_a_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(AtollError, match=says):
        read_trace(path)


def test_odd_events_are_passed_over(tmp_path: Path) -> None:
    odd = [
        {"ph": "X", "cat": "kernel", "name": 3, "ts": 1, "dur": 1},
        {"ph": "X", "cat": "kernel", "name": "x", "ts": "soon", "dur": 1},
        {"ph": "X", "cat": "kernel", "name": "x", "ts": 1e999, "dur": 1},
        "text", 5, None,
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 1, "args": ["none"]},
    ]  # fmt: skip
    (step,) = read_trace(written(tmp_path, odd))
    assert step.time_s == pytest.approx(1e-6)
    assert step.launches == 0
