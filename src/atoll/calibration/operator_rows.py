"""Measured operators: the CSV file, its rows, and the half of them used by a fit.

Columns: kind, us (median kernel time in microseconds), graphed (1: replayed in a CUDA graph, 0:
launched by the host), then sizes, empty if not of the kind: m, n, k, batch for products; b, h,
hk, s, d, causal for attention; m (rows), n (columns), v (vocabulary) for streaming operators;
local_experts, assignments (rows), hidden, ffn (of gated experts), tokens and largest_expert (its
rows; evenly spread if absent) for parts of an expert layer.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from atoll.base.errors import AtollError
from atoll.cost.gpu_experts import EXPERT_KINDS
from atoll.cost.gpu_vector import LEAST_BYTES
from atoll.files.csvfile import CsvLine, read_csv
from atoll.files.yamlfile import MOST, suggestion

EXPERT_SIZES = ("tokens", "assignments", "hidden", "ffn", "local_experts", "largest_expert")
SIZES = ("m", "n", "k", "batch", "b", "h", "hk", "s", "d", "causal", "v", *EXPERT_SIZES)
COLUMNS = ("kind", "us", "graphed", *SIZES)
PRODUCTS = ("gemm", "bmm", "gemm_fp8")
ATTENTION = ("sdpa_fwd", "sdpa_bwd")
VECTORS = tuple(name for name in LEAST_BYTES if name != "softmax_fwd_wide")
EXPERTS = tuple(EXPERT_KINDS)
KIND_ALIASES = {"attention_fwd": "sdpa_fwd", "attention_bwd": "sdpa_bwd"}
KINDS = (*PRODUCTS, *ATTENTION, *VECTORS, *EXPERTS)

H200_OPERATORS = files("atoll") / "data" / "h200_ops.csv"


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """A measured operator with the sizes of its kind."""

    line: int
    kind: str
    measured_s: float
    graphed: bool
    sizes: tuple[tuple[str, float], ...]
    trouble: str = ""
    """Reason why it could not be read, if any."""

    def size(self, name: str) -> float:
        return dict(self.sizes)[name]

    @property
    def key(self) -> str:
        """Identity of the operator, without the measurement."""
        sizes = ",".join(f"{name}={value:.17g}" for name, value in self.sizes)
        return f"{self.kind},{int(self.graphed)},{sizes}"

    def describe(self) -> str:
        return f"{self.kind} " + " ".join(f"{name}={value:g}" for name, value in self.sizes)


def read_operators(path: str | Path | Traversable) -> tuple[OperatorRow, ...]:
    """Read the file's rows; unreadable ones have the reason and are ignored elsewhere."""
    header, lines = read_csv(path)
    if not header:
        raise AtollError(f"{path}: the file is empty, expected the columns {', '.join(COLUMNS)}")
    for name in ("kind", "us"):
        if name not in header:
            raise AtollError(f"{path}:1: column {name!r} is missing{suggestion(name, header)}")
    for name in header:
        near = suggestion(name, COLUMNS)
        if name not in COLUMNS and "did you mean" in near:  # other columns are ignored
            raise AtollError(f"{path}:1: unknown column {name!r}{near}")
    if not lines:
        raise AtollError(f"{path}: the file has no rows, only a header")
    rows = tuple(map(_row, lines))
    if all(row.trouble for row in rows):
        raise AtollError(f"{path}:{rows[0].line}: {rows[0].trouble}")
    return rows


def _row(line: CsvLine) -> OperatorRow:
    try:
        return _read(line)
    except ValueError as error:
        return OperatorRow(line.number, line.cells.get("kind", ""), 1.0, True, (), str(error))


def _read(line: CsvLine) -> OperatorRow:
    cells = line.cells
    if line.trouble:
        raise ValueError(line.trouble)
    kind = KIND_ALIASES.get(cells["kind"], cells["kind"])
    dtype = cells.get("dtype") or "bf16"
    if kind == "gemm" and dtype == "fp8":
        kind = "gemm_fp8"
    elif kind in PRODUCTS and dtype not in ("bf16", "fp16"):
        raise ValueError(f"dtype: products in {dtype} are not modelled")
    if not kind:
        raise ValueError("kind: expected an operator such as gemm, got nothing")
    graphed = cells.get("graphed") or "1"
    if graphed not in ("0", "1"):
        raise ValueError(f"graphed: expected 0 or 1, got {graphed!r}")
    microseconds = _number(cells, "us")
    sizes = {name: _number(cells, name) for name in SIZES if cells.get(name)}
    if kind in EXPERTS and sizes.get("local_experts"):
        sizes.setdefault("largest_expert", sizes.get("assignments", 1) / sizes["local_experts"])
    elif kind in ATTENTION and "h" in sizes:
        sizes.setdefault("hk", sizes["h"])
    for name in needed_sizes(kind):
        if name not in sizes:
            raise ValueError(f"{name}: a {kind} needs it, got nothing")
    return OperatorRow(line.number, kind, microseconds * 1e-6, graphed == "1", tuple(sizes.items()))


def needed_sizes(kind: str) -> tuple[str, ...]:
    if kind in PRODUCTS:
        return ("m", "n", "k")
    if kind in ATTENTION:
        return ("b", "h", "hk", "s", "d", "causal")
    if kind in EXPERTS:
        return EXPERT_SIZES[1:] if kind.startswith("grouped") else EXPERT_SIZES
    return ("m",) if kind in VECTORS else ()


def _number(cells: Mapping[str, str], name: str) -> float:
    text = cells[name]
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name}: expected a number, got {text[:40]!r}") from None
    if name == "causal":
        if value not in (0.0, 1.0):
            raise ValueError(f"causal: expected 0 or 1, got {text[:40]!r}")
    elif not 1 / MOST <= value <= MOST:
        words = "a positive number" if not value > 0 else f"a number from 1e-9 to {MOST}"
        raise ValueError(f"{name}: expected {words}, got {text[:40]!r}")
    return value


def fitted_rows(rows: Sequence[OperatorRow], salt: str = "") -> tuple[bool, ...]:
    """Return which rows a fit uses: of every kind the half with the smaller hashes.

    A kind with a single row is fitted on it, and has no error to report. The hash does not include
    the measured time, so the halves are the same on every machine.
    """
    by_kind: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for index, row in enumerate(rows):
        if row.trouble:
            continue
        digest = hashlib.sha256(f"{salt}{row.key}".encode()).hexdigest()
        by_kind[row.kind].append((digest, index))
    chosen = {
        index
        for hashes in by_kind.values()
        for _, index in sorted(hashes)[: max(1, len(hashes) // 2)]
    }
    return tuple(index in chosen for index in range(len(rows)))
