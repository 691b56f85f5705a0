"""What `atoll calibrate` brings on runs that it did not see: three of a source's, judged on others.

    python benchmarks/calibrate_runs.py runs.csv '^[^-]+'        by a pattern on ids
    python benchmarks/calibrate_runs.py runs.csv source          by a column
    python benchmarks/calibrate_runs.py facts.csv '^[^-]+' --ids runs.csv    by ids of another table

The table has the schema that `atoll validate --data` reads. Rows are grouped by what the pattern
finds in their ids, or by a column (or in the ids of another table that has the same rows in the
same order, where their own say nothing); both are then replaced by ids that say nothing, so that
neither the reader nor the fit can know a source. Seeds 0 to 9 draw the three rows. Sources of fewer
than eight rows with a time are left out, and so are those that match --without (V100, Trainium).
The last column is what no model of these columns can do better: the mean error where every group of
rows that differ in nothing but what was measured had the one time that suits it best.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atoll.base.errors import AtollError
from atoll.calibration.site_fit import fit_runs
from atoll.step.layout import Layout
from atoll.training.estimate import Estimator
from atoll.training.run import Run
from atoll.validation.row_runs import run_at_site, run_from_row
from atoll.validation.tables import RunRow, read_runs
from record import recorded

LEAST, DRAWN, SEEDS = 8, 3, 10
ABOUT = (
    "id",
    "source",
    "quality",
    "flops_convention",
    "derived_cols",
    "notes",
    "repeats",
    "spread",
)
"""Columns about a row, beside those that begin with "measured"."""
Floats = NDArray[np.float64]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("table", type=Path)
    asked.add_argument("source", help="a column, or a pattern on ids")
    asked.add_argument("--ids", type=Path, help="a table of the same rows, whose ids are read")
    asked.add_argument("--without", default="V100|Trainium", help="devices left out")
    asked.add_argument("--only", default="", help="a pattern on sources")
    given = asked.parse_args()
    print("| source | rows | catalogue | calibrated | by draw, % | rows alike |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        sources = divided(
            rows_of(given.table, given.ids), given.source, given.without, Path(folder)
        )
        means = [
            judged(name, path) for name, path in sources.items() if re.search(given.only, name)
        ]
    before, after = np.mean(means, axis=0)
    print(f"| mean of sources | | {100 * before:.1f} % | {100 * after:.1f} % | | |")


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
            run, layout = run_from_row(row)
            Estimator(run).estimate(layout)
        except AtollError:
            continue
        if row.time_s is not None:
            found.append(row)
    return found


def judged(name: str, path: Path) -> tuple[float, float]:
    """Mean errors on rows that were not drawn: of the catalogue, and of the calibrated site."""
    rows = timed(path)
    measured_s = np.array([row.time_s or 0.0 for row in rows])
    catalogue = errors_at([run_from_row(row) for row in rows], measured_s)
    before, after = [], []
    for seed in range(SEEDS):
        drawn = random.Random(seed).sample(range(len(rows)), DRAWN)
        few = path.with_name("drawn.csv")
        with few.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0].values))
            writer.writeheader()
            writer.writerows(rows[i].values for i in drawn)
        site, _ = fit_runs(few)
        others = [i for i in range(len(rows)) if i not in drawn]
        found = errors_at([run_at_site(rows[i], site) for i in others], measured_s[others])
        before.append(catalogue[others].mean())
        after.append(found.mean())
    draws = " ".join(f"{100 * error:.0f}" for error in after)
    means = float(np.mean(before)), float(np.mean(after))
    figures = (*means, alike(rows))
    first, second, last = (f"{100 * value:.1f} %" for value in figures)
    print(f"| {name} | {len(rows)} | {first} | {second} | {draws} | {last} |", flush=True)
    return means


def errors_at(runs: Sequence[tuple[Run, Layout]], measured_s: Floats) -> Floats:
    """Relative errors of estimates."""
    times_s = [Estimator(run).estimate(layout).step.time_s for run, layout in runs]
    found: Floats = np.abs(np.array(times_s) / measured_s - 1)
    return found


def alike(rows: Sequence[RunRow]) -> float:
    """Mean error that one time for all rows of the same columns leaves; one of theirs is best."""
    groups: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows:
        told = (v for k, v in row.values.items() if k not in ABOUT and not k.startswith("measured"))
        groups[tuple(told)].append(row.time_s or 0.0)
    left = (
        min(np.abs(time_s / np.array(group) - 1).sum() for time_s in group)
        for group in groups.values()
    )
    return float(sum(left)) / len(rows)


if __name__ == "__main__":
    sys.exit(recorded(main))
