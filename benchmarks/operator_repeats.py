"""What repeated timings of the same products leave of a model's error: for `operators.py`."""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Floats
from atoll.base.errors import AtollError
from atoll.calibration.fit import Knob, powell
from atoll.calibration.many_devices import TimedOperator, predicted_s
from atoll.calibration.timed_tables import ENGINES, device_folder, product_rows
from atoll.cost.gpu_gemm import throttled_s
from atoll.hardware.gpu import Gpu

LONG_S = 20e-6
LEFT_OUT = (10240.0, 8192.0)  # n and k of products that no fit sees
SAME, REWEIGHTED = 1e-3, 50  # rounding of one timing; rounds of least squares
SECOND = Path(__file__).parent / "products_h200.csv"  # ours: docs/gpu-model.md says how
BANDS_S = (LONG_S, 50e-6, 100e-6, 300e-6, 1e-3, np.inf)
FOLDS = 5
OUTLIER = 0.3
# From one H200 to the other: what a launch takes more, the clock, and how it falls with length.
REPEAT_KNOBS = (
    Knob("launch_s", 0.0, -3e-6, 3e-6),
    Knob("clock", 1.0, 0.8, 1.2),
    Knob("throttle", 0.0, -0.2, 0.2),
    Knob("throttle_s", 0.3e-3, 0.02e-3, 5e-3),
)
Rows = Mapping[tuple[str, str], Sequence[TimedOperator]]


def is_fitted(row: TimedOperator) -> bool:
    """Half of the shapes, whatever the device or format; never those with one (n, k)."""
    if row.op == "gemm" and row.sizes[1:3] == LEFT_OUT:
        return False
    shape = ",".join(f"{size:g}" for size in row.sizes)
    return hashlib.sha256(f"{row.op},{shape}".encode()).digest()[0] < 128


def print_repeats(gpus: Mapping[str, Gpu], by_device: Mapping[str, Rows]) -> None:
    """bf16 products that two other engines left to the same library on the same device."""
    try:
        folders = {device: device_folder(gpu.name) for device, gpu in gpus.items()}
    except AtollError as error:
        print(f"\n{error}")
        return
    print("\n| device | rows | model | one other timing | the other | both and the model |")
    print("|---" * 6 + "|")
    for device, gpu in gpus.items():
        others = repeated(folders[device], by_device[device][("gemm", "bf16")])
        if len(others) < len(ENGINES["bf16"]) - 1:
            continue
        rows = [
            row
            for row in by_device[device][("gemm", "bf16")]
            if row.measured_s > LONG_S and all(row.sizes in other for other in others)
        ]
        seen = np.array([is_fitted(row) for row in rows])
        logs = [np.log([other[row.sizes] for row in rows]) for other in others]
        logs.append(np.log(predicted_s(gpu, rows)))
        log_s = np.log([row.measured_s for row in rows])

        def not_seen(log: Floats, seen: Floats = seen, log_s: Floats = log_s) -> str:
            return mean(np.abs(np.exp(log - log_s)[~seen] - 1))

        scaled = [not_seen(log + np.median((log_s - log)[seen])) for log in logs[:-1]]
        cells = (not_seen(logs[-1]), *scaled, not_seen(least_absolute(logs, log_s, seen)))
        print(f"| {device} | {len(rows)} | {' | '.join(cells)} |")


def print_second(gpu: Gpu, rows: Sequence[TimedOperator]) -> None:
    """NVIDIA's products on a second H200, ours: errors of rows that were not fitted."""
    passes = second_s()
    rows = [
        row
        for row in rows
        if row.measured_s > LONG_S and not is_fitted(row) and any(row.sizes in p for p in passes)
    ]
    measured_s = np.array([row.measured_s for row in rows])
    log_s, model = np.log(measured_s), np.log(predicted_s(gpu, rows))
    ours = np.log([min(p[row.sizes] for p in passes if row.sizes in p) for row in rows])
    fold = np.arange(len(rows)) % FOLDS
    moved, both = np.empty(len(rows)), np.empty(len(rows))
    for held in (fold == number for number in range(FOLDS)):
        corrected = as_there(ours, log_s, ~held)
        moved[held] = corrected[held]
        both[held] = least_absolute([corrected, model], log_s, ~held)[held]
    print("\n| us | rows | model | our H200 | launch and clock corrected | that and the model |")
    print("|---" * 6 + "|")
    for low, high in ((LONG_S, np.inf), *pairwise(BANDS_S)):
        chosen = (measured_s > low) & (measured_s <= high)
        cells = (
            mean(np.abs(np.exp(log - log_s)[chosen] - 1)) for log in (model, ours, moved, both)
        )
        to = "" if np.isinf(high) else f" to {1e6 * high:g}"
        print(f"| {1e6 * low:g}{to or ' and more'} | {chosen.sum()} | {' | '.join(cells)} |")
    print_noise(
        measured_s, model, np.array([[p.get(r.sizes, np.nan) for r in rows] for p in passes])
    )


