"""Answers as data: frozen dataclasses whose fields are the keys of their JSON.

Types write and read them (pydantic): what does not fit its type is a damaged file, told in one
sentence; whatever else goes wrong with an answer is a fault of ours, and stays one.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import MISSING, fields
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Self, TypeVar

from pydantic import Field, JsonValue, TypeAdapter, ValidationError, computed_field

from atoll.base.errors import AtollError, as_path
from atoll.base.notebook import answer_html
from atoll.base.registry import import_named
from atoll.files.atomic_file import atomic_files
from atoll.files.jsonfile import read_object

if TYPE_CHECKING:
    import pandas as pd

    from atoll.base.chart import Chart

MOST = 10**15
Count = Annotated[int, Field(ge=0, le=MOST)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Summary = tuple[tuple[str, str], ...]
"""The answer in short as it is printed: lines of (label, text)."""


class JsonSerializable:
    """What can be kept as JSON: an answer, or what has one."""

    __slots__ = ()

    @property
    def _data(self) -> Answer:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The content of `--json`.

        Returns:
            Plain JSON data; `atoll schema COMMAND` prints its schema.

        Examples:
            >>> import atoll
            >>> atoll.describe_model("gpt2-xl").to_dict()["parameters"]
            1557611200
        """
        content: dict[str, Any] = dumped(self._data)
        return content

    def save(self, path: str | Path) -> Path:
        """Write the answer as JSON, whole or not at all.

        Args:
            path: The file; `atoll.load` reads it.

        Returns:
            The file.

        Raises:
            AtollError: It cannot be written there.

        Examples:
            >>> import atoll
            >>> file = atoll.estimate("gpt2-xl", "h100", 8, batch=64).save("estimate.json")
            >>> atoll.load(file).fits
            True
        """
        path = Path(path)
        with atomic_files(lambda why: f"{path}: cannot be written ({why})", path) as (part,):
            part.write_text(self._data.to_json(), encoding="utf-8")
        return path


