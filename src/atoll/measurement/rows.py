"""Rows of measured ranks, which `atoll validate`, `calibrate` and `check` read."""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.files.csvfile import append_csv
from atoll.measurement.runner import RankJob
from atoll.training.operators.kernel_classes import KERNEL_CLASSES
from atoll.validation.kineto import kernel_class
from atoll.validation.tables import OUT_OF_MEMORY, STEP_COLUMNS
from atoll.workload.families.config import config_from_hf

STAND_IN = re.compile(r"copysign|Memcpy DtoD")
"""Kernels that stand in for collectives (`collectives.py`); not counted as a rank's kernels."""
COPIED = (
    "host_ms", "static_bytes", "peak_bytes", "reserved_bytes", "requested_peak_bytes",
    "device_used_bytes", "device_total_bytes", "other_bytes", "alloc_retries", "power_W",
    "clock_MHz", "loss", "params", "params_full", "trainable", "setup_s", "gpu", "error",
)  # fmt: skip
"""Fields of a record that become cells as they are."""
BACKENDS = {"pytorch_flash": "FLASH_ATTENTION", "cudnn_generated": "CUDNN_ATTENTION"}
"""Back ends of torch's attention by what their kernels are called."""
SOFTWARE = ("torch", "transformers", "torchtitan", "megatron-core", "driver")
MODEL_COLUMNS = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts")
COLUMNS = (
    "id", "half", "tool", "mode", "model", "family", "config", *MODEL_COLUMNS, "top_k", "world",
    "rank", "tp", "fsdp", "replicate", "pp", "pp_rank", "microbatches", "mbs", "seq", "weights",
    "compute", "reduce", "recompute", "reshard_after_forward", "compiled", "optimizer", "clip",
    "lora_rank", "lora_targets", "adapter_dtype", "attn", "backend", "experts_implementation",
    "limit_bytes", "step_ms", "spread", "forward_ms", "backward_ms", "clip_ms", "optimizer_ms",
    "kernels", "kernel_ms", *(f"k_{name}_ms" for name in KERNEL_CLASSES), "stand_in_ms",
    "stand_in_copies", *COPIED, *SOFTWARE,
)  # fmt: skip


def rank_row(job: RankJob, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of a measured rank; one that ran out of memory says so as its time."""
    software, times_ms = record.get("software", {}), record.get("step_ms")
    cells = job.labels | _job_cells(job)
    cells |= {name: record.get(name, "") for name in COPIED}
    cells |= {name: software.get(name, "") for name in SOFTWARE}
    cells["error"] = str(cells["error"])[:120]
    cells["step_ms"] = OUT_OF_MEMORY if record["outcome"] == "oom" else ""
    cells |= {f"{phase}_ms": ms for phase, ms in record.get("phases_ms", {}).items()}
    cells |= _kernel_cells(record.get("kernels", {}))
    if times_ms:
        middle_ms = statistics.median(times_ms)
        stand_in_ms = cells.get("stand_in_ms", 0.0) if record.get("in_line") else 0.0
        cells["step_ms"] = round(round(middle_ms, 3) - stand_in_ms, 3)
        cells["spread"] = round((max(times_ms) - min(times_ms)) / middle_ms, 3)
    return cells


def _job_cells(job: RankJob) -> dict[str, Any]:
    """Return the cells of the model, the layout and the software's choices."""
    model = config_from_hf(job.config, job.id)
    modes = {"lora": job.lora_rank, "pipeline": job.pp > 1, "tensor": job.tp > 1,
             "hybrid": job.fsdp > 1 and job.replicate > 1, "sharded": job.fsdp > 1}  # fmt: skip
    cells = {name: value for name, value in vars(job).items() if name in COLUMNS}
    cells |= {name: getattr(model, name) for name in ("family", *MODEL_COLUMNS)}
    return cells | {
        "config": json.dumps(job.config),
        "top_k": model.experts_per_token,
        "world": job.world,
        "mode": next((name for name, applies in modes.items() if applies), "replicated"),
        "pp_rank": job.stage,
        "mbs": job.microbatch,
        "seq": job.sequence,
        "reshard_after_forward": "default" if job.reshard else "never",
        "compiled": int(job.compiled),
        "clip": int(job.clip),
        "optimizer": "" if job.tool == "megatron-lm" else "fused",
        "lora_targets": "+".join(job.lora_targets),
        "adapter_dtype": "bf16" if job.lora_rank else "",
        "attn": "sdpa",
        "experts_implementation": "grouped_mm" * ("num_experts_per_tok" in job.config),
        "limit_bytes": job.memory_bytes or "",
    }


def _kernel_cells(phases: Mapping[str, Sequence[tuple[float, int, str]]]) -> dict[str, Any]:
    """Return the milliseconds of kernels by class, and attention's back end. All kernels of
    clipping and of the update count as the optimizer's, and no others.
    """
    if not phases:
        return {}
    times_ms: dict[str, float] = defaultdict(float)
    launches: dict[bool, int] = defaultdict(int)
    kernels = [(phase, *kernel) for phase, listed in phases.items() for kernel in listed]
    for phase, ms, count, name in kernels:
        kind = "optimizer" if phase in ("clip", "optimizer") else kernel_class(name)
        if phase not in ("clip", "optimizer") and kind == "optimizer":  # foreach copies of FSDP
            kind = "streaming"
        if STAND_IN.search(name):
            kind = "stand_in"
        times_ms[kind] += ms
        launches[kind == "stand_in"] += count
    cells = {f"k_{name}_ms": round(times_ms[name], 3) for name in KERNEL_CLASSES}
    stand_in_ms = times_ms.pop("stand_in", 0.0)
    names = " ".join(name for *_, name in kernels)
    return cells | {
        "backend": next((end for word, end in BACKENDS.items() if word in names), ""),
        "kernels": launches[False],
        "kernel_ms": round(sum(times_ms.values()), 3),
        "stand_in_ms": round(stand_in_ms, 3),
        "stand_in_copies": launches[True],
    }


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row to a table of ranks; a new table gets all columns."""
    cells = {name: str(value) for name, value in row.items()}
    append_csv(path, COLUMNS, lambda _: cells, (*STEP_COLUMNS, "world"), "ranks")
