"""Mask media: pictures that carry no content of their document leave the stream, with a reason.

Owns the reasons `media_error`, `too_small`, `extreme_aspect` and `repeated_image`. Judges by size, and by
where and how often a picture is shown; whether it fits its text is the business of the scorers.

Three parts: `occurrences` (map), `repeated` (reduce over all occurrences), `mark` (map). A segment gets one
mask, by the first reason that holds in the order above. Videos leave for `media_error` only.

A picture is what `dedupe_media` clusters: a logo that was saved anew for each page is one picture. In more
than `max_documents` documents it is repeated. Then

- where it is small, it is an icon: it leaves everywhere;
- in a site that shows it on more than `max_site_frac` of its pages it is furniture, such as a banner: it
  leaves there;
- else it is content that is used again, such as the photo on which a manual shows what each filter does. It
  stays, for each page says something else of it, but in at most `max_content_documents` documents: first
  those where it has a caption, then in the order of a hash of document and picture.

The site of a document is the host of a web address in its uri, else its collection.
"""

import re
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from datapipe.spec import MaskMediaSpec
from schemas import document, ids

VERSION = "3"
DETECTOR = "rules"
_HOST = re.compile(r"https?://(?:www\.)?([^/?#]+)", re.IGNORECASE)

OCCURRENCES = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("site", pa.string(), nullable=False),
        pa.field("picture", pa.string()),  # null in one row of each document, which counts it
        pa.field("is_content", pa.bool_(), nullable=False),  # large enough to be no icon
        pa.field("has_caption", pa.bool_(), nullable=False),
    ]
)
REPEATED = pa.schema(
    [
        pa.field("picture", pa.string(), nullable=False),
        pa.field("num_documents", pa.int64(), nullable=False),
        pa.field("furniture_of", pa.list_(pa.string()), nullable=False),  # sites that it leaves
        pa.field("kept_in", pa.list_(pa.string())),  # documents in which it stays; null for all
    ]
)

Medium = dict[str, Any]
Row = dict[str, Any]


def occurrences(
    batch: pa.RecordBatch, media: pa.Table, clusters: pa.Table, spec: MaskMediaSpec
) -> pa.RecordBatch:
    """Return which pictures each document shows and no mask drops, each once, and a row for the document.

    Args:
        clusters: media_id and cluster_id of the media that are copies of others.
    """
    by_id = _by_id(media, clusters)
    rows: list[Row] = []
    for row in batch.select(["doc_id", "uri", "collection", "segments", "masks"]).to_pylist():
        here = {"doc_id": row["doc_id"], "site": site(row["uri"], row["collection"])}
        rows.append({**here, "picture": None, "is_content": False, "has_caption": False})
        found: dict[str, Row] = {}
        dropped = _dropped(row["masks"])
        for number, segment in enumerate(row["segments"]):
            medium = by_id.get(segment["media_id"])
            if segment["kind"] != "image" or medium is None or medium["error"] or number in dropped:
                continue
            seen = found.setdefault(medium["picture"], {"is_content": False, "has_caption": False})
            seen["is_content"] |= _is_content(medium, spec)
            seen["has_caption"] |= _has_caption(row["segments"], number)
        rows += [{**here, "picture": picture, **seen} for picture, seen in found.items()]
    return pa.RecordBatch.from_pylist(rows, schema=OCCURRENCES)


def repeated(occurrences: pa.Table, spec: MaskMediaSpec) -> pa.Table:
    """Return the pictures that more than `max_documents` documents show (`REPEATED`), ordered by picture."""
    counted = (
        occurrences.filter(pc.is_null(occurrences["picture"])).group_by("site").aggregate([([], "count_all")])
    )
    num_pages = dict(zip(counted["site"].to_pylist(), counted["count_all"].to_pylist(), strict=True))
    shown = occurrences.filter(pc.is_valid(occurrences["picture"]))
    counts = shown.group_by("picture").aggregate([([], "count_all")])
    counts = counts.filter(pc.greater(counts["count_all"], spec.max_documents))
    shown = shown.filter(pc.is_in(shown["picture"], value_set=counts["picture"].combine_chunks()))
    documents: dict[str, list[Row]] = defaultdict(list)
    for row in shown.to_pylist():
        documents[row["picture"]].append(row)
    rows = []
    for picture, showing in sorted(documents.items()):
        furniture_of = _furniture_of(showing, num_pages, spec)
        kept_in = _kept_in(picture, showing, furniture_of, spec)
        rows.append(
            {
                "picture": picture,
                "num_documents": len(showing),
                "furniture_of": sorted(furniture_of),
                "kept_in": kept_in,
            }
        )
    return pa.Table.from_pylist(rows, schema=REPEATED)


