"""What each lower bound is worth: the default search and a plan with one bound off at a time.

    python benchmarks/bounds_off.py > benchmarks/results/bounds_off.md

A bound that is off is zero, so that answers stay proven; every row is a process of its own. Compare
processor seconds within one table only.
"""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

import atoll
from atoll.explore.pricing import layouts
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.proof import reserve, tasks
from atoll.schedule import solve
from atoll.training.batch import choices, path_bounds
from record import recorded

LIMIT = "300s"
PATHS = 5
"""First column of `StepFloors` with a path through the pipeline."""
PLAN: dict[str, Any] = {"model": "gpt3-175b", "device": "h100", "devices": 1024, "batch": 2048}


def without_paths(floors: layouts.StepFloors) -> list[layouts.Row]:
    """Return the rows of layouts with the loads of stages alone."""
    rows = zip(*(column.tolist() for column in floors), strict=True)
    return sorted({(*row[:PATHS], *(0.0 for _ in row[PATHS:])) for row in rows})


def zero(function: Any, parts: int = 0) -> Any:
    """Return the function with zeros instead of its finite results, or of its first `parts`."""

    def zeroed(*given: Any, **named: Any) -> Any:
        results = function(*given, **named)
        listed = results if parts else (results,)
        off = [np.where(np.isfinite(x), 0.0, x) for x in listed[: parts or 1]]
        return (*off, *listed[parts:]) if parts else off[0]

    return zeroed


SEARCH: dict[str, tuple[str, Any]] = {
    "energy under a power limit": (
        "explore/pricing/limit.py",
        patch.object(reserve, "step_floors_s", zero(reserve.step_floors_s)),
    ),
    "paths through pipelines": (
        "explore/pricing/planned/path_bounds.py",
        patch.object(layouts, "_undominated_rows", without_paths),
    ),
    "operators before their mapping": (
        "cost/model.py: floors",
        patch.object(tasks, "cost_model", lambda *_: SimpleNamespace(floors=None)),
    ),
    "critical path and work of a layer": (
        "cost/table_kernels.py: layer_floors",
        patch.object(PricedChips, "floors", zero(PricedChips.floors)),
    ),
    "quick schedule bounds": (
        "schedule/list_kernels.py: quick_bounds",
        patch.object(PricedChips, "schedule_bounds", zero(PricedChips.schedule_bounds, 1)),
    ),
    "feasible subsets and allotment": (
        "schedule/bounds.py",
        patch.object(
            solve, "_weigh", lambda problem, _p, _b, best, _g: (best, np.zeros(problem.operators))
        ),
    ),
}
PLANS: dict[str, tuple[str, Any]] = {
    "paths of the replay": (
        "training/batch/path_bounds.py",
        patch.object(path_bounds, "_path_s", zero(path_bounds._path_s)),
    ),
}


def row(command: str, name: str) -> str:
    """Run the command with the named bound off; return its row of the table."""
    where, off = (SEARCH | PLANS).get(name, ("", patch.object(choices, "SAME", choices.SAME)))
    begin = time.process_time()
    with off:
        if command == "search":
            result: Any = atoll.search(time_limit=LIMIT)
        else:
            result = atoll.plan(**PLAN, time_limit=LIMIT)
    proof = result.certificate
    ruled_out = ", ".join(f"{count:,} {rule}" for rule, count in proof.ruled_out.items() if count)
    figures = f"{proof.score:.1f} | {proof.gap:.3%} | {proof.evaluated:,} | {ruled_out}"
    return f"| {name} | {where} | {figures} | {time.process_time() - begin:.1f} |"


def main() -> int:
    if sys.argv[1:]:
        print(row(*sys.argv[1:]))
        return 0
    print(f"# Lower bounds, one off at a time\n\n`python benchmarks/{sys.argv[0].split('/')[-1]}`")
    for command, bounds in (("search", SEARCH), ("plan", PLANS)):
        asked = "`atoll search`" if command == "search" else f"`atoll plan` of {PLAN}"
        print(f"\n{asked}, at most {LIMIT}\n")
        print("| off | where | samples/s | gap | evaluated | ruled out | processor s |")
        print("|---|---|---|---|---|---|---|", flush=True)
        for name in ("none", *bounds):
            subprocess.run([sys.executable, __file__, command, name], check=False)
    return 0


if __name__ == "__main__":
    sys.exit(recorded(main))
