"""All designs of a run as one Parquet file, for pandas, DuckDB and the like."""

from __future__ import annotations

from pathlib import Path

from atoll.base.errors import AtollError
from atoll.files.atomic_file import atomic_files
from atoll.store.reader import RunReader
from atoll.store.rows import Rows

_TEXT = ("model", "phase", "plans")
_INTEGERS = ("chip", "design", "microbatch", "tensor", "pipeline", "data")


def export_parquet(reader: RunReader | Rows, path: Path) -> int:
    """Write every design atomically, best first, and return their number."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise AtollError(
            "parquet: needs pyarrow, which is not installed; pip install 'atoll[parquet]'."
        ) from None
    if isinstance(reader, Rows):
        schema = pa.Table.from_pylist(next(reader.batches())).schema
    else:
        columns = (*reader.columns, "plans")
        integers = {*_INTEGERS, *(p.name for p in reader.parameters if p.whole)}
        kinds = [
            pa.string() if name in _TEXT else pa.int64() if name in integers else pa.float64()
            for name in columns
        ]
        schema = pa.schema(list(zip(columns, kinds, strict=True)))
    count = 0
    with (
        atomic_files(lambda why: f"{path}: cannot be written ({why}).", path) as (part,),
        pq.ParquetWriter(part, schema, compression="zstd") as writer,
    ):
        for rows in reader.batches():
            writer.write_table(pa.Table.from_pylist([*map(dict, rows)], schema=schema))
            count += len(rows)
    return count
