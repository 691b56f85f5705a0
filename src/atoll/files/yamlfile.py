"""YAML files into pydantic models; every problem becomes a sentence with its line and column.

    chip.yaml:7:11: chip.hbm_bw: expected a bandwidth such as "900 GB/s", got 'fast'

Scalars follow YAML 1.2 rather than PyYAML's 1.1: `1e9` is a number; `on`, `12:30:00` and dates are
text. A key given twice is a problem, not an overwrite.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from atoll.base import units
from atoll.base.errors import AtollError
from atoll.base.errors import suggestion as suggestion
from atoll.files.inputs import read_input_text


class FileModel(BaseModel):
    """Base of the models that describe a file: unknown fields are refused, values are fixed."""

    # Built when first read: a command needs few of them.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class AnyFields(BaseModel):
    """Fields of any names, unchecked."""

    model_config = ConfigDict(extra="allow")


def field_by_key(model: type[BaseModel]) -> dict[str, str]:
    """Return the fields of a model by their keys in the file."""
    return {field.alias or name: name for name, field in model.model_fields.items()}


def quantity(dimension: units.Dimension, default_unit: str | None = None) -> BeforeValidator:
    """Reads a quantity such as "900 GB/s"; use as `Annotated[float, quantity(BANDWIDTH)]`."""
    return BeforeValidator(lambda value: units.parse_quantity(value, dimension, default_unit))


def within(dimension: units.Dimension, low: float, high: float) -> BeforeValidator:
    """Refuses quantities outside a field's own range: `Annotated[Bytes, within(BYTES, 1, 9)]`."""
    narrowed = replace(dimension, low=low, high=high)

    def check(value: object) -> object:
        units.parse_quantity(value, narrowed)
        return value

    return BeforeValidator(check)


MOST, MOST_DEVICES = 10**8, 10**7
"""Largest counts, beyond all that exists; products of two counts are exact in 64 bits."""
MOST_BYTES = 2**60
LARGEST_FACTOR = 1e9

Bytes = Annotated[int, BeforeValidator(units.parse_bytes), Field(gt=0, le=MOST_BYTES)]
Bandwidth = Annotated[float, quantity(units.BANDWIDTH), Field(gt=0)]
Frequency = Annotated[float, quantity(units.FREQUENCY), Field(gt=0)]
Area = Annotated[float, quantity(units.AREA)]
Power = Annotated[float, quantity(units.POWER)]
Density = Annotated[float, quantity(units.POWER_DENSITY), Field(gt=0)]
Seconds = Annotated[float, quantity(units.TIME)]
EnergyPerBit = Annotated[float, quantity(units.ENERGY_PER_BIT)]
Flops = Annotated[float, quantity(units.FLOPS), Field(gt=0)]
Count = Annotated[int, Field(strict=True, gt=0, le=MOST)]
DeviceCount = Annotated[int, Field(strict=True, gt=0, le=MOST_DEVICES)]
Factor = Annotated[float, Field(ge=0, le=LARGEST_FACTOR)]
Share = Annotated[float, Field(ge=1 / LARGEST_FACTOR, le=1)]

M = TypeVar("M", bound=BaseModel)

MOST_CHARACTERS = 2**18
"""Largest file; PyYAML takes some seconds for it."""
MOST_VALUES = 50_000
"""Most values in a file, with aliases expanded."""
_TOO_DEEP = re.compile(r"(?:[\[{]\s*){200}")
"""Nesting for which PyYAML takes seconds to reach the recursion limit."""
DEEPEST = 40
LARGEST_INTEGER = 2**63 - 1


Pick = Callable[[Mapping[str, str]], tuple[type[M], Mapping[str, str]]]
"""Maps the top-level fields of a file (text of scalars) to its model and renamed fields."""


def load_yaml(path: str | Path, model: type[M] | Pick[M]) -> M:
    """Read a file as a model; the AtollError has one sentence per problem."""
    return parse_yaml(read_input_text(path, 4 * MOST_CHARACTERS), model, str(path))


def top_level_names(path: str | Path) -> tuple[str, ...]:
    """Return the top-level names of a file; empty if it cannot be read."""
    try:
        root = _Loader(read_input_text(path, MOST_CHARACTERS)).get_single_node()
    except (AtollError, ValueError, yaml.YAMLError, RecursionError):
        return ()
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    return tuple(str(key.value) for key, _ in pairs)


def read_shipped(text: str, model: type[M], where: str) -> M:
    """Parse a file of this package with libyaml if available, ten times as fast."""
    return _validate(yaml.load(text, _Shipped), model, where, None)


