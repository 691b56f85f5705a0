"""Child process: times operators of the local GPU and writes a table that `atoll calibrate` reads.

    python -m atoll.measurement.operators OPERATORS.csv

Needs PyTorch alone. The last line of standard output is a JSON object with
the device: its sizes, clock and power under load, and the host's time per launch.
"""

from __future__ import annotations

import csv
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from atoll.measurement.profiler import nvml

Sizes = dict[str, int]
Timed = tuple[str, Sizes, Callable[[], Any]]
COLUMNS = ("kind", "us", "graphed", "m", "n", "k", "batch", "b", "h", "hk", "s", "d", "causal", "v")
AHEAD_CYCLES = 4_000_000
"""Length of the kernel behind which launches queue up, so that only the device is timed."""
REPEATS, ROUNDS = 8, 3
WIDTHS = (1024, 2048, 4096, 5120, 8192, 11008, 14336)
"""Rows and columns of weights."""


def _random(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> Any:
    return torch.randn(shape, device="cuda", dtype=dtype).requires_grad_(grad)


def products() -> Iterator[Timed]:
    """Yield products of activations and weights, and batched ones."""
    sizes = [
        (1, m, n, k)
        for m in (512, 2048, 8192, 16384)
        for index, k in enumerate(WIDTHS)
        for n in WIDTHS[index % 2 :: 2]
    ]
    heads = [(1, 8192, 32000, 4096), (1, 4096, 128256, 4096)]
    odd = [(1, 4100, 4100, 4104), (1, 8192, 4097, 512)]
    batched = [(64, 512, 512, 64), (256, 2048, 128, 2048), (64, 1024, 1024, 128)]
    for batch, m, n, k in (*sizes, *heads, *odd, *batched):
        shape = () if batch == 1 else (batch,)
        a, b = _random(*shape, m, k), _random(*shape, n, k).transpose(-1, -2)
        kind = "gemm" if batch == 1 else "bmm"
        yield kind, {"m": m, "n": n, "k": k, "batch": batch}, partial(torch.matmul, a, b)


def attention() -> Iterator[Timed]:
    """Yield attention of several lengths and heads, forward and backward."""
    heads = ((16, 16, 64), (32, 8, 128), (64, 8, 128), (16, 16, 128), (32, 32, 64), (16, 16, 256))
    lengths = ((1, 1024, 0), (8, 1024, 1), (1, 4096, 0), (2, 4096, 1), (1, 16384, 1))
    for (h, hk, d), (b, s, causal) in itertools.product(heads, lengths):
        inputs = [_random(b, count, s, d, grad=True) for count in (h, hk, hk)]
        attend: Any = functional.scaled_dot_product_attention
        forward = partial(attend, *inputs, is_causal=bool(causal), enable_gqa=h != hk)
        sizes = {"b": b, "h": h, "hk": hk, "s": s, "d": d, "causal": causal}
        yield "sdpa_fwd", sizes, forward
        yield "sdpa_bwd", sizes, _gradient(forward(), inputs)


def _gradient(output: Any, inputs: list[Any]) -> Callable[[], Any]:
    """Return a function that computes the gradients of an output again and again."""
    given = torch.randn_like(output)
    return partial(torch.autograd.grad, output, inputs, given, retain_graph=True)


def _entropy(logits: Any, target: Any) -> Any:
    return functional.cross_entropy(logits.float(), target)


def _norm(norm: Any, x: Any, scale: Any) -> Any:
    return norm(x, x.shape[1:], scale)


def streaming() -> Iterator[Timed]:
    """Yield kernels that move tensors once, forward and backward."""
    unary: dict[str, Callable[[Any], Any]] = {
        "silu": functional.silu,
        "gelu": functional.gelu,
        "dropout": partial(functional.dropout, p=0.1),
    }
    norms: dict[str, Any] = {"layernorm": functional.layer_norm, "rmsnorm": functional.rms_norm}
    for m, n in ((1024, 4096), (4096, 8192), (16384, 4096), (16384, 12288)):
        x, y, scale = _random(m, n, grad=True), _random(m, n, grad=True), _random(n, grad=True)
        yield "add_fwd", {"m": m, "n": n}, partial(torch.add, x, y)  # backward has no kernel
        yield from _both("mul", m, n, torch.mul, [x, y])
        for name, function in unary.items():
            yield from _both(name, m, n, function, [x])
        for name, norm in norms.items():
            yield from _both(name, m, n, partial(_norm, norm), [x, scale])
    for m, n in ((16384, 512), (16384, 1024), (4096, 4096), (16384, 8192)):
        wide = _random(m, n, dtype=torch.float32, grad=True)
        yield from _both("softmax", m, n, partial(torch.softmax, dim=-1), [wide])
    for m, n in ((4096, 32000), (4096, 128256)):
        target = torch.randint(0, n, (m,), device="cuda")
        yield from _both("xent", m, n, partial(_entropy, target=target), [_random(m, n, grad=True)])
    table, ids = _random(32000, 4096), torch.randint(0, 32000, (8192,), device="cuda")
    sizes = {"m": 8192, "n": 4096, "v": 32000}
    yield "embed_fwd", sizes, partial(functional.embedding, ids, table)
    for count in (10**8, 10**9):
        parameter = _random(count, dtype=torch.float32, grad=True)
        parameter.grad = torch.randn_like(parameter)
        optimizer = torch.optim.AdamW([parameter], lr=1e-6, fused=True)
        yield "adamw_fp32_step", {"m": count}, optimizer.step


def _both(
    name: str, m: int, n: int, function: Callable[..., Any], inputs: list[Any]
) -> Iterator[Timed]:
    yield f"{name}_fwd", {"m": m, "n": n}, partial(function, *inputs)
    yield f"{name}_bwd", {"m": m, "n": n}, _gradient(function(*inputs), inputs)


def device_us(function: Callable[[], Any]) -> float:
    """Return the median microseconds of a function on the device, launches excluded."""
    function()
    times: list[float] = []
    for _ in range(ROUNDS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(AHEAD_CYCLES)
        start.record()
        for _ in range(REPEATS):
            function()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / REPEATS)
    return statistics.median(times)


def launch_us() -> float:
    """Return the host's microseconds per launch of a small kernel."""
    x = torch.zeros(8, device="cuda")
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(1000):
            x.add_(1.0)
        times.append((time.perf_counter() - start) * 1e3)
        torch.cuda.synchronize()
    return statistics.median(times)


def load_figures(seconds: float) -> dict[str, float]:
    """Return rate, power and clock of large products that run back to back for some seconds."""
    a, b = _random(8192, 8192), _random(8192, 8192)
    end, count, watts, clocks = time.monotonic() + seconds, 0, [], []
    library = nvml()
    torch.cuda.synchronize()
    start = time.perf_counter()
    while time.monotonic() < end:
        for _ in range(20):
            a @ b
        count += 20
        if library is not None:
            watts.append(library.library.nvmlDeviceGetPowerUsage(library.device) / 1e3)
            clocks.append(library.clock_MHz())
        torch.cuda.synchronize()
    rate = count * 2 * 8192**3 / (time.perf_counter() - start)
    figures = {"sustained_flops": rate}
    if library is not None:
        half, driver, handle = len(watts) // 2, library.library, library.device
        figures |= {
            "power_W": statistics.fmean(watts[half:]),
            "load_MHz": statistics.fmean(clocks[half:]),
            "clock_MHz": driver.nvmlDeviceGetMaxClockInfo(handle, driver.NVML_CLOCK_SM),
            "power_limit_W": driver.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
        }
    return figures


def device_figures() -> dict[str, Any]:
    """Return what the driver says of the device, and what it does under load."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "hbm_bytes": torch.cuda.mem_get_info()[1],
        "sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "launch_us": launch_us(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        **load_figures(3.0),
    }


def main() -> None:
    """Write a row per operator as it is measured, then print the device."""
    path = Path(sys.argv[1])
    torch.manual_seed(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for group in (products, attention, streaming):
            for kind, sizes, function in group():
                try:
                    row = {"kind": kind, "us": round(device_us(function), 3), "graphed": 1, **sizes}
                except RuntimeError as error:  # such as a size that no kernel of this device takes
                    print(f"{kind} {sizes}: {error}"[:300], file=sys.stderr)
                    continue
                writer.writerow(row)
                file.flush()
            torch.cuda.empty_cache()
    print(json.dumps(device_figures()))


if __name__ == "__main__":
    main()
