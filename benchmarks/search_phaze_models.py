"""PHAZE's eight models over its whole grid: seconds, designs per second, what pruned what.

    python benchmarks/search_phaze_models.py [MODEL ...]

29,360 chips x HBM {32, 64, 80} GiB x recomputation x microbatch {1, 2, 4, 8, 16} x tensor width
{1, 2, 4, 8}, 1,024 devices, batch 4,096. Prints a Markdown table; exits with 1 if a gap exceeds
2 % or a search takes more than 120 s.
"""

from __future__ import annotations

import sys

import atoll
from record import recorded

MODELS = (
    "bert-large", "gpt2-xl", "opt-350m", "llama2-7b", "megatron-bert", "megatron-gpt2-2.5b",
    "megatron-gpt2-8.3b", "gpt3-175b",
)  # fmt: skip
LARGEST_GAP = 0.02
LONGEST_S = 120.0


def main() -> int:
    names = sys.argv[1:] or MODELS
    # The first search compiles the kernels; it is not counted.
    atoll.search(model="bert-large", space="phaze", microbatch=(1,), tp=(1,), baselines=False)
    print(
        "| model | seconds | designs/s | evaluated | pruned by roofline | by schedule | gap "
        "| best chip | samples/s | layout |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    failed = False
    for name in names:
        result = atoll.search(model=name, space="phaze", baselines=False)
        proof = result.certificate
        seconds = result.wall_time_s
        plan = result.best.plans[0]
        where = plan.placement
        pruned = {by: count / proof.items for by, count in proof.ruled_out.items()}
        print(
            f"| {name} | {seconds:.1f} | {proof.items / seconds:,.0f} | "
            f"{proof.evaluated:,} | {pruned['roofline']:.1%} | {pruned['schedule']:.1%} | "
            f"{proof.gap:.2%} | {result.best.accelerator.describe()} | {plan.samples_per_s:,.1f} | "
            f"{where.layout}, microbatch {where.microbatch}, ZeRO {where.zero} |",
            flush=True,
        )
        failed |= proof.gap > LARGEST_GAP or seconds > LONGEST_S
    return int(failed)


if __name__ == "__main__":
    sys.exit(recorded(main))
