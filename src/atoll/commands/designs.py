"""Looking into a run's store: `atoll designs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atoll import printing
from atoll.commands.common import JsonFlag, answer
from atoll.errors import AtollError


def designs(
    folder: Annotated[Path, typer.Argument(help="Folder that `atoll search --out` writes.")],
    where: Annotated[
        list[str] | None,
        typer.Option(help='Filter: "width=128", "area_mm2<=200", "score>=1000"; repeatable.'),
    ] = None,
    sort: Annotated[str, typer.Option(help="Column to sort by.")] = "score",
    limit: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 20,
    offset: Annotated[int, typer.Option(min=0, help="Rows to skip.")] = 0,
    front: Annotated[
        str | None, typer.Option(help="Only the front of score against this column.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(help="Write every design to this Parquet file.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List what a search has evaluated, also while it runs."""
    from dataclasses import asdict

    from atoll.store import RunReader
    from atoll.store.parquet import export_parquet

    with RunReader(folder) as reader:
        filters = _filters(where or [])
        rows = (
            reader.designs(filters, sort=sort, limit=limit, offset=offset)
            if front is None
            else reader.front(front, filters)[offset : offset + limit]
        )
        status = reader.status()
        shown = {
            "status": asdict(status) | {"gap": status.gap},
            "count": reader.count(filters),
            "designs": rows,
        }
        if parquet is not None:
            shown["parquet"] = {"file": str(parquet), "rows": export_parquet(reader, parquet)}
    answer(shown, as_json, printing.print_designs)


def _filters(
    texts: list[str],
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
