"""Files of a phase of which each batch is read by itself.

Owns writing and reading them; what the batches are, the phases say: a bucket of keys, say, that one task of
the next phase reads from the files of all tasks before, and nothing else of these.
"""

from collections.abc import Iterable

import pyarrow as pa

from schemas import shard


def batches_file(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> bytes:
    """Return an Arrow file with exactly these batches, empty ones too."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one batch, also when it has no rows."""
    return (table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)])[0]


def read_batch(step_path: str, name: str, number: int) -> pa.RecordBatch:
    """Return one batch of such a file."""
    return pa.ipc.open_file(shard.open_buffer(shard.join(step_path, name))).get_batch(number)
