"""Ours beside AccPar, DeepSpeed, Megatron and weight streaming on one wafer, workload by workload.

    python benchmarks/wafer_workloads.py [--wafer NAME] [--ablation NAME] [workload ...]

A workload is model:batch:sequence; without any, the list below. Prints throughput ratios and their
geometric means, and memory ratios against what each method needs as published.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from atoll.questions import WaferQuestion
from atoll.questions.question import allowed
from atoll.wafer.run import run_wafer_search
from record import recorded

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
    speed: dict[str, list[float]] = {name: [] for name in METHODS}
    memory: dict[str, list[float]] = {name: [] for name in METHODS}
    for workload in given.workloads:
        model, batch, sequence = workload.rsplit(":", 2)
        began = time.process_time()
        job = WaferQuestion.of(
            wafer=given.wafer,
            model=model,
            batch=int(batch),
            sequence=int(sequence),
            ablations=tuple(given.ablation),
        )
        result = run_wafer_search(job)
        ours = result.best
        cells = []
        for name in METHODS:
            other = result.baselines[name]
            if other is None:
                cells.append(f"{name} -")
                continue
            ratio = None
            if other.samples_per_s is not None:
                ratio = ours.samples_per_s / other.samples_per_s
                speed[name].append(ratio)
            memory[name].append(other.needed_bytes / ours.memory_bytes)
            mark = "" if other.fits_as_published else "*"
            cells.append(
                f"{name} {'OOM' if ratio is None else f'{ratio:.2f}x'}{mark} "
                f"mem {other.needed_bytes / ours.memory_bytes:.2f}x"
            )
        megatron = result.baselines["megatron"]
        full = megatron.variants.get("full recomputation") if megatron else None
        cells.append(
            "megatron full recomputation "
            + ("OOM" if full is None else f"{ours.samples_per_s / full:.2f}x")
        )
        placement = result.placement
        print(
            f"{Path(model).stem}:{batch}:{sequence} {ours.samples_per_s:.2f}/s gap "
            f"{result.certificate.gap:.1%} {placement.pipeline} stages x "
            f"{placement.tensor * placement.data} dies, mb {placement.microbatch}, "
            f"{ours.memory_bytes / 2**30:.0f} GiB, detailed {result.detailed.difference:+.2%}, "
            f"cpu {time.process_time() - began:.0f} s | " + " | ".join(cells),
            flush=True,
        )
    print("* out of memory as published; the ratio is against the least recomputation that fits")
    for name in METHODS:
        if speed[name]:
            mean = float(np.exp(np.mean(np.log(speed[name]))))
            more = float(np.exp(np.mean(np.log(memory[name]))))
            print(f"geometric mean over {len(speed[name])}: {name} {mean:.2f}x, memory {more:.2f}x")


if __name__ == "__main__":
    sys.exit(recorded(main))
