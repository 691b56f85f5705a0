"""PHAZE's assumptions and the default ones, side by side, and which of them move the answer.

    python benchmarks/profiles.py [MODEL ...]
    python benchmarks/profiles.py --assumptions MODEL

First table: each model under both profiles, with the winning chip and its gain over the TPU v4-like
chip placed by the same code. Second table (without arguments of Llama-2 7B): the default profile
with one of PHAZE's assumptions put back at a time: the chip that then wins, and how much
throughput that chip gives away when it is judged under the default profile.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

import atoll
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.objective import Objective
from atoll.explore.run import prepare_search
from atoll.hardware.product_space import phaze_space
from atoll.hardware.space import DesignSpace
from atoll.profile import Profile
from atoll.profiles import DEFAULT, PHAZE
from atoll.questions import SearchQuestion
from record import recorded

MODELS = (
    "bert-large", "gpt2-xl", "opt-350m", "llama2-7b", "megatron-bert", "megatron-gpt2-2.5b",
    "megatron-gpt2-8.3b", "gpt3-175b",
)  # fmt: skip

ASSUMPTIONS = {
    "flat 4 GiB/s network": replace(DEFAULT, network=PHAZE.network),
    "SGD, 4 bytes per parameter": replace(DEFAULT, optimizer="sgd"),
    "attention not fused": replace(DEFAULT, attention="unfused", fusion="phaze"),
    "vector work moves no bytes": replace(DEFAULT, vector_memory=False),
    "one core or all": replace(DEFAULT, free_spread=False),
    "HBM 269 GB/s, GLB 512 B/clock": replace(
        DEFAULT,
        hbm_bandwidth_Bps=PHAZE.hbm_bandwidth_Bps,
        glb_bandwidth_Bpc=PHAZE.glb_bandwidth_Bpc,
    ),
    "no sequence parallelism": replace(DEFAULT, sequence_parallel=False),
}


def side_by_side(models: tuple[str, ...]) -> None:
    print("| model | profile | best chip | samples/s | over TPU v4-like | layout | gap |")
    print("|---|---|---|---|---|---|---|")
    for name in models:
        for profile in ("phaze", "default"):
            result = atoll.search(model=name, space="phaze", profile=profile, zero=(0,))
            plan = result.best.plans[0]
            placed = result.baselines["tpuv4-placed"]
            gain = "does not fit" if placed is None else f"{plan.samples_per_s / placed:.2f}x"
            where = plan.placement
            print(
                f"| {name} | {profile} | {result.best.accelerator.describe()} | "
                f"{plan.samples_per_s:,.1f} | {gain} | p{where.pipeline} t{where.tensor} "
                f"d{where.data} b{where.microbatch} | {result.certificate.gap:.2%} |",
                flush=True,
            )


def _search(name: str, profile: Profile, designs: list[int] | None = None) -> tuple[int, float]:
    """The best design of PHAZE's space (or of a part of it) and its samples per second."""
    job = SearchQuestion.of(model=name, zero=(0,))
    setting, variants = prepare_search(job, profile)
    space = phaze_space()
    chosen = np.arange(len(space)) if designs is None else np.array(designs)
    search = Search(space.subset(chosen), variants, setting, Objective.single(job.batch), 1e-3)
    outcome = exact_search(search)
    assert outcome.best is not None
    return int(chosen[search.frontier.chips.design[outcome.best]]), outcome.score


def _cores(space: DesignSpace, design: int) -> str:
    """The chip in words, without its memory: that is chosen with the layout."""
    return space.accelerator(design).describe().rsplit(",", 1)[0]


def which_assumption(name: str) -> None:
    best, score = _search(name, DEFAULT)
    space = phaze_space()
    winner = _cores(space, best)
    print(f"\n{name}: under default {winner} wins with {score:,.1f} samples/s\n")
    print("| assumption put back | chip that then wins | claims | really, under default | loss |")
    print("|---|---|---|---|---|")
    for words, profile in ASSUMPTIONS.items():
        design, claimed = _search(name, profile)
        _, real = _search(name, DEFAULT, [design])
        print(
            f"| {words} | {_cores(space, design)} | {claimed:,.1f} | "
            f"{real:,.1f} | {1 - real / score:.1%} |",
            flush=True,
        )


def main() -> None:
    if sys.argv[1:2] == ["--assumptions"]:
        which_assumption(sys.argv[2])
    else:
        side_by_side(tuple(sys.argv[1:]) or MODELS)
        if not sys.argv[1:]:
            which_assumption("llama2-7b")


if __name__ == "__main__":
    sys.exit(recorded(main))
