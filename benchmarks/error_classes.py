"""The errors of estimates by kind of run, from which every answer has its interval.

    python benchmarks/error_classes.py runs.csv runs_2.csv steps.csv --operators timings.csv.gz

Writes src/atoll/data/errors.yaml: run it again after any change of a model that moves step times or
memory. Tables have the schemas that `atoll validate --data` reads. Rows that parameters were fitted
on (`fit_training.py`) are left out. Of each kind of run, of devices whose operators were timed
(those of --operators) and of others, the file has the shortest interval of measured over predicted
values that holds 90 % of n + 1 rows (split conformal prediction), or Student's prediction interval
where rows are too few. Rows are not exchangeable: those of one cell (model, device, method and
precision) are alike, and so are those of one source. So a margin on either side, the same whatever
is left out, is raised until rows of cells and of sources that were left out are covered as often as
--least says, up to three mean errors: more would be too wide for what is known. Between layouts of
one run, of which the model says that they are within a tenth of each other, it has the median
difference of measured over predicted values.

A source is what stands before the first dash of a row's id; steps of our own device are one. A row
of a table without ids has the source of the same measurement in another table.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import get_args

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.special import stdtrit

from atoll.base.errors import AtollError
from atoll.calibration.many_devices import TIMED
from atoll.files.csvfile import read_csv
from atoll.hardware.gpu import written_gpu
from atoll.training.accuracy import ERRORS, LONG, Kind, run_kind
from atoll.validation.step_rows import H200_STEPS_LATER
from atoll.validation.tables import RunRow, read_runs
from atoll.validation.validate import Prediction, layout_group, predict
from fit_training import is_fitted
from record import recorded

SHARE, STEP = 0.9, 0.0025
"""Of rows inside, and by how much a margin is raised."""
FEWEST, FEWEST_SOURCES = 3, 2
"""Rows and sources from which a kind has an interval of its own."""
WIDEST = 3.0
"""Mean errors that half of an interval with a margin is wide at most."""
NEAR = 0.1
"""Relative difference of predicted times up to which two layouts are near each other."""
OURS = "h200"
SAME = ("device", "devices", "layers", "hidden", "seq", "tp", "pp", "micro_batch", "global_batch")
"""Columns that tell measurements apart, with what was measured."""
CELL = ("model", "method", "precision")
"""Columns that tell cells apart, beside the device."""
HEADER = """\
# Written by benchmarks/error_classes.py from measured runs: how far estimates are off, by kind of
# run. low and high are measured over predicted values; docs/accuracy.md, "Intervals".
"""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Found:
    """One row's kind, its source and cell, which measurement it is, and measured over predicted
    values.
    """

    kind: str
    measured: bool
    source: str
    cell: tuple[str, ...]
    measurement: tuple[str, ...]
    ratio: float

    @property
    def log(self) -> float:
        return float(np.log(self.ratio))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("tables", type=Path, nargs="+")
    asked.add_argument("--operators", type=Path, nargs="*", default=[])
    asked.add_argument("--least", type=float, default=0.85, help="coverage of what is left out")
    asked.add_argument("--out", type=Path, default=Path(str(ERRORS)))
    given = asked.parse_args()
    devices = timed_devices(given.operators)
    predictions = [p for table in (H200_STEPS_LATER, *given.tables) for p in predicted(table)]
    names = {measurement(p.row): p.row for p in predictions if not is_anonymous(p.row)}
    times: dict[Found, None] = {}  # facts that change nothing make no further row
    runs: defaultdict[tuple[object, ...], dict[str, list[tuple[float, float]]]] = defaultdict(dict)
    peaks: dict[tuple[str, ...], Found] = {}  # what a peak counts, the last table knows best
    for p in predictions:
        row = names.get(measurement(p.row), p.row)
        if p.estimate is None or is_fitted(row):
            continue
        run, layout = p.estimate.run, p.estimate.layout
        long_ring = layout.cp > 1 and run.sequence >= LONG
        known = run.gpu.name.partition("-")[0] in devices and not long_ring
        source = OURS if is_step(row) else row.id.partition("-")[0]
        told = run_kind(run), source, cell(row), measurement(row)
        if p.time_error is not None:
            runs[run_kind(run), *layout_group(row)].setdefault(str(layout), []).append(
                (row.time_s or 0.0, p.estimate.step.time_s)
            )
            times[Found(told[0], known, *told[1:], 1 / (1 + p.time_error))] = None
        if p.memory_error is not None:
            peaks[told[-1]] = Found(told[0], True, *told[1:], 1 / (1 + p.memory_error))
    written = {
        "share": SHARE,
        "devices": sorted(devices),
        "step_time": list(classes(list(times), given.least)),
        "memory": list(classes(list(peaks.values()), given.least)),
        "between_layouts": between_layouts(runs.values()),
    }
    text = HEADER + yaml.safe_dump(written, sort_keys=False, default_flow_style=None, width=100)
    given.out.write_text(text, encoding="utf-8")
    print(
        "| 90 % of | rows, runs, cells, sources | mean error | lie between | half-width over mean "
        "error | a cell left out is covered | a source left out |\n|---|---|---|---|---|---|---|"
    )
    for what, name in (("step time", "step_time"), ("memory", "memory")):
        for c in written[name]:
            device = "measured" if c["measured"] else "extrapolated"
            print(
                f"| {what}: {c['kind']}, {device} | {c['rows']}, {c['runs']}, {c['cells']}, "
                f"{c['sources']} | {100 * c['mean']:.1f} % | {c['low']:.2f} and {c['high']:.2f} | "
                f"{(c['high'] - c['low']) / 2 / c['mean']:.1f} | "
                f"{100 * c['cell_coverage']:.0f} % | {100 * c['coverage']:.0f} % |"
            )


def timed_devices(tables: Iterable[Path]) -> set[str]:
    """First parts of the names of devices that tables of operators have."""
    found = {OURS}
    for path in tables:
        header, lines = read_csv(path)
        if not set(TIMED) <= set(header):
            raise AtollError(f"{path}: no table of operators")
        for name in {line.cells["device"] for line in lines}:
            found.add(written_gpu(name).name.partition("-")[0])
    return found


def predicted(path: Path) -> Sequence[Prediction]:
    return predict(read_runs(path, OURS))


def is_step(row: RunRow) -> bool:
    """Of one of our tables of whole steps on one device."""
    return bool(row.text("step_ms"))


def is_anonymous(row: RunRow) -> bool:
    return row.id.startswith("run-")


def cell(row: RunRow) -> tuple[str, ...]:
    """What makes rows alike."""
    return row.device, *(row.text(name) for name in CELL)


def measurement(row: RunRow) -> tuple[str, ...]:
    sizes = (f"{row.number(name, 0.0):g}" for name in SAME[1:])
    return (row.device, *sizes, f"{row.time_s or 0:.5g}", f"{row.peak_bytes or 0:.5g}")


def classes(found: Sequence[Found], least: float) -> Iterable[dict[str, object]]:
    """Figures of every kind that enough rows are of."""
    for kind in get_args(Kind):
        for known in (True, False):
            rows = [f for f in found if (f.kind, f.measured) == (kind, known)]
            sources = len({f.source for f in rows})
            if len(rows) < FEWEST or sources < FEWEST_SOURCES:
                continue
            mean = float(np.mean([abs(1 / f.ratio - 1) for f in rows]))
            margin, (low, high) = 0.0, interval(rows, 0.0)
            while min(coverage(rows, margin, group) for group in (by_cell, by_source)) < least:
                wider = interval(rows, margin + STEP)
                if wider[1] - wider[0] > 2 * WIDEST * mean:
                    break
                margin, (low, high) = round(margin + STEP, 4), wider
            yield {
                "kind": kind,
                "measured": known,
                "rows": len(rows),
                "runs": len({f.measurement for f in rows}),
                "cells": len({f.cell for f in rows}),
                "sources": sources,
                "mean": rounded(mean),
                "low": rounded(low),
                "high": rounded(high),
                "margin": margin,
                "cell_coverage": rounded(coverage(rows, margin, by_cell)),
                "coverage": rounded(coverage(rows, margin, by_source)),
            }


def between_layouts(
    runs: Iterable[dict[str, list[tuple[float, float]]]],
) -> dict[str, float | int]:
    """Of layouts with measured and predicted seconds, how far pairs that are near are off from each
    other; a layout that was measured several times counts with its best time.
    """
    differences: list[float] = []
    groups, rows = 0, 0
    for layouts in runs:
        logs = [np.log(min(known)) for known in layouts.values()]
        near = [
            abs((a[0] - b[0]) - (a[1] - b[1]))
            for a, b in combinations(logs, 2)
            if abs(a[1] - b[1]) < NEAR
        ]
        if near:
            groups, rows = groups + 1, rows + len(logs)
            differences += near
    return {"groups": groups, "rows": rows, "median": rounded(float(np.median(differences)))}


def interval(rows: Sequence[Found], margin: float) -> tuple[float, float]:
    low, high = bounds([f.log for f in rows])
    return float(np.exp(low - margin)), float(np.exp(high + margin))


def rounded(value: float) -> float:
    return float(f"{value:.3g}")


def by_source(found: Found) -> Hashable:
    return found.source


def by_cell(found: Found) -> Hashable:
    return found.cell


def coverage(rows: Sequence[Found], margin: float, group: Callable[[Found], Hashable]) -> float:
    """Share of rows inside of the bounds that other groups' rows give, and the margin."""
    groups: defaultdict[Hashable, list[float]] = defaultdict(list)
    for f in rows:
        groups[group(f)].append(f.log)
    inside = 0
    for name, own in groups.items():
        others = [log for other, logs in groups.items() if other != name for log in logs]
        low, high = bounds(others if len(others) >= FEWEST else own)
        inside += sum(low - margin <= log <= high + margin for log in own)
    return inside / len(rows)


def bounds(logs: Sequence[float]) -> tuple[float, float]:
    """Between which a further value lies with a probability of 90 %, were all exchangeable."""
    values = np.sort(logs)
    n = values.size
    inside = int(np.ceil(SHARE * (n + 1)))
    if inside <= n:
        first = int(np.argmin(values[inside - 1 :] - values[: n - inside + 1]))
        return float(values[first]), float(values[first + inside - 1])
    reach = stdtrit(n - 1, (1 + SHARE) / 2) * values.std(ddof=1) * np.sqrt(1 + 1 / n)
    return float(values.mean() - reach), float(values.mean() + reach)


if __name__ == "__main__":
    sys.exit(recorded(main))
