"""Measured operators: the CSV file, its rows, and the half of them used by a fit."""

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
from atoll.files.csvfile import read_csv
from atoll.files.yamlfile import suggestion
from atoll.validation.tables import Row, columns, read_rows

EXPERT_SIZES = ("tokens", "assignments", "hidden", "ffn", "local_experts", "largest_expert")
SIZES = ("m", "n", "k", "batch", "b", "h", "hk", "s", "d", "causal", "v", *EXPERT_SIZES)
MORE_SIZES = ("w", "keys", "t", "f", "e", "rows")
COLUMNS = ("kind", "us", "graphed", *SIZES)
PRODUCTS = ("gemm", "bmm", "gemm_fp8")
ATTENTION = ("sdpa_fwd", "sdpa_bwd")
VECTORS = tuple(name for name in LEAST_BYTES if name != "softmax_fwd_wide")
EXPERTS = tuple(EXPERT_KINDS)
MORE_ATTENTION = ("sdpa_gqa", "window_flex", "window_sdpa_mask")
KIND_ALIASES = {"attention_fwd": "sdpa_fwd", "attention_bwd": "sdpa_bwd"}
# Kinds that are priced like those of the calibration, and not fitted.
PRICED_AS = {
    **{f"{kind}_{pass_}": f"sdpa_{pass_}" for kind in MORE_ATTENTION for pass_ in ("fwd", "bwd")},
    "decode_attention": "sdpa_fwd",
    "grouped_fwd": "grouped_up_fwd",
    "grouped_wgrad": "grouped_up_wgrad",
}
CHAINS = {
    "xent": ("cross_entropy",), "rmsnorm": ("rmsnorm",), "rope": ("rotary",),
    "swiglu": ("silu", "mul"),
}  # fmt: skip
"""Functions of a chain of vector kernels, which software runs eager, compiled or by torch."""
CHAIN_KINDS = tuple(
    f"{chain}_{software}_{direction}"
    for chain in CHAINS
    for software in ("eager", "compiled", "native")
    for direction in ("fwd", "bwd")
)
UPDATES = {
    "adamw_bf16_fused": "bf16",
    "adamw_bf16_foreach": "bf16",
    "adamw_fp32_fused": "fp32",
    "sgd_bf16_fused": "sgd",
}
"""States that an optimizer's step updates."""
KINDS = (*PRODUCTS, *ATTENTION, *VECTORS, *EXPERTS, *PRICED_AS, *CHAIN_KINDS, *UPDATES)

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
    for name in read_csv(path)[0]:
        near = suggestion(name, COLUMNS)
        if name not in columns() and "did you mean" in near:  # other columns are ignored
            raise AtollError(f"{path}:1: unknown column {name!r}{near}")
    rows = tuple(map(_row, read_rows(path, ("kind", "us"), Row)))
    if all(row.trouble for row in rows):
        reason = rows[0].trouble if rows else "the file has no rows, only a header"
        raise AtollError(f"{path}: {reason}")
    return rows


def _row(row: Row) -> OperatorRow:
    try:
        row.check()
        return _read(row)
    except AtollError as error:
        return OperatorRow(row.line, row.text("kind"), 1.0, True, (), str(error))


def _read(row: Row) -> OperatorRow:
    kind, dtype = row.text("kind"), row.text("dtype", "bf16")
    kind = KIND_ALIASES.get(kind, kind)
    if kind == "gemm" and dtype == "fp8":
        kind = "gemm_fp8"
    elif kind in PRODUCTS and dtype not in ("bf16", "fp16"):
        raise AtollError(f"{row.where}: products in {dtype} are not modelled")
    sizes = {name: row.number(name) for name in (*SIZES, *MORE_SIZES) if row.text(name)}
    sizes |= _chain_sizes(kind.partition("_")[0], sizes)
    priced_as = PRICED_AS.get(kind, kind)
    if priced_as in EXPERTS and sizes.get("local_experts"):
        sizes.setdefault("largest_expert", sizes.get("assignments", 1) / sizes["local_experts"])
    elif priced_as in ATTENTION and "h" in sizes:
        sizes.setdefault("hk", sizes["h"])
        if kind != priced_as:  # a window looks back
            sizes.setdefault("causal", float("w" in sizes))
    for name in needed_sizes(kind):
        if name not in sizes:
            raise AtollError(f"{row.where}: {name} is empty, but a {kind} needs it")
    graphed = bool(row.integer("graphed", 1))
    return OperatorRow(row.line, kind, row.number("us") * 1e-6, graphed, tuple(sizes.items()))


def _chain_sizes(first: str, sizes: Mapping[str, float]) -> dict[str, float]:
    """Return rows and columns of chains and updates, and the sizes of grouped products."""
    if first == "grouped" and "e" in sizes:
        ffn = sizes["n"] / 2  # gate and up are one product
        return {"assignments": sizes["rows"], "local_experts": sizes["e"], "ffn": ffn}
    if first in ("adamw", "sgd") and "n" in sizes and "m" not in sizes:
        return {"m": sizes["n"], "n": 1.0}
    if "t" not in sizes:
        return {}
    heads = sizes.get("h", 1.0)
    wide = (heads + sizes.get("hk", 0.0)) * sizes.get("d", 1.0)
    columns = {"xent": sizes.get("v", 1.0), "swiglu": sizes.get("f", 1.0), "rope": wide}
    return {"m": sizes["t"], "n": columns.get(first, heads)}


def needed_sizes(kind: str) -> tuple[str, ...]:
    kind = PRICED_AS.get(kind, kind)
    if kind in PRODUCTS:
        return ("m", "n", "k")
    if kind in ATTENTION:
        return ("b", "h", "hk", "s", "d", "causal")
    if kind in EXPERTS:
        return EXPERT_SIZES[1:] if kind.startswith("grouped") else EXPERT_SIZES
    return ("m",) if kind in VECTORS else ()


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
