"""Looking into a run's store: `atoll designs`."""

from __future__ import annotations

from collections.abc import Iterable

from atoll.commands.common import answer
from atoll.errors import AtollError
from atoll.printing import search as printing
from atoll.questions.verbs import DesignsQuestion


def designs(question: DesignsQuestion, as_json: bool) -> None:
    from dataclasses import asdict

    from atoll.store import RunReader
    from atoll.store.parquet import export_parquet

    with RunReader(question.folder) as reader:
        filters = _filters(question.where)
        limit, offset = question.limit, question.offset
        rows = (
            reader.designs(filters, sort=question.sort, limit=limit, offset=offset)
            if question.front is None
            else reader.front(question.front, filters)[offset : offset + limit]
        )
        status = reader.status()
        shown = {
            "status": asdict(status) | {"gap": status.gap},
            "count": reader.count(filters),
            "designs": rows,
        }
        if question.parquet is not None:
            rows_written = export_parquet(reader, question.parquet)
            shown["parquet"] = {"file": str(question.parquet), "rows": rows_written}
    answer(shown, as_json, printing.print_designs)


def _filters(
    texts: Iterable[str],
) -> dict[str, float | str | tuple[float | None, float | None]]:
    found: dict[str, float | str | tuple[float | None, float | None]] = {}
    for text in texts:
        for sign in ("<=", ">=", "="):
            name, present, value = (part.strip() for part in text.partition(sign))
            if present:
                break
        else:
            raise AtollError(f"where: expected column=value, <= or >=, got {text!r}.")
        number = _number(value)
        if sign == "=":
            found[name] = value if number is None else number
            continue
        if number is None:
            raise AtollError(f"where: expected a number after {sign}, got {text!r}.")
        known = found.get(name)
        low, high = known if isinstance(known, tuple) else (None, None)
        found[name] = (low, number) if sign == "<=" else (number, high)
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
