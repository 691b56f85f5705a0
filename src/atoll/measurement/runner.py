"""Jobs, each one rank of a layout, and child processes that run them with a time limit.

Jobs are plain data, stored as JSON; this module needs the standard library only. A child runs jobs
one after another; if it dies or a job takes too long, that job's record says so and another child
continues with the next job.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

GIB = 2**30
Record = dict[str, Any]
MEASURED = ("ok", "oom")
"""Outcomes that are results; jobs with others can be run again."""
START_S = 120.0
"""Limit of a child's start: imports of PyTorch and the tool."""


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
    memory_bytes: int = 0
    """Limit of the allocator; 0: the device's memory."""
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
        defaults = {f.name: f.default for f in fields(self)}
        return {
            name: value
            for name, value in asdict(self).items()
            if value != defaults[name] and value != {}
        }

    @classmethod
    def from_dict(cls, contents: dict[str, Any]) -> RankJob:
        """Return the job that `to_dict` described."""
        lists = {n: tuple(v) for n, v in contents.items() if isinstance(v, list)}
        return cls(**contents | lists)


@dataclass(frozen=True)
class Limits:
    """Seconds that a job and all jobs may take, and the jobs of one child."""

    job_s: float = 300.0
    budget_s: float = float("inf")
    jobs_per_child: int = 1


def command(jobs: Path, device: str) -> list[str]:
    """Return the command of a child."""
    return [sys.executable, "-m", "atoll.measurement.rank", str(jobs), "--device", device]


def run_jobs(jobs: Sequence[RankJob], device: str, limits: Limits) -> Iterator[Record]:
    """Yield a record per job, as they are measured; stop when the budget is spent."""
    end = time.monotonic() + limits.budget_s
    software: dict[str, str] = {}
    done = 0
    with tempfile.TemporaryDirectory(prefix="atoll-measure-") as folder:
        while done < len(jobs) and time.monotonic() < end:
            file = Path(folder) / "jobs.jsonl"
            batch = jobs[done : done + limits.jobs_per_child]
            write_jobs(file, batch)
            finished = 0
            for record in _child_records(command(file, device), batch, limits, end):
                if "software" in record:
                    software = record["software"]
                    continue
                yield record | {"software": software}
                finished += 1
            done += max(1, finished)


def _child_records(
    words: list[str], jobs: Sequence[RankJob], limits: Limits, end: float
) -> Iterator[Record]:
    """Yield what one child writes; a job that ends it gets a record that says why."""
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors)
        finished = 0
        try:
            for line in _lines(child, START_S, limits.job_s, end):
                record = json.loads(line)
                if "begun" not in record:
                    yield record
                finished += "outcome" in record
        except TimeoutError:
            if time.monotonic() < end:
                yield {
                    "id": jobs[finished].id,
                    "outcome": "time",
                    "error": f"took more than {limits.job_s:.0f} s",
                }
            return
        finally:
            child.kill()
            child.wait()
        if finished < len(jobs):
            errors.seek(0)
            last = errors.read()[-400:].decode(errors="replace").split("\n")
            reason = next((text for text in reversed(last) if text.strip()), "no message")
            yield {
                "id": jobs[finished].id,
                "outcome": "died",
                "error": f"the process ended with code {child.returncode}: {reason.strip()}",
            }


def _lines(
    child: subprocess.Popen[bytes], first_s: float, next_s: float, end: float
) -> Iterator[bytes]:
    """Yield the lines of a child's output; raise TimeoutError if the next one takes too long."""
    assert child.stdout is not None
    buffer, limit_s = b"", first_s
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        deadline = time.monotonic() + limit_s
        while True:
            wait_s = min(deadline, end) - time.monotonic()
            if not selector.select(max(0.0, wait_s)):
                raise TimeoutError
            chunk = child.stdout.read1(2**20)  # type: ignore[attr-defined]
            if not chunk:
                return
            *complete, buffer = (buffer + chunk).split(b"\n")
            yield from complete
            if complete:
                deadline = time.monotonic() + next_s


def write_jobs(path: Path, jobs: Sequence[RankJob]) -> None:
    """Write one line of JSON per job."""
    lines = [json.dumps(job.to_dict(), allow_nan=False) for job in jobs]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_jobs(path: Path) -> list[RankJob]:
    """Read the jobs that `write_jobs` wrote."""
    return [RankJob.from_dict(json.loads(line)) for line in path.read_text().splitlines() if line]
