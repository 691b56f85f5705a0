"""What `atoll calibrate` brings on runs that it did not see: three of a source's, judged on others.

    python benchmarks/calibrate_runs.py runs.csv '^[^-]+'        by a pattern on ids
    python benchmarks/calibrate_runs.py runs.csv source          by a column
    python benchmarks/calibrate_runs.py facts.csv '^[^-]+' --ids runs.csv    by ids of another table

The table has the schema that `atoll validate --data` reads. Rows are grouped by what the pattern
finds in their ids, or by a column (or in the ids of another table that has the same rows in the
same order, where their own say nothing); both are then replaced by ids that say nothing, so that
neither the reader nor the fit can know a source. Seeds 0 to 9 draw the three rows. Sources of fewer
than eight rows with a time are left out, and so are those that match --without (V100, Trainium).
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from atoll.calibrate.runs import fit_runs
from atoll.errors import AtollError
from atoll.training.estimate import Estimator
from atoll.validation.rows import run_at, run_of
from atoll.validation.run_table import RunRow, read_runs
from record import recorded

LEAST, DRAWN, SEEDS = 8, 3, 10


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("table", type=Path)
    asked.add_argument("source", help="a column, or a pattern on ids")
    asked.add_argument("--ids", type=Path, help="a table of the same rows, whose ids are read")
    asked.add_argument("--without", default="V100|Trainium", help="devices left out")
    asked.add_argument("--only", default="", help="a pattern on sources")
    given = asked.parse_args()
    print("| source | rows | catalogue | calibrated | draws | s a fit |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        sources = divided(
            rows_of(given.table, given.ids), given.source, given.without, Path(folder)
        )
        means = [
            judged(name, path) for name, path in sources.items() if re.search(given.only, name)
        ]
    before, after = np.mean(means, axis=0)
    print(f"| mean of sources | | {before:.1%} | {after:.1%} | | |")


def rows_of(table: Path, ids: Path | None) -> list[dict[str, str]]:
    """The rows of a table, under the ids of another."""
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if ids is None:
        return rows
    named = rows_of(ids, None)
    return [row | {"id": other["id"]} for row, other in zip(rows, named, strict=True)]


def divided(rows: list[dict[str, str]], source: str, without: str, folder: Path) -> dict[str, Path]:
    """A table for each source, under ids that say nothing."""
    groups: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        found = re.search(source, row["id"])
        name = row[source] if source in row else found[0] if found else ""
        if name and not re.search(without, row["device"]):
            groups[name].append({**row, "source": "", "id": f"run-{len(groups[name])}"})
    written = {}
    for number, (name, members) in enumerate(groups.items()):
        path = folder / f"{number}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(members[0]))
            writer.writeheader()
            writer.writerows(members)
        if len(timed(path)) >= LEAST:
            written[name] = path
    return written


def timed(path: Path) -> list[RunRow]:
    """The rows that can be predicted and have a time."""
    found = []
    for row in read_runs(path):
        try:
            run, layout = run_of(row)
            Estimator(run).estimate(layout)
        except AtollError:
            continue
        if row.time_s is not None:
            found.append(row)
    return found


def judged(name: str, path: Path) -> tuple[float, float]:
    """Mean errors on rows that were not drawn: of the catalogue, and of the calibrated site."""
    rows = timed(path)
    before, after, spent = [], [], 0.0
    for seed in range(SEEDS):
        drawn = random.Random(seed).sample(range(len(rows)), DRAWN)
        few = path.with_name("drawn.csv")
        with few.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0].values))
            writer.writeheader()
            writer.writerows(rows[i].values for i in drawn)
        start = time.monotonic()
        site, _ = fit_runs(few)
        spent += time.monotonic() - start
        errors = []
        for i, row in enumerate(rows):
            if i not in drawn:
                measured_s = row.time_s or 0.0
                both = run_of(row), run_at(row, site)
                steps = [Estimator(run).estimate(layout).step for run, layout in both]
                errors.append([abs(step.time_s / measured_s - 1) for step in steps])
        means = np.mean(errors, axis=0)
        before.append(means[0])
        after.append(means[1])
    draws = " ".join(f"{error:.0%}" for error in after)
    figures = f"{np.mean(before):.1%} | {np.mean(after):.1%} | {draws} | {spent / SEEDS:.1f}"
    print(f"| {name} | {len(rows)} | {figures} |", flush=True)
    return float(np.mean(before)), float(np.mean(after))


if __name__ == "__main__":
    sys.exit(recorded(main))
