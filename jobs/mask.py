"""The mask steps of a prepare job that look at more than one document, phase by phase.

Owns how occurrences are collected, reduced and marked over partitions; what a mask means, the stages say.
"""

import functools
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from datapipe.on_ray import Output, finish
from datapipe.spec import MaskMediaSpec, MaskRepeatsSpec
from datapipe.stages import mask_media, mask_repeats
from jobs.batches import batches_file, one_batch, read_batch
from jobs.spec import PrepareJob
from jobs.stages import media_without_bytes, split
from jobs.state import RunState, partition_numbers, read_all, read_batches
from schemas import shard

# Partitions are counted in groups, for each bucket of keys opens a file of each group. A bucket has the keys
# of so many bytes of documents: a hundred thousand or two, which take 100 MB while they are summed. What is
# repeated is written for each group apart, so that its partitions read what is theirs.
GROUP_PARTITIONS = 16
BUCKET_BYTES = 16 * 1024**2
MAX_PENDING_ROWS = 2**18


def mask_repeats_step(run: RunState, job: PrepareJob, source: str) -> str:
    """Mask text that is repeated; `source` is the step whose documents are looked at."""
    spec = job.mask_repeats
    step = run.step("mask_repeats", mask_repeats.VERSION, spec, run.id_of(source, "mask_repeats"))
    source_path = run.path_of(source, "mask_repeats")

    def work() -> shard.Manifest:
        partitions = partition_numbers(source_path, "documents")
        groups = [partitions[i : i + GROUP_PARTITIONS] for i in range(0, len(partitions), GROUP_PARTITIONS)]
        num_buckets = _num_buckets(source_path)

        def reduced(counts: str, repeated: str) -> None:
            reduce = functools.partial(_repeated_text, spec, step.path, len(groups), counts, repeated)
            run.engine.run_phase(step, reduce, range(num_buckets), repeated)

        count = functools.partial(_counts, spec, source_path, num_buckets)
        run.engine.run_phase(step, count, list(enumerate(groups)), "counts")
        run.engine.run_phase(step, functools.partial(_sites, spec, step.path), [len(groups)], "sites")
        reduced("counts", "repeated_lines")
        count_texts = functools.partial(_text_counts, spec, source_path, step.path, num_buckets)
        run.engine.run_phase(step, count_texts, list(enumerate(groups)), "text_counts")
        reduced("text_counts", "repeated")
        task = functools.partial(_mark_repeats, spec, source_path, step.path, num_buckets)
        records = run.engine.run_phase(step, task, partitions)
        return finish(step, records, "documents")

    run.commit(step, work)
    return "mask_repeats"


