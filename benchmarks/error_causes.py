"""Error distributions by cause, from which every answer has its interval.

    python benchmarks/error_causes.py runs.csv runs_2.csv steps.csv --operators timings.csv.gz

Writes src/atoll/data/errors.yaml: run it again after any change of a model that moves step times or
memory. Tables have the schemas that `atoll validate --data` reads. Rows that parameters were fitted
on (`fit_training.py`) are left out.

The logarithm of measured over predicted values is a bias, plus for each cause (products, attention,
collectives between nodes, ...: `atoll.training.uncertainty`) its share of the step times an error
that all runs of a source have in common, plus a rest. Standard deviations have the highest
posterior density under priors that come from measurements of the parts alone (PRIORS). Residuals
count at most CLIP, so that one strange source does not set the width for all.

`reach` is the number of standard deviations that contains COVERED of the rows, where sources have
weights of the square root of their rows. Coverage is judged with each source left out of both fits.
A last table has the bias by number of devices, of all sources and of two halves of them by name:
the wait for the slowest device (`slowest_of`) is judged by it.

Between layouts of one run that the model says are within a tenth of each other, the file has the
median difference of measured over predicted values.

A source is what stands before the first dash of a row's id; steps of our own device are one. A row
of a table without ids has the source of the same measurement in another table.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.optimize import minimize

from atoll.base.errors import AtollError
from atoll.calibration.many_devices import TIMED
from atoll.files.csvfile import read_csv
from atoll.hardware.gpu import written_gpu
from atoll.training.accuracy import run_kind
from atoll.training.estimate import Estimate
from atoll.training.uncertainty import ERRORS, memory_shares
from atoll.validation.step_rows import H200_STEPS_LATER
from atoll.validation.tables import RunRow, read_runs
from atoll.validation.validate import Prediction, layout_group, predict
from fit_training import is_fitted
from record import recorded

SHARE, COVERED = 0.9, 0.89
"""Of runs that an interval is to contain, and of rows that `reach` covers: for the last one of a
hundred, which lies far outside, all intervals would be a tenth wider."""
TIME_PRIORS = {
    "products": 0.08, "attention": 0.14, "vector": 0.12, "optimizer": 0.15, "host": 0.4,
    "inside": 0.2, "between": 0.3, "network": 0.2, "pipeline": 0.3, "slowest": 0.4, "device": 0.1,
    "sharding": 0.1, "source": 0.05,
}  # fmt: skip
"""Standard deviations: kernels by class of 36 profiled steps (docs/accuracy.md), collectives and
host times of 13 calibrated sources (`calibration.site_fit`); of the last four assumed."""
MEMORY_PRIORS = {
    "states": 0.03, "activations": 0.1, "buffers": 0.2, "sharding": 0.05, "source": 0.03,
}  # fmt: skip
PRIOR_WIDTH = 0.7
"""Standard deviation of the logarithm of a prior: a factor of two."""
REST = 0.05
LEAST_SD, MOST_SD, MOST_BIAS = 0.005, 0.5, 0.3
CLIP = 0.25
"""Largest logarithm of measured over predicted values that counts in a fit."""
MOST_ROWS = 30
"""Rows of a source in the likelihood."""
NEAR = 0.1
"""Relative difference of predicted times up to which two layouts are near each other."""
OURS = "h200"
SAME = ("device", "devices", "layers", "hidden", "seq", "tp", "pp", "micro_batch", "global_batch")
"""Columns that tell measurements apart, with what was measured."""
HEADER = """\
# Written by benchmarks/error_causes.py from measured runs: distributions of the logarithm of
# measured over predicted values, by cause of the error; docs/accuracy.md, "Intervals".
"""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Residual:
    """One row: its source and table, the shares of causes, measured over predicted values."""

    source: str
    table: str
    measurement: tuple[str, ...]
    shares: tuple[float, ...]
    log: float
    devices: int


@dataclass(frozen=True)
class Fitted:
    """Standard deviations of causes and rest, bias, and the reach of an interval."""

    causes: Floats
    rest: float
    bias: float
    reach: float = 0.0

    def sd(self, rows: Sequence[Residual]) -> Floats:
        shares = np.array([row.shares for row in rows])
        return np.sqrt(((shares * self.causes) ** 2).sum(axis=1) + self.rest**2)

    def scores(self, rows: Sequence[Residual]) -> Floats:
        """Return the distances of residuals from the bias in standard deviations."""
        return np.abs(np.array([row.log for row in rows]) - self.bias) / self.sd(rows)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("tables", type=Path, nargs="+")
    asked.add_argument("--operators", type=Path, nargs="*", default=[])
    asked.add_argument("--out", type=Path, default=Path(str(ERRORS)))
    given = asked.parse_args()
    devices = timed_devices(given.operators)
    named = [
        (getattr(table, "name", str(table)), prediction)
        for table in (H200_STEPS_LATER, *given.tables)
        for prediction in predicted(table)
    ]
    ids = {measurement(p.row): p.row for _, p in named if not is_anonymous(p.row)}
    times: dict[Residual, None] = {}  # facts that change nothing make no further row
    runs: defaultdict[tuple[object, ...], dict[str, list[tuple[float, float]]]] = defaultdict(dict)
    peaks: dict[tuple[str, ...], Residual] = {}  # what a peak counts, the last table knows best
    for table, p in named:
        row = ids.get(measurement(p.row), p.row)
        if p.estimate is None or is_fitted(row):
            continue
        source = OURS if is_step(row) else row.id.partition("-")[0]
        same = measurement(row)
        time_row, memory_row = shares_of(p.estimate)
        if p.time_error is not None:
            group = run_kind(p.estimate.run), *layout_group(row)
            runs[group].setdefault(str(p.estimate.layout), []).append(
                (row.time_s or 0.0, p.estimate.step.time_s)
            )
            log = -float(np.log1p(p.time_error))
            times[Residual(source, table, same, time_row, log, p.estimate.run.devices)] = None
        if p.memory_error is not None:
            log = -float(np.log1p(p.memory_error))
            peaks[same] = Residual(source, table, same, memory_row, log, p.estimate.run.devices)
    print_bias_by_devices(list(times))
    written = {
        "share": SHARE,
        "devices": sorted(devices),
        "step_time": figures("step time", list(times), TIME_PRIORS),
        "memory": figures("memory", list(peaks.values()), MEMORY_PRIORS),
        "between_layouts": between_layouts(runs.values()),
    }
    text = HEADER + yaml.safe_dump(written, sort_keys=False, default_flow_style=None, width=100)
    given.out.write_text(text, encoding="utf-8")


def shares_of(estimate: Estimate) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the shares of causes in the order of the priors, of step time and memory."""
    times = estimate.time_shares
    peaks = memory_shares(estimate.layout.zero, estimate.worst.parts())
    return tuple(times[name] for name in TIME_PRIORS), tuple(peaks[name] for name in MEMORY_PRIORS)


