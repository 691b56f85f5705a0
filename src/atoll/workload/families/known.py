"""The families of models that Atoll can build: the registry, filled."""

from __future__ import annotations

from collections.abc import Mapping

from atoll.workload.families.base import OTHERS, PLAIN
from atoll.workload.families.dense import DENSE
from atoll.workload.families.experts import EXPERTS
from atoll.workload.families.family import FAMILIES
from atoll.workload.families.hybrid import HYBRID
from atoll.workload.families.llama import LLAMA

BASES = (*PLAIN, *LLAMA, *OTHERS)
"""Those that others differ from, and a few with no kin."""

FAMILIES.add(*BASES, *DENSE, *EXPERTS, *HYBRID)


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
