"""`atoll designs`, `atoll compare` and sweeps, and what a store keeps of designs."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Literal, NotRequired

from pydantic import JsonValue
from typing_extensions import TypedDict

from atoll.answers.answer import Answer, TableAnswer
from atoll.base.chart import Chart, draw
from atoll.base.errors import AtollError
from atoll.base.units import format_value

if TYPE_CHECKING:
    import pandas as pd

Identity = Mapping[str, JsonValue]
"""All that the results of a job depend on; identifies its store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownParameter:
    """A number that tells the chips of a run apart, and how it is shown."""

    name: str
    label: str
    unit: str
    per: float
    """Base units per `unit`."""
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipJob:
    """What a store says of its chips; nothing where it holds none."""

    parameters: tuple[ShownParameter, ...] = ()


RunKind = Literal["search", "wafer", "plan"]
Row = Mapping[str, JsonValue]
"""A design by the names of its columns: a chip's (`StoredDesign`), a wafer's or a layout's."""


class StoredEnergy(TypedDict):
    parts_J: Mapping[str, float]
    step_time_s: float
    devices: int
    tokens: int


class StoredPlan(TypedDict):
    """The best plan known of one model on one chip."""

    number: int
    """Index of the model in the job."""
    model: str
    samples_per_s: float | None
    step_time_s: float
    variant: int
    microbatch: int
    tensor: int
    cp: int
    ep: int
    etp: int
    sp: bool
    pipeline: int
    data: int
    pass_s: Sequence[Sequence[float]]
    energy: StoredEnergy
    effort: str
    limit_s: NotRequired[float | None]