def figures(what: str, rows: Sequence[Residual], priors: Mapping[str, float]) -> dict[str, object]:
    """Fit all rows, judge the method with each source left out, and print coverage."""
    by_source: defaultdict[str, list[Residual]] = defaultdict(list)
    for row in rows:
        by_source[row.source].append(row)
    inside: dict[str, Floats] = {}
    widths: dict[str, Floats] = {}
    for source, mine in by_source.items():
        fit = fitted({name: rest for name, rest in by_source.items() if name != source}, priors)
        inside[source] = fit.scores(mine) <= fit.reach
        widths[source] = np.exp(fit.bias) * np.sinh(fit.reach * fit.sd(mine))
    errors = {s: np.array([abs(np.expm1(-r.log)) for r in runs]) for s, runs in by_source.items()}
    fit = fitted(by_source, priors)
    coverage = float(np.mean([np.mean(flags) for flags in inside.values()]))
    width = float(np.mean([np.mean(values) for values in widths.values()]))
    mean = float(np.mean([np.mean(values) for values in errors.values()]))
    print(f"| {what} | rows | mean error | half width | inside, its source left out |")
    print("|---|---|---|---|---|")
    tables: defaultdict[str, list[tuple[float, float, bool]]] = defaultdict(list)
    for source, runs in by_source.items():
        for row, *values in zip(runs, errors[source], widths[source], inside[source], strict=True):
            tables[row.table].append(tuple(values))
            tables[f"source {source}"].append(tuple(values))
    for name, values in tables.items():
        error, half, within = np.mean(np.array(values, np.float64), axis=0)
        print(f"| {name} | {len(values)} | {error:.1%} | {half:.1%} | {within:.0%} |")
    print(f"| mean over sources | {len(by_source)} | {mean:.1%} | {width:.1%} | {coverage:.0%} |")
    names = list(priors)
    return {
        "rows": len({row.measurement for row in rows}),
        "sources": len(by_source),
        "mean": rounded(mean),
        "bias": rounded(fit.bias),
        "causes": {name: rounded(sd) for name, sd in zip(names, fit.causes, strict=True)},
        "rest": rounded(fit.rest),
        "reach": rounded(fit.reach),
        "coverage": rounded(coverage),
        "half_width": rounded(width),
    }


