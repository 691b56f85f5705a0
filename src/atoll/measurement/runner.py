"""Runs jobs in child processes with a time limit and appends one line of JSON per job.

    python -m atoll.measurement.runner JOBS.jsonl RECORDS.jsonl [--limit 300] [--budget 540]

Needs the standard library only. A child runs jobs one after another; if it dies or a job takes too
long, that job's record says so and another child continues with the next job. Jobs with a result in
the file already are left out, so that the same command continues an interrupted run.
"""

from __future__ import annotations

import argparse
import json
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.measurement.rank_job import RankJob

Record = dict[str, Any]
MEASURED = ("ok", "oom")
"""Outcomes that are results; jobs with others can be run again."""
START_S = 120.0
"""Limit of a child's start: imports of PyTorch and the tool."""


@dataclass(frozen=True)
class Limits:
    """Seconds that a job and all jobs may take, and the jobs of one child."""

    job_s: float = 300.0
    budget_s: float = float("inf")
    jobs_per_child: int = 1


def command(jobs: Path, start: int, device: str) -> list[str]:
    """Return the command of a child."""
    module = [sys.executable, "-m", "atoll.measurement.rank", str(jobs)]
    return [*module, "--start", str(start), "--device", device]


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
            for record in _child_records(command(file, 0, device), batch, limits, end):
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


def append_records(
    path: Path, records: Iterator[Record], show: Callable[[Record], None]
) -> list[Record]:
    """Append records to a file as they arrive, a complete line at a time."""
    arrived = []
    for record in records:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        arrived.append(record)
        show(record)
    return arrived


def summary(record: Record) -> str:
    """Return a record in one line."""
    peak, steps = record.get("peak_bytes", 0) / 1e9, record.get("step_ms") or [0.0]
    return (
        f"{record['id']}: {record['outcome']}, step {min(steps):.1f} ms, peak {peak:.1f} GB, "
        f"took {record.get('took_s', 0.0):.1f} s {record.get('error', '')[:160]}"
    )


def main() -> None:
    """Run the jobs of a file that have no record yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("jobs", type=Path)
    parser.add_argument("records", type=Path)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a job")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds of all jobs")
    parser.add_argument("--jobs-per-child", type=int, default=1000)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    lines = options.records.read_text().splitlines() if options.records.exists() else []
    recorded = {r["id"] for r in map(json.loads, lines) if r["outcome"] in MEASURED}
    jobs = [job for job in read_jobs(options.jobs) if job.id not in recorded]
    limits = Limits(options.limit, options.budget, options.jobs_per_child)
    began = time.monotonic()
    records = append_records(
        options.records,
        run_jobs(jobs, options.device, limits),
        lambda record: print(summary(record), flush=True),
    )
    failed = sum(record["outcome"] not in MEASURED for record in records)
    print(
        f"{len(records)} of {len(jobs)} jobs in {time.monotonic() - began:.0f} s, {failed} failed"
    )


if __name__ == "__main__":
    main()
