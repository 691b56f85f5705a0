"""A search's result on disk: a folder with result.json, designs.csv and chip.yaml."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

from atoll.errors import AtollError
from atoll.explore.answer.result import SearchResult
from atoll.files.wholefile import write_folder
from atoll.hardware.device import chip_yaml

RESULT = "result.json"
DESIGNS = "designs.csv"
CHIP = "chip.yaml"
"""The best chip, as `--device` of plan and estimate reads it."""


def check_folder(folder: Path) -> None:
    """Refuse, before any work, a folder that could not be written in the end."""
    if folder.exists() and not folder.is_dir():
        raise AtollError(f"out: {folder} is a file; give a folder.")
    parent = folder
    while not parent.exists():
        parent = parent.parent
    if not os.access(parent, os.W_OK):
        raise AtollError(f"out: {parent} cannot be written; give another folder.")


def write_result(result: SearchResult, folder: Path) -> None:
    """Write all files, or none: each appears whole under its name at the end."""
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in result.designs for name in row))
    writer = csv.DictWriter(text, fieldnames=columns)
    writer.writeheader()
    writer.writerows(result.designs)
    contents = {
        DESIGNS: text.getvalue(),
        CHIP: chip_yaml(result.best.accelerator, "found", result.network),
        RESULT: json.dumps(result.to_dict(), indent=1, allow_nan=False) + "\n",
    }
    write_folder(folder, contents)
