"""A search's result on disk: a folder with result.json, designs.csv and chip.yaml."""

from __future__ import annotations

import csv
import io

from atoll.explore.answer.result import SearchResult
from atoll.hardware.device import chip_yaml

RESULT = "result.json"
DESIGNS = "designs.csv"
CHIP = "chip.yaml"  # the best chip, which `--device` of plan and estimate reads


def result_files(result: SearchResult) -> dict[str, str]:
    """Return the contents of the result files by name."""
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in result.designs for name in row))
    writer = csv.DictWriter(text, fieldnames=columns)
    writer.writeheader()
    writer.writerows(result.designs)
    return {
        DESIGNS: text.getvalue(),
        CHIP: chip_yaml(result.best.accelerator, "new-chip", result.network),
        RESULT: result.answer.to_json(indent=1),
    }
