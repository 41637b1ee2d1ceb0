"""The `media` table: content-addressed images, videos and video frames.

Owns what a medium row is. `media_id` is the hash of the stored bytes, which for images and videos are the
original file's bytes; a frame's bytes are the picture encoded when it was sampled, and its `parent_id` names
the video. `pixels_id` is the hash of the canonical pixels (after orientation, colour and alpha policy), so
the same picture in another container has the same `pixels_id`.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from schemas import check, ids
from schemas.errors import SchemaError

KINDS = ("image", "video", "frame")

SCHEMA = pa.schema(
    [
        pa.field("media_id", pa.string(), nullable=False),
        pa.field("pixels_id", pa.string()),
        pa.field("parent_id", pa.string()),  # the video a frame was taken from
        pa.field("kind", pa.string(), nullable=False),
        pa.field("mime", pa.string(), nullable=False),
        pa.field("bytes", pa.large_binary()),
        pa.field("width", pa.int32()),  # pixels, after orientation
        pa.field("height", pa.int32()),
        pa.field("num_frames", pa.int32()),
        pa.field("duration_s", pa.float64()),
        pa.field("t_s", pa.float64()),  # a frame's time in its video
        pa.field("cuts_s", pa.list_(pa.float64())),  # when a video's later shots begin; null for other kinds
        pa.field("perceptual_hash", pa.uint64()),
        pa.field("policy", pa.string()),  # what was applied, e.g. "exif=6 icc=srgb alpha=white frame=0"
        pa.field("error", pa.string()),  # why the medium cannot be used; null when it can
    ]
)


def validate(table: pa.Table | pa.RecordBatch) -> None:
    """Check a media table: schema, kinds, frames that name their video, ids that are the hash of the bytes.

    Raises:
        SchemaError: naming the column and the media_id.
    """
    check.matches(table, SCHEMA, "media")
    check.one_of(table["kind"], KINDS, "media.kind")
    orphan = pc.and_(pc.equal(table["kind"], "frame"), pc.is_null(table["parent_id"]))
    wrong = pc.index(orphan, True).as_py()
    if wrong >= 0:
        raise SchemaError(f"media.parent_id: frame {table['media_id'][wrong]} names no video")
    for media_id, data in zip(table["media_id"], table["bytes"], strict=True):
        if data.is_valid and ids.content_id(memoryview(data.as_buffer())) != media_id.as_py():
            raise SchemaError(f"media.bytes: the bytes of {media_id} do not hash to their media_id")


def index_by_id(table: pa.Table) -> tuple[dict[str, dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """Return usable media by media_id, and each video's frames in time order by the video's media_id."""
    by_id: dict[str, dict[str, Any]] = {}
    frames: dict[str, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        if row["error"] is None and row["media_id"] not in by_id:
            by_id[row["media_id"]] = row
            if row["kind"] == "frame":
                frames.setdefault(row["parent_id"], []).append(row)
    for rows in frames.values():
        rows.sort(key=lambda row: row["t_s"])
    return by_id, frames
