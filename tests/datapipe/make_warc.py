"""Web archives made by code, record by record."""

import gzip
import io
import zlib

from fastwarc.stream_io import BrotliWriter, ZstdWriter

PAGE = "http://site.example/docs/page.html"


def record(
    body: bytes,
    url: str = PAGE,
    kind: str = "response",
    mime: str = "application/http; msgtype=response",
    **headers: str,
) -> bytes:
    """A WARC record; a keyword `WARC_Refers_To` is the header `WARC-Refers-To`."""
    fields = {
        "WARC-Type": kind,
        "WARC-Record-ID": f"<urn:uuid:{zlib.crc32(f'{kind} {url}'.encode()):032x}>",
        "WARC-Date": "2024-05-01T12:00:00Z",
        "WARC-Target-URI": url,
        "Content-Type": mime,
        **{name.replace("_", "-"): value for name, value in headers.items()},
        "Content-Length": str(len(body)),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"WARC/1.1\r\n{lines}\r\n".encode() + body + b"\r\n\r\n"


def http(body: bytes, mime: str = "text/html", status: int = 200, **headers: str) -> bytes:
    """An HTTP response."""
    fields = {"Content-Type": mime, **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
    return f"HTTP/1.1 {status} Said\r\n{lines}\r\n".encode() + body


def page(html: str, url: str = PAGE, **headers: str) -> bytes:
    """The record of a captured page."""
    return record(http(html.encode(), **headers), url)


def picture(data: bytes, url: str) -> bytes:
    """The record of a captured picture."""
    return record(http(data, "image/png"), url)


def chunked(body: bytes, size: int = 7, extension: str = "") -> bytes:
    """A body in HTTP chunks."""
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(f"{len(p):x}{extension}\r\n".encode() + p + b"\r\n" for p in parts) + b"0\r\n\r\n"


def brotli(data: bytes) -> bytes:
    """Bytes compressed by Brotli."""
    buffer = io.BytesIO()
    with BrotliWriter(buffer) as writer:
        writer.write(data)
    return buffer.getvalue()


def zstd(data: bytes) -> bytes:
    """Bytes compressed by Zstandard."""
    buffer = io.BytesIO()
    with ZstdWriter(buffer) as writer:
        writer.write(data)
    return buffer.getvalue()


def gzipped(data: bytes) -> bytes:
    """Bytes compressed by gzip, the same on every day."""
    return gzip.compress(data, mtime=0)
