"""Existing chips as chips of the search's template, held against their measured operators.

    python benchmarks/template_chips.py [operators.csv] [--runs runs.csv] [--fit]

The chips of examples/devices/existing have published counts, sizes and rates; what they lose is one
set of constants for their kind (`atoll.hardware.template.stalls`). Products and attention in 16 bit
of 50 us and more are priced by the search's own cost model: our timings of an H200, and those of
all chips in a table with the columns that `atoll validate --data` reads for several devices, there
also products in fp8 (scaled by tensor) and nvfp4, several values in a word
(`atoll.workload.low_precision`).
`--runs` prices the training runs on TPU v5e and v5p of a table that `atoll validate --data` reads.
`--fit` fits constants of chips with caches on half of our H200 shapes; docs/cost-model.md says
which were chosen by hand.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.calibration.fit import Knob, powell
from atoll.calibration.many_devices import (
    CACHE_PASSES,
    USUAL_CACHE_PASSES,
    TimedOperator,
    read_timed,
)
from atoll.calibration.many_devices import CAST_FORMATS as TIMED_WITH_CAST
from atoll.calibration.operator_rows import H200_OPERATORS, OperatorRow, read_operators
from atoll.cost.chips import chips_of_accelerator
from atoll.cost.table import OperatorKey, build_costs, pass_problem
from atoll.cost.table_kernels import Passes
from atoll.hardware.accelerator import Accelerator
from atoll.hardware.catalog import load_accelerator, load_network
from atoll.hardware.device import TemplateChip
from atoll.hardware.template.stalls import CACHED, NO_STALLS, Stalls
from atoll.profiles import DEFAULT
from atoll.training.estimate import Estimator
from atoll.validation.row_runs import run_from_row
from atoll.validation.tables import RunRow, read_runs
from atoll.workload.graph.operator import Matmul, Operator, VectorWork
from atoll.workload.graph.products import (
    attention_fraction,
    data_gradient,
    keys_gradient,
    scores_product,
    values_product,
    weight_gradient,
)
from atoll.workload.low_precision import FORMATS, PackedFormat
from record import figure, recorded

CHIPS = Path(__file__).parents[1] / "examples" / "devices" / "existing"
LONG_S = 50e-6
CLASSES_S = (LONG_S, 200e-6, 1e-3, np.inf)
ODD = ", odd rows"
PRODUCTS = ("gemm", "bmm")
PRODUCT_KNOBS = (
    Knob("start_s", 5e-6, 0.0, 20e-6),
    Knob("array", 0.92, 0.7, 1.0),
    Knob("fill_s", 0.5e-6, 0.0, 3e-6),
    Knob("exposed", 0.1, 0.0, 0.5),
)
ATTENTION_KNOBS = (Knob("tail", 0.3, 0.0, 1.0),)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A measurement, and the operators that it timed one after the other."""

    kind: str
    operators: tuple[OperatorKey, ...]
    measured_s: float

    @property
    def fitted(self) -> bool:
        """Whether the shape is one of the half that a fit may see."""
        return hashlib.sha256(repr(self.operators).encode()).digest()[0] < 128


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("table", nargs="?")
    given.add_argument("--runs")
    given.add_argument("--fit", action="store_true")
    asked = given.parse_args()
    ours = [case for row in read_operators(H200_OPERATORS) for case in own_case(row)]
    if asked.fit:
        print(fit(ours))
        return
    print("| chip | operators | rows | nothing lost | mean | median | bias |")
    print("|---|---|---|---|---|---|---|")
    told = [report("h200", "ours", ours)]
    told += [report("h200", "ours, not fitted", [case for case in ours if not case.fitted])]
    if asked.table:
        timed = read_timed(asked.table)[0]
        for name in ("h200", "h100", "a100", "b200"):
            rows = [row for row in timed if row.device.lower() == name]
            cases = [case for row in rows for case in device_case(row)]
            told.append(report(name, "several devices", cases))
            for form in FORMATS.values():
                narrow = [case for row in rows for case in narrow_case(row, form)]
                if narrow:
                    told.append(report(name, f"several devices, {form.name}", narrow))
    if asked.runs:
        for name in ("tpu-v5e", "tpu-v5p"):
            runs = [row for row in read_runs(asked.runs) if is_plain(row, name)]
            told.append(report_runs(name, runs))
    print("\n| chip | rows | nothing lost | error | bias |\n|---|---|---|---|---|")
    print("\n".join(told))


# --- What was measured --------------------------------------------------------------------------


def own_case(row: OperatorRow) -> Iterator[Case]:
    """One of our rows, where it is a long product or attention in 16 bit."""
    if row.trouble or row.measured_s < LONG_S:
        return
    size = {name: int(value) for name, value in row.sizes}
    if row.kind in PRODUCTS:
        product = Matmul(size.get("batch", 1), size["m"], size["n"], size["k"])
        yield Case(row.kind + odd_rows(product), (product_key(product),), row.measured_s)
    elif row.kind in ("sdpa_fwd", "sdpa_bwd"):
        heads = Heads(*(size[name] for name in ("b", "h", "hk", "s", "d", "causal")))
        key = heads.backward() if row.kind == "sdpa_bwd" else heads.forward()
        mask = "causal" if heads.causal else "full"
        yield Case(f"attention {row.kind[5:]} {mask}", (key,), row.measured_s)