def print_noise(measured_s: Floats, model: Floats, passes: Floats) -> None:
    """How much of the model's error is of the shape: what it shares with errors on our H200, whose
    own noise is what its two passes do not share.
    """
    twice = ~np.isnan(passes).any(axis=0)
    band = np.digitize(measured_s[twice], BANDS_S)
    theirs, first, second = (
        off_band(np.log(s[twice]) - model[twice], band) for s in (measured_s, *passes)
    )
    of_shape, shared = np.mean(first * second), np.mean(theirs * (first + second) / 2)
    left = float(np.sqrt(1 - shared**2 / of_shape / np.mean(theirs**2)))
    error = left * float(np.abs(np.exp(model) / measured_s - 1).mean())
    print(f"\nOur two passes differ by {mean(np.abs(first - second))} ({twice.sum()} rows).")
    print(f"A model that meets our H200 without error would leave {100 * error:.1f} % of NVIDIA's.")


def second_s() -> list[dict[tuple[float, ...], float]]:
    """The least seconds of each size, in each pass over them."""
    found: defaultdict[str, dict[tuple[float, ...], float]] = defaultdict(dict)
    with SECOND.open() as file:
        for row in csv.DictReader(file):
            sizes = (*(float(row[name]) for name in "mnk"), 1.0)
            found[row["pass"]][sizes] = 1e-6 * float(row["least_us"])
    return list(found.values())


def as_there(ours: Floats, log_s: Floats, seen: NDArray[np.bool_]) -> Floats:
    """Logarithms of our times with the launch and the clocks that fit some of theirs best."""

    def moved(values: Mapping[str, float]) -> Floats:
        busy_s = np.maximum(np.exp(ours) - values["launch_s"], 1e-6) * values["clock"]
        return np.log(throttled_s(busy_s, values["throttle"], values["throttle_s"]))

    return moved(powell(lambda v: float(np.abs(moved(v) - log_s)[seen].mean()), REPEAT_KNOBS))


def off_band(logs: Floats, band: NDArray[np.int_]) -> Floats:
    """Without the median of each band, outliers cut."""
    middle = {number: np.median(logs[band == number]) for number in set(band.tolist())}
    return np.clip(logs - np.array([middle[number] for number in band.tolist()]), -OUTLIER, OUTLIER)


def repeated(folder: Path, rows: Sequence[TimedOperator]) -> list[dict[tuple[float, ...], float]]:
    """Seconds by size in each table of a package that is not the one that these rows are of."""
    own = {row.sizes: row.measured_s for row in rows}
    found = []
    for engine in ENGINES["bf16"]:
        other = {r.sizes: r.measured_s for r in product_rows(folder, engine, "bf16")}
        apart = [abs(s / own[sizes] - 1) for sizes, s in other.items() if sizes in own]
        if apart and np.median(apart) > SAME:
            found.append(other)
    return found


def least_absolute(logs: Sequence[Floats], log_s: Floats, seen: NDArray[np.bool_]) -> Floats:
    """The linear combination of logarithms with the least mean error of the fitted half."""
    table = np.column_stack([np.ones(log_s.size), *logs])
    weights = np.ones(int(seen.sum()))
    for _ in range(REWEIGHTED):
        root = np.sqrt(weights)
        best = np.linalg.lstsq(table[seen] * root[:, None], log_s[seen] * root, rcond=None)[0]
        weights = 1 / np.maximum(np.abs(log_s - table @ best)[seen], 1e-3)
    return np.asarray(table @ best)


def mean(values: Floats) -> str:
    return f"{100 * values.mean():.1f} %" if values.size else ""