@cache
def shipped_table(package: str, name: str) -> Any:
    """Return the unchecked content of a YAML file of this package, which callers do not change."""
    text = (files(package) / name).read_text(encoding="utf-8")
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def parse_yaml(text: str, model: type[M] | Pick[M], where: str) -> M:
    """Parse text as a model; `where` names it in errors."""
    if len(text) > MOST_CHARACTERS:
        raise AtollError(f"{where}: {len(text):,} characters, but at most {MOST_CHARACTERS:,}")
    if _TOO_DEEP.search(text):
        raise AtollError(f"{where}: the file is nested too deeply")
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if not isinstance(model, type):
            pairs = root.value if isinstance(root, yaml.MappingNode) else []
            model, renamed = model({str(k.value): _scalar(v) for k, v in pairs})
            for key, _ in pairs:
                key.value = renamed.get(str(key.value), key.value)
        if root is None:
            raise AtollError(f"{where}: the file is empty, expected {_fields_wanted(model)}")
        _refuse_repeated_keys(root, where)
        _refuse_too_much(root, where)
        data = loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        position = _position(error.problem_mark or error.context_mark)
        problem = ", ".join(filter(None, (error.context, error.problem)))
        raise AtollError(f"{where}{position}: not valid YAML, {problem}") from None
    except RecursionError:
        raise AtollError(f"{where}: the file is nested too deeply") from None
    except yaml.YAMLError as error:  # characters that YAML does not allow
        raise AtollError(f"{where}: not valid YAML, {str(error).splitlines()[0]}") from None
    return _validate(data, model, where, root)


def validate_dict(data: Mapping[str, Any], model: type[M], where: str) -> M:
    """Convert a dictionary to a model; errors have no line and column."""
    return _validate(data, model, where, None)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2's reading of plain scalars."""


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    value = _plain(yaml.SafeLoader.construct_yaml_int)(loader, node)
    if abs(value) > LARGEST_INTEGER:
        problem = "a whole number beyond 64 bits"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    return int(value)


def _plain(construct: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Wrap a scalar constructor: tags such as `!!int abc` allow any content."""

    def checked(loader: _Loader, node: yaml.ScalarNode) -> Any:
        try:
            return construct(loader, node)
        except (ValueError, KeyError, IndexError):
            problem = f"{str(node.value)[:40]!r} is no {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None

    return checked


_CORE = ("null", "str", "seq", "map")
_Loader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.rpartition(":")[2] in _CORE
}
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _plain(yaml.SafeLoader.construct_yaml_float))
_Loader.add_constructor("tag:yaml.org,2002:bool", _plain(yaml.SafeLoader.construct_yaml_bool))
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}",
        re.compile(f"^(?:{_pattern})$"),
        ["" if letter == "\0" else letter for letter in _first],
    )


_Shipped: Any = type(
    "_Shipped",
    (getattr(yaml, "CSafeLoader", yaml.SafeLoader),),
    {
        "yaml_constructors": _Loader.yaml_constructors,
        "yaml_implicit_resolvers": _Loader.yaml_implicit_resolvers,
    },
)
"""The same rules with libyaml, which has other error messages."""


def _scalar(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _validate(data: Any, model: type[M], where: str, root: yaml.Node | None) -> M:
    try:
        return model.model_validate(data, context={"folder": Path(where).parent if root else None})
    except ValidationError as error:
        problems: dict[tuple[int, int, str], list[str]] = {}
        for detail in error.errors(include_url=False):
            kind, least = detail["type"], detail.get("ctx", {}).get("min_length", 0)
            if kind == "too_short" and len(detail["input"]) >= least:
                continue  # long enough; pydantic counts only the items that are right
            path, mark = _locate(detail, data, root)
            line, column = (mark.line, mark.column) if mark is not None else (0, 0)
            start = [f"{where}{_position(mark)}"] if where else []
            prefix = "".join(f"{part}: " for part in (*start, ".".join(path)) if part)
            texts = problems.setdefault((line, column, prefix), [])
            sentence = _sentence(detail, path, model)
            if sentence not in texts:  # the branches of a union often agree
                texts.append(sentence)
        in_file_order = sorted(problems.items(), key=lambda problem: problem[0][:2])
        raise AtollError(
            "\n".join(prefix + "; or ".join(texts) for (_, _, prefix), texts in in_file_order)
        ) from None


def _locate(
    detail: ErrorDetails, data: Any, root: yaml.Node | None
) -> tuple[list[str], yaml.Mark | None]:
    """Path and position; pydantic's union and function tags are left out of the path."""
    path: list[str] = []
    node, mark = root, root.start_mark if root is not None else None
    for depth, part in enumerate(detail["loc"]):
        if isinstance(data, Mapping) and any(str(key) == str(part) for key in data):
            data = next(value for key, value in data.items() if str(key) == str(part))
        elif isinstance(data, list | tuple) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            if detail["type"] == "missing" and depth == len(detail["loc"]) - 1:
                path.append(str(part))
            continue
        path.append(str(part))
        key, node = _child(node, part)
        if node is not None:
            at_key = detail["type"] in ("extra_forbidden", "invalid_key")
            mark = (key if at_key and key is not None else node).start_mark
    return path, mark


def _child(
    node: yaml.Node | None, part: int | str
) -> tuple[yaml.ScalarNode | None, yaml.Node | None]:
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                return key, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return None, node.value[part]
    return None, None


def _position(mark: yaml.Mark | None) -> str:
    return "" if mark is None else f":{mark.line + 1}:{mark.column + 1}"


_EXPECTED = {
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "finite_number": "a finite number",
    "string_type": "text",
    "path_type": "text or a path",
    "too_short": "at least {min_length} item(s)",
    "too_long": "at most {max_length} item(s)",
    "string_too_short": "at least {min_length} character(s)",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(
        ("dict_type", "model_type", "dataclass_type", "model_attributes_type"),
        "a mapping of fields",
    ),
}
"""What was expected, by pydantic's type of the error."""


def _sentence(detail: ErrorDetails, path: list[str], model: type[BaseModel]) -> str:
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "missing":
        return "required field is missing"
    if kind == "extra_forbidden":
        return "unknown field" + suggestion(path[-1], _field_names(model, path[:-1]))
    if kind == "value_error":
        return str(context["error"])
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind].format(**context)}, got {shown}"
    message = detail["msg"]
    return f"{message[0].lower()}{message[1:]}, got {shown}"


