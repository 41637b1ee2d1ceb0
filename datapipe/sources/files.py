"""The files of a source folder: which ones are documents, what reads them, and their bytes.

Owns listing, hashing and loading, local or on S3, and which reader a format has (what a format is, says
`sources.formats`; files of many documents are opened by `sources.containers`). Nothing outside the folder is
ever read. Hidden files are no documents.

Every file is accounted for. It is a document, or a container of them; or it is a picture, video or caption
file, which belongs to the document that names it; or it is counted as hidden, not chosen by the globs, or of
no known format. A file of an unknown format is a failed document only where a glob asks for it by more than
`*`: `include: ["**/*.xyz"]` wants them read, `**` takes what there is. Document formats that are known and
not read here (such as .doc) always are: who gives a folder of them should hear of it.
"""

import collections
import concurrent.futures
import dataclasses
import errno
import functools
import hashlib
import importlib
import io
import os
import posixpath
import re
import zipfile
import zlib
from collections.abc import Callable
from typing import BinaryIO

import pyarrow.fs as pafs

from datapipe.errors import FileTooLarge, MalformedMarkup, ReadError, SourceError, UnsupportedFormat
from datapipe.guard import Failure
from datapipe.sources import formats
from datapipe.sources.items import Item, RawDocument, document
from datapipe.spec import SourceSpec
from schemas import ids, shard

Reader = Callable[[bytes, str], RawDocument]
Place = tuple[pafs.FileSystem, str]  # a file system, and a path in it

UNKNOWN = "unknown"
_CHUNK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_NUM_READERS = 8  # of files that are hashed at the same time; on S3 most of the time is waiting
_VARIABLE = re.compile(r"\$\{?\w+\}?")
_NO_SUCH_FILE = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL)
_READERS = {
    "html": ("html", "read"),
    "mallard": ("mallard", "read"),
    "rst": ("rst", "read"),
    "markdown": ("markdown", "read"),
    "text": ("text", "read"),
    "pdf": ("pdf", "read"),
    "slides": ("slides", "read"),
    "word": ("word", "read"),
    "epub": ("epub", "read"),
    "session": ("sessions", "read"),
    "video": ("video", "read"),
}


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """A file to read: its path from the folder's root, its size, the hash of its bytes and its format.

    Of a container, `members` are the first and the one after the last to read (None: to the end), `index` is
    what `sources.survey` found out to reach them, and `failure` why it could not be gone through.
    """

    uri: str
    size_bytes: int
    content_id: str
    format: str
    members: tuple[int, int | None] | None = None
    index: bytes | None = dataclasses.field(default=None, repr=False)
    failure: Failure | None = None


@dataclasses.dataclass(frozen=True)
class Listing:
    """What a folder holds."""

    documents: tuple[SourceFile, ...]  # and containers, sorted by path
    media: tuple[SourceFile, ...]  # pictures and videos that the globs choose, sorted by path
    counts: dict[str, int]  # files by what becomes of them; their sum is the number of files
    fingerprint: str  # hash over every file of the folder, path and bytes


def collection(source: SourceSpec) -> str:
    """Return the collection's name: the one given, or the folder's own."""
    return source.collection or posixpath.basename(_root(source).rstrip("/"))


def list_source(source: SourceSpec) -> Listing:
    """Return what a folder holds. Each file is read once, for its hash and format; no document is parsed.

    Raises:
        SourceError: the folder is missing, or no document matches; the message names the path and the
            patterns.
    """
    files = _all_files(source)
    with concurrent.futures.ThreadPoolExecutor(_NUM_READERS) as pool:
        seen = list(pool.map(lambda file: _look_at(source, *file), files))
    is_chosen, is_asked_for = _choices(source)
    documents, media, counts = [], [], collections.Counter[str]()
    for file in sorted(seen, key=lambda file: file.uri):
        what = _fate(file, is_chosen(file.uri), is_asked_for(file.uri))
        counts[what] += 1
        if what == "documents":
            documents.append(file)
        elif what == "media":
            media.append(file)
    if not documents and not (media and source.standalone_media):
        hint = f"; for the {len(media)} pictures and videos there, set standalone_media" if media else ""
        raise SourceError(
            f"path: no document below {source.path} matches include {list(source.include)} "
            f"without exclude {list(source.exclude)}{hint}"
        )
    fingerprint = ids.fingerprint(sorted((file.uri, file.content_id) for file in seen))
    return Listing(tuple(documents), tuple(media), dict(sorted(counts.items())), fingerprint)


def list_files(source: SourceSpec) -> list[SourceFile]:
    """Return the documents of a source, sorted by path, containers whole.

    With `standalone_media`, pictures and videos that nothing else embeds are documents too; to tell, every
    document is parsed.

    Raises:
        SourceError: as `list_source`.
    """
    listing = list_source(source)
    if not source.standalone_media:
        return list(listing.documents)
    from datapipe.sources import survey  # which imports this module

    return survey.with_standalone(listing, survey.links(source, listing.documents))


