"""The files of a source folder: which ones are documents, what reads them, and their bytes.

Owns listing, hashing and loading, local or on S3, and the choice of a reader by name and first bytes. Nothing
outside the folder is ever read. Hidden files are no documents.
"""

import dataclasses
import errno
import functools
import hashlib
import os
import posixpath
import re
from collections.abc import Callable
from typing import Any

import pyarrow.fs as pafs

from datapipe.errors import ReadError, SourceError
from datapipe.sources import html, markup, text, video
from datapipe.sources.items import Item, RawDocument, document
from datapipe.spec import SourceSpec
from schemas import ids, shard

Reader = Callable[[bytes, str], RawDocument]

HEAD_BYTES = 1024
_CHUNK_BYTES = 1 << 20
_VARIABLE = re.compile(r"\$\{?\w+\}?")
_SUFFIXES = {
    "html": ".html .htm .xhtml .shtml",
    "mallard": ".page",
    "rst": ".rst .rest",
    "markdown": ".md .markdown",
    "text": ".txt .text",
    "image": ".png .jpg .jpeg .jpe .gif .webp .bmp .tif .tiff .avif .jp2 .ico .svg",
    "video": ".mp4 .m4v .webm .mkv .mov .avi .mpg .mpeg .ogv .ts .flv .wmv .3gp",
}
_FORMAT_OF_SUFFIX = {suffix: format for format, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
_MAGIC = (
    (b"\x89PNG\r\n", "image"),
    (b"\xff\xd8\xff", "image"),
    (b"GIF8", "image"),
    (b"BM", "image"),
    (b"II*\0", "image"),
    (b"MM\0*", "image"),
    (b"\x1aE\xdf\xa3", "video"),
    (b"FLV\x01", "video"),
    (b"\x00\x00\x01\xba", "video"),
    (b"OggS", "video"),
)
_NO_SUCH_FILE = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL)
_MEDIA = ("image", "video")


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """A file to read: its path from the folder's root, its size and the hash of its bytes."""

    uri: str
    size_bytes: int
    content_id: str


def collection(source: SourceSpec) -> str:
    """Return the collection's name: the one given, or the folder's own."""
    return source.collection or posixpath.basename(_root(source).rstrip("/"))


def list_files(source: SourceSpec) -> list[SourceFile]:
    """Return the documents of a source, sorted by path.

    With `standalone_media`, pictures and videos that none of the listed pages embeds are documents too.

    Raises:
        SourceError: the folder is missing, or no document matches; the message names the path and the
            patterns.
    """
    listed, media = [], []
    for info, uri in _matching(source):
        format = _format_by_name(uri) or _sniff(_head(source, info))
        if format in _MEDIA:
            media.append((info, uri))
        elif format is not None:
            listed.append((info, uri))
    if source.standalone_media:
        embedded = {href for _, uri in listed for href in _hrefs(source, uri)}
        listed += [(info, uri) for info, uri in media if uri not in embedded]
    if not listed:
        hint = f"; for the {len(media)} pictures and videos there, set standalone_media" if media else ""
        raise SourceError(
            f"path: no document below {source.path} matches include {list(source.include)} "
            f"without exclude {list(source.exclude)}{hint}"
        )
    listed.sort(key=lambda entry: entry[1])
    return [SourceFile(uri, info.size, _hash(source, info)) for info, uri in listed]


def fingerprint(source: SourceSpec) -> str:
    """Return a hash over every file of the folder, path and bytes, so that a changed picture changes it.

    Raises:
        SourceError: the folder is missing.
    """
    return ids.fingerprint(sorted((uri, _hash(source, info)) for info, uri in _all_files(source)))


def load(source: SourceSpec, uri: str) -> bytes:
    """Return the bytes of a file of the source by its path from the root.

    Raises:
        SourceError: the path leads out of the folder, or there is no such file.
    """
    if "\0" in uri or posixpath.isabs(uri) or not _is_encodable(uri):
        raise SourceError(f"{uri!r} names no file in the source folder {source.path}")
    fs, inner_root = _filesystem(_root(source))
    path = posixpath.normpath(posixpath.join(inner_root, uri))
    inside = path
    if isinstance(fs, pafs.LocalFileSystem):
        inner_root, inside = os.path.realpath(inner_root), os.path.realpath(path)
    if not inside.startswith(inner_root.rstrip("/") + "/"):
        raise SourceError(f"{uri!r} leads out of the source folder {source.path}")
    try:
        with fs.open_input_file(path) as file:
            return file.read()
    except OSError as error:
        if error.errno not in _NO_SUCH_FILE and fs.get_file_info(path).type == pafs.FileType.File:
            raise
        raise SourceError(f"no file {uri!r} in the source folder {source.path}") from error


