"""Corpora that others made: JSON lines, Parquet and tar files of documents.

Owns which of the three a file is. How each is read say `corpora_parquet`, `corpora_tar` and, for what a row
means, `corpora_rows`. Paths that rows name are relative to the file, unless the file holds them.
"""

import functools
from collections.abc import Iterator
from typing import Any, BinaryIO

from datapipe.errors import ReadError, SourceError
from datapipe.sources import corpora_parquet, corpora_rows, corpora_tar, json_lines
from datapipe.sources.items import Member, RawDocument

_PARQUET = b"PAR1"
_TAR, _TAR_AT = b"ustar", 257
_TAR_BLOCK_BYTES = 512


def index(file: BinaryIO) -> bytes:
    """Return what `members` needs to go to a document at once; empty for files that need nothing."""
    return corpora_tar.index(file) if _format(file) == "tar" else b""


def count(file: BinaryIO, index: bytes | None = None) -> int:
    """Return the number of documents, up to where a broken file breaks.

    Raises:
        MalformedMarkup: it is no such file.
    """
    format = _format(file)
    if format == "tar":
        return corpora_tar.count(file, index)
    return corpora_parquet.count(file) if format == "parquet" else json_lines.count_lines(file)


def members(file: BinaryIO, start: int, stop: int, index: bytes | None = None) -> Iterator[Member]:
    """Yield the documents `start` to `stop` (exclusive).

    Their names: the number of the line or row, after its URL if it has one, or the key in a tar.

    Args:
        index: what `index` returned; without it, a tar is read from its beginning.

    Raises:
        MalformedMarkup: it is no such file, or it breaks before `stop`.
    """
    format = _format(file)
    if format == "tar":
        yield from corpora_tar.members(file, start, stop, index)
    elif format == "parquet":
        yield from corpora_parquet.members(file, start, stop)
    else:
        yield from _lines(file, start, stop)


def _format(file: BinaryIO) -> str:
    file.seek(0)
    head = file.read(_TAR_BLOCK_BYTES)
    if head.startswith(_PARQUET):
        return "parquet"
    if head[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR or (len(head) == _TAR_BLOCK_BYTES and _is_old_tar(head)):
        return "tar"
    return "lines"


def _is_old_tar(head: bytes) -> bool:
    """Return whether a first block is the header of a tar from before 1988: its checksum fits."""
    stated = head[148:156].strip(b" \0")
    return stated.isdigit() and int(stated, 8) == sum(head[:148]) + 8 * 32 + sum(head[156:])


def _lines(file: BinaryIO, start: int, stop: int) -> Iterator[Member]:
    for place, (number, line) in enumerate(json_lines.lines(file)):
        if place >= stop:
            return
        if place >= start:
            yield _of_line(line, number)


def _of_line(line: bytes, number: int) -> Member:
    try:
        row = json_lines.parse(line)
    except ReadError as error:
        return Member(str(number), line, functools.partial(_refuse, error, number), _load)
    url = corpora_rows.url(row)
    name = str(number) if url is None else f"{url}#{number}"
    return Member(name, line, functools.partial(_document, row, number), _load)


def _document(row: Any, number: int) -> RawDocument:
    try:
        return corpora_rows.read(row, "")
    except ReadError as error:
        raise type(error)(f"line {number}: {error}") from error


def _refuse(error: ReadError, number: int) -> RawDocument:
    raise type(error)(f"line {number}: {error}") from error


def _load(href: str) -> bytes:
    """Refuse a path: the file holds its pictures inline, others lie beside it."""
    raise SourceError(f"{href!r} is not in the file")
