"""Devices as people write them: B300, MI300X, Gaudi 2, TPU v7x, H100-SXM5-80GB.

Case, separators, the maker's name and the way a device is mounted do not matter; a memory size
tells devices of one name apart. What makes another device (PCIe, NVL) stays part of the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_SILENT = (
    "nvidia", "tesla", "hgx", "dgx", "gpu", "amd", "instinct", "oam", "intel", "habana", "google",
    "cloud", "aws", "amazon", "chip", "blackwell", "server", "edition", "geforce", "generation",
)  # fmt: skip
_MOUNTED = re.compile(r"sxm\d?|nvl\d+|hbm\d?e?")
_MEMORY = re.compile(r"(\d{1,6})(?:gb|gib|g)|(\d{2,3})")
"""A size with its unit, or a number that is no generation."""

_ALIASES = {
    "trn1": "trainium1",
    "trn1core": "trainium1core",
    "trainium1neuroncorev2half": "trainium1core",
    "trn2": "trainium2",
    "trn2ultra": "trainium2",
    "l40spcie": "l40s",
    "rtx6000pro": "rtxpro6000",
    "a6000": "rtxa6000",
    "6000ada": "rtx6000ada",
    "tpu5lite": "tpu5e",
    "tpu5litepod": "tpu5e",
    "tpu6": "tpu6e",
    "tpu6trillium": "tpu6e",
    "tpu6etrillium": "tpu6e",
    "trillium": "tpu6e",
    "tpu7": "tpu7x",
    "tpu7ironwood": "tpu7x",
    "tpu7xironwood": "tpu7x",
    "ironwood": "tpu7x",
}

TOLERANCE = 0.15
"""Devices are sold and shown with sizes that differ by this much: 80 GB, 79.2 GiB, 85 GB."""


@dataclass(frozen=True)
class _Spelling:
    base: str
    memory_GB: int | None


def _spelling(name: str) -> _Spelling:
    memory: int | None = None
    words: list[str] = []
    for word in re.findall(r"[a-z0-9]+", name.lower()):
        size = _MEMORY.fullmatch(word)
        if size is not None and words:
            memory = int(size[1] or size[2])
        elif word not in _SILENT and not _MOUNTED.fullmatch(word):
            words.append(re.sub(r"sxm\d?$", "", word))
    base = re.sub(r"^tpuv(?=\d)", "tpu", "".join(words))
    return _Spelling(_ALIASES.get(base, base), memory)


def same_device(device: str, names: Iterable[str]) -> list[str]:
    """Return the names of the same device, with any memory size."""
    base = _spelling(device).base
    return [name for name in names if _spelling(name).base == base]


def catalogue_name(
    device: str, names: Iterable[str], memory_GB: Callable[[str], float]
) -> str | None:
    """Return the catalogue name of a device, or None; `memory_GB` maps catalogue names to sizes."""
    wanted = _spelling(device)
    alike = same_device(device, names)
    if wanted.memory_GB is None:
        plain = [name for name in alike if _spelling(name).memory_GB is None]
        return plain[0] if plain else None
    off = {name: abs(wanted.memory_GB / memory_GB(name) - 1) for name in alike}
    near = min(alike, key=lambda name: off[name], default=None)
    return near if near is not None and off[near] <= TOLERANCE else None
