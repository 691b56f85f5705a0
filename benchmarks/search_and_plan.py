"""Searches of one chip beside plans on that chip: no plan is below the bound of its search.

    python benchmarks/search_and_plan.py [DRAWS]

Random models (half of them with alternating blocks), chips, networks and numbers of devices.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "explore")]

from plan_draws import SCOPES, compare  # noqa: E402

from record import recorded  # noqa: E402


def main() -> None:
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    compared, below, least = 0, 0, float("inf")
    for seed in range(draws):
        with tempfile.TemporaryDirectory() as folder:
            drawn = compare(seed, Path(folder), SCOPES[:1])
        for _, step_s, bound_s, words in drawn:
            compared, least = compared + 1, min(least, step_s / bound_s)
            if step_s < bound_s * (1 - 1e-9):
                below += 1
                print(f"seed {seed}: {step_s / bound_s - 1:+.3%}: {words}")
    print(f"{draws} drawn, {compared} compared, {below} below the bound; nearest {least:.5f}")


if __name__ == "__main__":
    sys.exit(recorded(main))
