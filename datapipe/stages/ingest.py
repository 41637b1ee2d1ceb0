"""Ingest: raw files become documents, media and, where they cannot be read, quarantine rows.

Owns the way from a reader's items to the tables: each picture is loaded and decoded once for a partition,
videos are sampled into frames, captions are put in. One bad file is one quarantine row; a picture that is
missing or cannot be decoded stays in its document as a segment without usable medium. Reads nothing but what
`load` gives.
"""

import dataclasses
import mimetypes
import posixpath
import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from datapipe import errors
from datapipe.decode import rows
from datapipe.errors import DecodeError, FileTooLarge, SourceError
from datapipe.sources import files as sources
from datapipe.sources import video as captions
from datapipe.sources.files import SourceFile
from datapipe.sources.items import Item, RawDocument, is_remote
from datapipe.spec import IngestSpec, SourceSpec
from schemas import document, ids, media, quarantine

VERSION = "2"
STAGE = "ingest"

Load = Callable[[str], bytes]
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Ingested:
    """The tables of one partition."""

    documents: pa.Table
    media: pa.Table
    quarantine: pa.Table


def ingest(files: Sequence[SourceFile], source: SourceSpec, spec: IngestSpec, load: Load) -> Ingested:
    """Read files into documents and the media they show.

    Args:
        load: returns the bytes of a path from the source's root; raises for what is not there.

    Raises:
        SchemaError: the tables break their schemas (a bug here).
    """
    partition = _Partition(sources.collection(source), source.license, spec, load)
    for file in files:
        num_media = len(partition.media)
        try:
            partition.read(file)
        except Exception as error:  # the border of one bad input: whatever it raises, the others go on
            partition.forget_media_after(num_media)
            partition.reject(file.uri, file.content_id, error)
    tables = Ingested(
        pa.Table.from_pylist(partition.documents, schema=document.SCHEMA),
        pa.Table.from_pylist(list(partition.media.values()), schema=media.SCHEMA),
        pa.Table.from_pylist(partition.rejected, schema=quarantine.SCHEMA),
    )
    document.validate(tables.documents)
    media.validate(tables.media)
    quarantine.validate(tables.quarantine)
    return tables


