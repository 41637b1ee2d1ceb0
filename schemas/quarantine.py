"""The `quarantine` table: inputs that failed, one row each, readable like any other table.

Owns the quarantine row. Being here means nothing of this input is in the stream; the job itself goes on.
"""

import pyarrow as pa

from schemas import check

SCHEMA = pa.schema(
    [
        pa.field("uri", pa.string(), nullable=False),
        pa.field("collection", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("error_class", pa.string(), nullable=False),
        pa.field("message", pa.large_string(), nullable=False),
        pa.field("content_id", pa.string()),  # hash of the input's bytes; null when they could not be read
    ]
)


def validate(table: pa.Table | pa.RecordBatch) -> None:
    """Check a quarantine table against its schema.

    Raises:
        SchemaError: naming the column.
    """
    check.matches(table, SCHEMA, "quarantine")
