"""Child process: runs one rank of a layout and writes one line of JSON.

    python -m atoll.measurement.rank JOBS.jsonl [--device cuda]

Several jobs run one after another, each in a child of its own. Needs PyTorch and the training tool,
and no other part of Atoll. What the software prints goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import time
import warnings
from importlib import metadata
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from atoll.calibration.local_gpu import nvml
from atoll.measurement.builders import BUILDERS
from atoll.measurement.collectives import patch_collectives, run_in_line
from atoll.measurement.profiler import profiled_kernels, synchronize, timed_steps
from atoll.measurement.rank_step import local_part
from atoll.measurement.runner import RankJob, Record, read_jobs, run_jobs

PACKAGES = ("torch", "transformers", "torchtitan", "megatron-core", "peft", "triton")


def run_job(job: RankJob, device: str) -> Record:
    """Return the measurements of one rank; running out of memory is one of the outcomes."""
    record: Record = {"id": job.id}
    began = time.perf_counter()
    try:
        _measure(job, device, record)
        record["outcome"] = "ok"
    except Exception as error:
        record["outcome"] = "oom" if isinstance(error, torch.OutOfMemoryError) else "error"
        record["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        if device == "cuda":
            record |= _memory()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return record | {"took_s": round(time.perf_counter() - began, 3), "software": software()}


def _measure(job: RankJob, device: str, record: Record) -> None:
    """Become one rank of a world without other ranks, warm up, time steps and profile one; fill the
    record as results arrive.
    """
    began = time.perf_counter()
    if device == "cuda":
        torch.cuda.set_device(0)
        total = torch.cuda.mem_get_info()[1]
        limit = job.memory_bytes or total
        # Versions before 2.9 have the latter name alone.
        allocate = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
        allocate = allocate or torch.cuda.memory._set_allocator_settings
        allocate(f"expandable_segments:{job.expandable}")
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
        torch.cuda.reset_peak_memory_stats()
    dist.init_process_group(backend="fake", rank=job.rank, world_size=job.world, store=FakeStore())
    patch_collectives()
    torch.manual_seed(0)
    run = BUILDERS[job.tool](job, device)
    parameters = list(run.model.parameters())
    local = [local_part(p).numel() for p in parameters]
    record["params"], record["params_full"] = sum(local), sum(p.numel() for p in parameters)
    record["trainable"] = sum(n for n, p in zip(local, parameters, strict=True) if p.requires_grad)
    run.step()
    synchronize(device)
    record["setup_s"] = round(time.perf_counter() - began, 3)
    if device == "cuda":
        record["static_bytes"] = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run.step()
        synchronize(device)
        record |= _memory()
        if not job.steps:
            return
        if not job.memory_bytes:  # every stream has a pool of its own
            run_in_line(run.model)
            record["in_line"] = True
    record |= timed_steps(run.step, job.steps, device)
    if (loss := run.last_loss) is not None:
        record["loss"] = round(float(getattr(loss, "full_tensor", lambda: loss)()), 4)
    if device == "cuda":
        record["kernels"] = {
            phase: sorted(([round(ms, 4), n, name[:300]] for name, (ms, n) in kernels.items()),
                          reverse=True)
            for phase, kernels in profiled_kernels(run.step).items()
        }  # fmt: skip


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


def software() -> dict[str, str]:
    """Return the versions of the packages that are installed, and of the driver."""
    versions = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    driver = nvml("SystemGetDriverVersion")
    return versions if driver is None else versions | {"driver": str(driver)}


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
    jobs = read_jobs(options.jobs)
    alone = len(jobs) == 1
    records = [run_job(jobs[0], options.device)] if alone else run_jobs(jobs, options.device)
    for record in records:
        print(json.dumps(record), file=results, flush=True)
    os._exit(0)  # spares the teardown of the device


if __name__ == "__main__":
    main()
