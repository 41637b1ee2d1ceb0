"""Which format a file has, told by its name and first bytes.

Owns the names of the formats and what gives each away. Reads no file: callers hand in a name, the first bytes
and, for zip archives, the names inside.

    document   html mallard rst markdown text pdf slides word epub session
    container  warc jsonl parquet tar             files of many documents
    medium     image video captions               part of the document that names them
    other      unsupported unknown

A name that tells the format wins over the bytes, for a page in an unknown encoding has no telling bytes, and
a picture named `.html` is better refused than guessed at. Names that many formats share (`.ts`, `.json`,
`.gz`) and unknown ones are settled by the bytes.
"""

import posixpath
import re
import zlib
from collections.abc import Callable, Iterable

HEAD_BYTES = 1024
DOCUMENTS = frozenset(
    ("html", "mallard", "rst", "markdown", "text", "pdf", "slides", "word", "epub", "session")
)
CONTAINERS = frozenset(("warc", "jsonl", "parquet", "tar"))
MEDIA = frozenset(("image", "video"))
CAPTIONS = "captions"
UNSUPPORTED = "unsupported"

_SUFFIXES = {
    "html": ".html .htm .xhtml .shtml",
    "mallard": ".page",
    "rst": ".rst .rest",
    "markdown": ".md .markdown",
    "text": ".txt .text",
    "pdf": ".pdf",
    "slides": ".pptx .pptm .ppsx .ppsm .potx .potm",
    "word": ".docx .docm .dotx .dotm",
    "epub": ".epub",
    "warc": ".warc .wet",
    "jsonl": ".jsonl .ndjson",
    "parquet": ".parquet .pq",
    "tar": ".tar",
    "image": (
        ".png .apng .jpg .jpeg .jpe .jfif .mpo .gif .webp .bmp .dib .tif .tiff .avif .heic .heif .jxl .jp2 "
        ".j2k .jpf .jpx .jpc .ico .icns .cur .svg .psd .tga .dds .qoi .ppm .pgm .pbm .pnm .pcx .sgi .fits "
        ".xpm .xcf .eps .wmf .emf"
    ),
    "video": (
        ".mp4 .m4v .webm .mkv .mov .qt .avi .mpg .mpeg .m1v .m2v .vob .ogv .flv .f4v .swf .wmv .asf .rm .3gp "
        ".m2ts .mts .mxf"
    ),
    CAPTIONS: ".vtt .srt .ttml .dfxp",
    UNSUPPORTED: (".doc .ppt .pps .xls .rtf .odt .odp .ods .xlsx .xlsm .mobi .azw .azw3 .djvu .fb2 .chm .ps"),
}
_OF_SUFFIX = {suffix: format for format, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
_GZIP = b"\x1f\x8b"
_ZSTD = (b"\x28\xb5\x2f\xfd", b"\x5d\x2a\x4d\x18")  # a frame, and the dictionary before it in a WARC
_MAGIC = (
    (b"%PDF-", "pdf"),
    (b"WARC/", "warc"),
    (b"PAR1", "parquet"),
    (b"\x89PNG\r\n", "image"),
    (b"\xff\xd8\xff", "image"),
    (b"GIF8", "image"),
    (b"II*\0", "image"),
    (b"MM\0*", "image"),
    (b"\x1aE\xdf\xa3", "video"),
    (b"FLV\x01", "video"),
    (b"\x00\x00\x01\xba", "video"),
    (b"OggS", "video"),
)
_UNSUPPORTED_MAGIC = (
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an OLE compound file (.doc, .ppt, .xls of before 2007, .fpx)"),
    (b"{\\rtf", "rich text (RTF)"),
    (b"AT&TFORM", "DjVu"),
    (b"%!PS", "PostScript"),
)
_UNSUPPORTED_NAMES = {
    **dict.fromkeys((".doc", ".ppt", ".pps", ".xls"), "a binary Office file of before 2007"),
    **dict.fromkeys((".odt", ".odp", ".ods"), "OpenDocument"),
    **dict.fromkeys((".xlsx", ".xlsm"), "a spreadsheet"),
    **dict.fromkeys((".mobi", ".azw", ".azw3"), "a Mobipocket book"),
}
_SESSION = re.compile(rb'\A\s*[\[{].*?"(?:messages|conversations)"\s*:\s*\[', re.DOTALL)
_SESSION_LIST = re.compile(rb'\A\s*\[\s*\{\s*"role"\s*:')
_HTML_STARTS = (b"<!doctype html", b"<html")
_MALLARD = b"http://projectmallard.org/1.0/"


def by_name(uri: str) -> str | None:
    """Return the format a name tells; that of the inner name for a compressed one. None where none does."""
    stem, suffix = posixpath.splitext(posixpath.basename(uri).lower())
    if suffix in (".gz", ".zst"):
        inner = _OF_SUFFIX.get(posixpath.splitext(stem)[1])
        readable = ("warc",) if suffix == ".zst" else (*DOCUMENTS, "warc", "jsonl")
        return inner if inner in readable else None
    return _OF_SUFFIX.get(suffix)


def of(uri: str, head: bytes, zip_names: Callable[[], Iterable[str]] | None = None) -> str | None:
    """Return the format of a file, None where it is unknown.

    Args:
        head: its first `HEAD_BYTES`, or more.
        zip_names: gives the names inside, if it is a zip archive; called only where they decide.
    """
    return by_name(uri) or _by_bytes(uri, head, zip_names)


def _by_bytes(uri: str, head: bytes, zip_names: Callable[[], Iterable[str]] | None) -> str | None:
    suffix = posixpath.splitext(uri)[1].lower()
    if head.startswith(_GZIP):
        return _in_gzip(uri, head)
    if head.startswith(_ZSTD):
        return None  # its name would tell
    if suffix == ".ts":  # a transport stream has packets of 188 bytes; the others are programs
        return "video" if head[:1] == b"G" and head[188:189] in (b"G", b"") else None
    if suffix == ".json":
        return "session" if _SESSION.match(head) or _SESSION_LIST.match(head) else None
    if head.startswith(b"PK\x03\x04") and zip_names is not None:
        return _in_zip(frozenset(zip_names()))
    return _sniff(head)


def _sniff(head: bytes) -> str | None:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(_HTML_STARTS) or (start.startswith(b"<?xml") and b"<html" in start):
        return "html"
    if start.startswith((b"<page", b"<?xml")) and _MALLARD in start and b"<page" in start:
        return "mallard"
    if head[4:8] == b"ftyp":
        return "image" if head[8:12] in (b"avif", b"avis", b"heic", b"heix", b"mif1") else "video"
    if head[:4] == b"RIFF":
        return {b"WEBP": "image", b"AVI ": "video"}.get(head[8:12])
    if head[:2] == b"BM" and head[6:10] == b"\0\0\0\0":
        return "image"
    if unsupported(head):
        return UNSUPPORTED
    return next((format for magic, format in _MAGIC if head.startswith(magic)), None)


def _in_gzip(uri: str, head: bytes) -> str | None:
    try:
        inner = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, HEAD_BYTES)
    except zlib.error:
        return None
    found = _by_bytes(posixpath.splitext(uri)[0], inner, None)
    return found if found in DOCUMENTS or found == "warc" else None


def _in_zip(names: frozenset[str]) -> str | None:
    """Return the format of a zip archive by what is in it (ECMA-376 part 2; OCF 3.3; OpenDocument 1.3)."""
    if "META-INF/container.xml" in names:
        return "epub"
    for name, format in (
        ("word/document.xml", "word"),
        ("ppt/presentation.xml", "slides"),
        ("xl/workbook.xml", UNSUPPORTED),
        ("xl/workbook.bin", UNSUPPORTED),
        ("META-INF/manifest.xml", UNSUPPORTED if "content.xml" in names else ""),
    ):
        if name in names:
            return format or None
    return None


def unsupported(head: bytes, uri: str = "") -> str | None:
    """Return what a document is that is known and not read here; None for any other file."""
    found = next((what for magic, what in _UNSUPPORTED_MAGIC if head.startswith(magic)), None)
    if found is None and head[60:68] == b"BOOKMOBI":
        found = "a Mobipocket book"
    suffix = posixpath.splitext(uri)[1].lower()
    if found is None and _OF_SUFFIX.get(suffix) == UNSUPPORTED:
        found = _UNSUPPORTED_NAMES.get(suffix, f"a {suffix} file")
    return found
