"""Errors of step times by training tool, for the table of tools in docs/exports.md.

    python benchmarks/tool_errors.py runs_facts.csv runs_2.csv runs_3.csv steps.csv

Writes benchmarks/tool_errors.json: of every tool the measured rows that it ran and their mean
error (rows without words on their software count for `pytorch`). Tables have the schemas that
`atoll validate --data` reads. After it, `python tests/questions/written.py` writes the table.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from atoll.tools.registry import tool_of_stack
from atoll.validation.tables import read_runs
from atoll.validation.validate import predict
from record import recorded

OUT = Path(__file__).with_suffix(".json")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("tables", type=Path, nargs="+")
    errors: defaultdict[str, list[float]] = defaultdict(list)
    for table in asked.parse_args().tables:
        for p in predict(read_runs(table, "h200")):
            if p.estimate is None or p.time_error is None:
                continue
            words = p.row.text("framework") or p.estimate.run.stack.name
            tool = tool_of_stack(words)
            if tool.name == "none":
                tool = tool_of_stack(p.estimate.run.stack.name)
            errors[tool.name].append(abs(p.time_error))
    figures = {
        name: {"rows": len(rows), "mean": round(float(np.mean(rows)), 3)}
        for name, rows in sorted(errors.items())
    }
    OUT.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for name, figure in figures.items():
        print(name, figure)


if __name__ == "__main__":
    sys.exit(recorded(main))
