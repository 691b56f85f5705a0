"""Table of Megatron-LM's model arguments (`model_arguments.yaml`), read in both directions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, TypeAdapter

from atoll.base.errors import AtollError
from atoll.files.yamlfile import FileModel, shipped_table
from atoll.tools.arguments import LaunchArguments
from atoll.tools.launch_plan import Settings
from atoll.workload.families.model_config import ModelConfig


class ModelArgument(FileModel):
    """A field of `ModelConfig`, and how an argument states it."""

    field: str
    kind: Literal["size", "count", "number", "switch", "unless", "text"] = "count"
    """A size is required; a switch sets the field, `unless` clears it."""
    also: tuple[str, ...] = ()
    """Other arguments that set the field."""
    default: int | float | str = 0
    words: dict[str, str] = Field(default_factory=dict)
    """Words of the argument, and the field's words."""

    def read(self, name: str, args: LaunchArguments) -> Any:
        """Return the field's value in a launch file."""
        if self.kind in ("switch", "unless"):
            return args.has(name, *self.also) == (self.kind == "switch")
        if self.kind == "size":
            return args.size(name)
        if self.kind == "number":
            number = args.number(name)
            return self.default if number is None else number
        if self.kind == "count":
            return args.count(name) or self.default
        word = args.text(name) or str(self.default)
        if self.words and word not in self.words:
            raise AtollError(f"{args.file}: {name} {word!r} is not modelled")
        return self.words.get(word, word)

    def write(self, model: ModelConfig) -> Any:
        """Return the argument's value for a model; None and False are omitted."""
        value = getattr(model, self.field)
        if self.kind == "unless":
            return not value
        if self.kind == "text":
            if not self.words:
                return None if value == self.default else value
            return next(word for word, meaning in self.words.items() if meaning == value)
        return (value or None) if self.kind == "count" else value


TABLE = TypeAdapter(dict[str, dict[str, ModelArgument]]).validate_python(
    shipped_table("atoll.tools.megatron_lm", "model_arguments.yaml")
)


def read_fields(args: LaunchArguments, *groups: str) -> dict[str, Any]:
    """Return fields of `ModelConfig` from the arguments of these groups of the table."""
    rows = [row for group in groups for row in TABLE[group].items()]
    return {row.field: row.read(name, args) for name, row in rows}


def write_arguments(model: ModelConfig, group: str) -> Settings:
    """Return the arguments of a group of the table."""
    return {name: row.write(model) for name, row in TABLE[group].items()}
