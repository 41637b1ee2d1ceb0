"""HTTP responses as web archives hold them: headers, and bodies without their transfer and content encodings.

Owns what of the standards real archives follow and what they break. Fetches nothing.
"""

import dataclasses
import functools
import io
import re
import zlib
from collections.abc import Callable

from fastwarc.stream_io import BrotliReader, ZstdReader

from datapipe.errors import FileTooLarge, MalformedMarkup
from datapipe.sources import formats

MAX_BODY_BYTES = 1 << 29  # when unpacked: a small response can unpack to any size
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_CHUNK_SIZE = re.compile(rb"\s*([0-9a-fA-F]{1,8})[ \t]*(?:;[^\n]*)?\r?\n")


@dataclasses.dataclass(frozen=True)
class Response:
    """A response. A block without HTTP headers is a body with no status."""

    status: int | None
    headers: dict[str, str]
    body: bytes

    @property
    def mime(self) -> str:
        return mime_of(self.headers.get("content-type"))

    @property
    def charset(self) -> str | None:
        found = _CHARSET.search(self.headers.get("content-type", ""))
        return found[1] if found else None


def split(block: bytes) -> Response:
    """Return a block as a response."""
    if not block.startswith(b"HTTP/"):
        return Response(None, {}, block)
    end = re.search(rb"\r?\n\r?\n", block)
    head, body = (block[: end.start()], block[end.end() :]) if end else (block, b"")
    first, *lines = head.decode("latin-1").splitlines()
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers.setdefault(name.strip().lower(), value.strip())
    status = first.split()[1:2]
    return Response(int(status[0]) if status and status[0].isdigit() else 200, headers, body)


def unpacked(http: Response) -> bytes:
    """Return a body without its transfer and content encodings.

    Many archives hold bodies that were unpacked when they were captured, under headers that still name the
    encoding; so a body that does not look packed is taken as it is.

    Raises:
        FileTooLarge: it unpacks to more than `MAX_BODY_BYTES`.
        MalformedMarkup: it is packed and damaged.
    """
    body = http.body
    if "chunked" in http.headers.get("transfer-encoding", "").lower():
        body = _dechunked(body)
    for encoding in reversed(re.split(r"[\s,]+", http.headers.get("content-encoding", "").lower())):
        body = _decoded(body, encoding)
    return body


def _dechunked(body: bytes) -> bytes:
    """Return a chunked body in one piece (RFC 9112, section 7.1); unchanged if it is not chunked."""
    pieces, at = list[bytes](), 0
    while (size := _CHUNK_SIZE.match(body, at)) is not None:
        length = int(size[1], 16)
        if length == 0:
            return b"".join(pieces)
        pieces.append(body[size.end() : size.end() + length])
        at = size.end() + length
        at += 2 if body[at : at + 2] == b"\r\n" else 1
    if pieces and at >= len(body):
        raise MalformedMarkup("a chunked body ends early")
    return body


def _decoded(body: bytes, encoding: str) -> bytes:
    try:
        if encoding in ("gzip", "x-gzip") and body.startswith(_GZIP):
            return _inflated(body, zlib.MAX_WBITS | 16)
        if encoding == "deflate" and body:
            has_header = body[0] & 0x0F == 8 and int.from_bytes(body[:2]) % 31 == 0  # RFC 1950, section 2.2
            return _inflated(body, zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)
        if encoding == "br" and not _looks_like_page(body):
            return _bounded(BrotliReader(io.BytesIO(body)).read)
        if encoding == "zstd" and body.startswith(_ZSTD):
            return _bounded(ZstdReader(io.BytesIO(body)).read)
    except (OSError, zlib.error) as error:
        raise MalformedMarkup(f"content encoding {encoding}: {error}") from error
    return body


def _looks_like_page(body: bytes) -> bool:
    return body.lstrip()[:1] == b"<" or formats.of("", body[: formats.HEAD_BYTES]) is not None


def _inflated(body: bytes, window: int) -> bytes:
    stream = zlib.decompressobj(window)
    unpacked = _bounded(functools.partial(stream.decompress, body))
    if not stream.eof:
        raise MalformedMarkup("a compressed body ends early")
    return unpacked


def _bounded(read: Callable[[int], bytes]) -> bytes:
    unpacked = read(MAX_BODY_BYTES + 1)
    if len(unpacked) > MAX_BODY_BYTES:
        raise FileTooLarge(f"a response that unpacks to more than {MAX_BODY_BYTES} bytes")
    return unpacked


def unpacked_start(http: Response) -> bytes:
    """Return the first bytes of a body of which only the beginning is there; empty where it stays packed."""
    body = http.body
    if "chunked" in http.headers.get("transfer-encoding", "").lower():
        size = _CHUNK_SIZE.match(body)
        body = body[size.end() : size.end() + int(size[1], 16)] if size else body
    if body.startswith(_GZIP):
        try:
            body = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(body, formats.HEAD_BYTES)
        except zlib.error:
            return b""
    return body[: formats.HEAD_BYTES]


def mime_of(content_type: str | None) -> str:
    """Return the type that a Content-Type header names, without its parameters."""
    return (content_type or "").partition(";")[0].strip().lower()
