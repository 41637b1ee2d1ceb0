"""The `tokens` table: one tokenised document.

Owns the token row. Every token belongs to exactly one span, spans are in order and leave no gap, and each
span names the segment (of the interleaved document) and, where a mask touched it, the reason. `loss_weight` 0
trains nothing.

`images` lists pictures and video segments in stream order. `bytes` is one lossless picture already at model
size:
`grid_h * patch` pixels high for an image, and for a video segment its `grid_t * temporal_patch` frames
stacked from top to bottom. The picture's placeholder tokens are the next `grid_t * grid_h * grid_w / merge²`
placeholder ids from
`token_start` on (for video, timestamps stand between them).
"""

import numpy as np
import pyarrow as pa

from schemas import check
from schemas.errors import SchemaError

SPAN_KINDS = ("text", "image", "video", "special")

SPAN = pa.struct(
    [
        pa.field("start", pa.int32(), nullable=False),
        pa.field("end", pa.int32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field(
            "segment", pa.int32(), nullable=False
        ),  # -1 for tokens of no segment (document begin and end)
        pa.field("loss_weight", pa.float32(), nullable=False),
        pa.field("reason", pa.string()),
    ]
)
IMAGE = pa.struct(
    [
        pa.field("media_id", pa.string(), nullable=False),
        pa.field("token_start", pa.int32(), nullable=False),
        pa.field("grid_t", pa.int32(), nullable=False),  # temporal patches
        pa.field("grid_h", pa.int32(), nullable=False),  # patches
        pa.field("grid_w", pa.int32(), nullable=False),
        pa.field("bytes", pa.large_binary(), nullable=False),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("num_tokens", pa.int32(), nullable=False),
        pa.field("input_ids", pa.large_list(pa.int32()), nullable=False),
        pa.field("spans", pa.list_(SPAN), nullable=False),
        pa.field("images", pa.list_(IMAGE), nullable=False),
    ]
)


def validate(table: pa.Table | pa.RecordBatch) -> None:
    """Check a tokens table: schema, `num_tokens`, spans that tile the tokens, pictures that start inside
    them.

    Raises:
        SchemaError: naming the column and the doc_id.
    """
    check.matches(table, SCHEMA, "tokens")
    check.one_of(check.flattened(table["spans"], "kind"), SPAN_KINDS, "tokens.spans.kind")
    columns = (
        table["doc_id"].to_pylist(),
        table["num_tokens"].to_pylist(),
        table["input_ids"],
        table["spans"],
        table["images"],
    )
    for doc_id, num_tokens, input_ids, spans, images in zip(*columns, strict=True):
        if len(input_ids.values) != num_tokens:
            raise SchemaError(
                f"tokens.num_tokens: {num_tokens} in document {doc_id}, which has {len(input_ids.values)}"
            )
        starts, ends = _field(spans, "start"), _field(spans, "end")
        edges = np.concatenate([[0], ends])
        if (edges[:-1] != starts).any() or (ends <= starts).any() or edges[-1] != num_tokens:
            raise SchemaError(
                f"tokens.spans: the spans of document {doc_id} do not tile its {num_tokens} tokens"
            )
        token_starts = _field(images, "token_start")
        if ((token_starts < 0) | (token_starts >= num_tokens)).any() or (np.diff(token_starts) <= 0).any():
            raise SchemaError(f"tokens.images.token_start: out of order or out of range in document {doc_id}")


def _field(structs: pa.ListScalar, name: str) -> np.ndarray:
    return structs.values.field(name).to_numpy(zero_copy_only=False)
