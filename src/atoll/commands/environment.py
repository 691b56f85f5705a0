"""Environment of Atoll: versions, processor, kernel cache and extras, for a bug report."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from atoll.base.identity import VERSION, this_code


def environment() -> dict[str, str]:
    """Return one line per property and package."""
    names = sorted({_name(line) for line in requires("atoll") or ()} - {"atoll"})
    return {
        "atoll": f"{VERSION} (sources {this_code()['sources'][:8]})",
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": platform.platform(),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "kernel cache": os.environ.get("NUMBA_CACHE_DIR", "numba's own"),
        **{name: _version(name) for name in names},
    }


def _name(requirement: str) -> str:
    """Return the package name of a requirement."""
    return "".join(c if c.isalnum() or c in "-_." else " " for c in requirement).split()[0]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    """Return the processor model, which Linux has in /proc/cpuinfo."""
    architecture = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        return next(models, architecture)
    return architecture
