"""Tables of timed operators of NVIDIA's package aiconfigurator-core, if installed (Apache-2.0;
arXiv:2601.06288): operator times as an alternative to the model.

The tables are of inference engines: forward passes, each call timed alone. All engines leave 16-bit
products to the same library: the median over engines counts, from which single tables differ by up
to 11 % on average.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Floats
from atoll.base.errors import AtollError
from atoll.calibration.many_devices import TimedOperator, predicted_s
from atoll.hardware.gpu import Gpu, load_gpu
from atoll.training.operators.timings import RatioGrid, Timings

PACKAGE = "aiconfigurator-core"
SYSTEMS = {
    "a100-40": "a100_sxm",
    "a100-80": "a100_sxm",
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""The package's folders by device of the catalogue."""
FORMATS = {"bf16": "bfloat16", "fp8": "fp8", "nvfp4": "nvfp4"}
ENGINES = {"bf16": ("sglang", "trtllm", "vllm"), "fp8": ("trtllm",), "nvfp4": ("sglang",)}
ATTENTION_ENGINE = "vllm"
LEAST_ROWS = 128  # of products: fewer tokens are decoded, not trained on
Columns = Mapping[str, NDArray[Any]]


def package_version() -> str:
    """Return the package with its release; raise an AtollError if it is not installed."""
    try:
        return f"{PACKAGE} {version(PACKAGE)}"
    except PackageNotFoundError:
        raise AtollError(
            f"operators: measured ones are read from {PACKAGE}, which is not installed; "
            f"pip install {PACKAGE}"
        ) from None


@lru_cache(maxsize=16)
def timings(device: str, precision: str) -> Timings:
    """Return the timings of a catalogue device for runs of a precision."""
    folder = device_folder(device)
    gpu = load_gpu(device)
    products = _products(gpu, folder, precision) if precision in FORMATS else None
    return Timings({} if products is None else {precision: products}, _attention(gpu, folder))


def device_folder(device: str) -> Path:
    """Return the folder of a catalogue device's tables."""
    package_version()
    spec = find_spec(PACKAGE.replace("-", "_"))
    if device not in SYSTEMS:
        raise AtollError(
            f"operators: {PACKAGE} has no timings of {device}; it has {', '.join(SYSTEMS)}"
        )
    locations = (spec and spec.submodule_search_locations) or ["."]
    return Path(locations[0]) / "systems" / "data" / SYSTEMS[device]


def _products(gpu: Gpu, folder: Path, dtype: str) -> RatioGrid | None:
    """Return measured / predicted times of products, without separately timed casts."""
    rows = [r for name in ENGINES[dtype] for r in product_rows(folder, name, dtype)]
    if not rows:
        return None
    return RatioGrid.from_sizes(np.array([row.sizes[:3] for row in rows]), _ratios(gpu, rows))


def product_rows(folder: Path, engine: str, dtype: str) -> Iterator[TimedOperator]:
    """Yield products of a format timed by one engine, without their casts."""
    table = _read(folder, "gemm", engine, "gemm_perf")
    casts: dict[tuple[int, int], float] = {}
    if dtype == "fp8":
        for name in ("scale_matrix_perf", "computescale_perf"):
            cast = _read(folder, "quantize", engine, name)
            for m, k, ms in zip(*(cast[c].tolist() for c in ("m", "k", "latency")), strict=True):
                casts[m, k] = casts.get((m, k), 0.0) + ms
    columns = (table[c].tolist() for c in ("gemm_dtype", "m", "n", "k", "latency"))
    for format_, m, n, k, ms in zip(*columns, strict=True):
        # Odd rows are special cases of tile ends, not comparable to their neighbours.
        if format_ != FORMATS[dtype] or m < LEAST_ROWS or m % 2:
            continue
        cast_ms = casts.get((m, k), 0.0)
        if 2 * cast_ms < ms:  # else the product is a minor part
            yield TimedOperator(0, "", "gemm", dtype, (m, n, k, 1), 1e-3 * (ms - cast_ms))


def _attention(gpu: Gpu, folder: Path) -> dict[tuple[float, float], RatioGrid]:
    """Return measured / predicted times of attention over prompts, by shape of the heads."""
    table = _read(folder, "attention", ATTENTION_ENGINE, "context_attention_perf")
    rows: dict[tuple[float, float], list[TimedOperator]] = {}
    windows = table.get("window_size", np.zeros(len(table["isl"])))
    plain = (table["attn_dtype"] == "bfloat16") & (table["kv_cache_dtype"] == "bfloat16")
    plain &= (windows == 0) & (table["isl"] >= LEAST_ROWS)
    names = ("batch_size", "num_heads", "num_key_value_heads", "isl", "head_dim", "latency")
    columns = (table[c][plain].tolist() for c in (*names, "kernel_source"))
    for b, h, hk, s, d, ms, kernel in zip(*columns, strict=True):
        sizes = (b, h, hk, s, d, 1)
        row = TimedOperator(0, "", "attention_prefill", "bf16", sizes, 1e-3 * ms, kernel)
        rows.setdefault((h / hk, d), []).append(row)
    return {
        head_shape: RatioGrid.from_sizes(
            np.array([(b * h, s) for b, h, _, s, *_ in (row.sizes for row in shape_rows)]),
            _ratios(gpu, shape_rows),
        )
        for head_shape, shape_rows in rows.items()
    }


def _ratios(gpu: Gpu, rows: Sequence[TimedOperator]) -> Floats:
    return np.array([row.measured_s for row in rows]) / predicted_s(gpu, rows)


def _read(folder: Path, kind: str, engine: str, name: str) -> Columns:
    """Return a table's columns from an engine's newest release that has it; else an empty table."""
    files = sorted(
        (folder / kind / engine).glob(f"*/{name}.parquet"),
        key=lambda file: [int(n) for n in re.findall(r"\d+", file.parent.name)],
    )
    try:
        from pyarrow.parquet import read_table
    except ImportError:
        raise AtollError("operators: tables are Parquet files; pip install pyarrow") from None
    if not files:
        return _EMPTY
    table = read_table(files[-1])
    return {c: table[c].to_numpy() for c in table.column_names}


_EMPTY: Columns = defaultdict(lambda: np.empty(0))
