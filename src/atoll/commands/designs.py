"""Looking into a run's store: `atoll designs`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from atoll.answers.answer import dumped
from atoll.base.errors import AtollError
from atoll.commands.common import answer
from atoll.files.jsonfile import reading_faults
from atoll.printing import search as printing
from atoll.questions.verbs import DesignsQuestion

if TYPE_CHECKING:
    from atoll.answers.designs import Row, RunKind
    from atoll.store import RunReader
    from atoll.store.rows import Rows


Filter = float | str | tuple[float | None, float | None]
"""Value of a column, or its least and its largest value."""


def designs(question: DesignsQuestion, as_json: bool) -> None:
    from atoll.store import DesignsAnswer, ParquetFile, RunReader
    from atoll.store.rows import export_parquet

    with RunReader(question.folder) as reader:
        kind, status = reader.kind(), reader.status()
        source = _source(reader, kind)
        filters = _filters(question.where)
        limit, offset = question.limit, question.offset
        rows = (
            source.designs(filters, sort=question.sort, limit=limit, offset=offset)
            if question.front is None
            else source.front(question.front, filters)[offset : offset + limit]
        )
        path, parquet = question.parquet, None
        if path is not None:
            parquet = ParquetFile(file=str(path), rows=export_parquet(source, path))
        shown = DesignsAnswer(
            run=kind,
            status=status,
            count=source.count(filters),
            parameters=reader.parameters,
            designs=tuple(cast("Sequence[Row]", rows)),
            parquet=parquet,
        )
    answer(shown, as_json, printing.print_designs)


def _source(reader: RunReader, kind: RunKind) -> RunReader | Rows:
    """Return the rows to list: chips, wafers of the answer, or estimated layouts."""
    from atoll.answers.wafer import WaferAnswer
    from atoll.store.rows import Rows

    if kind == "search":
        return reader
    if kind == "wafer":
        answer = reader.result()
        wafers = answer.designs if isinstance(answer, WaferAnswer) else ()
        return Rows([dumped(row) | {"score": row.samples_per_s} for row in wafers])
    from atoll.training.planner.pieces import estimated_layouts

    with reading_faults(reader.path, reader.as_written):
        batch = reader.job()["batch"]
        return Rows(list(estimated_layouts(reader.notes("times "), int(str(batch)))))


def _filters(texts: Iterable[str]) -> dict[str, Filter]:
    filters: dict[str, Filter] = {}
    for text in texts:
        for sign in ("<=", ">=", "="):
            name, present, value = (part.strip() for part in text.partition(sign))
            if present:
                break
        else:
            raise AtollError(f"where: expected column=value, <= or >=, got {text!r}.")
        number: float | None = None
        with suppress(ValueError):
            number = float(value)
        if sign == "=":
            filters[name] = value if number is None else number
            continue
        if number is None:
            raise AtollError(f"where: expected a number after {sign}, got {text!r}.")
        earlier = filters.get(name)
        low, high = earlier if isinstance(earlier, tuple) else (None, None)
        filters[name] = (low, number) if sign == "<=" else (number, high)
    return filters