class StoredDesign(TypedDict):
    """One evaluated design: its figures, its parameters, the plan of its first model."""

    chip: int
    design: int
    score: float | None
    area_mm2: float
    power_W: float
    energy_per_token_J: float
    tensor_cores: int
    vector_cores: int
    width: int
    depth: int
    vector_width: int
    glb_bytes: int
    hbm_capacity_bytes: int
    hbm_bandwidth_Bps: float
    clock_Hz: float
    model: str
    samples_per_s: float | None
    step_time_s: float
    microbatch: int
    tensor: int
    pipeline: int
    data: int
    phase: str
    at: float
    plans: NotRequired[Sequence[StoredPlan]]
    """Plans of all models, if one design is requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusAnswer:
    """Where a run stands."""

    state: str
    """"running", "finished", "stopped" (by the user or a limit), "killed" or "failed"."""
    pid: int
    host: str
    executor: str
    phase: str
    left: int
    """Chips that may still beat the incumbent."""
    total: int
    """Chips of the space, as the certificate counts them."""
    bounded: int
    """Chips with a schedule bound on record."""
    evaluated: int
    """Chips whose placement was solved; some turn out to have no plan worth keeping."""
    designs: int
    """Designs on record, each with its best plans."""
    score: float
    bound: float | None
    """None where nothing is bounded yet."""
    seconds: float
    """Search time over all runs in the folder."""
    gap: float | None
    """Relative distance of the best design to the bound; None before the first design."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFile:
    """A file with all designs."""

    file: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignsAnswer(Answer):
    """A page of the designs of a run."""

    kind: Literal["designs"] = "designs"
    format: Literal[1] = 1
    run: RunKind
    """Kind of the run: the rows are chips, wafers or layouts."""
    status: StatusAnswer
    count: int
    parameters: tuple[ShownParameter, ...] = ()
    """Parameter columns of chips."""
    designs: tuple[Row, ...]
    parquet: ParquetFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptRow:
    """One combination of values."""

    asked: Mapping[str, JsonValue]
    figures: Mapping[str, JsonValue]
    problem: str = ""
    """Why there are no figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepAnswer(TableAnswer):
    """A question asked for every value of some of its fields."""

    kind: Literal["sweep"] = "sweep"
    format: Literal[1] = 1
    axes: tuple[str, ...]
    given: str
    """Assumptions that all rows share."""
    rows: tuple[SweptRow, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the axes, the figures and the problem."""
        figures = dict.fromkeys(name for row in self.rows for name in row.figures)
        problems = ("problem",) if any(row.problem for row in self.rows) else ()
        return *self.axes, *figures, *problems

    @property
    def figure(self) -> str:
        """Name of the figure that charts show: the first one."""
        return next((name for row in self.rows for name in row.figures), "")

    def summary(self) -> list[tuple[str, str]]:
        """Return the sweep in short: its size, the best combination, and why others have no answer.

        Returns:
            Lines as (label, text).

        Examples:
            >>> import atoll
            >>> asked = atoll.EstimateQuestion.of(model="gpt2-xl", device="h100", batch=64)
            >>> atoll.sweep(asked, devices=[8, 16]).summary()[0]
            ('Sweep', '2 runs over devices: batch 64, device h100, model gpt2-xl')
        """
        answered = [row for row in self.rows if self.figure in row.figures]
        lines = [("Sweep", f"{len(self.rows)} runs over {', '.join(self.axes)}: {self.given}")]
        if answered:
            best = max(answered, key=lambda row: float(str(row.figures[self.figure])))
            values = ", ".join(f"{name} {format_value(v)}" for name, v in best.asked.items())
            words = f"{format_value(best.figures[self.figure])} {self.figure} at {values}"
            lines.append(("Best", words))
        for problem in dict.fromkeys(row.problem for row in self.rows if row.problem):
            number = sum(row.problem == problem for row in self.rows)
            lines.append(("Note", f"no answer for {number} of {len(self.rows)}: {problem}"))
        return lines

    def lines(self) -> list[dict[str, JsonValue]]:
        """The rows, flat.

        Returns:
            A dictionary a row, by the names of `columns`.

        Examples:
            >>> import atoll
            >>> asked = atoll.EstimateQuestion.of(model="gpt2-xl", device="h100", batch=64)
            >>> atoll.sweep(asked, devices=[8, 16]).lines()[1]["devices"]
            16
        """
        merged_rows = ({**row.asked, **row.figures, "problem": row.problem} for row in self.rows)
        return [{name: row.get(name) for name in self.columns} for row in merged_rows]

    def to_csv(self) -> str:
        """The rows as a table.

        Returns:
            The content of a CSV file, with a header.

        Examples:
            >>> import atoll
            >>> asked = atoll.EstimateQuestion.of(model="gpt2-xl", device="h100", batch=64)
            >>> atoll.sweep(asked, devices=[8, 16]).to_csv().splitlines()[0][:26]
            'devices,tokens/s per devic'
        """
        text = StringIO()
        table = csv.DictWriter(text, self.columns, lineterminator="\n")
        table.writeheader()
        table.writerows(self.lines())
        return text.getvalue()

    def to_dataframe(self) -> pd.DataFrame:
        """The rows for pandas.

        Returns:
            One row for each combination of values.

        Examples:
            >>> import atoll
            >>> asked = atoll.EstimateQuestion.of(model="gpt2-xl", device="h100", batch=64)
            >>> len(atoll.sweep(asked, devices=[8, 16]).to_dataframe())
            2
        """
        import pandas as pd

        return pd.DataFrame(self.lines())

    def chart(self, figure: str | None = None) -> Chart:
        """One figure of all runs, drawn over the first axis; other axes are lines of their own.

        Args:
            figure: A column of numbers, for example "step s". Default: the first.

        Returns:
            The chart, which notebooks show; its `save(path)` writes an SVG file.

        Raises:
            AtollError: No column of numbers has that name.

        Examples:
            >>> import atoll
            >>> asked = atoll.EstimateQuestion.of(model="gpt2-xl", device="h100", batch=64)
            >>> atoll.sweep(asked, devices=[8, 16]).chart("step s").svg[:4]
            '<svg'
        """
        name = figure or self.figure
        _check_figure(name, [pair for row in self.rows for pair in row.figures.items()])
        first, *others = self.axes
        places = list(dict.fromkeys(format_value(row.asked[first]) for row in self.rows))
        series: dict[str, list[float | None]] = {}
        for row in self.rows:
            words = ", ".join(f"{axis} {format_value(row.asked[axis])}" for axis in others)
            line = series.setdefault(words, [None] * len(places))
            line[places.index(format_value(row.asked[first]))] = _number(row.figures.get(name))
        numbers = all(_number(row.asked[first]) is not None for row in self.rows)
        return draw(name, first, places, series, bars=not numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One thing of all runs."""

    name: str
    values: tuple[JsonValue, ...]
    ratios: tuple[float, ...]
    """Ratios of numbers to the first run; empty for other values."""
    differs: bool

    def cells(self) -> list[str]:
        """Return the values as text, with the ratios of those that differ."""
        ratios = dict(enumerate(self.ratios))
        return [
            format_value(value) + (f" ({ratios[i]:.3g}x)" if i and ratios.get(i, 1) != 1 else "")
            for i, value in enumerate(self.values)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareAnswer(TableAnswer):
    """Runs side by side."""

    kind: Literal["compare"] = "compare"
    format: Literal[1] = 1
    runs: tuple[str, ...]
    asked: tuple[ComparedRow, ...]
    figures: tuple[ComparedRow, ...]
    notes: tuple[str, ...] = ()
    """What to know before the runs are compared."""

    def summary(self) -> list[tuple[str, str]]:
        """Return the comparison in short: the runs, what was asked otherwise, the first figure.

        Returns:
            Lines as (label, text).

        Examples:
            >>> import atoll
            >>> small = atoll.estimate("gpt2-xl", "h100", 8, batch=64)
            >>> large = atoll.estimate("gpt2-xl", "h100", 16, batch=64)
            >>> small.compare(large).summary()[1]
            ('Asked', 'devices: 8 | 16 (2x)')
        """
        differing = [row for row in self.asked if row.differs]
        rows = [("Asked", row) for row in differing] + [
            ("Figures", row) for row in self.figures[:1]
        ]
        lines = [(label, f"{row.name}: {' | '.join(row.cells())}") for label, row in rows]
        notes = [("Note", note) for note in self.notes]
        return [("Runs", " | ".join(self.runs)), *lines, *notes]

    def to_dataframe(self) -> pd.DataFrame:
        """The rows for pandas.

        Returns:
            One row for each thing, one column for each run.

        Examples:
            >>> import atoll
            >>> small = atoll.estimate("gpt2-xl", "h100", 8, batch=64).save("small.json")
            >>> large = atoll.estimate("gpt2-xl", "h100", 16, batch=64).save("large.json")
            >>> atoll.compare(small, large).to_dataframe().loc["devices"].tolist()
            [8, 16]
        """
        import pandas as pd

        rows = {row.name: row.values for row in (*self.asked, *self.figures)}
        return pd.DataFrame.from_dict(rows, orient="index", columns=list(self.runs))

    def chart(self, figure: str | None = None) -> Chart:
        """One figure of all runs, drawn as bars.

        Args:
            figure: A row of numbers, for example "step s". Default: the first.

        Returns:
            The chart, which notebooks show; its `save(path)` writes an SVG file.

        Raises:
            AtollError: No row of numbers has that name.

        Examples:
            >>> import atoll
            >>> small = atoll.estimate("gpt2-xl", "h100", 8, batch=64)
            >>> large = atoll.estimate("gpt2-xl", "h100", 16, batch=64)
            >>> small.compare(large).chart("MFU %").svg[:4]
            '<svg'
        """
        rows = {row.name: row.values for row in self.figures}
        name = figure or next(iter(rows))
        _check_figure(name, [(n, values[0]) for n, values in rows.items()])
        return draw(name, "", self.runs, {"": list(map(_number, rows[name]))}, bars=True)


def _check_figure(figure: str, figures: Sequence[tuple[str, JsonValue]]) -> None:
    numbers = dict.fromkeys(name for name, value in figures if _number(value) is not None)
    if figure not in numbers:
        raise AtollError(f"figure: no number is called {figure!r}; there are {', '.join(numbers)}")


def _number(value: JsonValue) -> float | None:
    """Return a value as a number, if it is one."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]