def fitted(by_source: Mapping[str, Sequence[Residual]], priors: Mapping[str, float]) -> Fitted:
    """Return the likeliest standard deviations, with the reach that covers these rows."""
    draws = np.random.default_rng(0)
    sources: list[tuple[Floats, Floats]] = []
    for rows in by_source.values():
        picked = [rows[i] for i in draws.permutation(len(rows))[:MOST_ROWS]]
        logs = np.clip([row.log for row in picked], -CLIP, CLIP)
        sources.append((np.array([row.shares for row in picked]), logs))
    prior = np.log(list(priors.values()))
    n = prior.size

    def cost(point: Floats) -> float:
        sds, rest, bias = np.exp(point[:n]), np.exp(point[n]), point[n + 1]
        total = 0.5 * float((((point[:n] - prior) / PRIOR_WIDTH) ** 2).sum())
        for shares, logs in sources:
            covariance = (shares * sds**2) @ shares.T + rest**2 * np.eye(logs.size)
            factor = np.linalg.cholesky(covariance)
            scaled = np.linalg.solve(factor, logs - bias)
            total += 0.5 * float(scaled @ scaled) + float(np.log(np.diag(factor)).sum())
        return total

    limits = [(np.log(LEAST_SD), np.log(MOST_SD))] * (n + 1) + [(-MOST_BIAS, MOST_BIAS)]
    start = np.array([*prior, np.log(REST), 0.0])
    point = minimize(cost, start, method="L-BFGS-B", bounds=limits).x
    fit = Fitted(np.exp(point[:n]), float(np.exp(point[n])), float(point[n + 1]))
    scores = np.concatenate([fit.scores(rows) for rows in by_source.values()])
    weights = np.concatenate([np.full(len(rows), len(rows) ** -0.5) for rows in by_source.values()])
    order = np.argsort(scores)
    covered = np.cumsum(weights[order]) / weights.sum()
    reach = float(scores[order][min(np.searchsorted(covered, COVERED), scores.size - 1)])
    return Fitted(fit.causes, fit.rest, fit.bias, reach)


def print_bias_by_devices(rows: Sequence[Residual]) -> None:
    """Print the median over sources of the median of predicted over measured times, minus 1."""
    print("| devices | rows | sources | bias | first half of the sources | second half |")
    print("|---|---|---|---|---|---|")
    for least, most in pairwise((1, 2, 9, 65, 513, 100_001)):
        medians: dict[str, float] = {}
        mine = [row for row in rows if least <= row.devices < most]
        for source in dict.fromkeys(row.source for row in mine):
            logs = [row.log for row in mine if row.source == source]
            medians[source] = float(np.expm1(-np.median(logs)))
        halves: tuple[list[float], list[float]] = ([], [])
        for source, bias in medians.items():
            halves[hashlib.sha256(source.encode()).digest()[0] % 2].append(bias)
        cells = " | ".join(
            f"{np.median(half):+.1%}" if half else "-" for half in (list(medians.values()), *halves)
        )
        print(f"| {least} to {most - 1:,} | {len(mine)} | {len(medians)} | {cells} |")


def timed_devices(tables: Iterable[Path]) -> set[str]:
    """First parts of the names of devices that tables of operators have."""
    found = {OURS}
    for path in tables:
        header, lines = read_csv(path)
        if not set(TIMED) <= set(header):
            raise AtollError(f"{path}: no table of operators")
        for name in {line.cells["device"] for line in lines}:
            device = written_gpu(name).name
            found.add(device if device.startswith("rtx") else device.partition("-")[0])
    return found


def predicted(path: Path) -> Sequence[Prediction]:
    return predict(read_runs(path, OURS))


def is_step(row: RunRow) -> bool:
    """Of one of our tables of whole steps on one device."""
    return bool(row.text("step_ms"))


def is_anonymous(row: RunRow) -> bool:
    return row.id.startswith("run-")


def measurement(row: RunRow) -> tuple[str, ...]:
    sizes = (f"{row.number(name, 0.0):g}" for name in SAME[1:])
    return (row.device, *sizes, f"{row.time_s or 0:.5g}", f"{row.peak_bytes or 0:.5g}")


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


def rounded(value: float) -> float:
    return float(f"{value:.3g}")


if __name__ == "__main__":
    sys.exit(recorded(main))
