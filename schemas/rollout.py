"""The `rollouts` table: one RL sample, from prompt to advantage.

Owns the rollout row. `input_ids`, `logprobs` and `loss_mask` have one entry a token of the whole sample;
`logprobs` are the sampling policy's natural logarithms and are 0 where `loss_mask` is false (prompt, tool
results).
"""

import pyarrow as pa
import pyarrow.compute as pc

from schemas import check
from schemas.errors import SchemaError

TURN = pa.struct(
    [pa.field("role", pa.string(), nullable=False), pa.field("text", pa.large_string(), nullable=False)]
)
REWARD = pa.struct(
    [
        pa.field("verifier", pa.string(), nullable=False),
        pa.field("reward", pa.float32()),  # null with an error where the verifier could not judge
        pa.field("error", pa.string()),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),  # id of the task's document
        pa.field("prompt", pa.large_string(), nullable=False),
        pa.field("group", pa.int64(), nullable=False),  # samples of one prompt share a group
        pa.field("turns", pa.list_(TURN), nullable=False),
        pa.field("input_ids", pa.large_list(pa.int32()), nullable=False),
        pa.field("logprobs", pa.large_list(pa.float32()), nullable=False),
        pa.field("loss_mask", pa.large_list(pa.bool_()), nullable=False),
        pa.field("rewards", pa.list_(REWARD), nullable=False),
        pa.field("advantage", pa.float32(), nullable=False),
        pa.field("policy_step", pa.int64(), nullable=False),  # optimiser steps the sampling policy had taken
    ]
)


def validate(table: pa.Table | pa.RecordBatch) -> None:
    """Check a rollouts table: schema, finite advantages, and equal lengths of ids, logprobs and loss mask.

    Raises:
        SchemaError: naming the column.
    """
    check.matches(table, SCHEMA, "rollouts")
    length = pc.list_value_length(table["input_ids"])
    for name in ("logprobs", "loss_mask"):
        if pc.index(pc.equal(pc.list_value_length(table[name]), length), False).as_py() >= 0:
            raise SchemaError(f"rollouts.{name}: not one entry a token")
    if pc.index(pc.is_finite(table["advantage"]), False).as_py() >= 0:
        raise SchemaError("rollouts.advantage: not finite")
