"""The files of a source folder: which ones are documents, what reads them, and their bytes.

Owns listing, hashing and loading, local or on S3, and which reader a format has (what a format is, says
`sources.formats`; files of many documents are opened by `sources.containers`). Nothing outside the folder is
ever read. Hidden files are no documents. A link to a file of the folder is read as that file; a link to a
folder is not followed, so that no file comes twice and no circle has no end.

Every file is accounted for. It is a document, or a container of them; or it is a picture, video or caption
file, which belongs to the document that names it; or it is counted as hidden, not chosen by the globs, or of
no known format. What cannot be read at all is a failed document: a linked or locked folder, a link that leads
nowhere or out of the source, a pipe, a name that is not UTF-8. A file of an unknown format is one only where
a glob asks for it by more than `*`: `include: ["**/*.xyz"]` wants them read, `**` takes what there is.
Document formats that are known and not read here (such as .doc) always are: who gives a folder of them should
hear of it.
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
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

import pyarrow.fs as pafs

from datapipe.errors import FileTooLarge, MalformedMarkup, ReadError, SourceError, UnsupportedFormat
from datapipe.guard import Failure
from datapipe.sources import formats
from datapipe.sources.items import Item, RawDocument, document
from datapipe.spec import SourceSpec
from schemas import ids, shard
from schemas.errors import ShardError

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

    Of a container, `members` are the first and the one after the last to read (None: to the end), and `index`
    is what `sources.survey` found out to reach them. `failure` says why a file cannot be read, or a container
    not be gone through.
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
    fates: tuple[tuple[SourceFile, str], ...]
    """Every file, sorted by path, and what becomes of it: `documents`, `media`, `captions`, `hidden`,
    `not_chosen`, or `ignored_` and the suffix."""
    fingerprint: str  # hash over every file of the folder, path and bytes

    @property
    def counts(self) -> dict[str, int]:
        """Files by what becomes of them; their sum is the number of files."""
        return dict(sorted(collections.Counter(fate for _, fate in self.fates).items()))


def collection(source: SourceSpec) -> str:
    """Return the collection's name: the one given, or the folder's own."""
    return source.collection or posixpath.basename(_root(source).rstrip("/"))


def list_source(source: SourceSpec) -> Listing:
    """Return what a folder holds. Each file is read once, for its hash and format; no document is parsed.

    Raises:
        SourceError: the folder is missing, or no document matches; the message names the path and the
            patterns.
    """
    found = _all_files(source)
    with concurrent.futures.ThreadPoolExecutor(_NUM_READERS) as pool:
        seen = list(pool.map(lambda file: file if file.failure else _look_at(source, file), found))
    is_chosen, is_asked_for = _choices(source)
    seen.sort(key=lambda file: file.uri)
    fates = tuple((file, _fate(file, is_chosen(file.uri), is_asked_for(file.uri))) for file in seen)
    documents, media = (
        tuple(file for file, fate in fates if fate == wanted) for wanted in ("documents", "media")
    )
    if not documents and not (media and source.standalone_media):
        hint = f"; for the {len(media)} pictures and videos there, set standalone_media" if media else ""
        raise SourceError(
            f"path: no document below {source.path} matches include {list(source.include)} "
            f"without exclude {list(source.exclude)}{hint}"
        )
    return Listing(documents, media, fates, ids.fingerprint([(file.uri, file.content_id) for file in seen]))


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


def would_read(source: SourceSpec, path: str) -> bool:
    """Return whether a file at `path`, there or not yet, is one that the source's globs choose."""
    if ("://" in path) != ("://" in _root(source)):
        return False
    (fs, root), (_, inner) = _filesystem(_root(source)), shard.filesystem(path)
    if isinstance(fs, pafs.LocalFileSystem):
        root, inner = os.path.realpath(root), os.path.realpath(inner)
    if not inner.startswith(root.rstrip("/") + "/"):
        return False
    uri = posixpath.relpath(inner, root)
    return _choices(source)[0](uri) and not _is_hidden(uri)


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
    try:
        return shard.filesystem(root)
    except ShardError as error:
        raise SourceError(f"path: {error}") from error


def _root(source: SourceSpec) -> str:
    path = os.path.expanduser(os.path.expandvars(source.path))
    if missing := _VARIABLE.search(path):
        raise SourceError(f"path: {source.path}: the environment variable {missing.group()} is not set")
    return path if "://" in path else os.path.abspath(path)


