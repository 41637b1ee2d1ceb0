"""The `scores` table: what one scorer says of documents, or of single segments. One table a scorer, a
sidecar.

Owns the score row. A score that could not be made is null with `error` naming why, never a number: whoever
consumes scores decides what null means.
"""

import pyarrow as pa
import pyarrow.compute as pc

from schemas import check
from schemas.errors import SchemaError

SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("segment", pa.int32()),  # null where the score is of the whole document
        pa.field("scorer", pa.string(), nullable=False),
        pa.field("version", pa.string(), nullable=False),
        pa.field("score", pa.float32()),
        pa.field("uncertainty", pa.float32()),  # standard deviation of the score, where the scorer has one
        pa.field("error", pa.string()),
    ]
)


def validate(table: pa.Table | pa.RecordBatch) -> None:
    """Check a scores table: schema, finite scores, and exactly one of score and error in each row.

    Raises:
        SchemaError: naming the column and the doc_id.
    """
    check.matches(table, SCHEMA, "scores")
    one_only = pc.xor(pc.is_valid(table["score"]), pc.is_valid(table["error"]))
    wrong = pc.index(one_only, False).as_py()
    if wrong >= 0:
        raise SchemaError(f"scores: document {table['doc_id'][wrong]} has both or neither of score and error")
    wrong = pc.index(pc.is_finite(table["score"]), False).as_py()
    if wrong >= 0:
        raise SchemaError(
            f"scores.score: {table['score'][wrong]} of document {table['doc_id'][wrong]} is not finite"
        )
