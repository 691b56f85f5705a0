"""A job of about half a second, for tests that interrupt it and run it elsewhere."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from atoll.explore.answer.result import SearchResult
from atoll.explore.run import run_search
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
    SPACE.replace("[1, 256]", "[16, 256]")
    .replace("[32, 64, 128]", "[32, 128]")
    .replace("[16, 32, 64]", "[16, 64]")
    .replace("[8 MiB, 32 MiB]", "[32 MiB]")
)
_folder = tempfile.TemporaryDirectory(prefix="atoll-some-job-")
_known: dict[str, SearchResult] = {}


def some_job(*, few: bool = False, **changes: Any) -> SearchQuestion:
    """Some thousand chips, a hundred of which need more than a roofline; a hundred in all, with
    one order and one ZeRO stage, where fronts are asked for, which evaluate most chips.
    """
    fewer = few or changes.get("pareto", False)
    file = Path(_folder.name) / ("few.yaml" if fewer else "some.yaml")
    file.write_text(FEW if fewer else SPACE)
    chosen: dict[str, Any] = {
        "model": "bert-large",
        "devices": 64,
        "batch": 512,
        "microbatch": (1, 2, 4),
        "tp": (1, 2),
        "space": str(file),
        "baselines": False,
    }
    if fewer:
        chosen |= {"order": "1f1b", "zero": 1}
    return SearchQuestion.of(**(chosen | changes))


def undisturbed(job: SearchQuestion) -> SearchResult:
    """The answer to a job that nothing disturbs, found once by a process that tests."""
    asked = repr(job)
    if asked not in _known:
        _known[asked] = run_search(job, workers=0)
    return _known[asked]


def answer(result: SearchResult) -> dict[str, Any]:
    """Everything but the time it took."""
    shown = result.to_dict() | {"designs": list(result.designs)}
    for name in ("wall_time_s", "phases_s"):
        del shown[name]
    return shown
