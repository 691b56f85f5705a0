"""A job of about half a second, for tests that interrupt it and run it elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atoll.explore.answer.result import SearchResult
from atoll.questions import SearchQuestion

SPACE = """
name: some
tensor_cores: {powers_of_two: [1, 256]}
vector_cores: {powers_of_two: [1, 256]}
width: [32, 64, 128]
depth: [16, 32, 64]
glb: [8 MiB, 32 MiB]
hbm:
  - {capacity: 32 GiB, bandwidth: 1.2 TB/s}
  - {capacity: 80 GiB, bandwidth: 2.04 TB/s}
constraints: {max_area: 250 mm2}
"""
FEW = (
    SPACE.replace("[1, 256]", "[8, 256]")
    .replace("[32, 64, 128]", "[32, 128]")
    .replace("[8 MiB, 32 MiB]", "[32 MiB]")
)


def some_job(folder: Path, *, few: bool = False, **changes: Any) -> SearchQuestion:
    """Some thousand chips, a hundred of which need more than a roofline; a fifth of them where
    fronts are asked for, which evaluate most chips.
    """
    file = folder / "some.yaml"
    file.write_text(FEW if few or changes.get("pareto") else SPACE)
    chosen: dict[str, Any] = {
        "model": "bert-large",
        "devices": 64,
        "batch": 512,
        "microbatch": (1, 2, 4),
        "tp": (1, 2),
        "space": str(file),
        "baselines": False,
    }
    return SearchQuestion.of(**(chosen | changes))


def answer(result: SearchResult) -> dict[str, Any]:
    """Everything but the time it took."""
    shown = result.to_dict() | {"designs": list(result.designs)}
    for name in ("wall_time_s", "phases_s"):
        del shown[name]
    return shown