class _Partition:
    """The rows of one partition while they are collected."""

    def __init__(self, collection: str, license: str | None, spec: IngestSpec, load: Load) -> None:
        self.collection, self.license, self.spec, self.load = collection, license, spec, load
        self.documents: list[Row] = []
        self.media: dict[str, Row] = {}  # by media_id, in the order of first use
        self.rejected: list[Row] = []
        self.seen: dict[str, str | None] = {}  # media_id by href

    def read(self, file: SourceFile) -> None:
        if file.size_bytes > self.spec.max_file_bytes:
            raise FileTooLarge(f"{file.size_bytes} bytes, more than {self.spec.max_file_bytes}")
        raw = sources.read(self.load(file.uri), file.uri)
        segments, masks = self.segments(raw)
        if raw.format in ("image", "video"):
            self.check_usable(segments)
        self.documents.append(
            {
                "doc_id": ids.document_id(self.collection, file.uri, file.content_id),
                "uri": file.uri,
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

    def reject(self, uri: str, content_id: str | None, error: Exception) -> None:
        self.rejected.append(
            {
                "uri": uri,
                "collection": self.collection,
                "stage": STAGE,
                "error_class": type(error).__name__,
                "message": _message(error),
                "content_id": content_id,
            }
        )

    def segments(self, raw: RawDocument) -> tuple[list[Row], list[Row]]:
        """Return the items as segments, and a mask for each that the reader wants out of the stream."""
        segments: list[Row] = []
        masks = []
        for item in self.with_captions(raw.items):
            segment = self.segment(item)
            if segment is None:
                continue
            if item.mask is not None:
                masks.append(
                    {
                        **dict.fromkeys(document.MASK.names),
                        "segment": len(segments),
                        "reason": item.mask,
                        "action": "drop",
                        "detector": f"reader:{raw.format}",
                    }
                )
            segments.append({**segment, "origin": len(segments)})
        return segments, masks

    def with_captions(self, items: Sequence[Item]) -> list[Item]:
        """Return the items with each whole video cut into its captioned stretches, where captions can be had.

        They come from the page's own caption track, or from a file beside the video that has its name.
        """
        result: list[Item] = []
        for number, item in enumerate(items):
            if item.kind == "image" and item.href and sources.format_of(b"", item.href) == "video":
                item = dataclasses.replace(item, kind="video")  # Markdown embeds both the same way
            if item.role == "transcript" and item.text is None:
                continue  # a track, taken with the video before it
            if item.kind != "video" or item.t_start_s is not None:
                result.append(item)
                continue
            found = self.captions(item, items[number + 1] if number + 1 < len(items) else None)
            result += captions.captioned(item, found) if found else [item]
        return result

    def captions(self, video: Item, following: Item | None) -> list[captions.Caption]:
        stem = posixpath.splitext(video.href or "")[0]
        names = [stem + suffix for suffix in captions.CAPTION_SUFFIXES] if stem else []
        if following is not None and following.role == "transcript" and following.href:
            names = [following.href]
        for name in names:
            data = self.bytes_of(name)
            if data is None:
                continue
            try:
                return captions.read_captions(data, name)
            except Exception as error:  # a bad caption file leaves a good video
                self.reject(name, ids.content_id(data), error)
        return []

    def bytes_of(self, href: str) -> bytes | None:
        """Return the bytes of a linked file; None when it is missing, on the web or outside the folder."""
        if is_remote(href):
            return None
        try:
            return self.load(href)
        except (SourceError, FileNotFoundError):
            return None

    def segment(self, item: Item) -> Row | None:
        """Return an item as a segment; None for a stretch of a video that turns out to lie past its end."""
        row: Row = {
            "kind": item.kind,
            "role": item.role,
            "text": item.text,
            "media_id": None,
            "t_start_s": item.t_start_s,
            "t_end_s": item.t_end_s,
            "page": item.page,
        }
        if item.kind == "text":
            return row
        row["media_id"] = self.medium(item)
        if item.kind != "video":
            return row
        duration_s = self.media[row["media_id"]]["duration_s"] if row["media_id"] else None
        start_s = item.t_start_s or 0.0
        if duration_s is None:  # missing or damaged: nothing tells how long its open end would be
            return None if start_s > 0 and item.t_end_s is None else row
        end_s = duration_s if item.t_end_s is None else min(item.t_end_s, duration_s)
        is_rest = item.t_end_s is None and start_s > 0
        if end_s <= start_s or (is_rest and end_s - start_s < captions.MIN_STRETCH_S):
            return None
        return {**row, "t_start_s": start_s, "t_end_s": end_s}

    def medium(self, item: Item) -> str | None:
        """Return the media_id of an item's picture or video, having loaded and decoded it the first time."""
        if item.data is not None:
            return self.add(item.data, item)
        assert item.href is not None
        if item.href not in self.seen:
            data = self.bytes_of(item.href)
            self.seen[item.href] = None if data is None else self.add(data, item)
        return self.seen[item.href]

    def add(self, data: bytes, item: Item) -> str:
        media_id = ids.content_id(data)
        if media_id not in self.media:
            for row in _media_rows(media_id, data, item, self.spec):
                self.media.setdefault(row["media_id"], row)
        return media_id

    def forget_media_after(self, num_media: int) -> None:
        """Take out the media of a document that was refused after all."""
        for media_id in list(self.media)[num_media:]:
            del self.media[media_id]
        self.seen = {href: found for href, found in self.seen.items() if found is None or found in self.media}

    def check_usable(self, segments: list[Row]) -> None:
        """Refuse a picture or video file of its own that cannot be decoded."""
        for segment in segments:
            row = self.media.get(segment["media_id"] or "")
            if row is not None and row["error"] is not None:
                kind, _, message = row["error"].partition(": ")
                raise getattr(errors, kind, DecodeError)(message)


def _media_rows(media_id: str, data: bytes, item: Item, spec: IngestSpec) -> list[Row]:
    """Return the row of a picture, or of a video followed by its frames; a fault becomes the row's
    `error`.
    """
    row = {**dict.fromkeys(media.SCHEMA.names), "media_id": media_id, "kind": item.kind, "bytes": data}
    try:
        if len(data) > spec.max_file_bytes:
            row["bytes"] = None
            raise FileTooLarge(f"{len(data)} bytes, more than {spec.max_file_bytes}")
        first, *frames = rows.media_rows(media_id, data, item.kind, spec)
        return [row | first, *frames]
    except Exception as error:  # the border of one bad medium: its document stays
        mime = item.mime or mimetypes.guess_type(item.href or "")[0] or "application/octet-stream"
        return [row | {"mime": mime, "error": f"{type(error).__name__}: {_message(error)}"}]


def _message(error: Exception) -> str:
    """Return an error's message without memory addresses, which differ from run to run."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(error))
