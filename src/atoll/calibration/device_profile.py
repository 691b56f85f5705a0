"""`atoll measure --device-profile`: a device file from operators timed on the local GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll.answers.validation import CalibrationAnswer
from atoll.base.errors import AtollError
from atoll.calibration.fit import calibrate
from atoll.calibration.operator_rows import read_operators
from atoll.files.atomic_file import atomic_files
from atoll.files.yamlfile import field_by_key
from atoll.hardware.gpu import GpuFile, load_gpu

LIMIT_S = 1800.0
"""Longest time of the operators."""
UNITS = {"flops": " FLOP/s", "Bps": " B/s", "bytes": " B", "Hz": " Hz", "s": " s", "W": " W",
         "mm2": " mm2"}  # fmt: skip
"""Units in a device file by the end of a field's name."""


def profile_device(path: Path, device: str) -> CalibrationAnswer:
    """Time the operators of the local GPU; `device` gives its published peaks."""
    table = path.with_suffix(".operators.csv")
    words = [sys.executable, "-m", "atoll.calibration.local_gpu", str(table)]
    try:
        child = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    except subprocess.TimeoutExpired:
        why = f"the operators took more than {LIMIT_S:.0f} s; is the GPU in use?"
        raise AtollError(why) from None
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise AtollError(f"the operators could not be timed: {reason}") from None
    return write_device(path, table, json.loads(child.stdout.splitlines()[-1]), device)


def write_device(
    path: Path, table: Path, figures: Mapping[str, Any], device: str
) -> CalibrationAnswer:
    """Fit the operators of a device, with its `figures`, and write its file and its calibration."""
    published = load_gpu(device)
    products = [row for row in read_operators(table) if row.kind == "gemm"]
    rates = [2 * r.size("m") * r.size("n") * r.size("k") / r.measured_s for r in products]
    gpu = replace(
        published,
        hbm_bytes=int(figures["hbm_bytes"]),
        sms=int(figures["sms"]),
        l2_bytes=int(figures["l2_bytes"]),
        launch_s=figures["launch_us"] * 1e-6,
        measured_flops=max(rates, default=published.measured_flops),
        power_W=figures.get("power_limit_W", published.power_W),
    )
    calibration = path.with_suffix(".calibration.yaml")
    answer = calibrate(table, out=calibration, gpu=gpu, name=path.stem)
    stated = {
        "name": path.stem,
        "throttle": gpu.calibration.step_throttle,
        "source": f'"{figures["name"]}, atoll measure --device-profile, torch {figures["torch"]}; '
        f'peaks, bandwidth and clock of {gpu.name} in the catalogue"',
        "calibration": calibration.name,
    }
    lines = []
    for key, name in field_by_key(GpuFile).items():
        value = stated.get(name, getattr(gpu, name, None))
        if isinstance(value, int | float):
            unit = next((text for end, text in UNITS.items() if name.endswith(f"_{end}")), "")
            value = f"{value:.12g}{unit}"
        if value is not None:
            lines.append(f"{key}: {value}\n")
    with atomic_files(lambda why: f"{path}: cannot be written ({why})", path) as (part,):
        part.write_text("".join(lines), encoding="utf-8")
    load_gpu(path)
    return replace(answer, out=str(path))
