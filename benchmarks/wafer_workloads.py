"""Ours beside AccPar, DeepSpeed, Megatron and weight streaming on one wafer, workload by workload.

    python benchmarks/wafer_workloads.py [--wafer NAME] [--ablation NAME] [workload ...]

A workload is model:batch:sequence; without any, the list below. Ratios are our throughput over
theirs (`*`: out of memory as published, against the least recomputation that fits) and what each
method needs as published over what ours uses. SIGINT or SIGTERM ends it after the last whole row.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from pathlib import Path

import numpy as np

from atoll.questions import WaferQuestion
from atoll.questions.question import allowed
from atoll.wafer.run import run_wafer_search
from record import figure, recorded

MODELS = Path(__file__).resolve().parents[1] / "examples" / "models"
WORKLOADS = (
    "llama2-7b:128:4096",
    "llama2-13b:128:4096",
    f"{MODELS / 'llama-30b.json'}:128:4096",
    "llama2-70b:128:4096",
    "llama3-70b:128:4096",
    f"{MODELS / 'gpt3-6.7b.json'}:128:2048",
    "megatron-76.1b:128:2048",
    "gpt3-175b:128:2048",
    "mixtral-8x7b:128:4096",
    "llama2-70b:32:16384",
)
METHODS = ("accpar", "deepspeed", "megatron", "weight-streaming")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wafer", default="default")
    ablations = allowed(WaferQuestion.model_fields["ablations"])
    parser.add_argument("--ablation", choices=ablations, action="append", default=[])
    parser.add_argument("workloads", nargs="*", default=WORKLOADS)
    given = parser.parse_args()
    heads = [f"{name}{what}" for name in METHODS for what in ("", ", memory")]
    heads.append("megatron, full recomputation")
    ratios: dict[str, list[float]] = {head: [] for head in heads}
    print(f"| workload | samples/s | gap | stages | {' | '.join(heads)} | replay | processor s |")
    print("|---" * (len(heads) + 6) + "|")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background else
    with contextlib.suppress(KeyboardInterrupt):
        for workload in given.workloads:
            print(row(workload, given.wafer, tuple(given.ablation), ratios), flush=True)
    means = {head: float(np.exp(np.mean(np.log(each)))) for head, each in ratios.items() if each}
    shown = " | ".join(f"{means[head]:.2f}x" if head in means else "-" for head in heads)
    print(f"| geometric mean | | | | {shown} | | |")
    for head, mean in means.items():
        figure(head, mean)


def row(
    workload: str, wafer: str, ablations: tuple[str, ...], ratios: dict[str, list[float]]
) -> str:
    """A workload's row of the table; its ratios are added to those of the others."""
    model, batch, sequence = workload.rsplit(":", 2)
    began = time.process_time()
    job = WaferQuestion.of(
        wafer=wafer, model=model, batch=int(batch), sequence=int(sequence), ablations=ablations
    )
    result = run_wafer_search(job)
    ours, placement = result.best, result.placement

    def over(head: str, ratio: float | None, mark: str = "") -> str:
        if ratio is None:
            return "out of memory"
        ratios[head].append(ratio)
        return f"{ratio:.2f}x{mark}"

    cells = []
    for name in METHODS:
        other = result.baselines[name]
        if other is None:
            cells += ["-", "-"]
            continue
        rate = other.samples_per_s
        mark = "" if other.fits_as_published else "*"
        cells.append(over(name, None if rate is None else ours.samples_per_s / rate, mark))
        cells.append(over(f"{name}, memory", other.needed_bytes / ours.memory_bytes))
    megatron = result.baselines["megatron"]
    full = megatron.variants.get("full recomputation") if megatron else None
    again = None if full is None else ours.samples_per_s / full
    cells.append(over("megatron, full recomputation", again))
    return (
        f"| {Path(model).stem} ({batch}, {sequence}) | {ours.samples_per_s:.2f} | "
        f"{result.certificate.gap:.1%} | {placement.pipeline} x "
        f"{placement.tensor * placement.data} dies, microbatch {placement.microbatch} | "
        f"{' | '.join(cells)} | {result.detailed.difference:+.2%} | "
        f"{time.process_time() - began:.0f} |"
    )


if __name__ == "__main__":
    sys.exit(recorded(main))
