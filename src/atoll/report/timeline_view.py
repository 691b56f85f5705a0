"""A timeline for the page, limited to MOST_SLICES slices."""

from __future__ import annotations

from atoll.answers.answer import build_from
from atoll.report.timeline import AFTER, IDLE, Slice, Timeline
from atoll.report.view import PipelineView

MOST_SLICES = 16_000


def timeline_view(timeline: Timeline) -> PipelineView:
    """Return slices per stage as short rows; of a long step the beginning and the end."""
    total = sum(len(row) for row in timeline.stages)
    most = max(4, MOST_SLICES // max(1, len(timeline.stages)))
    names: dict[str, int] = {}
    stages = tuple(
        tuple(_slice_row(s, names) for s in _shortened(row, most)) for row in timeline.stages
    )
    return build_from(
        PipelineView,
        timeline,
        idle_s=tuple(timeline.idle_s()),
        names=tuple(names),
        stages=stages,
        left_out=total - sum(len(row) for row in stages),
    )


def _shortened(row: tuple[Slice, ...], most: int) -> tuple[Slice, ...]:
    if len(row) <= most:
        return row
    half = most // 2
    return row[:half] + row[-half:]


def _slice_row(piece: Slice, names: dict[str, int]) -> tuple[float, ...]:
    """Return [name index, start, end, microbatch, chunk], with 7 significant digits."""
    title = piece.name if piece.kind == AFTER else piece.kind
    number = names.setdefault(title, len(names))
    if piece.kind in (AFTER, IDLE):
        return number, _short(piece.start_s), _short(piece.end_s)
    return number, _short(piece.start_s), _short(piece.end_s), piece.microbatch, piece.chunk


def _short(seconds: float) -> float:
    return float(f"{seconds:.7g}")
