"""The dedupe steps of a prepare job, phase by phase.

Owns how signatures are collected, how keys meet in buckets, and how clusters reach the documents they are of;
what a duplicate is, the stages say.

Memory of a worker over its start: 50 MB, `WARM_BYTES` of mapped signatures, and where a bucket is worked on
its keys. One task, that of the clusters, grows with the corpus: by some 500 bytes for each document that has
duplicates, which is all it holds, or 160 for each of a corpus of which a fifth are copies.
"""

import functools
import itertools
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from datapipe.on_ray import Output, finish
from datapipe.spec import DedupeTextSpec
from datapipe.stages import dedupe_text
from jobs.batches import batches_file, one_batch, read_batch
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
WARM_BYTES = 32 * 1024**2  # of mapped signatures, beyond which their pages are given back


def dedupe_text_step(run: RunState, job: PrepareJob, source: str) -> str:
    """Find duplicate documents of the step `source`, by the media clusters of `dedupe_media`."""
    spec = job.dedupe_text
    inputs = (run.id_of(name, "dedupe_text") for name in (source, "dedupe_media"))
    step = run.step("dedupe_text", dedupe_text.VERSION, spec, *inputs)
    source_path = run.path_of(source, "dedupe_text")
    media_path = run.path_of("dedupe_media", "dedupe_text")

    def work() -> shard.Manifest:
        groups = _groups(source_path)
        num_buckets = _num_buckets(source_path, spec)
        sign = functools.partial(_signatures, spec, source_path, media_path, num_buckets)
        run.engine.run_phase(step, sign, list(enumerate(groups)), "signatures")
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
    spec: DedupeTextSpec,
    source_path: str,
    media_path: str,
    num_buckets: int,
    argument: tuple[int, range],
) -> Output:
    group, partitions = argument
    media_clusters = _media_clusters(media_path, source_path, partitions)
    signed = [
        dedupe_text.signatures(batch, spec, media_clusters)
        for batch in _larger_batches(source_path, partitions)
    ]
    table = pa.Table.from_batches(signed, schema=dedupe_text.SIGNATURES)
    keys = batches_file(dedupe_text.KEYS, dedupe_text.keys(table, spec, num_buckets))
    return Output({"signatures": table}, {shard.shard_name("keys", group): keys})


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


def _media_clusters(media_path: str, source_path: str, partitions: range) -> pa.Table:
    """Return the clusters of the media these partitions show."""
    tables = [
        shard.read_table(shard.join(source_path, shard.shard_name("documents", index)))
        for index in partitions
    ]
    shown = [check.flattened(table["segments"], "media_id") for table in tables]
    shown = pc.unique(pa.chunked_array(shown, pa.string()))
    names = shard.read_manifest(media_path).shards("media_clusters")
    clusters = [shard.read_table(shard.join(media_path, name), ["media_id", "cluster_id"]) for name in names]
    found = [table.filter(pc.is_in(table["media_id"], value_set=shown)) for table in clusters]
    return pa.concat_tables(found)


def _pairs(spec: DedupeTextSpec, step_path: str, num_groups: int, bucket: int) -> Output:
    names = [shard.shard_name("keys", group) for group in range(num_groups)]
    keys = [read_batch(step_path, name, bucket) for name in names]
    with _MappedTables(step_path, "signatures", num_groups) as signatures:
        return Output({"pairs": dedupe_text.pairs(keys, signatures, spec)})


def _clusters(
    spec: DedupeTextSpec, source_path: str, step_path: str, groups: list[range], num_buckets: int
) -> Output:
    """Cluster all pairs; batch p of the file `clusters` is of the documents of partition p."""
    with _MappedTables(step_path, "signatures", len(groups)) as signatures:
        clusters = dedupe_text.cluster(read_all(step_path, "pairs", num_buckets), signatures, spec)
    num_rows = [file.num_rows for file in _document_files(source_path)]
    starts = [
        (group << 32) + row
        for group, partitions in enumerate(groups)
        for row in [0, *itertools.accumulate(num_rows[index] for index in partitions[:-1])][: len(partitions)]
    ]
    places = np.searchsorted(clusters["reference"].to_numpy(), np.array(starts, np.uint64)).tolist()
    slices = [
        clusters.slice(start, end - start) for start, end in itertools.pairwise([*places, len(clusters)])
    ]
    num_clusters = clusters["duplicate"].null_count  # each has one document that stays
    return Output(
        files={"clusters.arrow": batches_file(dedupe_text.CLUSTERS, map(one_batch, slices))},
        metrics={"clusters": num_clusters},
    )


def _mark_duplicates(source_path: str, step_path: str, index: int) -> Output:
    clusters = pa.Table.from_batches([read_batch(step_path, "clusters.arrow", index)])
    batches = _larger_batches(source_path, range(index, index + 1))
    return split([dedupe_text.mark(batch, clusters) for batch in batches])


class _MappedTables(Sequence[pa.Table]):
    """The shards of a table, mapped into memory when first asked for; remote ones are copied here for it.

    Mapped pages that were read count as memory of the process until the system wants them back. So they are
    given back here, those of the table used longest ago first, as soon as the tables in use have more than
    `WARM_BYTES`; reading them again costs no more than finding them in the system's cache.
    """

    def __init__(self, step_path: str, table: str, num_shards: int) -> None:
        self.paths = [shard.join(step_path, shard.shard_name(table, index)) for index in range(num_shards)]
        self.tables: dict[int, pa.Table] = {}
        self.maps: dict[int, mmap.mmap] = {}
        self.warm: dict[int, None] = {}  # tables read since their pages were given back, the latest last
        self.warm_bytes = 0
        self.scratch: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.tables.clear()
        self.maps.clear()
        if self.scratch is not None:
            self.scratch.cleanup()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        if index not in self.tables:
            with open(self._local(self.paths[index]), "rb") as file:
                self.maps[index] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.tables[index] = pa.ipc.open_file(pa.py_buffer(self.maps[index])).read_all()
        self._warm(index)
        return self.tables[index]

    def _warm(self, index: int) -> None:
        """Note that a table is read, and give back the pages of others."""
        if index not in self.warm:
            self.warm_bytes += len(self.maps[index])
        self.warm.pop(index, None)
        self.warm[index] = None
        while self.warm_bytes > WARM_BYTES and len(self.warm) > 1:
            oldest = next(iter(self.warm))
            del self.warm[oldest]
            self.warm_bytes -= len(self.maps[oldest])
            self.maps[oldest].madvise(mmap.MADV_DONTNEED)

    def _local(self, path: str) -> str:
        fs, inner = shard.filesystem(path)
        if isinstance(fs, pafs.LocalFileSystem):
            return path
        self.scratch = self.scratch or tempfile.TemporaryDirectory(prefix="omniloom-")
        copy = os.path.join(self.scratch.name, os.path.basename(inner))
        pafs.copy_files(inner, copy, fs, pafs.LocalFileSystem())
        return copy
