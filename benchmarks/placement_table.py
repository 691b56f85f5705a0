"""Time the exact placement of layer tables against the reference solver.

    python benchmarks/placement_table.py

For every shipped case: our seconds after compilation (the least of several runs, for reading the
file and for solving), the CPU seconds that the reference took (compiled with -O2), and the ratio
of the reference to our reading plus solving. Leaves with status 1 if a time differs from the
reference's, or if a GPT-3 case is less than 50 times faster.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

from atoll.phaze.layer_table import read_table
from atoll.phaze.table_dp import solve_table
from record import figure, recorded

CASES = Path(__file__).parents[1] / "tests" / "data" / "phaze_dp_cases"
RUNS = 7
LEAST_RATIO = 50.0


def least_s(work: Callable[[], object]) -> float:
    times_s = []
    for _ in range(RUNS):
        start_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - start_s)
    return min(times_s)


def run_case(path: Path) -> bool:
    """Print the row of one case; returns whether it holds what it must."""
    answer = json.loads(path.with_name(path.name.replace(".in.", ".out.")).read_text())
    table = read_table(path)
    first_s = time.perf_counter()
    plan = solve_table(table)
    first_s = time.perf_counter() - first_s
    read_s, solve_s = least_s(lambda: read_table(path)), least_s(lambda: solve_table(table))

    expected_s = answer["result"]["finalTimePerBatch"] if answer["result"] else None
    if expected_s is None:
        agrees = plan.time_per_batch_s is not None  # the reference refuses graphs that branch
    elif expected_s >= 1e30:
        agrees = plan.time_per_batch_s is None
    else:
        ours_s = plan.time_per_batch_s
        agrees = ours_s is not None and math.isclose(ours_s, expected_s, rel_tol=1e-9)

    reference_s = answer["meta"].get("nofixed_cpu_s", answer["meta"]["O2_cpu_s"])
    ratio = reference_s / (read_s + solve_s) if answer["result"] else math.nan
    fast = "gpt3" not in path.name or ratio >= LEAST_RATIO
    shown = "infeasible" if plan.time_per_batch_s is None else f"{plan.time_per_batch_s:.6g} s"
    print(
        f"{path.name.split('.')[0]:48} {shown:>11} {1e3 * read_s:8.2f} {1e3 * solve_s:8.2f}"
        f" {1e3 * first_s:9.1f} {reference_s:9.3f} {ratio:8.0f}  {'ok' if agrees else 'DIFFERS'}"
    )
    return agrees and fast


def main() -> int:
    print(
        f"{'case':48} {'per batch':>11} {'read ms':>8} {'solve ms':>8}"
        f" {'first ms':>9} {'ref cpu s':>9} {'ratio':>8}"
    )
    paths = sorted(CASES.glob("*.in.json"))
    held = [run_case(path) for path in paths]
    figure("cases that agree", sum(held))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(recorded(main))