def format_of(data: bytes, uri: str) -> str | None:
    """Return which reader a file is for (html, mallard, rst, markdown, text, image, video), or None."""
    return _format_by_name(uri) or _sniff(data[:HEAD_BYTES])


def read(data: bytes, uri: str) -> RawDocument:
    """Read a file as a document with the reader for it.

    Raises:
        ReadError: no reader knows the file, or the one that does cannot read it.
    """
    format = format_of(data, uri)
    if format is None:
        raise ReadError("no reader for this file")
    return _READERS[format](data, uri)


def _read_image(data: bytes, uri: str) -> RawDocument:
    del data
    return document("image", None, None, [Item("image", "figure", href=uri)])


_READERS: dict[str, Reader] = {
    "html": html.read,
    "mallard": markup.read_mallard,
    "rst": markup.read_rst,
    "markdown": markup.read_markdown,
    "text": text.read,
    "image": _read_image,
    "video": video.read,
}


def _is_encodable(uri: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in uri)


@functools.lru_cache(maxsize=8)
def _filesystem(root: str) -> tuple[pafs.FileSystem, str]:
    return shard.filesystem(root)


def _root(source: SourceSpec) -> str:
    path = os.path.expanduser(os.path.expandvars(source.path))
    if missing := _VARIABLE.search(path):
        raise SourceError(f"path: {source.path}: the environment variable {missing.group()} is not set")
    return path if "://" in path else os.path.abspath(path)


def _all_files(source: SourceSpec) -> list[tuple[pafs.FileInfo, str]]:
    fs, root = _filesystem(_root(source))
    if fs.get_file_info(root).type != pafs.FileType.Directory:
        raise SourceError(f"path: there is no folder {source.path}")
    infos = fs.get_file_info(pafs.FileSelector(root, recursive=True))
    return [(i, posixpath.relpath(i.path, root)) for i in infos if i.type == pafs.FileType.File]


def _matching(source: SourceSpec) -> list[tuple[pafs.FileInfo, str]]:
    """Return the files that the globs choose, hidden ones left out."""
    include, exclude = ([_glob(p) for p in patterns] for patterns in (source.include, source.exclude))
    return [
        (info, uri)
        for info, uri in _all_files(source)
        if not any(part.startswith(".") for part in uri.split("/"))
        and any(p.fullmatch(uri) for p in include)
        and not any(p.fullmatch(uri) for p in exclude)
    ]


def _glob(pattern: str) -> re.Pattern[str]:
    """Return a glob as a regular expression: `**` crosses folders, and `**/x` finds `x` at the root too."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern.strip("/"))
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(meaning.get(part, re.escape(part)) for part in parts), re.DOTALL)


def _format_by_name(uri: str) -> str | None:
    return _FORMAT_OF_SUFFIX.get(posixpath.splitext(uri)[1].lower())


def _sniff(head: bytes) -> str | None:
    """Tell the format of a file whose name does not."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html")) or (start.startswith(b"<?xml") and b"<html" in start):
        return "html"
    if start.startswith((b"<page", b"<?xml")) and markup.MALLARD.encode() in start and b"<page" in start:
        return "mallard"
    if head[4:8] == b"ftyp":
        return "image" if head[8:12] in (b"avif", b"avis", b"heic", b"mif1") else "video"
    if head[:4] == b"RIFF":
        return {b"WEBP": "image", b"AVI ": "video"}.get(head[8:12])
    return next((format for magic, format in _MAGIC if head.startswith(magic)), None)


def _head(source: SourceSpec, info: pafs.FileInfo) -> bytes:
    with _open(source, info) as file:
        return file.read(HEAD_BYTES)


def _hash(source: SourceSpec, info: pafs.FileInfo) -> str:
    digest = hashlib.blake2b(digest_size=ids.CONTENT_ID_BYTES)
    with _open(source, info) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _open(source: SourceSpec, info: pafs.FileInfo) -> Any:
    fs, _ = _filesystem(_root(source))
    return fs.open_input_stream(info.path, compression=None)


def _hrefs(source: SourceSpec, uri: str) -> set[str]:
    """Return the files a page embeds; none when the page cannot be read, which ingest reports."""
    try:
        return {item.href for item in read(load(source, uri), uri).items if item.href}
    except Exception:  # a fault of one file must not stop the listing; ingest quarantines it
        return set()
