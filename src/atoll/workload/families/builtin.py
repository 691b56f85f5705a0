"""The families of models that Atoll can build: the registry, filled from `families.yaml`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from atoll.files.yamlfile import shipped_table
from atoll.workload.families import base, experts, family, hybrid, layer_kinds
from atoll.workload.families.config_fields import Fields
from atoll.workload.families.family import FAMILIES, Family

_STEPS = {
    name: value
    for module in (family, layer_kinds, base, experts, hybrid)
    for name, value in vars(module).items()
}
"""Functions that the file may name."""


def _evaluated(entry: Any) -> Any:
    """Evaluate an expression: a list is a call of its first word on the others."""
    return _STEPS[entry[0]](*map(_evaluated, entry[1:])) if isinstance(entry, list) else entry


def _reader(kind: str, *arguments: Any) -> Callable[[Fields], Any]:
    """Return a reader: a function of `_STEPS`, or a method of `Fields` with its arguments."""
    return _STEPS.get(kind) or (lambda fields: getattr(fields, kind)(*arguments))


def _family(name: str, entry: Mapping[str, Any]) -> Family:
    spelling, silent, readers = (entry.get(part, {}) for part in ("spelling", "silent", "given"))
    return Family(
        types=(name, *entry.get("also", ())),
        about=entry["about"],
        base=entry.get("base", "llama"),
        spelling={n: (v,) if isinstance(v, str) else tuple(v) for n, v in spelling.items()},
        silent={n: _reader(*v) if isinstance(v, list) else v for n, v in silent.items()},
        fixed=entry.get("fixed", {}),
        given={n: _reader(*v) for n, v in readers.items()},
        steps=tuple(
            _evaluated(step) if isinstance(step, list) else _STEPS[step]
            for step in entry.get("steps", ())
        ),
    )


_READ = shipped_table("atoll.workload.families", "families.yaml")
GROUPS: Mapping[str, tuple[Family, ...]] = {
    group: tuple(_family(name, entry) for name, entry in members.items())
    for group, members in _READ.items()
}
"""Bases: those that others differ from, and a few with no kin."""
FAMILIES.add(*(family for members in GROUPS.values() for family in members))


_NO_BUILDER = (
    "an encoder-decoder model, but of these only t5 and mt5 have a builder; capture the module "
    "instead: atoll capture config.json --out model.json"
)
# Known, and known not to fit.
REFUSED: Mapping[str, str] = dict.fromkeys(
    ("umt5", "longt5", "bart", "mbart", "marian", "pegasus", "whisper"), _NO_BUILDER
)
