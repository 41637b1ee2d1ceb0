"""Web archives (WARC 1.0 and 1.1; ISO 28500): captured pages as documents, with the pictures captured beside
them.

Owns which records are documents, and the way from a URL on a page to its bytes. fastwarc reads the records,
also gzip and Zstandard ones; `sources.responses` unpacks what they hold. How a page is read, the readers say.

Documents are responses with status 2xx and resources that hold HTML or PDF, and the plain text of
`conversion` records (WET). A URL captured again is a document again, named `URL #2`. A revisit says that
nothing has changed since: it makes no document, but its URL leads to the bytes it refers to, and so does that
of a redirection. Of several captures of a picture, a page shows the one nearest in the file.
"""

import collections
import contextlib
import dataclasses
import functools
import io
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urldefrag, urljoin

import pyarrow as pa
from fastwarc.stream_io import ZstdReader
from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from datapipe.errors import FileTooLarge, MalformedMarkup, ReadError, SourceError
from datapipe.sources import formats, responses
from datapipe.sources.items import Member, RawDocument
from schemas import ids

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_HEAD_BYTES = 1 << 15  # of a block: HTTP headers, and enough of the body to tell what it is
_MAX_HOPS = 5  # from a revisit or redirection to the bytes
_PAGE_TYPES = {"text/html": "html", "application/xhtml+xml": "html", "application/pdf": "pdf"}
_NO_TYPES = ("", "application/octet-stream", "application/unknown", "unknown/unknown", "unk")
_RECORDS = (
    WarcRecordType.response | WarcRecordType.resource | WarcRecordType.revisit | WarcRecordType.conversion
)
_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),  # of the record, in the file as it lies
        pa.field("url", pa.string(), nullable=False),
        pa.field("format", pa.string()),  # of a document
        pa.field("refers_to", pa.string()),  # URL whose bytes these are (revisit, redirection)
        pa.field("digest", pa.string()),  # of the payload, as the record gives it
    ]
)
_BREAK, _SPOOLED = b"break", b"spooled"  # of the schema's metadata


def index(file: BinaryIO) -> bytes:
    """Read all records and return where each document and each body that a page may name begins.

    A file that breaks is indexed up to the break, which is noted.
    """
    spooled = None
    table, breaks = _scan(file)
    if _is_one_gzip_member(file) or not _is_reachable(file, table):
        spooled = _unpack_file(file)
        table, breaks = _scan(spooled)
    notes = {_BREAK: breaks.encode()} if breaks else {}
    if spooled is not None:
        notes[_SPOOLED] = b"1"
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA.with_metadata(notes)) as writer:
        writer.write_table(table.replace_schema_metadata(notes))
    return sink.getvalue().to_pybytes()


def count(file: BinaryIO, index: bytes | None = None) -> int:
    """Return how many documents a file holds, up to where it breaks."""
    return len(_archive(_index_of(file, index)).documents)


def members(file: BinaryIO, start: int, stop: int, index: bytes | None = None) -> Iterator[Member]:
    """Yield the documents `start` to `stop` (exclusive) of a file.

    Raises:
        MalformedMarkup: `stop` lies behind a break of the file; the documents before it were yielded.
    """
    index = _index_of(file, index)
    archive = _archive(index)
    if archive.is_spooled:
        file = _spool(ids.content_id(index), file)
    for number in range(start, min(stop, len(archive.documents))):
        yield _member(file, archive, archive.documents[number], archive.names[number])
    if archive.breaks is not None and stop > len(archive.documents):
        raise MalformedMarkup(archive.breaks)


def _index_of(file: BinaryIO, given: bytes | None) -> bytes:
    return index(file) if given is None else given


@dataclasses.dataclass(frozen=True)
class _Archive:
    """An index, ready for use."""

    offsets: list[int]
    urls: list[str]
    formats: list[str | None]
    refers_to: list[str | None]
    documents: list[int]  # rows of documents
    names: list[str]  # of the documents
    rows: dict[str, list[int]]  # by key of the URL
    originals: dict[str, int]  # by digest
    digests: list[str | None]
    breaks: str | None
    is_spooled: bool


@functools.lru_cache(maxsize=2)
def _archive(index: bytes) -> _Archive:
    """Return an index as lists and dictionaries; kept, since many ranges of one file are read."""
    table = pa.ipc.open_stream(index).read_all()
    urls, found = table["url"].to_pylist(), table["format"].to_pylist()
    refers_to, digests = table["refers_to"].to_pylist(), table["digest"].to_pylist()
    documents = [row for row, format in enumerate(found) if format is not None]
    times, names = collections.Counter[str](), []
    for row in documents:
        times[urls[row]] += 1
        names.append(f"{urls[row]} #{times[urls[row]]}" if times[urls[row]] > 1 else urls[row])
    rows: dict[str, list[int]] = {}
    originals: dict[str, int] = {}
    for row, url in enumerate(urls):
        rows.setdefault(_key(url), []).append(row)
        if refers_to[row] is None and digests[row]:
            originals.setdefault(digests[row], row)
    notes = table.schema.metadata or {}
    return _Archive(
        table["offset"].to_pylist(),
        urls,
        found,
        refers_to,
        documents,
        names,
        rows,
        originals,
        digests,
        notes[_BREAK].decode() if _BREAK in notes else None,
        _SPOOLED in notes,
    )


