"""Copy tables of recorded benchmarks into the docs and benchmarks/results/README.md.

`<!-- benchmark: NAME [TABLE] -->` is followed by table number TABLE (from 0) of that benchmark's
record in benchmarks/results. `python tests/docs/records.py` writes all of them; a test compares.
"""

from __future__ import annotations

import json
import re

from docs.written import PAGES, ROOT

RESULTS = ROOT / "benchmarks" / "results"
PAGES_WITH_RECORDS = (*PAGES, RESULTS / "README.md")
_TABLE = re.compile(r"(<!-- benchmark: (\w+) ?(\d*) -->\n)(?:Recorded.*\n\n)?(?:\|.*\n)*")


def with_records(text: str) -> str:
    """A page with its tables as they are on record."""

    def table(found: re.Match[str]) -> str:
        told = json.loads((RESULTS / f"{found[2]}.json").read_text(encoding="utf-8"))
        rows = told["tables"][int(found[3] or 0)]
        where = f"commit {told['commit']}, {told['date']}, {told['machine']['processor']}"
        return f"{found[1]}Recorded at {where}:\n\n" + "\n".join(rows) + "\n"

    return _TABLE.sub(table, text)


if __name__ == "__main__":
    for page in PAGES_WITH_RECORDS:
        page.write_text(with_records(page.read_text(encoding="utf-8")), encoding="utf-8")
