"""The `plan` table: which token spans make which training sequence, with which weight.

Owns the plan row. Rows are in training order (by sequence, then position), so a trainer's place in the data
is one integer: the number of sequences it has taken.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas import check
from schemas.errors import SchemaError

SCHEMA = pa.schema(
    [
        pa.field("sequence", pa.int64(), nullable=False),  # 0, 1, 2 ... in training order
        pa.field("position", pa.int32(), nullable=False),  # token offset of the span in its sequence
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),  # file name inside the tokens step
        pa.field("row", pa.int32(), nullable=False),  # row in that file
        pa.field("start", pa.int32(), nullable=False),  # token span [start, end) of that row
        pa.field("end", pa.int32(), nullable=False),
        pa.field("weight", pa.float32(), nullable=False),  # multiplies the span's loss weights
        pa.field("stratum", pa.string(), nullable=False),
    ]
)


def validate(table: pa.Table | pa.RecordBatch) -> None:
    """Check a plan: schema, non-empty spans, and sequences numbered from 0 whose spans follow without a gap.

    Raises:
        SchemaError: naming the column and the sequence.
    """
    check.matches(table, SCHEMA, "plan")
    if table.num_rows == 0:
        return
    if pc.min(pc.subtract(table["end"], table["start"])).as_py() <= 0:
        raise SchemaError("plan: a span is empty or reversed")
    sequence, position = table["sequence"].to_numpy(), table["position"].to_numpy()
    length = table["end"].to_numpy() - table["start"].to_numpy()
    begins = np.concatenate([[True], np.diff(sequence) != 0])
    expected = np.where(begins, 0, np.concatenate([[0], position[:-1] + length[:-1]]))
    numbered = np.cumsum(begins) - 1
    wrong = np.flatnonzero((expected != position) | (numbered != sequence))
    if len(wrong):
        raise SchemaError(
            f"plan.position: sequence {sequence[wrong[0]]} has a gap, an overlap or a wrong number"
        )