def _field_names(annotation: Any, path: list[str]) -> list[str]:
    """Return the field names at a path of a model or of the models in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = field_by_key(annotation)
        if not path or path[0] not in fields:
            return [] if path else list(fields)
        return _field_names(annotation.model_fields[fields[path[0]]].annotation, path[1:])
    arguments = [a for a in typing.get_args(annotation) if a is not type(None)]
    container = typing.get_origin(annotation) in (list, tuple, dict, Mapping)
    names = (_field_names(a, path[1:] if container else path) for a in arguments)
    return list(dict.fromkeys(name for branch in names for name in branch))


def _fields_wanted(model: type[BaseModel]) -> str:
    needed = [key for key, n in field_by_key(model).items() if model.model_fields[n].is_required()]
    return "the fields " + ", ".join(needed) if needed else "some fields"


def _refuse_repeated_keys(root: yaml.Node, where: str) -> None:
    pending, visited = [root], set[int]()
    while pending:
        node = pending.pop()
        if isinstance(node, yaml.ScalarNode) or id(node) in visited:
            continue
        visited.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending += node.value
            continue
        keys: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in keys:
                    position = _position(key.start_mark)
                    raise AtollError(f"{where}{position}: {key.value}: field is given twice")
                keys.add(key.value)
            pending.append(value)


def _refuse_too_much(root: yaml.Node, where: str) -> None:
    """Refuse files that aliases expand to too many or infinitely many values."""
    measured: dict[int, tuple[int, int] | None] = {}

    def measure(node: yaml.Node) -> tuple[int, int]:
        """Return the number of values and levels with aliases expanded."""
        if isinstance(node, yaml.ScalarNode):
            return 1, 0
        total = measured.setdefault(id(node), None)
        if total is None:
            inside = node.value
            if isinstance(node, yaml.MappingNode):
                inside = [part for pair in node.value for part in pair]
            if any(measured.get(id(part), ()) is None for part in inside):
                raise AtollError(f"{where}{_position(node.start_mark)}: holds itself")
            sizes = [measure(part) for part in inside]
            total = 1 + sum(size for size, _ in sizes), 1 + max((d for _, d in sizes), default=0)
            measured[id(node)] = total
        return total

    values, depth = measure(root)
    if values > MOST_VALUES or depth > DEEPEST:
        raise AtollError(
            f"{where}: {values:,} values {depth} levels deep, every alias written out, but at most "
            f"{MOST_VALUES:,} values and {DEEPEST} levels"
        )
