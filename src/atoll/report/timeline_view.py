"""Parts of pages that all answers have: a step by cause, the memory of stages, a timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from atoll.front import ScriptData
from atoll.report.timeline import AFTER, IDLE, Slice, Timeline
from atoll.step.parts import in_words

MOST_SLICES = 16_000


def times_view(title: str, rows: Iterable[tuple[str, str, Mapping[str, float]]]) -> ScriptData:
    """Return steps by cause, from rows of (name, about, parts)."""
    shown = [{"name": n, "about": about, "parts": in_words(parts)} for n, about, parts in rows]
    return {"title": title, "rows": shown}


def memory_view(
    capacity_bytes: float, stages: Iterable[tuple[Sequence[str], Mapping[str, float]]]
) -> ScriptData:
    """Return the memory of a device per stage, from (layers, bytes by part)."""
    shown = [
        {"name": f"stage {number}", "layers": layers, "parts": parts}
        for number, (layers, parts) in enumerate(stages)
    ]
    return {"capacity_bytes": capacity_bytes, "stages": shown}


def timeline_view(timeline: Timeline) -> ScriptData:
    """Return slices per stage as short rows [name, start, end, microbatch, chunk]; of a step of
    more than MOST_SLICES the beginning and the end."""
    total = sum(len(row) for row in timeline.stages)
    most = max(4, MOST_SLICES // max(1, len(timeline.stages)))
    names: dict[str, int] = {}
    stages = tuple(
        tuple(_slice_row(s, names) for s in _shortened(row, most)) for row in timeline.stages
    )
    return {
        "step_time_s": timeline.step_time_s,
        "end_s": timeline.end_s,
        "stretch": timeline.stretch,
        "microbatches": timeline.microbatches,
        "shown": timeline.shown,
        "idle_s": timeline.idle_s(),
        "names": [*names],
        "stages": stages,
        "left_out": total - sum(len(row) for row in stages),
    }


def _shortened(row: tuple[Slice, ...], most: int) -> tuple[Slice, ...]:
    half = most // 2
    return row if len(row) <= most else row[:half] + row[-half:]


def _slice_row(piece: Slice, names: dict[str, int]) -> tuple[float, ...]:
    """Return [name index, start, end, microbatch, chunk], with 7 significant digits."""
    title = piece.name if piece.kind == AFTER else piece.kind
    start, end = (float(f"{seconds:.7g}") for seconds in (piece.start_s, piece.end_s))
    passed = () if piece.kind in (AFTER, IDLE) else (piece.microbatch, piece.chunk)
    return names.setdefault(title, len(names)), start, end, *passed
