"""What published tables of runs leave unsaid (the fabric, the software, what a peak counts).

The facts are in `data/sources.yaml`, by the start of a row's id and, where a source changed its
ways, by what else the row says.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

from pydantic import Field

from atoll.files.yamlfile import FileModel, parse_yaml
from atoll.validation.run_table import RunRow


class SourceFile(FileModel):
    match: str = Field(min_length=1)
    stack: str | None = None
    network: str | None = None
    family: str | None = None
    head_dim: int | None = None
    """Columns of a head where they are not hidden over heads."""
    dropout: float = 0.0
    states: str | None = None
    attention: str | None = None
    before: int | None = None
    """Only rows whose id ends in a job number below this."""
    recompute: str | None = None
    """Only rows with this policy."""
    precision: str | None = None
    """Only rows in this number format."""
    zero: int | None = None
    """Only rows with this ZeRO stage."""
    device: str | None = None
    """Only rows on devices whose name starts so."""
    loss_bytes: float | None = None
    """Bytes per logit at the loss's peak, where the source's loss is not its stack's."""
    memory: str = "allocated"
    """What a source's peak counts: allocated, reserved (blocks held back too), or device (the
    driver's share too)."""
    selective: str = "selective"
    """The policy that the source means by selective recomputation."""
    slack: float = 1.0
    """The site's own factor on the stack's slack."""


class SourcesFile(FileModel):
    sources: list[SourceFile]


@lru_cache(maxsize=1)
def _sources() -> tuple[SourceFile, ...]:
    text = (files("atoll") / "data" / "sources.yaml").read_text(encoding="utf-8")
    return tuple(parse_yaml(text, SourcesFile, "sources.yaml").sources)


def facts_of(row: RunRow) -> SourceFile:
    """What is known of a row's source beside the table."""
    return next((s for s in _sources() if _matches(s, row)), SourceFile(match="unknown"))


def _matches(source: SourceFile, row: RunRow) -> bool:
    if not row.id.startswith(source.match):
        return False
    if source.recompute is not None and row.text("recompute", "none") != source.recompute:
        return False
    if source.precision is not None and row.text("precision", "bf16") != source.precision:
        return False
    if source.zero is not None and row.number("zero_stage") != source.zero:
        return False
    if source.device is not None and not row.device.startswith(source.device):
        return False
    if source.before is None:
        return True
    job = row.id.rpartition("-")[2]
    return job.isdigit() and int(job) < source.before
