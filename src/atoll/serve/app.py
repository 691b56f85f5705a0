"""Maps requests to responses without sockets, so that tests call it directly."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from atoll.answers.answer import dumped
from atoll.answers.designs import CompareAnswer
from atoll.base.errors import AtollError
from atoll.base.identity import VERSION
from atoll.base.registry import import_named
from atoll.front import KINDS, assets
from atoll.hardware.gpu import gpu_names
from atoll.report.page import render, view_json
from atoll.report.table_view import table_view
from atoll.serve.columns import Columns
from atoll.serve.guard import HEADERS, Guard, is_loopback
from atoll.serve.pasted_file import MOST_BYTES, check_pasted
from atoll.serve.query import (
    HIGHER_IS_BETTER,
    check_column,
    csv_lines,
    json_lines,
    ordered,
    page,
    parse_filters,
    scatter,
)
from atoll.serve.runs import LeftOut, PlanRun, Reports, Run, SearchRun, SweepRun
from atoll.serve.whatif import Change, parse_change
from atoll.store import StoredDesign

Query = Mapping[str, Sequence[str]]
Head = Mapping[str, str]
"""Headers of a request, with names in lower case."""
Headers = tuple[tuple[str, str], ...]

JSON = "application/json"
CHECK = "/api/check"
MOST_ROWS = 500


@dataclass(frozen=True)
class Response:
    status: int
    kind: str
    body: bytes | Iterator[bytes]
    headers: Headers = ()


class RefusedError(Exception):
    """A response with an error status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class App:
    """Answers GET requests about runs and checks pasted launch files."""

    def __init__(
        self, runs: Mapping[str, Run], guard: Guard, left_out: Sequence[LeftOut] = ()
    ) -> None:
        self.runs, self.guard, self.left_out = runs, guard, left_out
        self._static, self._reports = assets(), Reports()
        self._search: dict[str, Callable[[SearchRun, Query], Response]] = {
            "progress": lambda run, query: _json({"progress": run.progress}),
            "summary": _summary,
            "scatter": _scatter,
            "table": _table,
            "designs.csv": partial(_download, "csv"),
            "designs.json": partial(_download, "json"),
            "result.json": _result,
        }

    def body_bytes(self, method: str, target: str, headers: Head) -> int:
        """Return how many bytes of a request's body to read: 0 unless it is admitted."""
        try:
            self._admitted(method, target, headers)
        except RefusedError:
            return 0
        return _content_bytes(headers) if method == "POST" else 0

    def respond(self, method: str, target: str, headers: Head, body: bytes = b"") -> Response:
        """Respond to a request."""
        try:
            path, query = self._admitted(method, target, headers)
            reply = _json(check_pasted(body)) if method == "POST" else self._route(path, query)
            if self.guard.token is not None and not path:
                cookie = f"{self.guard.cookie}={self.guard.token}; Path=/; HttpOnly"
                extra = (("Set-Cookie", f"{cookie}; SameSite=Strict"),)
                reply = replace(reply, headers=(*reply.headers, *extra))
        except RefusedError as refused:
            allowed = (("Allow", "GET"),) if refused.status == 405 else ()
            reply = error_response(refused.status, str(refused), allowed)
        except AtollError as error:
            reply = error_response(400, str(error))
        return replace(reply, headers=(*HEADERS, *reply.headers))

    def _admitted(self, method: str, target: str, headers: Head) -> tuple[list[str], Query]:
        """Return path and query of a request by its head alone, or refuse it."""
        guard, host = self.guard, headers.get("host", "")
        if "," in host:
            raise RefusedError(400, "More than one Host header.")
        if guard.refuses_host(host):
            raise RefusedError(
                421,
                f"Host {host[:80]!r} is not a name of this server; open it by its address, or "
                "start it with --allow-host.",
            )
        _content_bytes(headers)
        parts = _split_url(target)
        if method != "GET" and (method != "POST" or parts.path != CHECK):
            raise RefusedError(
                405, f"Only GET is answered, got {method}: nothing can be changed here."
            )
        query = parse_qs(parts.query, keep_blank_values=True)
        if not guard.admits(query, headers):
            raise RefusedError(
                401, "A token is needed: open the address that atoll serve printed, token and all."
            )
        if method == "POST":
            self._check_pasted_head(headers)
        return [unquote(part) for part in parts.path.split("/") if part], query

    def _check_pasted_head(self, headers: Head) -> None:
        """Admit a pasted file only from this machine, and only from the explorer's own page."""
        if not is_loopback(self.guard.address):
            raise RefusedError(403, "Launch files are judged on this machine only: atoll check.")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise RefusedError(415, "Expected application/json.")
        origin = headers.get("origin")
        if origin is not None and self.guard.refuses_host(_split_url(origin).netloc):
            raise RefusedError(403, f"Pages of {origin[:80]} may not ask this server.")
        if _content_bytes(headers) > MOST_BYTES:
            raise RefusedError(413, f"More than {MOST_BYTES // 1024} KiB; use atoll check.")

    def _route(self, path: list[str], query: Query) -> Response:
        if not path:
            return self._file("explorer/index.html")
        if path[0] == "static":
            return self._file("/".join(path[1:]))
        if path[:2] == ["api", "runs"]:
            if len(path) == 2:
                runs = [run.shown().summary() for run in self.runs.values()]
                skipped = [{"id": run.name, "reason": run.reason} for run in self.left_out]
                return _json({"runs": runs, "left_out": skipped, "version": VERSION})
            return self._answer(self._find_run(path[2]).shown(), path[3:], query)
        if path == ["api", "compare"]:
            chosen_runs = [self._find_run(name) for name in query.get("run", ())]
            compared = import_named("atoll.several.comparison:compare_runs")
            comparison: CompareAnswer = compared([run.folder for run in chosen_runs])
            shown = replace(comparison, runs=tuple(run.name for run in chosen_runs))
            return Response(200, JSON, view_json(table_view(shown)).encode())
        if path == ["api", "check"]:
            return _json({"devices": gpu_names()})
        raise RefusedError(404, f"Nothing at /{'/'.join(path)}.")

    def _file(self, name: str) -> Response:
        if name not in self._static:
            raise RefusedError(404, f"No file {name!r}.")
        return Response(200, KINDS[PurePosixPath(name).suffix], self._static[name])

    def _find_run(self, name: str) -> Run:
        if name not in self.runs:
            reasons = (folder.reason for folder in self.left_out if folder.name == name)
            unknown_words = f"No run {name!r}; there are {', '.join(self.runs)}."
            raise RefusedError(404, next(reasons, unknown_words))
        return self.runs[name]

    def _answer(self, run: Run, subpath: list[str], query: Query) -> Response:
        if not subpath:
            return _json(run.details())
        if subpath == ["view"]:
            return Response(200, JSON, view_json(self._reports.view(run.folder)).encode())
        if subpath == ["report.html"]:
            page = render(self._reports.view(run.folder)).encode()
            return Response(200, KINDS[".html"], page, _attachment(run, "report.html"))
        if subpath[0] == "whatif" and len(subpath) <= 2 and run.kind in ("search", "plan"):
            assert not isinstance(run, SweepRun)
            return _whatif(run, subpath[1:], query)
        if isinstance(run, PlanRun | SweepRun):
            if subpath == [f"{run.kind}.json"]:
                return _json(run.content, _attachment(run, subpath[0]))
        elif len(subpath) == 1 and subpath[0] in self._search:
            return self._search[subpath[0]](run, query)
        elif len(subpath) == 2 and subpath[0] == "design":
            return _json(_design(run, subpath[1]))
        raise RefusedError(404, f"Run {run.name} has no {'/'.join(subpath)}.")


