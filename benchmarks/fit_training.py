"""Fit the few free parameters of the training model on half of a file of measured runs.

    python benchmarks/fit_training.py runs.csv

Rows are dealt to two halves by a hash of their id. Each parameter has a physical meaning (see
docs/training.md); the fit lowers the mean error of one half, one parameter after the other, and the
errors of both halves are printed before and after. Nothing is written: constants live in
`tool.yaml` of each tool in `atoll/tools/` and in the device's file.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from atoll.base.errors import AtollError
from atoll.step.layout import Layout
from atoll.training.estimate import Estimator
from atoll.training.run import Run
from atoll.validation.row_runs import run_from_row
from atoll.validation.tables import RunRow, read_runs
from record import recorded

Change = Callable[[Run, float], Run]


@dataclass(frozen=True)
class Parameter:
    name: str
    step: float
    current: Callable[[Run], float]
    applies: Callable[[Run], bool]
    change: Change


def _slack(name: str) -> Parameter:
    def change(run: Run, delta: float) -> Run:
        return replace(run, stack=replace(run.stack, slack=run.stack.slack * (1 + delta)))

    return Parameter(
        f"slack of {name}", 0.02, lambda r: r.stack.slack, lambda r: r.stack.name == name, change
    )


def _overlap(field: str, step: float) -> Parameter:
    def change(run: Run, delta: float) -> Run:
        value = min(1.0, max(0.0, getattr(run.stack.overlap, field) + delta))
        overlap = replace(run.stack.overlap, **{field: value})
        return replace(run, stack=replace(run.stack, overlap=overlap))

    def current(run: Run) -> float:
        return float(getattr(run.stack.overlap, field))

    return Parameter(
        f"overlap of {field}", step, current, lambda r: getattr(r.stack.overlap, field) > 0, change
    )


def _throttle(device: str) -> Parameter:
    def change(run: Run, delta: float) -> Run:
        fit = run.gpu.calibration
        value = max(0.0, fit.throttle + delta)
        return replace(run, gpu=replace(run.gpu, calibration=replace(fit, throttle=value)))

    return Parameter(
        f"throttle of {device}",
        0.02,
        lambda r: r.gpu.calibration.throttle,
        lambda r: r.gpu.name.startswith(device),
        change,
    )


PARAMETERS = (
    _throttle("a100"),
    _slack("modular"),
    _slack("modular-norm"),
    _slack("modular-lean"),
    _slack("fsdp"),
    _slack("megatron-2021"),
    _slack("nemo"),
    _overlap("gather", 0.1),
    _overlap("tensor", 0.1),
    _overlap("tensor_products", 0.1),
)


def error(items: Sequence[tuple[RunRow, Run, Layout]], deltas: dict[str, float]) -> np.ndarray:
    """Relative errors of all rows under changed parameters."""
    found = []
    for row, run, layout in items:
        for p in PARAMETERS:
            if deltas.get(p.name) and p.applies(run):
                run = p.change(run, deltas[p.name])
        found.append(Estimator(run).estimate(layout).step.time_s / (row.time_s or 1.0) - 1)
    return np.array(found)


def judged(row: RunRow) -> bool:
    half = row.text("precision") in ("bf16", "fp16")
    graded = row.quality == "A" and row.device[:4] in ("A100", "H100")
    return half and (graded or row.device.startswith("TPU"))


def is_fitted(row: RunRow) -> bool:
    """Whether a row is of the half that parameters are fitted on."""
    return judged(row) and int(hashlib.sha256(row.id.encode()).hexdigest(), 16) % 2 == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    items = []
    for row in read_runs(parser.parse_args().runs):
        if row.time_s is None or not judged(row):
            continue
        try:
            items.append((row, *run_from_row(row)))
        except AtollError:
            continue
    fitted = [item for item in items if is_fitted(item[0])]
    others = [item for item in items if not is_fitted(item[0])]

    def show(title: str, deltas: dict[str, float]) -> None:
        for name, half in (("fitted", fitted), ("others", others)):
            sizes = np.abs(error(half, deltas))
            print(
                f"{title} {name}: {len(half)} rows, mean {sizes.mean():.2%}, "
                f"median {np.median(sizes):.2%}"
            )

    deltas: dict[str, float] = {}
    show("before", deltas)
    best = float(np.abs(error(fitted, deltas)).mean())
    for _ in range(2):
        for p in PARAMETERS:
            for sign in (1, -1):
                while True:
                    trial = {**deltas, p.name: deltas.get(p.name, 0.0) + sign * p.step}
                    reached = float(np.abs(error(fitted, trial)).mean())
                    if reached >= best - 1e-5:
                        break
                    best, deltas = reached, trial
    for p in PARAMETERS:
        example = next((run for _, run, _ in items if p.applies(run)), None)
        if example is not None:
            moved = p.current(p.change(example, deltas.get(p.name, 0.0)))
            print(f"{p.name}: {p.current(example):.3g} -> {moved:.3g}")
    show("after", deltas)


if __name__ == "__main__":
    sys.exit(recorded(main))
