"""The `documents` table: one raw document as segments in reading order, with the masks laid over it.

Owns the document, segment and mask types and their rules. Media bytes live in the `media` table
(`schemas.media`).

A mask says what is touched, why, and what happens. `action` is `drop` (leaves the stream) or `no_loss` (stays
as context, trains nothing). What `start` and `end` count depends on the segment's kind: characters (Unicode
code points) of the text, or milliseconds of the video; both null means the whole segment. `box` is [x0, y0,
x1, y1] as fractions of the picture's width and height.
"""

import pyarrow as pa
import pyarrow.compute as pc

from schemas import check, media
from schemas.errors import SchemaError

KINDS = ("text", "image", "video")
ROLES = (
    "heading",
    "paragraph",
    "list_item",
    "code",
    "table",
    "caption",
    "alt",
    "transcript",
    "figure",
    "note",
    "system",
    "user",
    "assistant",
    "thinking",
    "tool_call",
    "tool_result",
)
ACTIONS = ("drop", "no_loss")

SEGMENT = pa.struct(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("role", pa.string(), nullable=False),
        pa.field("text", pa.large_string()),  # for kind text; null otherwise
        pa.field("media_id", pa.string()),  # for kind image and video; null when the picture could not be had
        pa.field("href", pa.string()),  # of a medium: path from the source's root, or address; null if inline
        pa.field("t_start_s", pa.float64()),  # seconds into the video the segment shows or speaks over
        pa.field("t_end_s", pa.float64()),
        pa.field("page", pa.int32()),  # page or slide it stands on, from 1; null where the format has none
        pa.field("origin", pa.int32(), nullable=False),  # number of the segment of `ingest` it comes from
    ]
)
MASK = pa.struct(
    [
        pa.field("segment", pa.int32(), nullable=False),
        pa.field("start", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("box", pa.list_(pa.float32())),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        pa.field("detector", pa.string(), nullable=False),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("uri", pa.string(), nullable=False),  # relative to the collection
        pa.field("collection", pa.string(), nullable=False),
        pa.field(
            "format", pa.string(), nullable=False
        ),  # html, mallard, rst, markdown, text, image, video ...
        pa.field("license", pa.string()),
        pa.field("title", pa.large_string()),
        pa.field("lang", pa.string()),  # BCP 47 primary tag
        pa.field("lang_prob", pa.float32()),  # 0 to 1
        pa.field("segments", pa.list_(SEGMENT), nullable=False),
        pa.field("masks", pa.list_(MASK), nullable=False),
        pa.field("cluster_id", pa.string()),  # doc_id of the near-duplicate cluster's representative
        pa.field("cluster_size", pa.int32()),  # documents in that cluster; 1 for one alone
        pa.field("drop_reason", pa.string()),  # null while the document is in the stream
    ]
)

# What a scorer sees: the document with the bytes of its pictures beside it (see `with_media`).
MEDIUM_REFERENCE = pa.struct(
    [
        pa.field("media_id", pa.string(), nullable=False),
        pa.field("parent_id", pa.string()),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("t_s", pa.float64()),
        pa.field("bytes", pa.large_binary()),
    ]
)
SCHEMA_WITH_MEDIA = SCHEMA.append(pa.field("media", pa.list_(MEDIUM_REFERENCE), nullable=False))


def validate(table: pa.Table | pa.RecordBatch) -> None:
    """Check a documents table against its schema and rules.

    Raises:
        SchemaError: naming the column, and the doc_id where a row breaks a rule.
    """
    check.matches(table, SCHEMA, "documents")
    check.one_of(check.flattened(table["segments"], "kind"), KINDS, "documents.segments.kind")
    check.one_of(check.flattened(table["segments"], "role"), ROLES, "documents.segments.role")
    check.one_of(check.flattened(table["masks"], "action"), ACTIONS, "documents.masks.action")
    _check_segments_hold_text_or_media(table)
    _check_masks_point_into_segments(table)


def _check_segments_hold_text_or_media(table: pa.Table | pa.RecordBatch) -> None:
    is_text = pc.equal(check.flattened(table["segments"], "kind"), "text")
    has_text = pc.is_valid(check.flattened(table["segments"], "text"))
    wrong = pc.index(pc.equal(is_text, has_text), False).as_py()
    if wrong >= 0:
        doc_id = table["doc_id"][check.row_index(table["segments"])[wrong].as_py()]
        raise SchemaError(
            f"documents.segments: in document {doc_id} a segment of kind text has no text, "
            "or one of another kind has some"
        )


def _check_masks_point_into_segments(table: pa.Table | pa.RecordBatch) -> None:
    segments = check.flattened(table["masks"], "segment")
    if len(segments) == 0:
        return
    rows = check.row_index(table["masks"])
    lengths = pc.take(pc.list_value_length(table["segments"]), rows)
    wrong = pc.index(pc.and_(pc.greater_equal(segments, 0), pc.less(segments, lengths)), False).as_py()
    if wrong >= 0:
        raise SchemaError(
            f"documents.masks.segment: {segments[wrong]} is no segment of document "
            f"{table['doc_id'][rows[wrong].as_py()]}"
        )


def with_media(documents: pa.RecordBatch, media_table: pa.Table) -> pa.RecordBatch:
    """Return `documents` with a `media` column: the pictures, videos and frames its segments name, in segment
    order.

    A video's frames follow it in time order. Media that could not be decoded (`error` set) are left out.
    """
    by_id, frames = media.index_by_id(media_table)
    column = []
    for segments in documents["segments"].to_pylist():
        wanted: dict[str, dict] = {}
        for segment in segments:
            row = by_id.get(segment["media_id"])
            if row is not None:
                for found in [row, *frames.get(row["media_id"], [])]:
                    wanted[found["media_id"]] = {f.name: found[f.name] for f in MEDIUM_REFERENCE}
        column.append(list(wanted.values()))
    arrays = [*documents.columns, pa.array(column, type=SCHEMA_WITH_MEDIA.field("media").type)]
    return pa.record_batch(arrays, schema=SCHEMA_WITH_MEDIA)
