"""One SQLite file for each run: every finished evaluation, readable while the search writes."""

from atoll.store.fingerprint import canonical_json, fingerprint
from atoll.store.reader import DESIGN_COLUMNS, ProgressPoint, RunReader, RunStatus
from atoll.store.schema import FILE, SCHEMA_VERSION
from atoll.store.writer import DesignRow, EvaluationRow, RunStore, opened

__all__ = [
    "DESIGN_COLUMNS",
    "FILE",
    "SCHEMA_VERSION",
    "DesignRow",
    "EvaluationRow",
    "ProgressPoint",
    "RunReader",
    "RunStatus",
    "RunStore",
    "canonical_json",
    "fingerprint",
    "opened",
]
