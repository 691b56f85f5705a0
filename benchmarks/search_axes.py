"""What each axis of a layout brings to a searched chip: the same search with more and more of them.

    python benchmarks/search_axes.py [MODEL ...]

PHAZE's 29,360 chips, 1,024 devices, batch 4,096. First data, tensor and pipeline parallelism under
1F1B and ZeRO 0; then with one axis more, each by itself; then all of them. Prints a Markdown table
of samples per second, and of each search how much more that is than the first; exits with 1 if
more axes ever give less. Overlap is no axis, as hiding more never takes longer: of the answer it
prints what it would bring at most if all gradient reduction were hidden.
"""

from __future__ import annotations

import sys
from typing import Any

import atoll
from record import recorded

MODELS = ("bert-large", "llama2-7b", "megatron-gpt2-8.3b", "gpt3-175b")
BASE: dict[str, Any] = {"space": "phaze", "order": ("1f1b",), "zero": (0,), "cp": (1,),
                        "hsdp": (1,)}  # fmt: skip
AXES: dict[str, dict[str, Any]] = {
    "ZeRO 1": {"zero": (0, 1)},
    "ZeRO 1 to 3": {"zero": (0, 1, 2, 3)},
    "ZeRO and HSDP": {"zero": (0, 1, 2, 3), "hsdp": ()},
    "interleaving": {"order": ("1f1b", "interleaved")},
    "zero bubble": {"order": ("1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe")},
    "context": {"cp": (1, 2)},
}
TOLERANCE = 1e-3


def main() -> int:
    names = sys.argv[1:] or MODELS
    print(f"| model | 1F1B, ZeRO 0 | {' | '.join(AXES)} | all | gradients hidden | layout |")
    print("|---|" + "---|" * (len(AXES) + 4))
    failed = False
    for name in names:
        first = atoll.search(model=name, baselines=False, **BASE).score
        cells = [f"{first:,.1f}"]
        for axis in AXES.values():
            score = atoll.search(model=name, baselines=False, **(BASE | axis)).score
            cells.append(f"{score / first - 1:+.1%}")
            failed |= score < first * (1 - TOLERANCE)
        whole = atoll.search(model=name, space="phaze", baselines=False)
        failed |= whole.score < first * (1 - TOLERANCE)
        cells.append(f"{whole.score:,.1f} ({whole.score / first - 1:+.1%})")
        where = whole.best.plans[0].placement
        shown_s = where.time_parts_s["gradient_reduction"]
        cells.append(f"{shown_s / (where.step_time_s - shown_s):+.1%}")
        print(f"| {name} | {' | '.join(cells)} | {where.layout}, ZeRO {where.zero} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(recorded(main))
