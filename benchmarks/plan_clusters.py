"""Plans of three published training clusters, with the published layout beside each.

    python benchmarks/plan_clusters.py

Prints the seconds of each plan, the layouts of its space and how many are bounded in a second, then
plan and published layout under the same model. Fails if a plan is slower than what was
published.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from atoll.step.layout import Layout
from atoll.training.estimate import Estimate, estimate
from atoll.training.planner.plan import Plan, plan
from atoll.training.request import make_run
from atoll.training.run import Run


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
    for cluster in clusters():
        begin = time.perf_counter()
        found = plan(cluster.run)
        spent_s = time.perf_counter() - begin
        beside = estimate(cluster.run, cluster.published)
        show(cluster, found, beside, spent_s)
        assert found.best.step.time_s <= beside.step.time_s


def show(cluster: Cluster, found: Plan, beside: Estimate, spent_s: float) -> None:
    proof = found.certificate
    print(f"\n## {cluster.name}\n")
    print(
        f"planned in {spent_s:.1f} s: {proof.items:,} layouts bounded at "
        f"{found.space.bounded_per_s:,.0f} a second; {found.proof()}\n"
    )
    print("| | layout | step s | tokens/s a device | MFU | memory needed GiB |")
    print("|---|---|---|---|---|---|")
    for name, result in (("plan", found.best), (f"published: {cluster.source}", beside)):
        needed = result.worst.needed / 2**30
        print(
            f"| {name} | {result.layout} | {result.step.time_s:.2f} | "
            f"{result.tokens_per_s_per_device:,.0f} | {result.mfu:.1%} | "
            f"{needed:.1f}{'' if result.fits else ' (does not fit)'} |"
        )


if __name__ == "__main__":
    main()
