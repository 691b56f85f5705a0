"""Gap and time of each effort level on generated backward passes.

    python benchmarks/schedule_gap.py [--graphs 20] [--slots 2] [--effort quick bounded]

For each number of tensor cores and both kinds of duration (smooth loss of efficiency with width,
and quantised by tiles), prints the distribution of the gap (1 - lower bound / makespan), the
milliseconds per solve and which bound was the strongest.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from time import perf_counter

import numpy as np

from atoll.schedule.problem import Schedule
from atoll.schedule.solve import Effort, solve
from record import recorded

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from oracles.schedule_check import check
from oracles.synthetic import backward_pass

CORES = (1, 2, 8, 64, 1024)
HEADER = f"{'cores':>6} {'durations':>9} {'effort':>8} | gap % {'p50':>6} {'p90':>6} {'max':>6} | "


def measure(
    cores: int, quantised: bool, effort: Effort, graphs: int, slots: int
) -> tuple[list[Schedule], list[float]]:
    """Schedules of some graphs and the milliseconds each took."""
    schedules, times = [], []
    for seed in range(graphs):
        rng = np.random.default_rng([seed, cores, quantised])
        chain = int(rng.integers(8, 21))
        problem = backward_pass(rng, chain, cores, quantised=quantised, slots=slots)
        began = perf_counter()
        schedules.append(solve(problem, effort=effort))
        times.append(1e3 * (perf_counter() - began))
        check(problem, schedules[-1])
    return schedules, times


def line(name: str, schedules: list[Schedule], times: list[float]) -> str:
    gap = 100.0 * np.quantile([s.gap for s in schedules], [0.5, 0.9, 1.0])
    time = np.quantile(times, [0.5, 0.9, 1.0])
    (bound, _), *_ = Counter(s.bound for s in schedules).most_common(1)
    return (
        f"{name} |       {gap[0]:6.3f} {gap[1]:6.3f} {gap[2]:6.3f} |    "
        f"{time[0]:8.2f} {time[1]:8.2f} {time[2]:8.1f} | {bound}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", type=int, default=20, help="graphs per setting")
    parser.add_argument("--slots", type=int, default=2, help="tensor operators at once")
    parser.add_argument("--effort", nargs="+", default=["quick", "bounded"])
    arguments = parser.parse_args()
    solve(backward_pass(np.random.default_rng(0), 8, 8))  # compile outside the measurements
    print(f"{HEADER}ms {'p50':>8} {'p90':>8} {'max':>8} | most frequent bound")
    for effort in arguments.effort:
        everything: tuple[list[Schedule], list[float]] = ([], [])
        for cores in CORES:
            for quantised in (False, True):
                result = measure(cores, quantised, effort, arguments.graphs, arguments.slots)
                kind = "tiles" if quantised else "smooth"
                print(line(f"{cores:>6} {kind:>9} {effort:>8}", *result), flush=True)
                everything[0].extend(result[0])
                everything[1].extend(result[1])
        print(line(f"{'all':>6} {'':>9} {effort:>8}", *everything), flush=True)


if __name__ == "__main__":
    sys.exit(recorded(main))