# --- Designs --------------------------------------------------------------------------------------


def _summary(run: SearchRun, query: Query) -> Response:
    columns = run.columns
    count, bars = run.bars(columns, parse_filters(query, run.columns.names))
    counts = {"total": len(columns), "count": count}
    return _json(counts | {"histograms": bars, "version": columns.version})


def _scatter(run: SearchRun, query: Query) -> Response:
    columns, mask = run.picture(query)
    x, y = _last_value(query, "x", "area_mm2"), _last_value(query, "y", "score")
    return _json(scatter(columns, mask, x, y))


def _table(run: SearchRun, query: Query) -> Response:
    columns, mask = run.picture(query)
    offset = _bounded_integer(query, "offset", 0, 0, 2**53)
    limit = _bounded_integer(query, "limit", 50, 1, MOST_ROWS)
    positions = ordered(columns, mask, *_sorting(query, columns))
    rows = page(columns, positions, offset, limit)
    return _json({"count": len(positions), "offset": offset, "rows": rows})


def _download(kind: str, run: SearchRun, query: Query) -> Response:
    columns, mask = run.picture(query)
    lines = csv_lines if kind == "csv" else json_lines
    content = lines(columns, ordered(columns, mask, *_sorting(query, columns)))
    mime = "text/csv; charset=utf-8" if kind == "csv" else JSON
    return Response(200, mime, content, _attachment(run, f"designs.{kind}"))


