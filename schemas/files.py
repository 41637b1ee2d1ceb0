"""The `files` table: every file of the sources, and what became of it.

Owns the file's row. A run leaves nothing out of it: hidden files, files the globs do not choose and files of
no known format have rows too.
"""

import pyarrow as pa

from schemas import check

SCHEMA = pa.schema(
    [
        pa.field("uri", pa.string(), nullable=False),  # path from the source's root
        pa.field("collection", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("format", pa.string(), nullable=False),  # told by name and first bytes, or unknown
        # documents (or a container of them); media and captions, which belong to the document that names
        # them; hidden; not_chosen by the globs; or ignored_ and the suffix: of no known format
        pa.field("fate", pa.string(), nullable=False),
        pa.field("content_id", pa.string()),  # hash of the bytes; null when they could not be read
    ]
)


def validate(table: pa.Table | pa.RecordBatch) -> None:
    """Check a table of files against its schema.

    Raises:
        SchemaError: naming the column.
    """
    check.matches(table, SCHEMA, "files")