def _key(url: str) -> str:
    """Return what addresses of the same bytes share: all but the scheme, the fragment and the escapes."""
    return unquote(urldefrag(url.strip()).url).partition("://")[2] or url


def _scan(file: BinaryIO) -> tuple[pa.Table, str | None]:
    """Return the index of a file, and where and why it breaks, if it does.

    Where an uncompressed file has bytes that belong to no record, or a length that is wrong, the records
    behind are found by searching; the file counts as broken all the same.
    """
    table, breaks = _scan_records(file, is_lenient=False)
    file.seek(0)
    if breaks is not None and file.read(4) == b"WARC":
        again, still = _scan_records(file, is_lenient=True)
        if again.num_rows > table.num_rows:
            found = f"{again.num_rows - table.num_rows} records behind were found by searching"
            return again, f"{breaks}; {found}" + (f"; {still}" if still else "")
    return table, breaks


def _scan_records(file: BinaryIO, is_lenient: bool) -> tuple[pa.Table, str | None]:
    rows: list[dict[str, Any]] = []
    last_offset = 0
    file.seek(0)
    try:
        for record in ArchiveIterator(file, parse_http=False, quirks_mode=is_lenient):
            last_offset = record.stream_pos
            head = record.reader.read(_HEAD_BYTES)
            announced = record.headers.get("Content-Length")
            if announced is None or len(head) + record.reader.consume() < int(announced):
                return _table(rows), f"the record at byte {last_offset} ends early"
            if record.record_type & _RECORDS and (row := _row(record, head)) is not None:
                rows.append(row)
    except (OSError, ValueError) as error:
        return _table(rows), f"after the record at byte {last_offset}: {error}"
    if not _ends_after(file, last_offset):
        return _table(rows), f"the file ends within the record after byte {last_offset}"
    return _table(rows), None


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def _row(record: WarcRecord, head: bytes) -> dict[str, Any] | None:
    """Return the index row of a record; None for one whose bytes are of no use."""
    url = (record.headers.get("WARC-Target-URI") or "").strip().strip("<>")
    if not url or record.headers.get("WARC-Segment-Number", "1") != "1":
        return None
    http = responses.split(head)
    row = {
        "offset": record.stream_pos,
        "url": url,
        "format": None,
        "refers_to": None,
        "digest": record.headers.get("WARC-Payload-Digest"),
    }
    if record.record_type == WarcRecordType.revisit:
        return row | {"refers_to": record.headers.get("WARC-Refers-To-Target-URI") or ""}
    if http.status in (301, 302, 303, 307, 308):
        target = http.headers.get("location")
        return row | {"refers_to": _joined(url, target)} if target else None
    if http.status is not None and (not 200 <= http.status < 300 or http.status == 206):
        return None
    return row | {"format": _format(record, http)}


def _joined(url: str, target: str) -> str:
    try:
        return urljoin(url, target)
    except ValueError:  # no URL
        return ""


def _format(record: WarcRecord, http: responses.Response) -> str | None:
    """Return the format of a document, None for any other body."""
    mime = http.mime if http.status is not None else responses.mime_of(record.headers.get("Content-Type"))
    if record.record_type == WarcRecordType.conversion:
        return "text" if mime == "text/plain" else None
    if mime.startswith("application/http"):  # of the record, whose body shows no header
        mime = ""
    if mime in _NO_TYPES:
        mime = responses.mime_of(record.headers.get("WARC-Identified-Payload-Type"))
    if mime in _NO_TYPES:
        body = responses.unpacked_start(http)
        found = formats.of("", body) if body.strip() else None
        return found if found in _PAGE_TYPES.values() else None
    return _PAGE_TYPES.get(mime)


def _is_one_gzip_member(file: BinaryIO) -> bool:
    """Return whether the first gzip member, as far as it is looked at, holds more than one record."""
    file.seek(0)
    try:
        start = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(file.read(1 << 20), 1 << 22)
    except zlib.error:  # no gzip
        return False
    return b"\r\n\r\nWARC/1." in start


def _is_reachable(file: BinaryIO, table: pa.Table) -> bool:
    """Return whether each record can be read by itself: not so in a file that was compressed as a whole."""
    offsets = table["offset"].to_pylist()
    if not offsets:
        return True
    file.seek(offsets[-1])
    return len(set(offsets)) == len(offsets) and file.read(4).startswith((b"WARC", _GZIP, _ZSTD))


def _unpack_file(file: BinaryIO) -> BinaryIO:
    """Unpack a compressed file to a temporary one, up to where it breaks."""
    unpacked = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115  # its user closes it
    file.seek(0)
    is_gzip = file.read(2) == _GZIP
    file.seek(0)
    with contextlib.suppress(EOFError, OSError, zlib.error):  # the scan finds the break
        if is_gzip:
            _inflate_file(file, unpacked)
        else:
            shutil.copyfileobj(ZstdReader(file), unpacked)
    return unpacked


