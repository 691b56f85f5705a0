"""One SQLite file per run with every finished evaluation, readable while the search writes."""

from atoll.answers.designs import (
    DesignsAnswer,
    Identity,
    ParquetFile,
    StatusAnswer,
    StoredDesign,
    StoredPlan,
)
from atoll.store.reader import ProgressPoint, RunReader
from atoll.store.schema import FILE, SCHEMA_VERSION, fingerprint
from atoll.store.writer import DesignRow, EvaluationRow, RunStore, open_store

__all__ = [
    "FILE",
    "SCHEMA_VERSION",
    "DesignRow",
    "DesignsAnswer",
    "EvaluationRow",
    "Identity",
    "ParquetFile",
    "ProgressPoint",
    "RunReader",
    "RunStore",
    "StatusAnswer",
    "StoredDesign",
    "StoredPlan",
    "fingerprint",
    "open_store",
]
