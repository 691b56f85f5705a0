"""How well the layers' schedules are proven: every zoo model, the TPU v4-like chip and 50 others.

    python benchmarks/layer_gaps.py [--profile phaze] [MODEL ...]

For every layer of every model, forward and backward, at tensor width 1 and at the widest of 2, 4, 8
that the model allows. Prints the distribution of gaps as Markdown; exits with 1 if a gap exceeds
2 %, or 0.5 % in more than one of ten cases (in any case under PHAZE's profile).
"""

from __future__ import annotations

import sys
import time

import numpy as np

from atoll.cost.chips import chips_of_space
from atoll.explore.answer.scope import open_space
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.run import prepare_search
from atoll.hardware.accelerator import MIB
from atoll.hardware.product_space import phaze_space
from atoll.questions import SearchQuestion
from atoll.workload import load_config, widths, zoo_names
from record import figure, recorded

RANDOM_CHIPS = 50
TOLERANCE = 1e-3
CLOSE = 0.005
LARGEST = 0.02


def gaps_of(model: str, profile: str, designs: np.ndarray) -> np.ndarray:
    allowed = widths(load_config(model), (1, 2, 4, 8))
    job = SearchQuestion.of(
        model=model,
        microbatch=(1,),
        tp=tuple({1, max(allowed)}),
        profile=profile,
    )
    setting, variants = prepare_search(job)
    chips = chips_of_space(open_space(job)[0], setting.profile).subset(designs)
    priced = PricedChips.of(chips, variants, setting)
    gaps = []
    for variant in variants.variants:
        for chip in range(len(chips)):
            schedules = priced.schedules(chip, variant, "exact", TOLERANCE)
            gaps.extend(schedule.gap for schedule in schedules)
    return np.array(gaps)


def main() -> int:
    arguments = sys.argv[1:]
    profile = "default"
    if arguments[:1] == ["--profile"]:
        profile, arguments = arguments[1], arguments[2:]
    space = phaze_space()
    known = {"tensor_cores": 8, "vector_cores": 2, "width": 128, "depth": 128, "vector_width": 128}
    same = [getattr(space, name) == value for name, value in known.items()]
    same.append(space.glb_bytes == 128 * MIB)
    reference = int(np.flatnonzero(np.logical_and.reduce(same))[0])
    drawn = np.random.default_rng(0).choice(len(space), RANDOM_CHIPS, replace=False)
    designs = np.array([reference, *drawn])
    print("| model | passes | largest gap | over 0.5 % | within 0.1 % | processor ms per pass |")
    print("|---|---|---|---|---|---|")
    everything = []
    for model in arguments or zoo_names():
        began = time.process_time()
        gaps = gaps_of(model, profile, designs)
        spent_ms = 1e3 * (time.process_time() - began) / len(gaps)
        everything.append(gaps)
        print(
            f"| {model} | {len(gaps):,} | {gaps.max():.2%} | {(gaps > CLOSE).mean():.2%} | "
            f"{(gaps <= TOLERANCE).mean():.2%} | {spent_ms:.2f} |",
            flush=True,
        )
    gaps = np.concatenate(everything)
    figure("largest gap", gaps.max())
    loose = float((gaps > CLOSE).mean())
    print(
        f"| all | {len(gaps):,} | {gaps.max():.2%} | {loose:.2%} | "
        f"{(gaps <= TOLERANCE).mean():.2%} | |"
    )
    return int(gaps.max() > LARGEST or loose > (0.0 if profile == "phaze" else 0.1))


if __name__ == "__main__":
    sys.exit(recorded(main))
