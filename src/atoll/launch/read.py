"""Whatever launch file a user has: which software's it is, and what it says."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from atoll.errors import AtollError
from atoll.files.jsonfile import parse_object
from atoll.files.yamlfile import parse_yaml
from atoll.launch.account import Launch
from atoll.launch.deepspeed import is_deepspeed, read_deepspeed
from atoll.launch.megatron import read_megatron
from atoll.launch.nemo import is_nemo, read_nemo
from atoll.launch.torchtitan import is_torchtitan, read_torchtitan
from atoll.workload.families.model_config import ModelConfig

MOST_BYTES = 1_000_000
KINDS = (
    (is_torchtitan, read_torchtitan),
    (is_nemo, read_nemo),
    (is_deepspeed, read_deepspeed),
)


class _Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


def read_launch(
    path: Path,
    model: ModelConfig | None = None,
    environment: Mapping[str, str] | None = None,
    vocab: int | None = None,
) -> Launch:
    """What a launch file says; `model` describes the model where the file does not, `environment`
    sets variables of a script.
    """
    if path.suffix not in (".toml", ".json", ".yaml", ".yml"):
        return read_megatron(path, environment, vocab)
    content = _content(path)
    for fits, read in KINDS:
        if fits(content):
            return read(str(path), content, model)
    raise AtollError(
        f"{path}: not a launch file that is known: a Megatron-LM script, a torchtitan job (TOML), "
        "a DeepSpeed configuration (JSON) or values of a NeMo recipe (YAML)"
    )


def _content(path: Path) -> Mapping[str, Any]:
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
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise AtollError(f"{path}: not valid TOML ({error})") from None
    if path.suffix == ".json":
        return parse_object(text, str(path))
    return parse_yaml(text, _Anything, str(path)).model_extra or {}
