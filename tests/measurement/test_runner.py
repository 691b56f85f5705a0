"""Child processes that run ranks: on the CPU, with tiny models and fake process groups."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atoll.measurement import runner
from atoll.measurement.runner import RankJob, command, read_jobs, run_jobs

LLAMA = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 8, "intermediate_size": 256, "vocab_size": 512,
    "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip


def job(id: str, tool: str, **more: Any) -> RankJob:
    return RankJob(id, tool, LLAMA, sequence=32, steps=1, **more)


def write_jobs(path: Path, jobs: list[RankJob]) -> None:
    path.write_text("\n".join(json.dumps(each.to_dict()) for each in jobs) + "\n")


def test_jobs_are_read_back(tmp_path: Path) -> None:
    jobs = [job("a", "torchtitan", fsdp=8, blocks=(0, 2)), job("b", "transformers", lora_rank=4)]
    write_jobs(tmp_path / "jobs.jsonl", jobs)
    assert read_jobs(tmp_path / "jobs.jsonl") == jobs
    assert "microbatch" not in json.loads((tmp_path / "jobs.jsonl").read_text().splitlines()[0])


@pytest.mark.slow
def test_ranks_of_torchtitan_run_without_a_gpu() -> None:
    pytest.importorskip("torchtitan")
    jobs = [
        job("sharded", "torchtitan", fsdp=16),
        job("selective", "torchtitan", tp=2, fsdp=4, recompute="alternate"),
        job("refused", "torchtitan", fsdp=4, recompute="unknown"),
        job("stage", "torchtitan", fsdp=2, pp=4, stage=3, rank=6, blocks=(3, 4), microbatches=4),
    ]
    records = {r["id"]: r for r in run_jobs(jobs, "cpu")}
    assert {name: record["outcome"] for name, record in records.items()} == {
        "sharded": "ok",
        "selective": "ok",
        "refused": "error",
        "stage": "ok",
    }
    sharded = records["sharded"]
    assert sharded["params"] == pytest.approx(sharded["params_full"] / 16, rel=0.01)
    assert sharded["loss"] == pytest.approx(6.2, abs=0.6)  # log of 512 words
    assert sharded["software"]["torch"]


@pytest.mark.slow
def test_ranks_of_hugging_face_models_run_without_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    jobs = [
        job("replicated", "transformers", replicate=8),
        job("sharded", "transformers", fsdp=8, replicate=2, recompute="full", microbatches=2),
    ]
    write_jobs(tmp_path / "jobs.jsonl", jobs)
    lines = subprocess.check_output(command(tmp_path / "jobs.jsonl", "cpu")).splitlines()
    records = {r["id"]: r for r in map(json.loads, lines)}
    assert [records[name]["outcome"] for name in ("replicated", "sharded")] == ["ok", "ok"]
    assert records["replicated"]["params"] == records["replicated"]["params_full"]


def child(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let children be a program instead."""
    monkeypatch.setattr(runner, "command", lambda *_: [sys.executable, "-c", code])


def test_a_child_that_dies_leaves_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, "import sys; sys.exit('the driver is gone')")
    (record,) = run_jobs([job("a", "torchtitan")], "cpu")
    assert (record["outcome"], record["id"]) == ("died", "a")
    assert "code 1: the driver is gone" in record["error"]


def test_a_job_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, "import time; time.sleep(60)")
    (record,) = run_jobs([job("a", "torchtitan")], "cpu", 0.2)
    assert (record["outcome"], record["error"]) == ("time", "took more than 0 s")


@pytest.mark.slow
def test_stand_ins_leave_tensors_as_new() -> None:
    """Selective checkpoints refuse cached tensors that changed after the collective."""
    torch = pytest.importorskip("torch")
    from torch.distributed import _functional_collectives as functional
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from atoll.measurement.collectives import patch_collectives

    before = {n: getattr(functional, n) for n in
              ("_maybe_wrap_tensor", "all_gather_tensor", "reduce_scatter_tensor")}  # fmt: skip
    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        patch_collectives()
        group = torch.distributed.group.WORLD
        part = functional.reduce_scatter_tensor(torch.ones(8, 2), "sum", 0, group)
        gathered = functional.all_gather_tensor(torch.ones(2, 2), 0, group)
        assert (part.shape, gathered.shape) == ((2, 2), (8, 2))
        assert bool((gathered == 1).all())
        assert (part._version, gathered._version) == (0, 0)
    finally:
        torch.distributed.destroy_process_group()
        for name, function in before.items():
            setattr(functional, name, function)
        patch_collectives.cache_clear()


@pytest.mark.slow
def test_ranks_of_megatron_lm_run_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron-Core makes some tensors on the GPU by name; here they are made on the CPU."""
    torch = pytest.importorskip("torch")
    rng = pytest.importorskip("megatron.core.tensor_parallel.random")
    from torch.overrides import TorchFunctionMode

    from atoll.measurement.rank import run_job

    class OnCpu(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            words = dict(kwargs or {})
            if str(words.get("device")) == "cuda":
                words["device"] = "cpu"
            out = func(*args, **words)
            is_name = func is torch.Tensor.type and isinstance(out, str)
            return out.replace("torch.", "torch.cuda.", 1) if is_name else out

    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self, *_, **__: self)
    monkeypatch.setattr(rng.CudaRNGStatesTracker, "fork", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(rng, "_get_cuda_rng_state", lambda *_, **__: torch.zeros(1))
    monkeypatch.setattr(rng, "_set_cuda_rng_state", lambda *_, **__: None)
    jobs = [
        job("divided", "megatron-lm", fsdp=8, microbatches=2, recompute="full"),
        job("stage", "megatron-lm", fsdp=2, tp=2, pp=2, stage=1, rank=4, microbatches=4),
    ]
    with OnCpu():
        records = [run_job(each, "cpu") for each in jobs]
    assert [record.get("error") for record in records] == [None, None]
    assert records[0]["loss"] == pytest.approx(6.2, abs=0.6)  # log of 512 words
