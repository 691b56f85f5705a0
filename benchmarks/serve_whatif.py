"""How fast the explorer's sliders answer: every value of every slider, the first time it is asked.

Searches the small example job (or takes the run in --folder), plans GPT-3 175B on 1,024 H100, and
asks both. Prints the median and the slowest answer; compiling and the first answer of all come
before.

    python benchmarks/serve_whatif.py [--folder DIR]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atoll
from atoll.serve.whatif import Change
from atoll.serve.whatif_chip import ChipWhatIf
from atoll.serve.whatif_plan import PlanWhatIf
from atoll.store import RunReader
from record import recorded

JOB = Path(__file__).parent.parent / "examples" / "jobs" / "tiny.yaml"
LIMIT_MS = 200.0


def timed(
    label: str, sliders: list[dict[str, Any]], answer: Callable[[Change], dict[str, Any]]
) -> None:
    answer(Change())
    answer(Change(link=0.77))
    times = []
    for slider in sliders:
        for value in slider["values"]:
            began = time.perf_counter()
            answer(Change(**{slider["name"]: value}))
            times.append(1e3 * (time.perf_counter() - began))
    verdict = "within" if max(times) < LIMIT_MS else "ABOVE"
    print(
        f"{label}: {len(times)} answers, median {statistics.median(times):.1f} ms, slowest "
        f"{max(times):.1f} ms: {verdict} {LIMIT_MS:.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--folder", type=Path, help="a run of atoll search --out")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder
        if folder is None:
            folder = Path(scratch) / "tiny"
            atoll.search(JOB, out=folder, baselines=False)
        with RunReader(folder) as reader:
            whatif = ChipWhatIf(reader.job())
            design = reader.design(reader.designs(limit=1)[0]["chip"])
        assert design is not None
        sliders = whatif.options(design, 0)["sliders"]
        timed(f"chip of {folder.name}", sliders, lambda c: whatif.estimate(design, 0, c))
    plan = PlanWhatIf(atoll.plan("gpt3-175b", "h100", 1024, batch=2048).answer)
    timed("plan of gpt3-175b", plan.options(0)["sliders"], lambda c: plan.estimate(0, c))


if __name__ == "__main__":
    sys.exit(recorded(main))
