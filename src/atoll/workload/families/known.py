"""The families of models that Atoll can build: the registry, filled from `families.yaml`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from atoll.files.yamlfile import shipped_table
from atoll.workload.families import base, experts, family, hybrid, layer_kinds
from atoll.workload.families.config_fields import Fields
from atoll.workload.families.family import FAMILIES, Family

_STEPS = {
    name: found
    for module in (family, layer_kinds, base, experts, hybrid)
    for name, found in vars(module).items()
}
"""What the file may name."""


def _made(given: Any) -> Any:
    """A list is a call: its first word with the others."""
    return _STEPS[given[0]](*map(_made, given[1:])) if isinstance(given, list) else given


def _reader(kind: str, *given: Any) -> Callable[[Fields], Any]:
    """A method of `Fields` with its arguments, or a function of ours."""
    return _STEPS.get(kind) or (lambda fields: getattr(fields, kind)(*given))


def _family(name: str, told: Mapping[str, Any]) -> Family:
    spelling, silent, given = (told.get(part, {}) for part in ("spelling", "silent", "given"))
    return Family(
        types=(name, *told.get("also", ())),
        about=told["about"],
        base=told.get("base", "llama"),
        spelling={n: (v,) if isinstance(v, str) else tuple(v) for n, v in spelling.items()},
        silent={n: _reader(*v) if isinstance(v, list) else v for n, v in silent.items()},
        fixed=told.get("fixed", {}),
        given={n: _reader(*v) for n, v in given.items()},
        steps=tuple(
            _made(step) if isinstance(step, list) else _STEPS[step]
            for step in told.get("steps", ())
        ),
    )


_READ = shipped_table("atoll.workload.families", "families.yaml")
GROUPS: Mapping[str, tuple[Family, ...]] = {
    group: tuple(_family(name, told) for name, told in members.items())
    for group, members in _READ.items()
}
"""Bases: those that others differ from, and a few with no kin."""
FAMILIES.add(*(family for members in GROUPS.values() for family in members))


def family_table() -> str:
    """The families as rows of a Markdown table, in the order in which they were registered."""
    found = {id(family): family for family in FAMILIES.values()}.values()
    rows = (f"| {', '.join(f'`{t}`' for t in f.types)} | {f.about} |" for f in found)
    return "\n".join(("| `model_type` | what sets it apart |", "|---|---|", *rows))


_NO_BUILDER = (
    "an encoder-decoder model, but of these only t5 and mt5 have a builder; capture the module "
    "instead: atoll capture config.json --out model.json"
)
# Known, and known not to fit.
REFUSED: Mapping[str, str] = dict.fromkeys(
    ("umt5", "longt5", "bart", "mbart", "marian", "pegasus", "whisper"), _NO_BUILDER
)
