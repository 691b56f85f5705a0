"""Child process: times operators of the local GPU and writes a table that `atoll calibrate` reads.

    python -m atoll.calibration.local_gpu OPERATORS.csv

Needs PyTorch alone. The last line of standard output is a JSON object with the device.
"""

from __future__ import annotations

import csv
import importlib
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from timeit import timeit
from typing import Any

import torch
from torch.nn import functional

OPERATORS = files("atoll") / "data" / "profile_operators.csv"
"""Kinds and sizes of the operators."""
AHEAD_CYCLES = 4_000_000
"""Length of the kernel behind which launches queue up, so that only the device is timed."""
REPEATS, ROUNDS = 8, 3
FORWARD: dict[str, Callable[..., Any]] = {
    "add": lambda x, y, *_: x + y,
    "mul": lambda x, y, *_: x * y,
    "silu": lambda x, *_: functional.silu(x),
    "gelu": lambda x, *_: functional.gelu(x),
    "dropout": lambda x, *_: functional.dropout(x, p=0.1),
    "layernorm": lambda x, y, scale, *_: functional.layer_norm(x, x.shape[1:], scale),
    "rmsnorm": lambda x, y, scale, *_: functional.rms_norm(x, x.shape[1:], scale),
    "softmax": lambda x, *_: torch.softmax(x, dim=-1),
    "xent": lambda x, y, scale, target: functional.cross_entropy(x.float(), target),
}
"""Kernels that move tensors once."""


def operator(kind: str, sizes: dict[str, int], device: str = "cuda") -> Callable[[], Any]:
    """Return a function that runs an operator once, with random inputs."""
    name, _, direction = kind.partition("_")
    m, n = sizes.get("m", 1), sizes.get("n", 1)
    fp32 = name in ("softmax", "adamw")
    random = partial(torch.randn, device=device, dtype=torch.float32 if fp32 else torch.bfloat16)
    trained = partial(random, requires_grad=True)
    if name in ("gemm", "bmm"):
        batch = (sizes["batch"],) if name == "bmm" else ()
        weight = random(*batch, n, sizes["k"]).transpose(-1, -2)
        return partial(torch.matmul, random(*batch, m, sizes["k"]), weight)
    if name == "adamw":
        parameter = trained(m)
        parameter.grad = torch.randn_like(parameter)
        return partial(torch.optim.AdamW([parameter], lr=1e-6, fused=True).step)
    classes = torch.randint(0, sizes.get("v", n), (m,), device=device)
    if name == "embed":
        return partial(functional.embedding, classes, random(sizes["v"], n))
    if name == "sdpa":
        b, h, hk, s, d = (sizes[size] for size in ("b", "h", "hk", "s", "d"))
        inputs = [trained(b, heads, s, d) for heads in (h, hk, hk)]
        attend: Any = functional.scaled_dot_product_attention
        forward = partial(attend, *inputs, is_causal=bool(sizes["causal"]), enable_gqa=h != hk)
    else:
        inputs = [trained(m, n), trained(m, n), trained(n)]
        forward = partial(FORWARD[name], *inputs, classes)
    if direction == "fwd":
        return forward
    output = forward()
    given = torch.randn_like(output)
    return partial(torch.autograd.grad, output, inputs, given, retain_graph=True, allow_unused=True)


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


def nvml(figure: str, *more: int) -> Any:
    """Return a figure of the first GPU by its name in NVIDIA's management library; None without
    the library, or if the device does not report it.
    """
    try:
        library = importlib.import_module("pynvml")
        library.nvmlInit()
        device = [library.nvmlDeviceGetHandleByIndex(0)] if figure.startswith("Device") else []
        return getattr(library, f"nvml{figure}")(*device, *more)
    except Exception:
        return None


def device_figures() -> dict[str, Any]:
    """Return what the driver says of the device, and the host's time per launch of a kernel."""
    properties = torch.cuda.get_device_properties(0)
    x = torch.zeros(8, device="cuda")
    launches_us = []
    for _ in range(5):
        torch.cuda.synchronize()
        launches_us.append(timeit("x.add_(1.0)", globals={"x": x}, number=1000) * 1e3)
    figures = {
        "name": properties.name,
        "hbm_bytes": torch.cuda.mem_get_info()[1],
        "sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "launch_us": statistics.median(launches_us),
        "torch": torch.__version__,
    }
    limit_mW = nvml("DeviceGetEnforcedPowerLimit")
    return figures if limit_mW is None else figures | {"power_limit_W": limit_mW / 1e3}


def main() -> None:
    """Write a row per operator as it is measured, then print the device."""
    torch.manual_seed(0)
    rows = csv.DictReader(OPERATORS.read_text(encoding="utf-8").splitlines())
    columns = ("kind", "us", "graphed", *(rows.fieldnames or ())[1:])
    with Path(sys.argv[1]).open("w", newline="", encoding="utf-8", buffering=1) as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            kind = row["kind"]
            sizes = {name: int(cell) for name, cell in row.items() if name != "kind" and cell}
            try:
                time_us = device_us(operator(kind, sizes))
            except RuntimeError as error:  # such as a size that no kernel of this device takes
                print(f"{kind} {sizes}: {error}"[:300], file=sys.stderr)
            else:
                writer.writerow(row | {"us": round(time_us, 3), "graphed": 1})
    print(json.dumps(device_figures()))


if __name__ == "__main__":
    main()