def device_case(row: TimedOperator) -> Iterator[Case]:
    """The same of a table of several devices; engines also store keys and values."""
    if row.precision not in ("bf16", "fp16") or row.measured_s < LONG_S:
        return
    if row.op in PRODUCTS:
        m, n, k, batch = (int(size) for size in row.sizes)
        product = Matmul(batch, m, n, k)
        yield Case(row.op + odd_rows(product), (product_key(product),), row.measured_s)
    elif row.op == "attention_prefill":
        heads = Heads(*(int(size) for size in row.sizes))
        keys: tuple[OperatorKey, ...] = (heads.forward(),)
        if heads.causal:
            passes = [CACHE_PASSES[part] for part in CACHE_PASSES if part in row.kernel]
            moved = 2 * heads.key_bytes * (passes or [USUAL_CACHE_PASSES])[0]
            keys += (OperatorKey(Operator("store", "copy", (), ()), int(moved)),)
        mask = "causal" if heads.causal else "full"
        yield Case(f"attention fwd {mask}", keys, row.measured_s)


def narrow_case(row: TimedOperator, form: PackedFormat) -> Iterator[Case]:
    """A product in fp8 or nvfp4, several values in a word; scales by block of fp8 are work of their
    own, those of nvfp4 bytes beside the values, and its timings have the cast of the inputs.
    """
    if row.precision == form.name and row.op in PRODUCTS and row.measured_s >= LONG_S:
        m, n, k, batch = (int(size) for size in row.sizes)
        product = Matmul(batch, m, n, -(-k // form.packed))
        odd = odd_rows(Matmul(batch, m, n, k))
        values = batch * (m * k + k * n)
        key = product_key(product)
        scales = round(values * (form.element_bytes - 2 / form.packed))
        keys = [replace(key, bytes=key.bytes + scales)]
        if form.name in TIMED_WITH_CAST:
            work = VectorWork(f"cast_{form.name}", batch * m, k)
            moved = round(batch * m * k * (2 + form.element_bytes))
            cast = Operator("", "", (), (), vectors=(work,))
            keys.insert(0, OperatorKey(cast, moved))
        yield Case(row.op + odd, tuple(keys), row.measured_s)


def odd_rows(product: Matmul) -> str:
    """Rows that do not start at 16-byte addresses take other kernels, which no chip is about."""
    even = product.n % 8 == 0 and product.k % 8 == 0
    return "" if even else ODD


def product_key(product: Matmul) -> OperatorKey:
    m, n, k = product.m, product.n, product.k
    operator = Operator("", "", (), (), matmuls=(product,))
    return OperatorKey(operator, 2 * product.batch * (m * k + k * n + m * n))


@dataclass(frozen=True)
class Heads:
    """Sizes of attention."""

    batch: int
    heads: int
    kv_heads: int
    sequence: int
    width: int
    causal: int

    @property
    def query_bytes(self) -> int:
        return 2 * self.batch * self.sequence * self.heads * self.width

    @property
    def key_bytes(self) -> int:
        return 2 * self.batch * self.sequence * self.kv_heads * self.width

    def _products(self) -> tuple[Matmul, Matmul]:
        fraction = attention_fraction(self.sequence, bool(self.causal), 0)
        scores = scores_product(
            self.batch, self.sequence, self.heads, self.kv_heads, self.width, fraction
        )
        return scores, values_product(scores, self.width)

    def _softmax(self, function: str) -> VectorWork:
        fraction = attention_fraction(self.sequence, bool(self.causal), 0)
        rows = self.batch * self.heads * self.sequence
        return VectorWork(function, rows, max(1, round(fraction * self.sequence)))

    def forward(self) -> OperatorKey:
        vectors = (self._softmax("softmax"),)
        operator = Operator("", "", (), (), self._products(), vectors, on_chip=True)
        return OperatorKey(operator, 2 * self.query_bytes + 2 * self.key_bytes)

    def backward(self) -> OperatorKey:
        """As `workload.graph.backward.flash_attention` has it."""
        scores, values = self._products()
        products = (
            scores,
            weight_gradient(values),
            data_gradient(values),
            data_gradient(scores),
            keys_gradient(scores),
        )
        vectors = (self._softmax("softmax_bwd"),)
        operator = Operator("", "", (), (), products, vectors, on_chip=True)
        return OperatorKey(operator, 4 * self.query_bytes + 4 * self.key_bytes)


# --- What the template says ---------------------------------------------------------------------


def priced_s(chip: Accelerator, cases: Sequence[Case]) -> Floats:
    """Seconds of every case, each operator alone on the chip."""
    keys = list(dict.fromkeys(key for case in cases for key in case.operators))
    number = {key: i for i, key in enumerate(keys)}
    chips = chips_of_accelerator(chip, DEFAULT)
    costs = build_costs(keys, chips, load_network(DEFAULT.network), DEFAULT)
    passes = Passes(
        ptr=np.array([0, len(keys)]),
        op=np.arange(len(keys)),
        pred_ptr=np.zeros(len(keys) + 1, np.int64),
        pred_idx=np.zeros(1, np.int64),
    )
    alone_s = pass_problem(costs, passes, 0, 0)[0].min(axis=1)
    return np.array([sum(alone_s[number[key]] for key in case.operators) for case in cases])


def errors(chip: Accelerator, cases: Sequence[Case]) -> Floats:
    return priced_s(chip, cases) / np.array([case.measured_s for case in cases]) - 1


def summary(what: str, free: Floats, lost: Floats) -> str:
    """A line of the last table."""
    cells = f"{np.abs(free).mean():.1%} | {np.abs(lost).mean():.1%} | {lost.mean():+.1%}"
    return f"| {what} | {len(lost):,} | {cells} |"


def report(name: str, source: str, cases: Sequence[Case]) -> str:
    """One line a kind of operator, then one a class of length; returns a line for all."""
    chip = load_accelerator(CHIPS / f"{name}.yaml")
    lost, free = errors(chip, cases), errors(replace(chip, stalls=NO_STALLS), cases)

    def line(what: str, chosen: Callable[[Case], bool]) -> None:
        own = np.array([chosen(case) for case in cases])
        if own.any():
            cells = (
                np.abs(free[own]).mean(),
                np.abs(lost[own]).mean(),
                np.median(np.abs(lost[own])),
                lost[own].mean(),
            )
            shown = " | ".join(f"{100 * cell:.1f} %" for cell in cells)
            print(f"| {name} ({source}) | {what} | {own.sum()} | {shown} |", flush=True)

    even = np.array([ODD not in case.kind for case in cases])
    line("all but odd rows", lambda case: ODD not in case.kind)
    figure(f"{name}, {source}", np.abs(lost[even]).mean())
    for kind in sorted({case.kind for case in cases}):
        line(kind, lambda case, kind=kind: case.kind == kind)
    for least, most in pairwise(CLASSES_S):
        shown = f"{1e6 * least:.0f} us and more" + (
            "" if np.isinf(most) else f", below {1e6 * most:.0f}"
        )
        line(
            shown,
            lambda case, a=least, b=most: ODD not in case.kind and a <= case.measured_s < b,
        )
    return summary(f"{name}, {source}", free[even], lost[even])


def is_plain(row: RunRow, name: str) -> bool:
    """Whether a row ran on such devices in 16 bit, and says how long a step took."""
    timed = row.number("measured_iter_time_s", 0.0) > 0
    return row.device.lower() == name and row.text("precision") == "bf16" and timed


def report_runs(name: str, rows: Sequence[RunRow]) -> str:
    """Steps on the chip, with the layouts, the network and the software of the rows."""
    chip = load_accelerator(CHIPS / f"{name}.yaml")
    gaps: tuple[list[float], list[float]] = [], []
    for row in rows:
        run, layout = run_from_row(row)
        for own, stalls in zip(gaps, (NO_STALLS, chip.stalls), strict=True):
            device = TemplateChip(replace(chip, stalls=stalls), run.network.name)
            step = Estimator(replace(run, gpu=device)).estimate(layout).step
            own.append(step.time_s / row.number("measured_iter_time_s") - 1)
    free, lost = (np.array(own) for own in gaps)
    cells = np.abs(free).mean(), np.abs(lost).mean(), np.median(np.abs(lost)), lost.mean()
    shown = " | ".join(f"{100 * cell:.1f} %" for cell in cells)
    print(f"| {name} | training steps | {len(rows)} | {shown} |", flush=True)
    figure(name, cells[1])
    return summary(f"{name}, training steps", free, lost)


def fit(cases: Sequence[Case]) -> Stalls:
    """The constants of chips with caches that meet half of the shapes best: those of products,
    then those that only attention has.
    """
    chip = load_accelerator(CHIPS / "h200.yaml")
    found = CACHED
    for knobs, own in ((PRODUCT_KNOBS, True), (ATTENTION_KNOBS, False)):
        seen = [c for c in cases if c.fitted and (c.kind in PRODUCTS) == own and ODD not in c.kind]

        def loss(values: Mapping[str, float], known: Stalls = found, seen: Any = seen) -> float:
            lost = replace(chip, stalls=replace(known, **values))
            return float(np.abs(np.log1p(errors(lost, seen))).mean())

        found = replace(found, **powell(loss, knobs))
    return found


if __name__ == "__main__":
    sys.exit(recorded(main))