def mark(
    batch: pa.RecordBatch, media: pa.Table, clusters: pa.Table, repeated: pa.Table, spec: MaskMediaSpec
) -> pa.RecordBatch:
    """Return the documents with a whole-segment drop mask on each picture to leave that has none yet."""
    by_id = _by_id(media, clusters)
    by_picture = {row["picture"]: row for row in repeated.to_pylist()}
    column = []
    for row in batch.select(["doc_id", "uri", "collection", "segments", "masks"]).to_pylist():
        dropped = _dropped(row["masks"])
        new = []
        for number, segment in enumerate(row["segments"]):
            if segment["kind"] == "text" or number in dropped:
                continue
            medium = by_id.get(segment["media_id"])
            reason = _own_reason(segment["kind"], medium, spec)
            if reason is None and segment["kind"] == "image" and _leaves(row, medium, by_picture, spec):
                reason = "repeated_image"
            if reason is not None:
                new.append(_mask(number, reason))
        column.append(row["masks"] + new)
    index, field = document.SCHEMA.get_field_index("masks"), document.SCHEMA.field("masks")
    return batch.set_column(index, field, pa.array(column, type=field.type))


def site(uri: str, collection: str) -> str:
    """Return the host of the web address in a document's uri; its collection where there is none.

    >>> site("crawl.warc.gz#https://www.example.org/a.html", "crawl")
    'example.org'
    """
    host = _HOST.search(uri)
    return host[1].lower() if host is not None else collection


# ---- one document


def _by_id(media: pa.Table, clusters: pa.Table) -> dict[str | None, Medium]:
    """Return the media by id, without their bytes, and with the picture each one is a copy of."""
    columns = media.select(["media_id", "width", "height", "error"])
    mine = clusters.filter(pc.is_in(clusters["media_id"], value_set=media["media_id"].combine_chunks()))
    picture = dict(zip(mine["media_id"].to_pylist(), mine["cluster_id"].to_pylist(), strict=True))
    return {
        row["media_id"]: {**row, "picture": picture.get(row["media_id"], row["media_id"])}
        for row in columns.to_pylist()
    }


def _dropped(masks: list[Row]) -> set[int]:
    """Return the segments that a mask drops as a whole."""
    return {
        mask["segment"]
        for mask in masks
        if mask["action"] == "drop" and mask["start"] is None and mask["end"] is None and mask["box"] is None
    }


def _has_caption(segments: list[Row], number: int) -> bool:
    """Return whether a caption is among the texts of a picture that directly follow it."""
    for segment in segments[number + 1 :]:
        if segment["kind"] != "text" or segment["role"] not in ("alt", "caption"):
            return False
        if segment["role"] == "caption":
            return True
    return False


def _is_content(medium: Medium, spec: MaskMediaSpec) -> bool:
    return bool(min(medium["width"], medium["height"]) >= spec.min_content_side)


def _own_reason(kind: str, medium: Medium | None, spec: MaskMediaSpec) -> str | None:
    """Return why a picture or video leaves wherever else it is shown; no medium means it could not be had."""
    if medium is None or medium["error"] is not None:
        return "media_error"
    if kind == "video":
        return None
    short, long = sorted((medium["width"], medium["height"]))
    if short < spec.min_side:
        return "too_small"
    return "extreme_aspect" if long > spec.max_aspect * short else None


def _leaves(row: Row, medium: Medium | None, repeated: dict[str, Row], spec: MaskMediaSpec) -> bool:
    assert medium is not None
    found = repeated.get(medium["picture"])
    if found is None:
        return False
    if not _is_content(medium, spec) or site(row["uri"], row["collection"]) in found["furniture_of"]:
        return True
    return found["kept_in"] is not None and row["doc_id"] not in found["kept_in"]


def _mask(number: int, reason: str) -> Row:
    return {
        "segment": number,
        "start": None,
        "end": None,
        "box": None,
        "reason": reason,
        "action": "drop",
        "detector": DETECTOR,
    }


# ---- one picture


def _furniture_of(showing: list[Row], num_pages: dict[str, int], spec: MaskMediaSpec) -> set[str]:
    counts: dict[str, int] = defaultdict(int)
    for row in showing:
        counts[row["site"]] += 1
    return {
        name
        for name, count in counts.items()
        if count > spec.max_documents and count > spec.max_site_frac * num_pages[name]
    }


def _kept_in(
    picture: str, showing: list[Row], furniture_of: set[str], spec: MaskMediaSpec
) -> list[str] | None:
    """Return the documents in which a picture stays as content; None for all that show it as that."""
    content = [row for row in showing if row["is_content"] and row["site"] not in furniture_of]
    if len(content) <= spec.max_content_documents:
        return None
    order = sorted(
        (not row["has_caption"], ids.content_id(f"{row['doc_id']}:{picture}".encode()), row["doc_id"])
        for row in content
    )
    return sorted(doc_id for _, _, doc_id in order[: spec.max_content_documents])