def _all_files(source: SourceSpec) -> list[SourceFile]:
    """Return every file below the folder, not yet looked at, and what should be one and cannot be read."""
    fs, root = _filesystem(_root(source))
    try:
        kind = fs.get_file_info(root).type
        if kind == pafs.FileType.Directory:
            if isinstance(fs, pafs.LocalFileSystem):
                return list(_local_files(root))
            infos = fs.get_file_info(pafs.FileSelector(root, recursive=True))
            files = (info for info in infos if info.type == pafs.FileType.File)
            return [_file(posixpath.relpath(info.path, root), info.size) for info in files]
    except OSError as error:
        raise SourceError(f"path: cannot list {source.path}: {error}") from error
    if kind == pafs.FileType.File:
        raise SourceError(f"path: {source.path} is a file; give its folder, and the file in `include`")
    raise SourceError(f"path: there is no folder {source.path}")


def _file(uri: str, size_bytes: int = 0, why_not: str | None = None) -> SourceFile:
    failure = None if why_not is None else Failure.of(SourceError(why_not))
    return SourceFile(uri, size_bytes, "", formats.by_name(uri) or UNKNOWN, failure=failure)


def _local_files(root: str) -> Iterator[SourceFile]:
    locked: list[OSError] = []
    real_root = os.path.realpath(root)
    for folder, subfolders, names in os.walk(root, onerror=locked.append):
        linked = [name for name in subfolders if os.path.islink(os.path.join(folder, name))]
        for name in [*names, *linked]:
            path = os.path.join(folder, name)
            uri = os.path.relpath(path, root)
            if not _is_encodable(uri):
                shown = os.fsencode(uri).decode(errors="backslashreplace")
                yield _file(shown, why_not="the name of the file, or of its folder, is not UTF-8")
            else:
                size_bytes, why_not = _size_or_fault(path, real_root)
                yield _file(uri, size_bytes, why_not)
    for error in locked:
        shown = os.fsencode(os.path.relpath(error.filename, root)).decode(errors="backslashreplace")
        yield _file(shown, why_not=f"the folder cannot be listed: {error.strerror}")


def _size_or_fault(path: str, real_root: str) -> tuple[int, str | None]:
    """Return the size of a file, or why what lies there is none that can be read."""
    try:
        found = os.stat(path)
    except OSError as error:
        return 0, f"a link that cannot be followed: {error.strerror}" if os.path.islink(path) else str(error)
    if os.path.islink(path) and os.path.commonpath([os.path.realpath(path), real_root]) != real_root:
        return 0, f"a link that leads out of the source folder, to {os.readlink(path)}"
    if stat.S_ISDIR(found.st_mode):
        return 0, "a link to a folder, which is not followed"
    if not stat.S_ISREG(found.st_mode):
        return 0, "no regular file but a pipe, socket or device"
    return found.st_size, None


def _look_at(source: SourceSpec, file: SourceFile) -> SourceFile:
    """Read a file once, for its hash and its first bytes. One that cannot be read has no hash."""
    fs, root = _filesystem(_root(source))
    path = posixpath.join(root, file.uri)
    digest, head = hashlib.blake2b(digest_size=ids.CONTENT_ID_BYTES), b""
    try:
        with fs.open_input_stream(path, compression=None) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                head = head or chunk[: formats.HEAD_BYTES]
                digest.update(chunk)
    except OSError:  # it may be used by nobody; if it is, reading it fails again and is reported
        return file
    format = formats.of(file.uri, head, lambda: _zip_names(fs, path))
    return dataclasses.replace(file, content_id=digest.hexdigest(), format=format or UNKNOWN)


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
    if _is_hidden(file.uri):
        return "hidden"
    if not is_chosen:
        return "not_chosen"
    if file.failure is not None:
        return "documents"
    if file.format in formats.MEDIA:
        return "media"
    if file.format == formats.CAPTIONS:
        return formats.CAPTIONS
    if file.format == UNKNOWN and not is_asked_for:
        return f"ignored_{posixpath.splitext(file.uri)[1].lower().lstrip('.') or 'without_suffix'}"
    return "documents"


def _is_hidden(uri: str) -> bool:
    return any(part.startswith(".") for part in uri.split("/"))


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
