"""How time and memory grow with devices, layers, points of a space, dies of a wafer, rows.

    python benchmarks/growth.py [--limit 60] [--only devices rows ...]

Every question is asked by a process of its own. Printed: seconds of the processor, the start of
Python included, the most memory, and the gap of what is proven; a question that is not answered
within the limit (of the wall clock) says so. Searches end with their best answer after TIME_LIMIT.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fuzz_seeds import measured_runs
from record import figure, recorded

SIZES = {
    "devices": (64, 512, 4096),
    "layers": (24, 240, 2400),
    "points": (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
    "dies": (16, 32, 64, 128, 256, 1_024),
    "rows": (100, 1_000, 10_000),
}
"""Plan of GPT-2 XL; estimate of a model; search of a space; search of a wafer; runs to validate."""

TIME_LIMIT = "300 s"


def words(kind: str, size: int, folder: Path) -> Sequence[str]:
    """The command of a question; its files lie in a folder."""
    if kind == "devices":
        return ("plan", "--model", "gpt2-xl", "--device", "h100", "--devices", str(size),
                "--batch", str(4 * size))  # fmt: skip
    if kind == "layers":
        model = _model(folder, size, 4096)
        return ("estimate", "--model", model, "--device", "h100", "--devices", "8", "--batch", "8")
    if kind == "points":
        file = folder / "space.yaml"
        file.write_text(_space(size), encoding="utf-8")
        return ("search", "--model", "bert-large", "--devices", "1", "--batch", "8", "--space",
                str(file), "--microbatch", "1", "--no-baselines", "--workers", "0",
                "--time-limit", TIME_LIMIT)  # fmt: skip
    if kind == "dies":
        file = folder / "wafer.yaml"
        rows = 1 << (size.bit_length() - 1) // 2
        file.write_text(
            f"name: little\nusable_area: 40000 mm2\ngrid: [{rows}, {size // rows}]\n"
            "die: {tensor_cores: 16, vector_cores: 16, width: 16, depth: 16, sram: 8 MiB,"
            " clock: 1 GHz}\nhalo: 1 mm2\n"
            "dram: {stacks: 1, capacity: 1 GiB, bandwidth: 200 GB/s, area: 1 mm2, edge_mm: 1.0}\n"
            "link: {bandwidth: 100 GB/s, latency: 50 ns}\nio_bandwidth: 50 GB/s\n",
            encoding="utf-8",
        )
        return ("search", "--wafer", str(file), "--model", _model(folder, 4, 64), "--batch", "8",
                "--sequence", "64", "--microbatch", "1", "--workers", "0",
                "--time-limit", TIME_LIMIT)  # fmt: skip
    file = folder / "runs.csv"
    file.write_text(_runs(size), encoding="utf-8")
    return ("validate", "--data", str(file))


def _model(folder: Path, layers: int, hidden: int) -> str:
    sizes = {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers, "num_attention_heads": 8, "num_key_value_heads": 8,
        "vocab_size": 32_000, "max_position_embeddings": 4096, "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
    }  # fmt: skip
    path = folder / "config.json"
    path.write_text(json.dumps(sizes), encoding="utf-8")
    return str(path)


def _space(points: int) -> str:
    """Ten clocks and ten buffers, ten array widths and as many counts of cores as are left."""
    clocks = ", ".join(f"{0.5 + 0.1 * k:.1f} GHz" for k in range(10))
    buffers = ", ".join(f"{8 * (k + 1)} MiB" for k in range(10))
    cores = ", ".join(str(k + 1) for k in range(max(1, points // 1000)))
    widths = ", ".join(str(16 * (k + 1)) for k in range(10))
    return (
        f"name: grown\ntemplate: physical-7nm\ntensor_cores: [{cores}]\nvector_cores: [4]\n"
        f"width: [{widths}]\ndepth: [128]\nvector_width: [512]\nglb: [{buffers}]\n"
        f"clock: [{clocks}]\nhbm: [hbm2e]\nconstraints: {{max_area: 600 mm2, max_power: 400 W}}\n"
    )


def _runs(rows: int) -> str:
    """Runs of four layouts, each with its own measured time."""
    seeds = list(csv.DictReader(io.StringIO(measured_runs().decode())))[:2]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(seeds[0]))
    writer.writeheader()
    for number in range(rows):
        own = {"id": f"a-{number}", "micro_batch": str(1 << number // 2 % 2)}
        writer.writerow(seeds[number % 2] | own | {"measured_iter_time_s": f"{2 + number % 97}"})
    return text.getvalue()


def measured(command: Sequence[str], limit_s: float) -> tuple[int, float, float, str]:
    """Exit code (-9: not within the limit), seconds of the processor, GB of memory, gap."""
    with tempfile.TemporaryFile("w+") as answer:
        process = subprocess.Popen(
            ["timeout", "-s", "KILL", str(limit_s), sys.executable, "-m", "atoll", *command,
             "--json"],
            stdout=answer,
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        answer.seek(0)
        proof = json.load(answer).get("certificate", {}) if process.returncode == 0 else {}
    gap = f"{proof['gap']:.2%}" if proof.get("gap") is not None else ""
    seconds = usage.ru_utime + usage.ru_stime
    return process.returncode, seconds, usage.ru_maxrss * 1024 / 1e9, gap


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of a question")
    parser.add_argument("--only", nargs="*", choices=SIZES, default=list(SIZES))
    given = parser.parse_args()
    print("| what grows | size | processor s | memory GB | gap |\n|---|---:|---:|---:|---:|")
    wrong = 0
    for kind in given.only:
        for size in SIZES[kind]:
            with tempfile.TemporaryDirectory() as name:
                code, taken_s, memory, gap = measured(words(kind, size, Path(name)), given.limit)
            done = code == 0
            wrong += not done and code not in (-9, 137)
            shown = (
                f"{taken_s:.1f} | {memory:.2f} | {gap}" if done else f"over {given.limit:g} s | - |"
            )
            print(f"| {kind} | {size:,} | {shown} |", flush=True)
            if done:
                figure(f"{kind} {size} s", taken_s)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(recorded(main))
