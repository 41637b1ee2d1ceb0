"""Checks shared by the tables: exact columns and types, no nulls where a value is required, values from a
closed set.
"""

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import SchemaError


def matches(table: pa.Table | pa.RecordBatch, schema: pa.Schema, name: str) -> None:
    """Check column names, order and types, and that no non-nullable column holds a null.

    Raises:
        SchemaError: naming the table, the column and what was expected.
    """
    if table.schema.names != schema.names:
        missing = [n for n in schema.names if n not in table.schema.names]
        extra = [n for n in table.schema.names if n not in schema.names]
        raise SchemaError(
            f"{name}: columns {table.schema.names}, expected {schema.names} "
            f"(missing {missing}, unexpected {extra})"
        )
    for field in schema:
        column = table.column(field.name)
        if column.type != field.type:
            raise SchemaError(f"{name}.{field.name}: type {column.type}, expected {field.type}")
        if not field.nullable and column.null_count:
            raise SchemaError(f"{name}.{field.name}: {column.null_count} nulls in a required column")


def one_of(values: pa.Array | pa.ChunkedArray, allowed: Collection[str], name: str) -> None:
    """Check that every non-null value is one of `allowed`.

    Raises:
        SchemaError: naming the column, the first other value and the allowed ones.
    """
    other = [v for v in pc.unique(values).to_pylist() if v is not None and v not in allowed]
    if other:
        raise SchemaError(f"{name}: {other[0]!r} is not one of {sorted(allowed)}")


def flattened(column: pa.Array | pa.ChunkedArray, field: str) -> pa.Array:
    """Return one field of a list<struct> column as a flat array (rows joined in order)."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [pc.struct_field(chunk.flatten(), field) for chunk in chunks]
    value_type = column.type.value_type.field(field).type
    return pa.concat_arrays(parts) if parts else pa.array([], type=value_type)


def row_index(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return, for each flat entry of a list column, the number of the row it came from."""
    combined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return pc.list_parent_indices(combined)