def place(source: SourceSpec, uri: str) -> Place:
    """Return where a file of the source lies, by its path from the root.

    Raises:
        SourceError: the path leads out of the folder.
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
    return fs, path


def load(source: SourceSpec, uri: str, max_bytes: int | None = None) -> bytes:
    """Return the bytes of a file of the source by its path from the root.

    Raises:
        SourceError: the path leads out of the folder, or there is no such file.
        FileTooLarge: the file has more than `max_bytes`; it was not read.
    """
    fs, path = place(source, uri)
    try:
        with fs.open_input_file(path) as file:
            if max_bytes is not None and file.size() > max_bytes:
                raise FileTooLarge(f"{file.size()} bytes, more than {max_bytes}")
            return file.read()
    except OSError as error:
        if error.errno not in _NO_SUCH_FILE and fs.get_file_info(path).type == pafs.FileType.File:
            raise
        raise SourceError(f"no file {uri!r} in the source folder {source.path}") from error


def read(data: bytes, uri: str, format: str | None = None, max_bytes: int | None = None) -> RawDocument:
    """Read a file as a document with the reader for it.

    Args:
        format: as `formats` names it; told by name and bytes if it is not given.
        max_bytes: what a gzip file may unpack to.

    Raises:
        UnsupportedFormat: the format is known and not read here.
        ReadError: no reader knows the file, or the one that does cannot read it.
    """
    suffix = posixpath.splitext(uri)[1].lower()
    if data.startswith(_GZIP) and (suffix == ".gz" or formats.by_name(uri) is None):
        data, uri, format = _unpacked(data, max_bytes), posixpath.splitext(uri)[0], None
    head = data[: formats.HEAD_BYTES]
    if format in (None, UNKNOWN):
        format = formats.of(uri, head, lambda: zip_names(io.BytesIO(data)))
    if format == "image":
        return document("image", None, None, [Item("image", "figure", href=uri)])
    if format == formats.UNSUPPORTED:
        what = formats.unsupported(head, uri) or "an OpenDocument or Excel file"
        raise UnsupportedFormat(f"{what}: a known format, and not read here")
    if format is None or format not in _READERS:
        raise ReadError("no reader for this file")
    return _reader(format)(data, uri)


def _reader(format: str) -> Reader:
    """Return a format's reader. It is loaded only now, so that one whose library is missing stops no other.

    Raises:
        ReadError: the library is missing.
    """
    module, function = _READERS[format]
    try:
        return getattr(importlib.import_module(f"datapipe.sources.{module}"), function)
    except ModuleNotFoundError as error:
        raise ReadError(f"reading {format} needs {error.name}, which is not installed") from error


def _unpacked(data: bytes, max_bytes: int | None) -> bytes:
    """Return what a gzip file holds, all its members.

    Raises:
        FileTooLarge: it holds more than `max_bytes`; no more than that was unpacked.
        MalformedMarkup: it is damaged, or ends early.
    """
    unpacked = bytearray()
    while data.startswith(_GZIP):
        member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        room = 0 if max_bytes is None else max_bytes - len(unpacked) + 1
        try:
            unpacked += member.decompress(data, room)
        except zlib.error as error:
            raise MalformedMarkup(f"gzip: {error}") from error
        if max_bytes is not None and len(unpacked) > max_bytes:
            raise FileTooLarge(f"unpacks to more than {max_bytes} bytes")
        if not member.eof:
            raise MalformedMarkup("gzip: the file ends early")
        data = member.unused_data
    return bytes(unpacked)


def _is_encodable(uri: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in uri)


@functools.lru_cache(maxsize=8)
def _filesystem(root: str) -> Place:
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


def _look_at(source: SourceSpec, info: pafs.FileInfo, uri: str) -> SourceFile:
    """Read a file once, for its hash and its first bytes. One that cannot be read has no hash."""
    fs, _ = _filesystem(_root(source))
    digest, head = hashlib.blake2b(digest_size=ids.CONTENT_ID_BYTES), b""
    try:
        with fs.open_input_stream(info.path, compression=None) as file:
            while chunk := file.read(_CHUNK_BYTES):
                head = head or chunk[: formats.HEAD_BYTES]
                digest.update(chunk)
    except OSError:  # it may be used by nobody; if it is, reading it fails again and is reported
        return SourceFile(uri, info.size, "", formats.by_name(uri) or UNKNOWN)
    format = formats.of(uri, head, lambda: _zip_names(fs, info.path))
    return SourceFile(uri, info.size, digest.hexdigest(), format or UNKNOWN)


def _zip_names(fs: pafs.FileSystem, path: str) -> list[str]:
    try:
        with fs.open_input_file(path) as file:
            return zip_names(file)
    except OSError:
        return []


def zip_names(file: BinaryIO) -> list[str]:
    """Return the names in a zip archive, none if it is damaged."""
    try:
        return zipfile.ZipFile(file).namelist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError):
        return []


def _fate(file: SourceFile, is_chosen: bool, is_asked_for: bool) -> str:
    """Return what becomes of a file."""
    if any(part.startswith(".") for part in file.uri.split("/")):
        return "hidden"
    if not is_chosen:
        return "not_chosen"
    if file.format in formats.MEDIA:
        return "media"
    if file.format == formats.CAPTIONS:
        return formats.CAPTIONS
    if file.format == UNKNOWN and not is_asked_for:
        return f"ignored_{posixpath.splitext(file.uri)[1].lower().lstrip('.') or 'without_suffix'}"
    return "documents"


def _choices(source: SourceSpec) -> tuple[Callable[[str], bool], Callable[[str], bool]]:
    """Return whether the globs choose a path, and whether one of them asks for more than any file."""
    include = {pattern: _glob(pattern) for pattern in source.include}
    exclude = [_glob(pattern) for pattern in source.exclude]
    asking = [regex for pattern, regex in include.items() if pattern.rpartition("/")[2].strip("*")]

    def is_chosen(uri: str) -> bool:
        return any(p.fullmatch(uri) for p in include.values()) and not any(p.fullmatch(uri) for p in exclude)

    return is_chosen, lambda uri: any(p.fullmatch(uri) for p in asking)


def _glob(pattern: str) -> re.Pattern[str]:
    """Return a glob as a regular expression: `**` crosses folders, and `**/x` finds `x` at the root too."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern.strip("/"))
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(meaning.get(part, re.escape(part)) for part in parts), re.DOTALL)
