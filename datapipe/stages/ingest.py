"""Ingest: raw files become documents, media and, where they cannot be read, quarantine rows.

Owns the way from what readers and decoders return to the tables: captions are put in, each medium is
decoded once for a partition, rows are built in order. One bad file is one quarantine row; a picture that is
missing or cannot be decoded stays in its document as a segment without usable medium. Reading and decoding
are done behind a guard (`datapipe.guard`), so that what hangs or crashes is one bad file too. Reads nothing
but what `load` gives, and the containers of the source.

The rows of a document depend on it and on what it names, so any cut into partitions gives the same documents
in the same order.
"""

import dataclasses
import mimetypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from datapipe import errors
from datapipe import guard as guards
from datapipe.decode import rows
from datapipe.errors import DetectorMissing, FileTooLarge, SourceError
from datapipe.guard import Failure, Guard, Unguarded
from datapipe.sources import containers, formats, reading, subtitles
from datapipe.sources import files as sources
from datapipe.sources import video as captions
from datapipe.sources.files import SourceFile
from datapipe.sources.items import Item, is_remote, resolve
from datapipe.sources.video import Caption
from datapipe.spec import IngestSpec, SourceSpec
from schemas import document, ids, media, quarantine

VERSION = "5"
STAGE = "ingest"

Load = Callable[[str], bytes]
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Ingested:
    """The tables of one partition."""

    documents: pa.Table
    media: pa.Table
    quarantine: pa.Table


def ingest(
    files: Sequence[SourceFile],
    source: SourceSpec,
    spec: IngestSpec,
    load: Load,
    guard: Guard | Unguarded | None = None,
) -> Ingested:
    """Read files into documents and the media they show.

    Args:
        load: returns the bytes of a path from the source's root; raises for what is not there.
        guard: runs readers and decoders; the one of this process if none is given.

    Raises:
        SchemaError: the tables break their schemas (a bug here).
    """
    guard = guard or guards.shared(spec.time_limit_s, spec.memory_limit_bytes)
    inputs = [_Document(one) for one in reading.Reading(source, spec, load, guard).read(files)]
    partition = _Partition(sources.collection(source), source.license, spec, load, guard)
    for given in inputs:
        partition.put_in_captions(given)
    partition.decode(inputs)
    for given in inputs:
        partition.add(given)
    return partition.tables()


@dataclasses.dataclass
class _Document:
    """A document on its way to its rows."""

    read: reading.Input
    failure: Failure | None = None  # beside the reader's own: of what loads its media, or of a medium
    items: list[Item] = dataclasses.field(default_factory=list)  # with captions
    media_ids: dict[int, str | None] = dataclasses.field(default_factory=dict)  # by the item's number
    rejected: list[Row] = dataclasses.field(default_factory=list)  # files it names that cannot be read

    def __post_init__(self) -> None:
        self.failure = self.read.failure


