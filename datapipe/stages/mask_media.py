"""Mask media: pictures that carry no content of their document leave the stream, with a reason.

Owns the reasons `media_error`, `too_small`, `extreme_aspect` and `repeated_image`. Judges by size, and by the
number of documents that show the same pixels; whether a picture fits its text is the business of the scorers.

Three parts: `occurrences` (map), `repeated` (reduce over all occurrences), `mark` (map). A segment gets one
mask, by the first reason that holds in the order above. Videos leave for `media_error` only.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from datapipe.spec import MaskMediaSpec
from schemas import document

VERSION = "2"
DETECTOR = "rules"

OCCURRENCES = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("pixels_id", pa.string(), nullable=False),
    ]
)
REPEATED = pa.schema(
    [
        pa.field("pixels_id", pa.string(), nullable=False),
        pa.field("num_documents", pa.int64(), nullable=False),
    ]
)

Medium = dict[str, Any]


def occurrences(batch: pa.RecordBatch, media: pa.Table) -> pa.RecordBatch:
    """Return which pictures each document shows, by content, each once."""
    by_id = _by_id(media)
    rows: dict[tuple[str, str], None] = {}
    for row in batch.select(["doc_id", "segments"]).to_pylist():
        for segment in row["segments"]:
            medium = by_id.get(segment["media_id"])
            if segment["kind"] == "image" and medium is not None and medium["pixels_id"] is not None:
                rows[row["doc_id"], medium["pixels_id"]] = None
    return pa.RecordBatch.from_pylist([{"doc_id": d, "pixels_id": p} for d, p in rows], schema=OCCURRENCES)


def repeated(occurrences: pa.Table, spec: MaskMediaSpec) -> pa.Table:
    """Return the pictures that more than `max_documents` documents show, ordered by pixels_id."""
    counts = occurrences.group_by("pixels_id").aggregate([("doc_id", "count_distinct")])
    counts = counts.rename_columns({"doc_id_count_distinct": "num_documents"}).select(REPEATED.names)
    counts = counts.cast(REPEATED)
    return counts.filter(pc.greater(counts["num_documents"], spec.max_documents)).sort_by("pixels_id")


def mark(batch: pa.RecordBatch, media: pa.Table, repeated: pa.Table, spec: MaskMediaSpec) -> pa.RecordBatch:
    """Return the documents with a whole-segment drop mask on each picture to leave that has none yet."""
    by_id, too_common = _by_id(media), frozenset(repeated["pixels_id"].to_pylist())
    column = []
    for row in batch.select(["segments", "masks"]).to_pylist():
        gone = {
            m["segment"]
            for m in row["masks"]
            if m["action"] == "drop" and m["start"] is None and m["end"] is None and m["box"] is None
        }
        reasons = {
            number: reason
            for number, segment in enumerate(row["segments"])
            if number not in gone
            and segment["kind"] != "text"
            and (reason := _reason(segment["kind"], by_id.get(segment["media_id"]), too_common, spec))
        }
        column.append(
            row["masks"]
            + [
                {
                    "segment": number,
                    "start": None,
                    "end": None,
                    "box": None,
                    "reason": reason,
                    "action": "drop",
                    "detector": DETECTOR,
                }
                for number, reason in reasons.items()
            ]
        )
    index, field = document.SCHEMA.get_field_index("masks"), document.SCHEMA.field("masks")
    return batch.set_column(index, field, pa.array(column, type=field.type))


def _by_id(media: pa.Table) -> dict[str | None, Medium]:
    """Return the media by id, without their bytes."""
    columns = media.select(["media_id", "pixels_id", "width", "height", "error"])
    return {row["media_id"]: row for row in columns.to_pylist()}


def _reason(kind: str, medium: Medium | None, too_common: frozenset[str], spec: MaskMediaSpec) -> str | None:
    """Return why a picture or video leaves, None where it stays. It could not be had if `medium` is None."""
    if medium is None or medium["error"] is not None:
        return "media_error"
    if kind == "video":
        return None
    short, long = sorted((medium["width"], medium["height"]))
    if short < spec.min_side:
        return "too_small"
    if long > spec.max_aspect * short:
        return "extreme_aspect"
    return "repeated_image" if medium["pixels_id"] in too_common else None