def _num_buckets(source_path: str) -> int:
    files = shard.read_manifest(source_path).files
    size = sum(file.size_bytes for file in files if shard.table_of(file.name) == "documents")
    return max(1, -(-size // BUCKET_BYTES))


def _counts(spec: MaskRepeatsSpec, source_path: str, num_buckets: int, argument: tuple[int, range]) -> Output:
    group, partitions = argument
    tables = [mask_repeats.counts(batch, spec) for batch in _batches_of(source_path, partitions)]
    counts = mask_repeats.merged(pa.concat_tables(tables))
    sites = counts.filter(pc.equal(counts["kind"], "site"))
    return Output({"site_counts": sites}, _by_bucket("counts", group, counts, num_buckets))


def _text_counts(
    spec: MaskRepeatsSpec, source_path: str, step_path: str, num_buckets: int, argument: tuple[int, range]
) -> Output:
    group, partitions = argument
    lines = _repeated_in(step_path, ["repeated_lines"], num_buckets, group)
    tables = [mask_repeats.text_counts(batch, lines, spec) for batch in _batches_of(source_path, partitions)]
    counts = mask_repeats.merged(pa.concat_tables(tables))
    return Output(files=_by_bucket("text_counts", group, counts, num_buckets))


def _batches_of(source_path: str, partitions: range) -> Iterator[pa.RecordBatch]:
    for index in partitions:
        yield from read_batches(source_path, "documents", index)


def _by_bucket(name: str, group: int, counts: pa.Table, num_buckets: int) -> dict[str, bytes]:
    batches = mask_repeats.in_buckets(counts, num_buckets)
    return {shard.shard_name(name, group): batches_file(mask_repeats.COUNTS, batches)}


def _sites(spec: MaskRepeatsSpec, step_path: str, num_groups: int) -> Output:
    return Output({"sites": mask_repeats.large_sites(read_all(step_path, "site_counts", num_groups), spec)})


def _repeated_text(
    spec: MaskRepeatsSpec, step_path: str, num_groups: int, counts: str, repeated: str, bucket: int
) -> Output:
    """Sum the counts of a bucket; batch g of the file is of what is repeated and stands in group g."""
    sites = shard.read_table(shard.join(step_path, shard.shard_name("sites", 0)))
    names = [shard.shard_name(counts, group) for group in range(num_groups)]
    total = pending = mask_repeats.COUNTS.empty_table()
    for name in names:
        pending = pa.concat_tables([pending, pa.Table.from_batches([read_batch(step_path, name, bucket)])])
        if pending.num_rows > max(MAX_PENDING_ROWS, total.num_rows):
            total, pending = mask_repeats.merged(pa.concat_tables([total, pending])), pending.slice(0, 0)
    found = mask_repeats.repeated(pa.concat_tables([total, pending]), sites, spec)
    of_groups = (
        one_batch(found.filter(pc.is_in(found["key"], read_batch(step_path, name, bucket)["key"])))
        for name in names
    )
    return Output(files={shard.shard_name(repeated, bucket): batches_file(mask_repeats.REPEATED, of_groups)})


def _repeated_in(step_path: str, tables: list[str], num_buckets: int, group: int) -> pa.Table:
    """Return what is repeated and stands in a group."""
    names = [shard.shard_name(table, bucket) for table in tables for bucket in range(num_buckets)]
    return pa.Table.from_batches([read_batch(step_path, name, group) for name in names])


def _mark_repeats(
    spec: MaskRepeatsSpec, source_path: str, step_path: str, num_buckets: int, index: int
) -> Output:
    group = index // GROUP_PARTITIONS
    repeated = _repeated_in(step_path, ["repeated_lines", "repeated"], num_buckets, group)
    return split(
        [mask_repeats.mark(batch, repeated, spec) for batch in read_batches(source_path, "documents", index)]
    )


def mask_media_step(run: RunState, job: PrepareJob, source: str) -> str:
    """Mask pictures that carry no content; `source` is the step whose documents are looked at."""
    step = run.step(
        "mask_media",
        mask_media.VERSION,
        job.mask_media,
        run.id_of(source, "mask_media"),
        run.id_of("ingest", "mask_media"),
        run.id_of("dedupe_media", "mask_media"),
    )
    source_path, media_path = run.path_of(source, "mask_media"), run.path_of("ingest", "mask_media")
    clusters_path = run.path_of("dedupe_media", "mask_media")

    def work() -> shard.Manifest:
        partitions, spec = partition_numbers(source_path, "documents"), job.mask_media
        find = functools.partial(_occurrences, spec, source_path, media_path, clusters_path)
        run.engine.run_phase(step, find, partitions, "occurrences")
        run.engine.run_phase(
            step, functools.partial(_repeated, spec, step.path), [len(partitions)], "repeated"
        )
        task = functools.partial(_mark_media, spec, source_path, media_path, clusters_path, step.path)
        records = run.engine.run_phase(step, task, partitions)
        return finish(step, records, "documents")

    run.commit(step, work)
    return "mask_media"


def _occurrences(
    spec: MaskMediaSpec, source_path: str, media_path: str, clusters_path: str, index: int
) -> Output:
    media = media_without_bytes(media_path, index)
    clusters = shard.read_table(shard.join(clusters_path, shard.shard_name("media_clusters", 0)))
    batches = [
        mask_media.occurrences(batch, media, clusters, spec)
        for batch in read_batches(source_path, "documents", index)
    ]
    return Output({"occurrences": pa.Table.from_batches(batches)})


def _repeated(spec: MaskMediaSpec, step_path: str, num_partitions: int) -> Output:
    return Output({"repeated": mask_media.repeated(read_all(step_path, "occurrences", num_partitions), spec)})


def _mark_media(
    spec: MaskMediaSpec, source_path: str, media_path: str, clusters_path: str, step_path: str, index: int
) -> Output:
    repeated = shard.read_table(shard.join(step_path, shard.shard_name("repeated", 0)))
    media = media_without_bytes(media_path, index)
    clusters = shard.read_table(shard.join(clusters_path, shard.shard_name("media_clusters", 0)))
    return split(
        [
            mask_media.mark(batch, media, clusters, repeated, spec)
            for batch in read_batches(source_path, "documents", index)
        ]
    )