class _Partition:
    """The rows of one partition while they are collected."""

    def __init__(
        self, collection: str, license: str | None, spec: IngestSpec, load: Load, guard: Guard | Unguarded
    ) -> None:
        self.collection, self.license, self.spec = collection, license, spec
        self.load, self.guard = load, guard
        self.documents: list[Row] = []
        self.media: dict[str, Row] = {}  # by media_id, in the order of first use
        self.rejected: list[Row] = []
        self.data: dict[str, bytes] = {}  # by content id
        self.found: dict[str, str | None] = {}  # content id by path
        self.decoded: dict[str, list[Row]] = {}  # a medium and its frames, by media_id

    def tables(self) -> Ingested:
        tables = Ingested(
            pa.Table.from_pylist(self.documents, schema=document.SCHEMA),
            pa.Table.from_pylist(list(self.media.values()), schema=media.SCHEMA),
            pa.Table.from_pylist(self.rejected, schema=quarantine.SCHEMA),
        )
        document.validate(tables.documents)
        media.validate(tables.media)
        quarantine.validate(tables.quarantine)
        return tables

    def put_in_captions(self, given: _Document) -> None:
        """Cut each whole video into its captioned stretches, where captions can be had."""
        if given.read.document is None:
            return
        try:
            given.items = list(self.with_captions(given, given.read.document.items))
        except Exception as error:  # of the loader; the border of one bad input
            given.failure = Failure.of(error)

    def with_captions(self, given: _Document, items: Sequence[Item]) -> Iterator[Item]:
        for number, item in enumerate(items):
            if item.kind == "image" and item.href and formats.by_name(item.href.split("?")[0]) == "video":
                item = dataclasses.replace(item, kind="video")  # Markdown embeds both the same way
            if item.role == "transcript" and item.text is None:
                continue  # a track, taken with the video before it
            if item.kind != "video" or item.t_start_s is not None:
                yield item
                continue
            found = self.captions(given, item, items[number + 1] if number + 1 < len(items) else None)
            yield from captions.captioned(item, found) if found else [item]

    def captions(self, given: _Document, video: Item, following: Item | None) -> list[captions.Caption]:
        lang = given.read.document.lang if given.read.document is not None else None
        for name in containers.caption_names(video, following, lang):
            content_id = self.content_of(given, name)
            if content_id is None:
                continue
            (read,) = self.guard.each(captions.read_captions, [(self.data[content_id], name)])
            if not isinstance(read, Failure):
                return read
            given.rejected.append(self.rejection(name, content_id, read))  # it leaves a good video
        return self.own_words(given, video, lang)

    def own_words(self, given: _Document, video: Item, lang: str | None) -> list[Caption]:
        """Return the subtitles inside a video, or what is said in it where the spec asks for that."""
        media_id = self.media_id(given, video)
        if media_id is None or len(self.data[media_id]) > self.spec.max_file_bytes:
            return []
        limits = self.spec.video
        limit_s = None if limits.speech_model is None else limits.speech_limit_s
        (read,) = self.guard.each(subtitles.own_words, [(self.data[media_id], lang, limits)], limit_s)
        if not isinstance(read, Failure):
            return read
        if read.error_class == DetectorMissing.__name__:
            raise DetectorMissing(read.message)
        if not issubclass(getattr(errors, read.error_class, Exception), errors.DecodeError):
            given.rejected.append(self.rejection(video.href or given.read.uri, media_id, read))
        return []  # what is wrong with the video itself, decoding it tells

    def content_of(self, given: _Document, href: str) -> str | None:
        """Return the content id of a linked file, its bytes now in `data`; None when it is missing, on the
        web or outside the folder.
        """
        if href in given.read.loaded:
            loaded = given.read.loaded[href]
            if isinstance(loaded, Failure):
                uri = f"{given.read.folder}#{href}"
                if all(row["uri"] != uri for row in given.rejected):
                    given.rejected.append(self.rejection(uri, None, loaded))
                return None
            content_id, data = loaded
            if data is not None:
                self.data[content_id] = data
            return content_id
        path = resolve(given.read.folder, href) if given.read.folder else href
        if path is None or is_remote(path):
            return None
        if path not in self.found:
            try:
                data = self.load(path)
            except (SourceError, FileNotFoundError):
                self.found[path] = None
            except FileTooLarge as error:
                self.found[path] = None
                given.rejected.append(self.rejection(path, None, Failure.of(error)))
            else:
                self.found[path] = content_id = ids.content_id(data)
                self.data[content_id] = data
        return self.found[path]

    def decode(self, inputs: Sequence[_Document]) -> None:
        """Load and decode what the documents show, each medium once."""
        asked: list[tuple[str, Item]] = []
        outcomes = self.guard.each(rows.media_rows, self.calls(inputs, asked))
        for (media_id, item), outcome in zip(asked, outcomes, strict=True):
            row = self.original(media_id, item)
            if isinstance(outcome, Failure):
                self.decoded[media_id] = [row | _unusable(item, outcome)]
            else:
                self.decoded[media_id] = [row | outcome[0], *outcome[1:]]

    def calls(
        self, inputs: Iterable[_Document], asked: list[tuple[str, Item]]
    ) -> Iterator[tuple[str, bytes, str, IngestSpec]]:
        """Yield the calls that decode what the documents show, and note in `asked` what they are about."""
        pending: set[str] = set()
        for given in inputs:
            try:
                for number, item in enumerate(given.items):
                    if item.kind == "text":
                        continue
                    media_id = given.media_ids[number] = self.media_id(given, item)
                    if media_id is None or media_id in pending:
                        continue
                    pending.add(media_id)
                    if len(self.data[media_id]) > self.spec.max_file_bytes:
                        self.decoded[media_id] = [self.too_large(media_id, item)]
                        continue
                    asked.append((media_id, item))
                    yield media_id, self.data[media_id], item.kind, self.spec
            except Exception as error:  # of the loader; the border of one bad input
                given.failure = Failure.of(error)

    def media_id(self, given: _Document, item: Item) -> str | None:
        if item.data is None:
            assert item.href is not None
            return self.content_of(given, item.href)
        media_id = ids.content_id(item.data)
        self.data[media_id] = item.data
        return media_id

    def original(self, media_id: str, item: Item) -> Row:
        names = dict.fromkeys(media.SCHEMA.names)
        return {**names, "media_id": media_id, "kind": item.kind, "bytes": self.data[media_id]}

    def too_large(self, media_id: str, item: Item) -> Row:
        size = len(self.data[media_id])
        failure = Failure.of(FileTooLarge(f"{size} bytes, more than {self.spec.max_file_bytes}"))
        return {**self.original(media_id, item), **_unusable(item, failure), "bytes": None}

    def add(self, given: _Document) -> None:
        """Add the rows of a document, or the one that says why there are none."""
        self.rejected += given.rejected
        uri, content_id, raw = given.read.uri, given.read.content_id, given.read.document
        if given.failure is None and raw is not None and raw.format in formats.MEDIA:
            given.failure = self.fault_of_medium(given)
        if given.failure is not None:
            self.rejected.append(self.rejection(uri, content_id, given.failure))
            return
        assert raw is not None and content_id is not None
        for media_id in given.media_ids.values():
            for row in self.decoded[media_id] if media_id is not None else ():
                self.media.setdefault(row["media_id"], row)
        segments, masks = self.segments(given, raw.format)
        self.documents.append(
            {
                "doc_id": ids.document_id(self.collection, uri, content_id),
                "uri": uri,
                "collection": self.collection,
                "format": raw.format,
                "license": self.license,
                "title": raw.title,
                "lang": raw.lang,
                "lang_prob": None,
                "segments": segments,
                "masks": masks,
                "cluster_id": None,
                "cluster_size": None,
                "drop_reason": None,
            }
        )

    def fault_of_medium(self, given: _Document) -> Failure | None:
        """Return why a picture or video file of its own cannot be used, if so."""
        for media_id in given.media_ids.values():
            row = self.decoded[media_id][0] if media_id is not None else None
            if row is not None and row["error"] is not None:
                error_class, _, message = row["error"].partition(": ")
                return Failure(error_class, message)
        return None

    def rejection(self, uri: str, content_id: str | None, failure: Failure) -> Row:
        return {
            "uri": uri,
            "collection": self.collection,
            "stage": STAGE,
            "error_class": failure.error_class,
            "message": failure.message,
            "content_id": content_id,
        }

    def segments(self, given: _Document, format: str) -> tuple[list[Row], list[Row]]:
        """Return the items as segments, and a mask for each that the reader wants out of the stream."""
        segments: list[Row] = []
        masks = []
        for number, item in enumerate(given.items):
            segment = self.segment(item, given.media_ids.get(number))
            if segment is None:
                continue
            if item.mask is not None:
                masks.append(
                    {
                        **dict.fromkeys(document.MASK.names),
                        "segment": len(segments),
                        "reason": item.mask,
                        "action": "drop",
                        "detector": f"reader:{format}",
                    }
                )
            segments.append({**segment, "origin": len(segments)})
        return segments, masks

    def segment(self, item: Item, media_id: str | None) -> Row | None:
        """Return an item as a segment; None for a stretch of a video that turns out to lie past its end."""
        row: Row = {
            "kind": item.kind,
            "role": item.role,
            "text": item.text,
            "media_id": media_id,
            "href": item.href,
            "t_start_s": item.t_start_s,
            "t_end_s": item.t_end_s,
            "page": item.page,
        }
        if item.kind != "video":
            return row
        duration_s = self.decoded[media_id][0]["duration_s"] if media_id is not None else None
        start_s = item.t_start_s or 0.0
        if duration_s is None:  # missing or damaged: nothing tells how long its open end would be
            return None if start_s > 0 and item.t_end_s is None else row
        end_s = duration_s if item.t_end_s is None else min(item.t_end_s, duration_s)
        is_rest = item.t_end_s is None and start_s > 0
        if end_s <= start_s or (is_rest and end_s - start_s < captions.MIN_STRETCH_S):
            return None
        return {**row, "t_start_s": start_s, "t_end_s": end_s}


def _unusable(item: Item, failure: Failure) -> Row:
    """Return the columns of a medium that cannot be used."""
    mime = item.mime or mimetypes.guess_type(item.href or "")[0] or "application/octet-stream"
    return {"mime": mime, "error": f"{failure.error_class}: {failure.message}"}
