"""Parquet files of documents, a row each, read row group by row group.

Owns the way from a row to plain values, and what a damaged row group costs: its own rows, not those of the
others. Knows nothing of what the columns mean (`sources.corpora_rows`).
"""

import datetime
import decimal
import functools
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.errors import MalformedMarkup, ReadError, SourceError
from datapipe.sources import corpora_rows
from datapipe.sources.items import Member, RawDocument
from datapipe.sources.json_lines import canonical
from schemas import ids

_BATCH_BYTES = 4 << 20  # of rows in memory together, by their mean size in their row group
_MAX_BATCH_ROWS = 1024
_BUFFER_BYTES = 1 << 20
# What a broken file makes pyarrow raise, besides its own errors.
_FAULTS = (pa.ArrowException, OSError, ValueError, KeyError, IndexError)


def count(file: BinaryIO) -> int:
    """Return the number of rows.

    Raises:
        MalformedMarkup: it is no Parquet file.
    """
    return int(_opened(file).metadata.num_rows)


def members(file: BinaryIO, start: int, stop: int) -> Iterator[Member]:
    """Yield the rows `start` to `stop` (exclusive). A row's name is its number, after its URL if it has one.

    Row groups without any of these rows are not read. What a row holds is read with it, so a damaged row
    group is noticed when its rows come; each of them is then a member whose document raises.

    Raises:
        MalformedMarkup: it is no Parquet file.
    """
    table = _opened(file)
    first = 0
    for group in range(table.metadata.num_row_groups):
        num_rows = table.metadata.row_group(group).num_rows
        wanted = range(max(start, first), min(stop, first + num_rows))
        if wanted:
            yield from _of_group(table, group, first, wanted)
        first += num_rows
        if first >= stop:
            return


def _of_group(table: pq.ParquetFile, group: int, first: int, wanted: range) -> Iterator[Member]:
    number = first
    columns = [name for name in table.schema_arrow.names if name in corpora_rows.COLUMNS]
    about = table.metadata.row_group(group)
    num_at_once = min(_MAX_BATCH_ROWS, max(1, _BATCH_BYTES * about.num_rows // max(1, about.total_byte_size)))
    try:
        batches = table.iter_batches(
            num_at_once, row_groups=[group], columns=columns or None, use_threads=False
        )
        for batch in batches:
            for row in range(batch.num_rows):
                if number in wanted:
                    yield _member(batch, row, number)
                number += 1
            if number >= wanted.stop:
                return
    except _FAULTS as error:
        for broken in range(max(number, wanted.start), wanted.stop):
            yield _broken(broken, error)


def _member(batch: pa.RecordBatch, row: int, number: int) -> Member:
    try:
        values = {name: _plain(batch.column(name)[row].as_py()) for name in batch.schema.names}
        content = canonical(_without_bytes(values)).encode()
    except _FAULTS as error:
        return _broken(number, error)
    url = corpora_rows.url(values)
    name = str(number) if url is None else f"{url}#{number}"
    return Member(name, content, functools.partial(_document, values, number), _load)


def _document(values: dict[str, Any], number: int) -> RawDocument:
    try:
        return corpora_rows.read(values, "")
    except ReadError as error:
        raise type(error)(f"row {number}: {error}") from error


def _broken(number: int, error: BaseException) -> Member:
    def document() -> RawDocument:
        raise MalformedMarkup(f"row {number}: {error}") from error

    return Member(str(number), f"row {number}".encode(), document, _load)


def _load(href: str) -> bytes:
    """Refuse a path: pictures that the table holds come with their rows, others lie beside it."""
    raise SourceError(f"{href!r} is not in the table")


def _opened(file: BinaryIO) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    except _FAULTS as error:
        raise MalformedMarkup(f"no Parquet file: {error}") from error


def _plain(value: Any) -> Any:
    """Return a value with maps as objects, and as text what JSON has no form for."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(entry, tuple) and len(entry) == 2 for entry in value):
            return {str(key): _plain(inner) for key, inner in value}
        return [_plain(inner) for inner in value]
    if isinstance(value, (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal)):
        return str(value)
    return value


def _without_bytes(value: Any) -> Any:
    """Return a value with the hash of its bytes in their place."""
    if isinstance(value, bytes):
        return ids.content_id(value)
    if isinstance(value, dict):
        return {key: _without_bytes(inner) for key, inner in value.items()}
    return [_without_bytes(inner) for inner in value] if isinstance(value, list) else value