class Answer(JsonSerializable):
    """Base of what commands answer: classes with `kind` and `format` among their fields."""

    __slots__ = ()

    @property
    def _data(self) -> Answer:
        return self

    def to_json(self, indent: int | None = None) -> str:
        """The content of `--json` as text.

        Args:
            indent: Spaces of a level; None for one line.

        Returns:
            One JSON object and a line feed.

        Examples:
            >>> import atoll
            >>> atoll.describe_hardware("h100").to_json()[:26]
            '{"kind": "hardware-device"'
        """
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False) + "\n"

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The answer of this kind that a file holds; `atoll.load` takes any kind.

        Args:
            path: What `save`, `--json` or `--out` wrote.

        Returns:
            The answer.

        Raises:
            AtollError: It holds none, or it was damaged or written by another version.

        Examples:
            >>> import atoll
            >>> file = atoll.describe_model("gpt2-xl").save("gpt2-xl.json")
            >>> atoll.answers.ModelAnswer.load(file).parameters
            1557611200
        """
        return read_answer(Path(path), cls)


class Drawable(JsonSerializable):
    """What a page and a trace show."""

    __slots__ = ()

    def report(self, path: str | Path) -> Path:
        """Draw the answer as one HTML file that opens offline, as `atoll report` does.

        Args:
            path: The file, such as report.html.

        Returns:
            The file.

        Raises:
            AtollError: It cannot be written there.

        Examples:
            >>> import atoll
            >>> atoll.estimate("gpt2-xl", "h100", 8, batch=64).report("report.html").name
            'report.html'
        """
        folder = getattr(self, "kept", None)
        return Path(import_named("atoll.report.page:write_page")(self._data, Path(path), folder))

    def trace(self, path: str | Path) -> Path:
        """Write the step as a Chrome trace, which Perfetto opens, as `atoll trace` does.

        Args:
            path: The file, such as trace.json.

        Returns:
            The file.

        Raises:
            AtollError: It cannot be written there, or no step is on record.

        Examples:
            >>> import atoll
            >>> atoll.estimate("gpt2-xl", "h100", 8, batch=64).trace("trace.json").name
            'trace.json'
        """
        return Path(import_named("atoll.report.trace:trace_answer")(self._data, Path(path)))


class DrawnAnswer(Drawable, Answer):
    """An answer that a page and a trace show."""

    __slots__ = ()


class TableAnswer(DrawnAnswer):
    """An answer with a row for each of several runs or figures."""

    __slots__ = ()

    @abstractmethod
    def summary(self) -> list[tuple[str, str]]:
        """Return it in short, as (label, text)."""

    @abstractmethod
    def to_dataframe(self) -> pd.DataFrame:
        """Return the rows for pandas."""

    @abstractmethod
    def chart(self, figure: str | None = None) -> Chart:
        """Return one figure of all runs, drawn; by default the first."""

    def _repr_html_(self) -> str:
        return answer_html(self.summary(), {}) + self.chart().svg


class Explanation(Answer):
    """Why an answer is as it is; `print` shows it as `atoll explain` does."""

    __slots__ = ()
    printer: ClassVar[str]
    """What shows it."""

    def show(self) -> None:
        """Print it as wide as the terminal.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
            >>> plan.explain().show()  # doctest: +ELLIPSIS
            gpt2-xl on 8 h100: tp1 pp1 dp8 ...
        """
        import_named(self.printer)(self)

    def __str__(self) -> str:
        with redirect_stdout(StringIO()) as shown:
            self.show()
        return shown.getvalue().rstrip("\n")


A = TypeVar("A", bound=Answer)
P = TypeVar("P", bound=DrawnAnswer)
X = TypeVar("X", bound=Explanation)
T = TypeVar("T")


class AnsweredResult(JsonSerializable, Generic[A]):
    """What a program returns: its rich objects, and its answer as data, made once."""

    answer_builder: ClassVar[str]
    """Function of the result that builds the answer, imported on first use."""

    @cached_property
    def answer(self) -> A:
        """All that is printed, drawn or written of it, as typed data."""
        answer: A = import_named(self.answer_builder)(self)
        return answer

    @property
    def _data(self) -> A:
        return self.answer


class DrawableResult(Drawable, AnsweredResult[P]):
    """What a program returns, where its answer can be drawn."""

    @property
    def kept(self) -> Path | None:
        """The folder in which all that was evaluated is kept, where there is one."""
        return None

    def compare(self, *others: DrawableResult[Any]) -> TableAnswer:
        """Lay it beside others, of any kind, as `atoll compare` does.

        Args:
            others: What other questions returned.

        Returns:
            What `atoll.compare` returns: a row for each thing, a value for each of them, with
            ratios to this one.

        Raises:
            AtollError: None is given.

        Examples:
            >>> import atoll
            >>> small = atoll.estimate("gpt2-xl", "h100", 8, batch=64)
            >>> large = atoll.estimate("gpt2-xl", "h100", 16, batch=64)
            >>> small.compare(large).to_dict()["runs"]
            ['estimate 1', 'estimate 2']
        """
        answers = [result.answer for result in (self, *others)]
        names = [f"{answer.kind} {number}" for number, answer in enumerate(answers, 1)]
        comparison: TableAnswer = import_named("atoll.several.comparison:compare_answers")(
            names, answers
        )
        return comparison

    def to_dataframe(self) -> pd.DataFrame:
        """What was asked and what came out, for pandas.

        Returns:
            One row; of plans, searches and sweeps one for all that was evaluated.

        Examples:
            >>> import atoll
            >>> estimate = atoll.estimate("gpt2-xl", "h100", 8, batch=64)
            >>> int(estimate.to_dataframe()["devices"].iloc[0])
            8
        """
        import pandas as pd

        question_values, figures = (
            import_named(f"atoll.several.figures:{name}")(self.answer)
            for name in ("question_fields", "result_figures")
        )
        return pd.DataFrame([question_values | figures])


class ExplainedResult(DrawableResult[P], Generic[P, X]):
    """What a program returns, where its answer can be drawn and explained."""

    def explain(self) -> X:
        """Explain the choice: where the time goes, what limits it, and what the others lack.

        Returns:
            The reasons as data; printed, they read as those of `atoll explain`.

        Raises:
            AtollError: A wafer or model that the question names is gone.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
            >>> print(plan.explain())  # doctest: +ELLIPSIS
            gpt2-xl on 8 h100: tp1 pp1 dp8 ...
        """
        answer: Any = self.answer
        explanation: X = answer.explain()
        return explanation


def derived_key(function: Callable[[Any], T]) -> cached_property[T]:
    """Make a method a cached property and a key of the JSON, which follows those of the fields."""

    def as_field(schema: dict[str, JsonValue]) -> None:
        schema.pop("readOnly")

    return computed_field(json_schema_extra=as_field)(cached_property(function))


def build_from(kind: type[T], /, *sources: object, **given: Any) -> T:
    """Build `kind` from `given`, and from the attributes of its fields' names: each of the first
    source that has it.
    """
    for name in (field.name for field in fields(kind) if field.name not in given):  # type: ignore[arg-type]
        for source in sources:
            if (value := getattr(source, name, MISSING)) is not MISSING:
                given[name] = value
                break
    return kind(**given)


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the cached pydantic adapter of a type."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def dumped(value: object) -> Any:
    """Convert a dataclass to plain JSON data; a value of the wrong type is an error."""
    return adapter(type(value)).dump_python(value, mode="json", by_alias=True, warnings="error")


def read_answer(path: str | Path, *kinds: type[A]) -> A:
    """Read the answer in a file, which must be one of these kinds."""
    return parse_answer(read_object(as_path("path", path)), str(path), *kinds)


def parse_answer(content: Mapping[str, Any], where: str, *kinds: type[A]) -> A:
    """Convert parsed JSON to an answer of one of these kinds."""
    kind_by_name = {field_default(kind, "kind"): kind for kind in kinds}
    kind_name = content.get("kind")
    if not isinstance(kind_name, str) or kind_name not in kind_by_name:
        words = " or ".join(str(name) for name in kind_by_name)
        raise AtollError(
            f"{where}: not an answer of atoll that is read here: its kind is "
            f"{str(kind_name)[:40]!r}, not {words}."
        )
    expected_format = field_default(kind_by_name[kind_name], "format")
    if content.get("format") != expected_format:
        raise AtollError(
            f"{where}: written by another version of atoll (format {content.get('format')!r}, this "
            f"one reads {expected_format}); run it again."
        )
    return checked(content, kind_by_name[kind_name], where)


def field_default(kind: type, name: str) -> Any:
    """Return the default of a field."""
    return next(field.default for field in fields(kind) if field.name == name)


def checked(content: object, kind: type[T], where: str) -> T:
    """Convert data to a type; the AtollError names the first invalid field."""
    try:
        value: T = adapter(kind).validate_python(content)
        return value
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        problem = "is missing" if first["type"] == "missing" else f"({first['msg']})"
        raise AtollError(
            f"{where}: a field is missing or of another kind: {place} {problem}; it was damaged, "
            "or written by another version of atoll: run it again."
        ) from None
