"""One SQLite file for each run: every finished evaluation, readable while the search writes."""

from atoll.answers.designs import (
    DesignsAnswer,
    Identity,
    StatusAnswer,
    StoredDesign,
    StoredPlan,
    Written,
)
from atoll.store.fingerprint import canonical_json, fingerprint
from atoll.store.reader import ProgressPoint, RunReader
from atoll.store.schema import FILE, SCHEMA_VERSION
from atoll.store.writer import DesignRow, EvaluationRow, RunStore, opened

__all__ = [
    "FILE",
    "SCHEMA_VERSION",
    "DesignRow",
    "DesignsAnswer",
    "EvaluationRow",
    "Identity",
    "ProgressPoint",
    "RunReader",
    "RunStore",
    "StatusAnswer",
    "StoredDesign",
    "StoredPlan",
    "Written",
    "canonical_json",
    "fingerprint",
    "opened",
]
