"""Licences of what Atoll installs, as the packages themselves state them.

The table below `<!-- licences -->` in .ci/licences.md lists what `pip install atoll` and its
extras for clusters, evolution, agents and Parquet bring, with all that those need.
`python tests/docs/licences.py` writes it from the packages installed here; a test compares those
that are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

PAGE = Path(__file__).parents[2] / ".ci" / "licences.md"
EXTRAS = ("", "dask", "evolve", "mcp", "parquet")
LONGEST = 60
"""Some packages state their licence's whole text."""
_TABLE = re.compile(r"(<!-- licences -->\n)(?:\|.*\n)*")


def installed(name: str, extra: str = "") -> Iterator[str]:
    """What a package needs here, one step down."""
    for text in distribution(name).requires or ():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            yield needed.name.lower().replace("_", "-")


def dependencies() -> dict[str, str]:
    """By name: which extra brings it, or none."""
    found: dict[str, str] = {}
    for extra in EXTRAS:
        waiting = list(installed("atoll", extra))
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            try:
                more = list(installed(name))
            except PackageNotFoundError:
                continue
            found[name] = extra
            waiting += more
    return found


def licence(name: str) -> str:
    """As the package states it: an expression, else its classifiers, else a few words."""
    told = distribution(name).metadata
    if expression := told.get("License-Expression"):
        return expression
    classes = [c.rpartition(" :: ")[2] for c in told.get_all("Classifier", ()) if "License" in c]
    words = ", ".join(classes) or " ".join((told.get("License") or "").split())
    return (
        words if 0 < len(words) <= LONGEST else words[:LONGEST].rpartition(" ")[0] or "not stated"
    )


def rows() -> dict[str, str]:
    """The lines of the table by package."""
    return {
        name: f"| {name} | {extra or 'always'} | {licence(name)} |"
        for name, extra in sorted(dependencies().items())
    }


def with_licences(text: str) -> str:
    head = "| package | comes with | licence |\n|---|---|---|\n"
    return _TABLE.sub(lambda found: found[1] + head + "\n".join(rows().values()) + "\n", text)


if __name__ == "__main__":
    PAGE.write_text(with_licences(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
