"""Ours over AccPar, DeepSpeed and Megatron where links, memory or samples are scarce.

    python benchmarks/wafer_regimes.py [NAME ...]

Every job `examples/wafer-jobs/tmac-regime-NAME.yaml`. Of each method two figures: over the best of
all its settings, and over the one that its paper fixes (`others/baselines.py`, SOURCES). The
rounding is the same for all, ours included: a batch is filled up to whole microbatches, and all
samples that are computed count. Memory ratios are what a method needs as its paper fixes it over
what our mapping uses. `*`: out of memory as fixed, the ratio is then against the least
recomputation that fits; `-`: fits with none. SIGINT or SIGTERM ends it after the last whole row.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from pathlib import Path

import numpy as np

from atoll.questions import WaferQuestion
from atoll.questions.ask import ask
from atoll.wafer.baselines import WaferBaseline
from atoll.wafer.evaluate import MappingCost
from atoll.wafer.run import run_wafer_search
from record import figure, recorded

JOBS = Path(__file__).resolve().parents[1] / "examples" / "wafer-jobs"
PUBLISHED = {"accpar": (3.1, 3.6), "deepspeed": (2.9, 3.1), "megatron": (1.6, 1.0)}
"""TMAC's speedup and memory ratio."""


def computed_per_s(found: MappingCost) -> float:
    """Samples, those with which the last microbatch is filled up counted."""
    return found.mapping.microbatch * found.mapping.microbatches / found.step_s


def main() -> None:
    names = sys.argv[1:] or sorted(
        path.stem.removeprefix("tmac-regime-") for path in JOBS.glob("tmac-regime-*.yaml")
    )
    heads = [f"{name}, {kind}" for name in PUBLISHED for kind in ("best", "fixed", "memory")]
    print(f"| job | samples/s | gap | GiB | {' | '.join(heads)} | processor s |")
    print("|---" * (len(heads) + 5) + "|")
    ratios: dict[str, list[float]] = {head: [] for head in heads}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background else
    with contextlib.suppress(KeyboardInterrupt):
        for name in names:
            print(row(name, ratios), flush=True)
    means = {head: float(np.exp(np.mean(np.log(each)))) for head, each in ratios.items() if each}
    shown = " | ".join(f"{means[head]:.2f}x" if head in means else "-" for head in heads)
    print(f"| geometric mean | | | | {shown} | |")
    told = [f"{v[0]}x | {v[0]}x | {v[1]}x" for v in PUBLISHED.values()]
    print(f"| TMAC | | | | {' | '.join(told)} | |")
    for head, mean in means.items():
        figure(head, mean)


def row(name: str, ratios: dict[str, list[float]]) -> str:
    """A job's row of the table; its ratios are added to those of the others."""
    began = time.process_time()
    job = ask({"wafer": WaferQuestion}, JOBS / f"tmac-regime-{name}.yaml", {})
    result = run_wafer_search(job)
    ours = computed_per_s(result.best)

    def over(head: str, other: WaferBaseline | None) -> str:
        if other is None or other.samples_per_s is None:
            return "-"
        ratio = ours / computed_per_s(other.evaluation)
        ratios[head].append(ratio)
        return f"{ratio:.2f}x{'' if other.fits_as_published else '*'}"

    cells = []
    for method in PUBLISHED:
        best = result.baselines[method]
        fixed = best and best.fixed
        cells += [over(f"{method}, best", best), over(f"{method}, fixed", fixed)]
        memory = fixed.needed_bytes / result.best.memory_bytes if fixed else None
        if memory is not None:
            ratios[f"{method}, memory"].append(memory)
        cells.append("-" if memory is None else f"{memory:.2f}x")
    return (
        f"| {name} | {ours:.2f} | {result.certificate.gap:.1%} | "
        f"{result.best.memory_bytes / 2**30:.1f} | {' | '.join(cells)} | "
        f"{time.process_time() - began:.0f} |"
    )


if __name__ == "__main__":
    sys.exit(recorded(main))
