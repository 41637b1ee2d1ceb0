"""Files of many documents: opened, surveyed, and read document by document.

Owns which module reads which container, and the way a container's documents and what they show leave it. It
runs in the child of `datapipe.guard`, for it parses what others wrote; so it yields plain values, and a fault
of one document is a value too. Knows no container's format. A container module has

    count(file) -> int                       documents to be had, up to where a broken file breaks
    members(file, start, stop) -> Iterator   the documents start to stop (`items.Member`); raises at a break

and may have `index(file) -> bytes`, handed back as `members(file, start, stop, index)`, where reaching a
document would else mean reading all before it.
"""

import contextlib
import dataclasses
import gzip
import io
import itertools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import BinaryIO, cast

import pyarrow.fs as pafs

from datapipe.errors import FileTooLarge, ReadError, SourceError
from datapipe.guard import Failure
from datapipe.sources.items import Item, Member, RawDocument
from datapipe.sources.video import caption_names as names_beside
from schemas import ids

_BUFFER_BYTES = 1 << 20  # one request to S3


Loaded = tuple[str, bytes | None] | Failure


@dataclasses.dataclass(frozen=True)
class Container:
    """A container file, where it lies, and what a survey found to reach its documents."""

    fs: pafs.FileSystem
    path: str
    uri: str
    content_id: str
    format: str
    index: bytes | None = None


@dataclasses.dataclass(frozen=True)
class Head:
    """A document of a container before it is read."""

    name: str
    content_id: str


@dataclasses.dataclass(frozen=True)
class Body:
    """A document that was read, and of what it names the content ids, with bytes where they come first; or
    why they are not to be had, though they are there.
    """

    document: RawDocument
    loaded: dict[str, Loaded]


@dataclasses.dataclass(frozen=True)
class End:
    """The last of the documents asked for has been read."""


def survey(container: Container) -> tuple[int, bytes | None]:
    """Return how many documents a container holds, and its index if it has one. Reads no document."""
    with _open(container) as file:
        module = _module(container.format, file)
        file.seek(0)
        if hasattr(module, "index"):
            index = module.index(file)
            return module.count(file, index), index or None
        return module.count(file), None


def read(
    container: Container, start: int, stop: int | None, max_bytes: int
) -> Iterator[Head | Body | Failure | End]:
    """Yield a head and then a body for each document from `start` to `stop`; None is the end of the file.

    A `Failure` in place of a body is the document's; an exception is the container's.
    """
    sent: set[str] = set()
    for member in _members(container, start, stop):
        yield Head(member.name, ids.content_id(member.content))
        try:
            if len(member.content) > max_bytes:
                raise FileTooLarge(f"{len(member.content)} bytes, more than {max_bytes}")
            document = member.document()
            loaded = _loaded(member, document)
        except Exception as error:  # the border of one bad document: the others go on
            yield Failure.of(error)
            continue
        yield Body(document, {name: _once(found, sent) for name, found in loaded.items()})
    yield End()


def _once(found: Loaded, sent: set[str]) -> Loaded:
    """Return a content id, with the bytes where they were not sent before."""
    if isinstance(found, Failure):
        return found
    content_id, data = found
    is_new = content_id not in sent
    sent.add(content_id)
    return content_id, data if is_new else None


def links(container: Container, max_bytes: int) -> list[str]:
    """Return which files the documents of a container name that it does not hold itself."""
    named: set[str] = set()
    for member in _members(container, 0, None):
        with contextlib.suppress(Exception):  # reading it fails again in `read`, which reports it
            if len(member.content) <= max_bytes:
                document = member.document()
                named |= set(linked(document.items, document.lang)) - set(_loaded(member, document))
    return sorted(named)


def linked(items: tuple[Item, ...], lang: str | None) -> list[str]:
    """Return the names of the files that items need: media, and caption files where there may be some."""
    names = []
    for number, item in enumerate(items):
        if item.href is not None:
            names.append(item.href)
        if item.kind == "video" and item.t_start_s is None:
            names += caption_names(item, items[number + 1] if number + 1 < len(items) else None, lang)
    return list(dict.fromkeys(names))


def caption_names(video: Item, following: Item | None, lang: str | None) -> list[str]:
    """Return where a video's captions may be: in the track its page names, or beside it under its name.

    Args:
        lang: primary language tag of the page; captions in it come first.
    """
    if following is not None and following.role == "transcript" and following.href:
        return [following.href]
    return names_beside(video.href or "", lang)


def _loaded(member: Member, document: RawDocument) -> dict[str, Loaded]:
    found: dict[str, Loaded] = {}
    for name in linked(document.items, document.lang):
        try:
            data = member.load(name)
            found[name] = ids.content_id(data), data
        except SourceError:  # it is not in the container
            continue
        except FileTooLarge as error:  # which leaves a good document
            found[name] = Failure.of(error)
    return found


class _Cursor:
    """A reading in progress, so that the next range of the same file goes on where the last one ended."""

    def __init__(self, container: Container, start: int) -> None:
        self.key = (container.path, container.content_id)
        self.file = _open(container)
        self.module = _module(container.format, self.file)
        self.at = start
        self.file.seek(0)
        self.members: Iterator[Member] = self.module.members(self.file, start, sys.maxsize)


_cursor: _Cursor | None = None


def _members(container: Container, start: int, stop: int | None) -> Iterator[Member]:
    """Yield documents of a container.

    Lines can only be counted from the start, and ranges come in order: so a file of lines is kept open, and
    the documents between the last range and this one are passed over.
    """
    global _cursor
    end = sys.maxsize if stop is None else stop
    if container.format != "jsonl":
        with _open(container) as file:
            module = _module(container.format, file)
            file.seek(0)
            more = () if container.index is None else (container.index,)
            yield from module.members(file, start, end, *more)
        return
    cursor, _cursor = _cursor, None
    if cursor is None or cursor.key != (container.path, container.content_id) or cursor.at > start:
        if cursor is not None:
            cursor.file.close()
        cursor = _Cursor(container, start)
    yield from itertools.islice(cursor.members, start - cursor.at, end - cursor.at)
    cursor.at = end
    _cursor = cursor


def _open(container: Container) -> BinaryIO:
    """Open a container for reading and seeking; a compressed file of lines is unpacked as it is read."""
    if isinstance(container.fs, pafs.LocalFileSystem):
        file: BinaryIO = open(container.path, "rb")  # noqa: SIM115  # its user closes it
    else:
        raw = container.fs.open_input_file(container.path)
        file = cast(BinaryIO, io.BufferedReader(raw, _BUFFER_BYTES))
    if container.uri.lower().endswith(".gz") and container.format != "warc":
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    return file


def _module(format: str, file: BinaryIO) -> ModuleType:
    """Return what reads a container. It is loaded only now, so that a missing library stops no other."""
    if format == "warc":
        from datapipe.sources import warc

        return warc
    if format == "jsonl":
        from datapipe.sources import json_lines, sessions

        _, line = next(json_lines.lines(file), (0, b"{}"))
        with contextlib.suppress(ReadError):  # of which the reader makes one failed document
            if sessions.is_session(json_lines.parse(line)):
                return sessions
    from datapipe.sources import corpora

    return corpora
