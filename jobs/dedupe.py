"""The dedupe steps of a prepare job, phase by phase.

Owns how signatures are collected, how keys meet in buckets, and how clusters reach the documents they are of;
what a duplicate is, the stages say.
"""

import functools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.on_ray import Output, finish
from datapipe.spec import DedupeTextSpec
from datapipe.stages import dedupe_text
from jobs.spec import PrepareJob
from jobs.stages import split
from jobs.state import RunState, partition_numbers, read_all, read_batches
from schemas import check, shard

# Partitions are signed in groups: many small files would be opened once for each bucket.
GROUPS = 1000
MIN_GROUP_BYTES, MAX_GROUP_BYTES = 8 * 1024**2, 128 * 1024**2
BATCH_ROWS, BATCH_BYTES = 256, 8 * 1024**2  # documents looked at together
# Buckets of keys: enough to share the work, and none above 4 million keys (100 MB while it is worked on).
SHARED_KEYS, MAX_KEYS, SHARED_BUCKETS = 2**17, 2**22, 64


def dedupe_text_step(run: RunState, job: PrepareJob, source: str) -> str:
    """Find duplicate documents of the step `source`."""
    spec, media = job.dedupe_text, "dedupe_media"
    inputs = [source, media] if media in run.steps else [source]
    step = run.step(
        "dedupe_text", dedupe_text.VERSION, spec, *(run.id_of(name, "dedupe_text") for name in inputs)
    )
    source_path = run.path_of(source, "dedupe_text")
    media_path = run.path_of(media, "dedupe_text") if media in inputs else None

    def work() -> shard.Manifest:
        groups = _groups(source_path)
        num_buckets = _num_buckets(source_path, spec)
        sign = functools.partial(_signatures, spec, source_path, media_path, num_buckets)
        run.engine.run_phase(step, sign, groups, "signatures")
        compare = functools.partial(_pairs, spec, step.path, len(groups))
        run.engine.run_phase(step, compare, range(num_buckets), "pairs")
        join = functools.partial(_clusters, spec, source_path, step.path, groups)
        clusters = run.engine.run_phase(step, join, [num_buckets], "clusters")
        task = functools.partial(_mark_duplicates, source_path, step.path)
        records = run.engine.run_phase(step, task, partition_numbers(source_path, "documents"))
        counted = [{**record, "files": []} for record in clusters]
        return finish(step, [*counted, *records], "documents", spec.max_drop_frac)

    run.commit(step, work)
    return "dedupe_text"


def _document_files(source_path: str) -> list[shard.ShardFile]:
    return [
        file for file in shard.read_manifest(source_path).files if shard.table_of(file.name) == "documents"
    ]


def _groups(source_path: str) -> list[range]:
    """Return runs of partitions to sign together, of about a thousandth of the corpus."""
    sizes = [file.size_bytes for file in _document_files(source_path)]
    limit = min(max(sum(sizes) // GROUPS, MIN_GROUP_BYTES), MAX_GROUP_BYTES)
    groups, start, size = [], 0, 0
    for index, more in enumerate(sizes):
        if index > start and size + more > limit:
            groups.append(range(start, index))
            start, size = index, 0
        size += more
    return [*groups, range(start, len(sizes))]


def _num_buckets(source_path: str, spec: DedupeTextSpec) -> int:
    num_keys = sum(file.num_rows for file in _document_files(source_path)) * (spec.num_bands + 1)
    return max(-(-num_keys // MAX_KEYS), min(-(-num_keys // SHARED_KEYS), SHARED_BUCKETS), 1)


def _signatures(
    spec: DedupeTextSpec, source_path: str, media_path: str | None, num_buckets: int, partitions: range
) -> Output:
    media_clusters = _media_clusters(media_path, source_path, partitions)
    signed = [
        dedupe_text.signatures(batch, spec, media_clusters)
        for batch in _larger_batches(source_path, partitions)
    ]
    table = pa.Table.from_batches(signed, schema=dedupe_text.SIGNATURES)
    return Output({"signatures": table, "keys": dedupe_text.keys(table, spec, num_buckets)})


def _larger_batches(source_path: str, partitions: range) -> Iterator[pa.RecordBatch]:
    """Yield the batches of these partitions, joined to `BATCH_ROWS` rows or `BATCH_BYTES` bytes."""
    waiting: list[pa.RecordBatch] = []
    rows, size = 0, 0
    for index in partitions:
        for batch in read_batches(source_path, "documents", index):
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.get_total_buffer_size()
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield pa.concat_batches(waiting)
                waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)


def _media_clusters(media_path: str | None, source_path: str, partitions: range) -> pa.Table | None:
    """Return the clusters of the media these partitions show, where the step that finds them has run."""
    if media_path is None:
        return None
    tables = [_read(source_path, "documents", index) for index in partitions]
    shown = pc.unique(pa.concat_arrays([check.flattened(table["segments"], "media_id") for table in tables]))
    names = shard.read_manifest(media_path).shards("media_clusters")
    clusters = [shard.read_table(shard.join(media_path, name), ["media_id", "cluster_id"]) for name in names]
    found = [table.filter(pc.is_in(table["media_id"], value_set=shown)) for table in clusters]
    return pa.concat_tables(found) if found else None


def _pairs(spec: DedupeTextSpec, step_path: str, num_groups: int, bucket: int) -> Output:
    keys = [_read(step_path, "keys", group).slice(bucket, 1) for group in range(num_groups)]
    signatures = [_read(step_path, "signatures", group) for group in range(num_groups)]
    return Output({"pairs": dedupe_text.pairs(keys, signatures, spec)})


def _clusters(
    spec: DedupeTextSpec, source_path: str, step_path: str, groups: list[range], num_buckets: int
) -> Output:
    """Cluster all pairs; `cluster_starts` says where the documents of each partition start in `clusters`."""
    signatures = [_read(step_path, "signatures", group) for group in range(len(groups))]
    clusters = dedupe_text.cluster(read_all(step_path, "pairs", num_buckets), signatures, spec)
    num_rows = [file.num_rows for file in _document_files(source_path)]
    starts = [
        (number << 32) + sum(num_rows[partitions.start : index])
        for number, partitions in enumerate(groups)
        for index in partitions
    ]
    places = np.searchsorted(clusters["reference"].to_numpy(), np.array(starts, np.uint64))
    table = pa.table({"start": pa.array([*places.tolist(), clusters.num_rows], pa.int64())})
    num_clusters = (
        clusters.num_rows - pc.sum(pc.is_valid(clusters["duplicate"])).as_py() if len(clusters) else 0
    )
    return Output({"clusters": clusters, "cluster_starts": table}, metrics={"clusters": num_clusters})


def _mark_duplicates(source_path: str, step_path: str, index: int) -> Output:
    start, end = _read(step_path, "cluster_starts", 0)["start"].slice(index, 2).to_pylist()
    clusters = _read(step_path, "clusters", 0).slice(start, end - start).combine_chunks()
    return split(
        [dedupe_text.mark(batch, clusters) for batch in _larger_batches(source_path, range(index, index + 1))]
    )


def _read(step_path: str, table: str, index: int) -> pa.Table:
    return shard.read_table(shard.join(step_path, shard.shard_name(table, index)))
