"""Reading a model: a zoo entry, a config.json, one in the local cache, an atoll-model file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from atoll.base.errors import AtollError, as_path
from atoll.base.streams import say
from atoll.files.inputs import may_read
from atoll.files.jsonfile import parse_object, read_object
from atoll.workload.families.config import config_from_hf
from atoll.workload.families.hub import cached_config, cached_models, is_model_id
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.stored import StoredModel, is_stored, read_stored

_VARIANTS = {"meta", "instruct", "base", "chat", "it", "pt", "hf"}
"""Words of hub names that do not change a model's shape."""


def zoo_names() -> tuple[str, ...]:
    """Names of the models that come with Atoll."""
    files = (entry.name for entry in _zoo().iterdir())
    return tuple(sorted(name[:-5] for name in files if name.endswith(".json")))


def zoo_entry(name: str) -> dict[str, Any]:
    """Read the configuration of a model of the zoo."""
    text = (_zoo() / f"{name}.json").read_text(encoding="utf-8")
    return parse_object(text, f"{name} (zoo)")


def load_config(name_or_path: str | Path) -> ModelConfig:
    """As `load_model`, for those that a builder builds."""
    model = load_model(name_or_path)
    if isinstance(model, StoredModel):
        raise AtollError(f"{name_or_path}: an atoll-model file, but a configuration is needed")
    return model


def load_model(name_or_path: str | Path) -> ModelConfig | StoredModel:
    """Whatever `--model` takes: a zoo name, the path of a config.json, of an atoll-model file or of
    a run that plan, estimate or check wrote, a folder that holds a config.json, or the id of a
    model whose config.json lies in the local Hugging Face cache. Other spellings of a zoo name
    (Llama-3.2-1B, meta-llama/Llama-3.2-1B) are taken for it, with a sentence."""
    path, text = as_path("model", name_or_path), str(name_or_path)
    if not text:
        raise AtollError("model: an empty name; give a zoo name (atoll models) or a file")
    if text in zoo_names():
        return replace(config_from_hf(zoo_entry(text), f"{text} (zoo)"), name=text)
    try:
        reachable = may_read(path)
        folder = reachable and path.is_dir()
    except OSError as error:  # such as a name longer than the file system allows
        raise AtollError(f"{text[:80]}: cannot be read ({error.strerror})") from None
    path = path / "config.json" if folder else path
    if folder and not path.is_file():
        raise AtollError(f"{text} is a folder without a config.json in it")
    if path.suffix == ".onnx":
        raise AtollError(
            f"{text}: an ONNX file is captured first: atoll capture {text} --out model.json"
        )
    if reachable and path.is_file():
        contents = read_json(path)
        # A folder is the better name for a file that everyone calls config.json.
        stem = path.resolve().parent.name if path.name == "config.json" else path.stem
        if (answered := _answer_config(contents, str(path))) is not None:
            return answered
        if is_stored(contents):
            return read_stored(contents, str(path))
        return _named(config_from_hf(contents, str(path)), stem)
    if (cached := cached_config(text)) is not None:
        config = config_from_hf(read_object(cached, text, foreign=True), text)
        return _named(config, text.rpartition("/")[2])
    named = is_model_id(text) or len(path.parts) == 1
    if named and path.suffix != ".json" and (name := _zoo_name(path.name)) is not None:
        _say_taken(text, name)
        return load_model(name)
    if path.suffix == ".json" or len(path.parts) > 1:
        if not is_model_id(text) or path.suffix == ".json":
            raise AtollError(f"{text}: no such file or folder")
        zoo = {_letters(name): name for name in zoo_names()}
        near_names = difflib.get_close_matches(_letters(path.name), zoo, n=2, cutoff=0.8)
        close = difflib.get_close_matches(text, cached_models(), n=3)
        close += [zoo[name] for name in near_names]
        near = f"; or did you mean {' or '.join(close)}" if close else ""
        raise AtollError(
            f"{text}: no such file or folder, nor is it in the local Hugging Face cache; nothing "
            f"is downloaded here: run `hf download {text} config.json` first{near}"
        )
    close = difflib.get_close_matches(text.lower(), zoo_names(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}" if close else f"known: {', '.join(zoo_names())}"
    raise AtollError(f"no model is called {text!r} in the zoo, nor is there such a file; {hint}")


def _zoo_name(spelling: str) -> str | None:
    """Return the zoo's name of a model in another spelling (`Llama-3.2-1B-Instruct`), if only one
    has the same words and numbers."""
    names = [name for name in zoo_names() if _name_parts(name) == _name_parts(spelling)]
    return names[0] if len(names) == 1 else None


def _name_parts(name: str) -> list[str]:
    parts = re.findall(r"[a-z]+|\d+", name.lower())
    return [part for part in parts if part not in _VARIANTS]


@cache
def _say_taken(spelling: str, name: str) -> None:
    """Say once which model is taken for another spelling of its name."""
    say(f"model: {spelling} is taken as {name} of the zoo")


def _letters(name: str) -> str:
    """Return a model's name without separators, variants and makers, to compare names by."""
    return re.sub(r"[-._]|meta-|(?:instruct|base|chat|it|pt|hf)\b", "", name.lower())


def _answer_config(answer: Mapping[str, Any], where: str) -> ModelConfig | None:
    """The model of a run that plan, estimate or check wrote; none where it is no such file."""
    run = answer.get("estimate", answer)
    if not isinstance(run, dict) or run.get("kind") not in ("plan", "estimate"):
        return None
    try:
        return TypeAdapter(ModelConfig).validate_python(run.get("configuration"))
    except ValidationError:
        raise AtollError(
            f"{where}: an answer that does not keep its model: it was captured, or the file is "
            "damaged or of an older atoll"
        ) from None


def _named(config: ModelConfig, name: str) -> ModelConfig:
    """A part of a larger model says so wherever its name is shown."""
    return replace(config, name=f"{name} ({config.part})" if config.part else name)


def _zoo() -> Traversable:
    return resources.files("atoll.workload") / "zoo"


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, or in the config.json of a folder."""
    return read_object(path / "config.json" if path.is_dir() else path, foreign=True)
