"""Size-limited reading of TOML, JSON, YAML and Python files; nothing in them is run."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from atoll.base.errors import AtollError
from atoll.files.jsonfile import parse_object
from atoll.files.yamlfile import parse_yaml

MOST_BYTES = 100_000


class _Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


def read_content(path: Path) -> Mapping[str, Any]:
    """Parse a file by its suffix."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        text = data.decode()
    except UnicodeDecodeError:
        raise AtollError(f"{path}: not a text file") from None
    except OSError as error:
        raise AtollError(f"{path}: cannot be read ({error.strerror})") from None
    if len(data) > MOST_BYTES:
        raise AtollError(f"{path}: larger than {MOST_BYTES:,} bytes, not a launch file")
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # also integers of more than 4,300 digits
            raise AtollError(f"{path}: not valid TOML ({error})") from None
    if path.suffix == ".py":
        return _literals(text, path)
    if path.suffix == ".json":
        return parse_object(text, str(path))
    return parse_yaml(text, _Anything, str(path)).model_extra or {}


def _literals(text: str, path: Path) -> dict[str, Any]:
    """Return the literals SETTINGS, MODEL and RUN of a script that Atoll wrote."""
    literals = {}
    try:
        for node in ast.parse(text).body:
            name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
            if isinstance(node, ast.Assign) and name in ("SETTINGS", "MODEL", "RUN"):
                literals[name] = ast.literal_eval(node.value)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise AtollError(f"{path}: its settings are not plain values ({error})") from None
    if not all(isinstance(value, dict) for value in literals.values()):
        raise AtollError(f"{path}: SETTINGS, MODEL and RUN must be dictionaries")
    return literals
