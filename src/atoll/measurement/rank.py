"""Child process: runs ranks of layouts one after another and writes one line of JSON for each.

    python -m atoll.measurement.rank JOBS.jsonl [--device cuda]

Needs PyTorch and the training tool, and no other part of Atoll. What the software prints goes to
standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import logging
import os
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from atoll.measurement.collectives import patch_collectives
from atoll.measurement.profiler import Mark, Nvml, nvml, profiled_kernels, synchronize, timed_steps
from atoll.measurement.rank_step import RankStep, local_part
from atoll.measurement.runner import RankJob

BUILDERS = {
    "transformers": "atoll.measurement.build_transformers",
    "torchtitan": "atoll.measurement.build_torchtitan",
}
PACKAGES = ("torch", "transformers", "torchtitan", "peft", "triton")
Record = dict[str, Any]


def run_job(job: RankJob, device: str) -> Record:
    """Return the measurements of one rank; running out of memory is one of the outcomes."""
    record: Record = {"id": job.id}
    try:
        _measure(job, device, record)
        record["outcome"] = "ok"
    except torch.OutOfMemoryError as error:
        record |= {"outcome": "oom", "error": _sentence(error)}
    except Exception as error:
        record |= {"outcome": "error", "error": _sentence(error)}
    if record["outcome"] != "ok" and device == "cuda":
        record |= _memory()
    return record


def _sentence(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


def _measure(job: RankJob, device: str, record: Record) -> None:
    """Warm up, time steps and profile one; fill the record as results arrive."""
    began = time.perf_counter()
    with _fake_world(job, device):
        torch.manual_seed(0)
        run: RankStep = importlib.import_module(BUILDERS[job.tool]).build(job, device)
        record |= _parameters(run)
        run.step()
        synchronize(device)
        record["setup_s"] = round(time.perf_counter() - began, 3)
        if device == "cuda":
            record["static_bytes"] = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        record |= _timed(run, job.steps, device)
        if run.last_loss is not None:
            loss = run.last_loss
            loss = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
            record["loss"] = round(float(loss), 4)
        if device == "cuda":
            record |= _memory()
            record["kernels"] = _profiled(run)


@contextlib.contextmanager
def _fake_world(job: RankJob, device: str) -> Iterator[None]:
    """Be one rank of a world without other ranks, then free everything."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if device == "cuda":
        torch.cuda.set_device(0)
        total = torch.cuda.mem_get_info()[1]
        limit = job.memory_bytes or total
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
        torch.cuda.reset_peak_memory_stats()
    dist.init_process_group(backend="fake", rank=job.rank, world_size=job.world, store=FakeStore())
    patch_collectives()
    try:
        yield
    finally:
        dist.destroy_process_group()


def release(job: RankJob, device: str) -> None:
    """Free what the last job left, so that the next one finds an empty device."""
    if job.compiled:
        torch._dynamo.reset()
    _forget_meshes()
    gc.collect()
    if device == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def _forget_meshes() -> None:
    """Clear what DTensor cached for meshes whose process groups are gone."""
    clear = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)
    if clear is not None:
        clear()
    modules = [m for name, m in list(sys.modules.items()) if name.startswith("torch.distributed.")]
    owners = [value for m in modules for value in list(vars(m).values()) if isinstance(value, type)]
    for owner in (*modules, *owners):
        for value in list(vars(owner).values()):
            if hasattr(value, "cache_clear") and not isinstance(value, type):
                value.cache_clear()
    from torch.distributed.tensor import DTensor

    propagator = DTensor._op_dispatcher.sharding_propagator
    propagator.propagate_op_sharding.cache_clear()


def _parameters(run: RankStep) -> Record:
    """Return the numbers of parameters: of this rank, of the model, and trained by this rank."""
    parameters = list(run.model.parameters())
    return {
        "params": sum(local_part(p).numel() for p in parameters),
        "params_full": sum(p.numel() for p in parameters),
        "trainable": sum(local_part(p).numel() for p in run.trained),
    }


def _memory() -> Record:
    """Return the allocator's peaks and the device's use, in bytes."""
    free, total = torch.cuda.mem_get_info()
    stats = torch.cuda.memory_stats()
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "requested_peak_bytes": stats.get("requested_bytes.all.peak", 0),
        "device_used_bytes": total - free,
        "device_total_bytes": total,
        "other_bytes": total - free - torch.cuda.memory_reserved(),
        "alloc_retries": stats.get("num_alloc_retries", 0),
        "gpu": torch.cuda.get_device_name(),
    }


def _timed(run: RankStep, steps: int, device: str) -> Record:
    """Return device and host milliseconds of steps, the median of each phase, power and clock."""
    library, clocks = nvml() if device == "cuda" else None, []

    def read_clock(_: Mark) -> None:
        if library is not None:
            clocks.append(library.clock_MHz())

    joules, window = library.joules() if library else 0.0, time.perf_counter()
    times = timed_steps(run.step, steps, device, read_clock)
    record: Record = {
        "step_ms": [round(t, 3) for t in times.step_ms],
        "host_ms": round(statistics.median(times.host_ms), 3),
        "phases_ms": {name: round(ms, 3) for name, ms in times.phases_ms.items()},
    }
    if library is not None:
        watts = (library.joules() - joules) / (time.perf_counter() - window)
        record |= {"power_W": round(watts, 1), "clock_MHz": round(statistics.fmean(clocks))}
    return record


def _profiled(run: RankStep) -> dict[str, list[list[Any]]]:
    """Return milliseconds, count and name of the kernels of one step, by phase."""
    return {
        phase: sorted(([round(ms, 4), n, name[:300]] for name, (ms, n) in kernels.items()),
                      reverse=True)
        for phase, kernels in profiled_kernels(run.step).items()
    }  # fmt: skip


def software() -> dict[str, str]:
    """Return the versions of the packages that are installed, and of the driver."""
    versions = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    with contextlib.suppress(Exception):
        versions["driver"] = Nvml().driver()
    return versions


def main() -> None:
    """Run the jobs of a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("jobs", type=Path)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not a result
    lines = options.jobs.read_text(encoding="utf-8").splitlines()
    print(json.dumps({"software": software()}), file=results, flush=True)
    for line in lines:
        job = RankJob.from_dict(json.loads(line))
        print(json.dumps({"begun": job.id}), file=results, flush=True)
        began = time.perf_counter()
        record = run_job(job, options.device)
        release(job, options.device)
        record["took_s"] = round(time.perf_counter() - began, 3)
        print(json.dumps(record), file=results, flush=True)
    results.flush()
    os._exit(0)  # spares the teardown of the device


if __name__ == "__main__":
    main()
