"""Plans of three published training clusters, with the published layout beside each.

    python benchmarks/plan_clusters.py

Prints plan and published layout under the same model, the layouts of the space and the processor's
seconds, then what is proven. Fails if a plan is slower than what was published.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from atoll.step.layout import Layout
from atoll.training.estimate import estimate
from atoll.training.planner.plan import plan
from atoll.training.request import make_run
from atoll.training.run import Run
from record import figure, recorded


@dataclass(frozen=True)
class Cluster:
    name: str
    run: Run
    published: Layout
    source: str


def clusters() -> tuple[Cluster, ...]:
    return (
        Cluster(
            "GPT-3 175B on 1024 H100",
            make_run("gpt3-175b", "h100", 1024, batch=2048),
            Layout(dp=32, tp=4, pp=8, vpp=12, schedule="interleaved"),
            "NVIDIA dgxc-benchmarking, GPT3-175B",
        ),
        Cluster(
            "Llama-3 405B on 16,384 H100",
            make_run("llama3-405b", "h100", 16384, batch=2048, sequence=8192),
            Layout(dp=128, tp=8, pp=16),
            "arXiv:2407.21783, table 4",
        ),
        Cluster(
            "DeepSeek-V3 on 2048 H100",
            make_run("deepseek-v3", "h100", 2048, batch=15360, sequence=4096),
            Layout(dp=128, pp=16, ep=64, recompute="full"),
            "arXiv:2412.19437, section 3.2 (H800 there; its own schedule and overlap)",
        ),
    )


def main() -> None:
    plan(make_run("gpt2-xl", "h100", 8, batch=8))  # compiles and reads what all share
    print("| run | plan | step s | published layout | step s | layouts | processor s |")
    print("|---|---|---|---|---|---|---|")
    proofs = []
    for cluster in clusters():
        began = time.process_time()
        found = plan(cluster.run)
        spent_s = time.process_time() - began
        beside = estimate(cluster.run, cluster.published)
        steps_s = found.best.step.time_s, beside.step.time_s
        print(
            f"| {cluster.name} | {found.best.layout} | {steps_s[0]:.2f} | {beside.layout}"
            f"{'' if beside.fits else ' (does not fit)'} | {steps_s[1]:.2f} | "
            f"{found.certificate.items:,} | {spent_s:.1f} |"
        )
        proofs.append(f"{cluster.name} ({cluster.source}): {found.proof()}")
        figure(f"{cluster.run.model.name}: step s", steps_s[0])
        figure(f"{cluster.run.model.name}: processor s", spent_s)
        assert steps_s[0] <= steps_s[1]
    print("\n" + "\n".join(proofs))


if __name__ == "__main__":
    sys.exit(recorded(main))