def _inflate_file(file: BinaryIO, unpacked: BinaryIO) -> None:
    """Unpack gzip, also the last bytes before a cut, which `gzip` would not give."""
    member = zlib.decompressobj(zlib.MAX_WBITS | 16)
    while chunk := file.read(1 << 16):
        while chunk:
            unpacked.write(member.decompress(chunk, 1 << 20))
            chunk = member.unconsumed_tail
            if member.eof:
                chunk, member = member.unused_data, zlib.decompressobj(zlib.MAX_WBITS | 16)


_spools: dict[str, BinaryIO] = {}


def _spool(key: str, file: BinaryIO) -> BinaryIO:
    """Return the unpacked file, which is kept while its ranges are read."""
    if key not in _spools:
        while _spools:
            _spools.popitem()[1].close()
        _spools[key] = _unpack_file(file)
    return _spools[key]


def _ends_after(file: BinaryIO, offset: int) -> bool:
    """Return whether the file ends with the record at an offset. fastwarc takes a cut header for the end."""
    file.seek(offset)
    start = file.read(4)
    file.seek(offset)
    if start.startswith(_GZIP):
        return _rest_after_gzip_member(file) == b""
    if not start.startswith(b"WARC"):  # Zstandard, of which fastwarc reports what is cut
        return True
    header = b""
    while line := file.readline(_HEAD_BYTES):
        if not line.strip():
            break
        header += line
    length = re.search(rb"^content-length:\s*(\d+)", header, re.IGNORECASE | re.MULTILINE)
    if length is None:
        return False
    file.seek(int(length[1]), io.SEEK_CUR)
    return not file.read(_HEAD_BYTES).strip()


def _rest_after_gzip_member(file: BinaryIO) -> bytes | None:
    """Return what follows a gzip member up to the end of the file; None if the member itself is cut."""
    member = zlib.decompressobj(zlib.MAX_WBITS | 16)
    while chunk := file.read(1 << 20):
        while chunk and not member.eof:
            member.decompress(chunk, 1 << 20)
            chunk = member.unconsumed_tail
        if member.eof:
            return (member.unused_data + file.read(_HEAD_BYTES)).strip(b"\0\r\n")
    return None


def _member(file: BinaryIO, archive: _Archive, row: int, name: str) -> Member:
    format, url = archive.formats[row], archive.urls[row]
    assert format is not None
    http = responses.Response(None, {}, b"")
    problem: ReadError | None = None
    try:
        http = responses.split(_block(file, archive.offsets[row]))
        content = responses.unpacked(http)
    except ReadError as error:  # of this document, not of the file
        content, problem = http.body, error
    return Member(
        name,
        content,
        functools.partial(_read, format, content, url, http.charset, problem),
        functools.partial(_load, file, archive, row),
    )


def _read(
    format: str, content: bytes, url: str, charset: str | None, problem: ReadError | None
) -> RawDocument:
    if problem is not None:
        raise problem
    if format == "html":
        from datapipe.sources import html

        return html.read(content, url, charset=charset)
    if format == "pdf":
        from datapipe.sources import pdf

        return pdf.read(content, url)
    from datapipe.sources import text

    return text.read(content, url)


def _load(file: BinaryIO, archive: _Archive, page: int, url: str) -> bytes:
    """Return the bytes of a URL, as captured nearest to a page."""
    row = _nearest(archive.rows.get(_key(url), []), page)
    for _ in range(_MAX_HOPS):
        if row is None:
            break
        refers_to = archive.refers_to[row]
        if refers_to is None:
            return _body(file, archive.offsets[row])
        others = [other for other in archive.rows.get(_key(refers_to), []) if other != row]
        direct = [other for other in others if archive.refers_to[other] is None]
        original = archive.originals.get(archive.digests[row] or "")
        row = _nearest(direct, page) if direct else _nearest(others, page) if original is None else original
    raise SourceError(f"{url} was not captured in this file")


def _body(file: BinaryIO, offset: int) -> bytes:
    """Return what a record holds for a page; still packed where it is damaged, so that decoding it fails."""
    http = responses.split(_block(file, offset))
    try:
        return responses.unpacked(http)
    except MalformedMarkup:
        return http.body


def _nearest(rows: Iterable[int], page: int) -> int | None:
    return min(rows, key=lambda row: (abs(row - page), row), default=None)


def _block(file: BinaryIO, offset: int) -> bytes:
    """Return the block of the record at an offset: what follows the WARC header."""
    file.seek(offset)
    for record in ArchiveIterator(file, parse_http=False, quirks_mode=True):
        if record.content_length > responses.MAX_BODY_BYTES:
            raise FileTooLarge(f"{record.content_length} bytes, more than {responses.MAX_BODY_BYTES}")
        return record.reader.read()
    raise MalformedMarkup(f"no record at byte {offset}")
