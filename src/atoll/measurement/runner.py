"""Jobs, each one rank of a layout, and child processes that run them with a time limit.

Jobs are plain data, stored as JSON; this module needs the standard library only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

Record = dict[str, Any]
MEASURED = ("ok", "oom")
"""Outcomes that are results; jobs with others can be run again."""


@dataclass(frozen=True)
class RankJob:
    """One rank of one layout: the model, the parallel degrees, the software's choices."""

    id: str
    tool: str
    """transformers (FSDP2, DDP, PEFT, DTensor tensor parallelism) or torchtitan."""
    config: dict[str, Any]
    """Hugging Face configuration; its number of layers is that of the whole model."""
    rank: int = 0
    tp: int = 1
    fsdp: int = 1
    """Ranks that divide weights, gradients and optimizer states."""
    replicate: int = 1
    """Replicas of that group; without such a group the ranks of DistributedDataParallel."""
    pp: int = 1
    stage: int = 0
    blocks: tuple[int, int] | None = None
    """First block of the stage and the one after its last; None: all blocks."""
    microbatch: int = 1
    sequence: int = 4096
    microbatches: int = 1
    recompute: str = "none"
    """none, full, alternate (every second product) or every-second-block."""
    weights: str = "fp32"
    compute: str = "bf16"
    reduce: str = "fp32"
    reshard: bool = True
    """Whether weights are divided again after the forward pass (ZeRO 3)."""
    compiled: bool = False
    clip: bool = True
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ()
    steps: int = 2
    """Steps that are timed; 0: memory alone is measured."""
    memory_bytes: int = 0
    """Limit of the allocator; 0: the device's memory."""
    expandable: bool = True
    """Whether the allocator's segments can grow, as launch files set it."""
    labels: dict[str, Any] = field(default_factory=dict)
    """Cells that go into the row unchanged."""

    @property
    def world(self) -> int:
        """Devices of the layout."""
        return self.tp * self.fsdp * self.replicate * self.pp

    @property
    def last(self) -> bool:
        """Whether the rank computes the loss."""
        return self.stage == self.pp - 1

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        defaults = {f.name: f.default for f in fields(self)} | {"labels": {}}
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}

    @classmethod
    def from_dict(cls, contents: dict[str, Any]) -> RankJob:
        """Return the job that `to_dict` described."""
        lists = {n: tuple(v) for n, v in contents.items() if isinstance(v, list)}
        return cls(**contents | lists)


def command(jobs: Path, device: str) -> list[str]:
    """Return the command of a child."""
    return [sys.executable, "-m", "atoll.measurement.rank", str(jobs), "--device", device]


def run_jobs(jobs: Sequence[RankJob], device: str, limit_s: float = 600.0) -> Iterator[Record]:
    """Yield a record per job, as they are measured, each in a process of its own."""
    words = command(Path("/dev/stdin"), device)
    for job in jobs:
        text = json.dumps(job.to_dict(), allow_nan=False).encode()
        record: Record = {"id": job.id}
        try:
            child = subprocess.run(
                words, input=text, capture_output=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            yield record | {"outcome": "time", "error": f"took more than {limit_s:.0f} s"}
            continue
        if child.stdout.strip():
            yield record | json.loads(child.stdout)
            continue
        line = child.stderr[-400:].decode(errors="replace").strip().split("\n")[-1]
        reason = f"the process ended with code {child.returncode}: {line or 'no message'}"
        yield record | {"outcome": "died", "error": reason}


def read_jobs(path: Path) -> list[RankJob]:
    """Read the jobs of a file, one line of JSON each."""
    return [RankJob.from_dict(json.loads(line)) for line in path.read_text().splitlines() if line]