def _result(run: SearchRun, query: Query) -> Response:
    answer = run.result()
    if answer is None:
        raise RefusedError(404, f"Run {run.name} has no result yet: it is still being searched.")
    return _json(answer, _attachment(run, "result.json"))


def _design(run: SearchRun, chip: str) -> StoredDesign:
    number = _parse_number(chip)
    if number is None or (design := run.design(number)) is None:
        raise RefusedError(404, f"Run {run.name} has no design {chip[:80]!r}.")
    return design


# --- What if --------------------------------------------------------------------------------------


def _whatif(run: SearchRun | PlanRun, subpath: list[str], query: Query) -> Response:
    planned = isinstance(run, PlanRun)
    if subpath not in ([], ["options"], *([["plan"]] if planned else [])):
        raise RefusedError(404, f"Nothing at whatif/{'/'.join(subpath)}.")
    start_s = time.perf_counter()
    if isinstance(run, PlanRun):
        number = _bounded_integer(query, "chip", 0, 0, 1000)
        if subpath == ["options"]:
            return _json(run.whatif.options(number))
        change = parse_change(query)
        answer = run.whatif.plan_again(change) if subpath else run.whatif.estimate(number, change)
    else:
        design = _design(run, _last_value(query, "chip", ""))
        model = _bounded_integer(query, "model", 0, 0, len(run.models) - 1)
        if subpath:
            return _json(run.whatif.options(design, model))
        refine = _last_value(query, "refine", "") == "1"
        answer = run.whatif.estimate(design, model, parse_change(query), refine)
    took_ms = 1e3 * (time.perf_counter() - start_s)
    return _json(replace(answer, changed=parse_change(query) != Change(), answered_ms=took_ms))


# --- Query values ---------------------------------------------------------------------------------


def _sorting(query: Query, columns: Columns) -> tuple[str, bool]:
    text = _last_value(query, "sort", "score")
    sort = check_column(text.removeprefix("-").removeprefix("+"), columns.names)
    descending = text.startswith("-") if text[:1] in "+-" else sort in HIGHER_IS_BETTER
    return sort, descending


def _last_value(query: Query, name: str, default: str) -> str:
    values = query.get(name, ())
    return values[-1] if values and values[-1] else default


def _bounded_integer(query: Query, name: str, default: int, least: int, most: int) -> int:
    text = _last_value(query, name, str(default))
    value = _parse_number(text)
    if value is None or not least <= value <= most:
        raise AtollError(f"{name}: expected a whole number from {least} to {most}, got {text!r}.")
    return value


def _parse_number(text: str) -> int | None:
    """Return a whole number of at most 16 digits; None if the text is not one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 17 else None


def _content_bytes(headers: Head) -> int:
    if (length := _parse_number(headers.get("content-length", "0"))) is None:
        raise RefusedError(400, "Content-Length is not a number of bytes.")
    return length


def _split_url(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError:
        raise RefusedError(400, "The address of the request is malformed.") from None


def _attachment(run: Run, name: str) -> Headers:
    return (("Content-Disposition", f'attachment; filename="{run.name}-{name}"'),)


def _json(value: Any, headers: Headers = ()) -> Response:
    text = json.dumps(value, allow_nan=False, default=dumped)
    return Response(200, JSON, text.encode(), headers)


def error_response(status: int, sentence: str, headers: Headers = ()) -> Response:
    return Response(status, JSON, json.dumps({"error": sentence}).encode(), headers)
