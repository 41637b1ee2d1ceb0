"""How a pure stage over documents becomes a step: one task for each partition, its rows split and counted.

Owns the map stage, what every stage over documents does with its output, and reading media without their
bytes. Stages that look at all documents at once have their phases in `jobs.dedupe` and `jobs.mask`.
"""

import functools
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from datapipe.on_ray import Output, finish
from jobs.state import RunState, partition_numbers, read_batches
from schemas import document, media, shard


def document_stage(
    run: RunState,
    name: str,
    version: str,
    stage: Callable[..., pa.RecordBatch],
    spec: BaseModel,
    source: str,
    max_drop_frac: float = 1.0,
) -> str:
    """Run a stage over the documents of the step `source`; return the new step's name."""
    step = run.step(name, version, spec, run.id_of(source, name))
    source_path = run.path_of(source, name)

    def work() -> shard.Manifest:
        task = functools.partial(_stage_partition, functools.partial(stage, spec=spec), source_path)
        records = run.engine.run_phase(step, task, partition_numbers(source_path, "documents"))
        return finish(step, records, "documents", max_drop_frac)

    run.commit(step, work)
    return name


def media_stage(
    run: RunState,
    name: str,
    version: str,
    stage: Callable[..., pa.RecordBatch],
    spec: BaseModel,
    source: str,
) -> str:
    """Run a stage over the documents of the step `source` and the media they show, bytes and all."""
    step = run.step(name, version, spec, run.id_of(source, name), run.id_of("ingest", name))
    source_path, media_path = run.path_of(source, name), run.path_of("ingest", name)

    def work() -> shard.Manifest:
        with_spec = functools.partial(stage, spec=spec)
        task = functools.partial(_media_stage_partition, with_spec, source_path, media_path)
        records = run.engine.run_phase(step, task, partition_numbers(source_path, "documents"))
        return finish(step, records, "documents")

    run.commit(step, work)
    return name


def _media_stage_partition(
    stage: Callable[[pa.RecordBatch, pa.Table], pa.RecordBatch], source_path: str, media_path: str, index: int
) -> Output:
    media_table = shard.read_table(shard.join(media_path, shard.shard_name("media", index)))
    return split([stage(batch, media_table) for batch in read_batches(source_path, "documents", index)])


def _stage_partition(
    stage: Callable[[pa.RecordBatch], pa.RecordBatch], source_path: str, index: int
) -> Output:
    return split([stage(batch) for batch in read_batches(source_path, "documents", index)])


def split(batches: list[pa.RecordBatch]) -> Output:
    """Part a stage's rows into those that stay and those it dropped, and count its masks."""
    table = pa.Table.from_batches(batches, schema=document.SCHEMA)
    stays = pc.is_null(table["drop_reason"])
    dropped = table.filter(pc.invert(stays))
    kept = table.filter(stays)
    masks = Counter(mask["reason"] for row in kept["masks"].to_pylist() for mask in row)
    return Output(
        {"documents": kept, "dropped": dropped},
        rows_in=table.num_rows,
        dropped=dict(sorted(Counter(dropped["drop_reason"].to_pylist()).items())),
        metrics={f"masks_{reason}": n for reason, n in sorted(masks.items())},
    )


def media_without_bytes(media_path: str, index: int) -> pa.Table:
    """Return the media of a partition without their bytes."""
    table = shard.read_table(shard.join(media_path, shard.shard_name("media", index)))
    return table.set_column(
        table.schema.get_field_index("bytes"),
        media.SCHEMA.field("bytes"),
        pa.nulls(table.num_rows, pa.large_binary()),
    )
